use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

const T: TenantId = TenantId::NIL;
const P: &str = "memories/notes/a.md";

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("tenants")).unwrap();
    (dir, store)
}

fn real(dir: &tempfile::TempDir, path: &str) -> std::path::PathBuf {
    dir.path().join("tenants").join(T.to_string()).join(path)
}

/// A tenant's quota, and an invocation without one.
fn within(tenant: u64) -> Allowance {
    Allowance { tenant, written: Arc::default(), invocation: u64::MAX }
}

/// What a file of so many bytes costs on the file system of `store`.
fn cost(store: &Store, size: u64) -> u64 {
    store.block.cost(size)
}

fn leftovers(dir: &tempfile::TempDir) -> usize {
    fs::read_dir(real(dir, ".tmp")).unwrap().count()
}

/// Of class `quota_exceeded`.
fn is_quota(e: &MemoryError) -> bool {
    use MemoryError::{DiskFull, InvocationFull, TenantFull};
    matches!(e, TenantFull { .. } | InvocationFull { .. } | DiskFull(_))
}

#[test]
fn what_was_written_is_read_and_replaced_as_a_whole() {
    let (dir, store) = store();
    assert!(matches!(store.read(T, P), Err(MemoryError::NotFound { .. })));
    assert!(!real(&dir, "").exists(), "reading makes nothing");
    let first = store.write(T, P, b"one", &within(TENANT_QUOTA)).unwrap();
    assert!(!first.replaced);
    let read = store.read(T, P).unwrap();
    assert_eq!((read.bytes.as_slice(), &read.sha256), (b"one".as_slice(), &first.sha256));
    assert_eq!(first.sha256, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
    let mut held = File::open(real(&dir, P)).unwrap();
    assert!(store.write(T, P, b"two", &within(TENANT_QUOTA)).unwrap().replaced);
    assert_eq!(store.read(T, P).unwrap().bytes, b"two");
    let mut old = String::new();
    held.read_to_string(&mut old).unwrap();
    assert_eq!(old, "one", "whoever had it open goes on seeing the old content");
    assert_eq!(real(&dir, P).metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(real(&dir, "memories/notes").metadata().unwrap().mode() & 0o7777, 0o700);
    assert_eq!(leftovers(&dir), 0);
}

#[test]
fn a_tenant_never_reads_anothers() {
    let (_dir, store) = store();
    let other: TenantId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
    store.write(T, P, b"mine", &within(TENANT_QUOTA)).unwrap();
    assert!(matches!(store.read(other, P), Err(MemoryError::NotFound { .. })));
    for path in [format!("memories/../../{T}/{P}"), format!("memories/../{P}"), format!("../{T}/{P}")] {
        assert!(matches!(store.read(other, &path), Err(MemoryError::BadPath { .. })), "{path}");
        assert!(matches!(
            store.write(other, &path, b"x", &within(TENANT_QUOTA)),
            Err(MemoryError::BadPath { .. })
        ));
    }
}

#[test]
fn a_path_that_is_not_canonical_is_refused_here_too() {
    let (_dir, store) = store();
    let deep = format!("memories{}", "/a".repeat(MAX_DEPTH));
    let long = format!("memories/{}", "a".repeat(256));
    let bad = [
        "",
        "memories",
        "memories/",
        "/memories/a",
        "memories//a",
        "memories/./a",
        "memories/a/..",
        "memory/a",
        "memories\\a",
        ".tmp/a",
        "memories/a\0b",
        &deep,
        &long,
        &"memories/a".repeat(200),
    ];
    for path in bad {
        assert!(matches!(store.read(T, path), Err(MemoryError::BadPath { .. })), "{path:?}");
        assert!(
            matches!(store.write(T, path, b"", &within(TENANT_QUOTA)), Err(MemoryError::BadPath { .. })),
            "{path:?}"
        );
    }
    for path in ["memories/..hidden/ý.md", "memories/a\nb", "memories/-rf", "memories/.tmp"] {
        store.write(T, path, b"x", &within(TENANT_QUOTA)).unwrap();
        assert_eq!(store.read(T, path).unwrap().bytes, b"x");
    }
}

#[test]
fn nothing_that_lies_in_the_tree_leads_out_of_it_or_blocks() {
    let (dir, store) = store();
    store.write(T, P, b"x", &within(TENANT_QUOTA)).unwrap();
    let secret = dir.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("a.md"), "secret").unwrap();
    symlink(&secret, real(&dir, "memories/link")).unwrap();
    symlink(secret.join("a.md"), real(&dir, "memories/link.md")).unwrap();
    symlink("notes", real(&dir, "memories/inside")).unwrap();
    nix::unistd::mkfifo(&real(&dir, "memories/fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(real(&dir, "memories/socket")).unwrap();
    for path in [
        "memories/link/a.md",
        "memories/link.md",
        "memories/inside/a.md",
        "memories/fifo",
        "memories/socket",
        "memories/notes",
        "memories/notes/a.md/below",
    ] {
        assert!(matches!(store.read(T, path), Err(MemoryError::NotAFile { .. })), "read {path}");
        let before = store.used(T);
        assert!(
            matches!(store.write(T, path, b"y", &within(TENANT_QUOTA)), Err(MemoryError::NotAFile { .. })),
            "write {path}"
        );
        assert_eq!(store.used(T), before, "a failed write costs nothing");
    }
    assert_eq!(fs::read_to_string(secret.join("a.md")).unwrap(), "secret");
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
    assert_eq!(leftovers(&dir), 0);
    // A tenant's directory that is a link is none.
    let other: TenantId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
    symlink(&secret, dir.path().join("tenants").join(other.to_string())).unwrap();
    assert!(store.read(other, P).is_err() && store.write(other, P, b"", &within(TENANT_QUOTA)).is_err());
    assert!(Store::open(&dir.path().join("tenants")).is_err(), "and a start says so");
}

#[test]
fn the_quota_holds_across_replacements_failures_and_restarts() {
    let (dir, store) = store();
    let quota = 10 * 4096;
    // memories, notes and one block.
    store.write(T, P, &[1; 4096], &within(quota)).unwrap();
    // A tenant's own .tmp is counted at a start as well.
    let used = store.used(T);
    store.write(T, P, &[2; 100], &within(quota)).unwrap();
    assert_eq!(store.used(T), used, "a replaced file costs once");
    let mut written = 1;
    let refused = loop {
        match store.write(T, &format!("memories/notes/{written}"), b"", &within(quota)) {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
    };
    assert!(is_quota(&refused), "{refused}");
    assert!(matches!(refused, MemoryError::TenantFull { quota: 40_960, needed: 4096, .. }));
    assert!(written < 10, "empty files are not free");
    let full = store.used(T);
    assert!(store.write(T, "memories/new/x", b"", &within(quota)).is_err_and(|e| is_quota(&e)));
    assert!(!real(&dir, "memories/new").exists());
    assert!(matches!(
        store.write(T, P, &vec![0; usize::try_from(MAX_FILE).unwrap() + 1], &within(u64::MAX)),
        Err(MemoryError::TooLarge { size, .. }) if size == MAX_FILE + 1
    ));
    drop(store);
    let store = Store::open(&dir.path().join("tenants")).unwrap();
    assert_eq!(store.used(T), full);
    assert!(store.write(T, "memories/notes/x", b"", &within(quota)).is_err_and(|e| is_quota(&e)));
}

#[test]
fn an_invocation_pays_for_every_block_that_its_writes_take_and_for_nothing_else() {
    let (dir, store) = store();
    let unit = cost(&store, 0);
    let allowed = Allowance { invocation: 10 * unit, ..within(TENANT_QUOTA) };
    let write = |path: &str, size: u64| {
        store
            .write(T, path, &vec![7; usize::try_from(size).unwrap()], &allowed)
            .map(|_| allowed.written.bytes())
    };
    // The file, memories and a.
    assert_eq!(write("memories/a/x", 1).unwrap(), 3 * unit);
    assert_eq!(
        write("memories/a/x", unit + 1).unwrap(),
        5 * unit,
        "what is replaced was written all the same"
    );
    assert!(matches!(write("memories/a", 1), Err(MemoryError::NotAFile { .. })));
    assert!(matches!(write("memories/a/x/y/z", 1), Err(MemoryError::NotAFile { .. })));
    assert_eq!(allowed.written.bytes(), 5 * unit, "a failed write takes nothing");
    let refused = write("memories/b/c/d/e/f/x", 1).unwrap_err();
    assert!(matches!(refused, MemoryError::InvocationFull { written, quota, needed }
        if (written, quota, needed) == (5 * unit, 10 * unit, 6 * unit)));
    assert!(!real(&dir, "memories/b").exists(), "nothing is made of a write that is refused");
    assert_eq!(write("memories/b/c/d/e/x", 0).unwrap(), 10 * unit);
    assert!(write("memories/a/x", 0).is_err_and(|e| is_quota(&e)));
    let used = store.used(T);
    drop(store);
    assert_eq!(Store::open(&dir.path().join("tenants")).unwrap().used(T), used);
}

#[test]
fn a_directory_that_grows_is_paid_for() {
    let (dir, store) = store();
    let allowed = within(TENANT_QUOTA);
    for n in 0..100 {
        // Names so long that few fit into a block.
        store.write(T, &format!("memories/{n:03}{}", "n".repeat(250)), b"", &allowed).unwrap();
    }
    let files = 100 * cost(&store, 0);
    let grown = real(&dir, "memories").metadata().unwrap().blocks() * 512;
    assert!(grown > cost(&store, 0), "this file system's directories don't grow: {grown}");
    assert_eq!(allowed.written.bytes(), files + grown);
}

#[test]
fn what_an_operator_removes_can_be_used_again_without_a_restart() {
    let (dir, store) = store();
    let quota = 8 * cost(&store, 0);
    let full = |n: usize| store.write(T, &format!("memories/{n}"), b"", &within(quota));
    let fits = (0..).take_while(|n| full(*n).is_ok()).count();
    for n in 0..fits {
        fs::remove_file(real(&dir, &format!("memories/{n}"))).unwrap();
    }
    assert!(full(0).is_err_and(|e| is_quota(&e)), "counting is not repeated at every refusal");
    let tenant = store.tenant(T, false).unwrap().unwrap();
    *tenant.counted.write().unwrap() = Instant::now().checked_sub(RECOUNT).unwrap();
    assert_eq!((0..).take_while(|n| full(*n).is_ok()).count(), fits);
}

#[test]
fn a_file_that_grew_too_large_is_not_read() {
    let (dir, store) = store();
    store.write(T, P, b"x", &within(TENANT_QUOTA)).unwrap();
    File::options().write(true).open(real(&dir, P)).unwrap().set_len(MAX_FILE + 1).unwrap();
    assert!(matches!(store.read(T, P), Err(MemoryError::TooLarge { .. })));
}

#[test]
fn a_start_sweeps_what_did_not_finish_and_nothing_else() {
    let (dir, store) = store();
    store.write(T, P, b"x", &within(TENANT_QUOTA)).unwrap();
    drop(store);
    fs::write(real(&dir, ".tmp/0123"), "half").unwrap();
    fs::create_dir(dir.path().join("tenants/not-a-tenant")).unwrap();
    let store = Store::open(&dir.path().join("tenants")).unwrap();
    assert_eq!(leftovers(&dir), 0);
    assert_eq!(store.read(T, P).unwrap().bytes, b"x");
    assert!(dir.path().join("tenants/not-a-tenant").read_dir().unwrap().next().is_none());
}

/// A file system of 1 MiB.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(at: &Path) -> Self {
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, at, tmpfs, nix::mount::MsFlags::empty(), Some("size=1m"))
            .expect("this test needs root, to mount a small file system");
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn below_five_percent_free_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let _mounted = Mounted::new(dir.path());
    let store = Store::open(&dir.path().join("tenants")).unwrap();
    let mut written = 0;
    let refused = loop {
        match store.write(T, &format!("memories/{written}"), &[7; 8192], &within(TENANT_QUOTA)) {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
    };
    let fs = nix::sys::statvfs::fstatvfs(&store.tenants).unwrap();
    let (free, all) = (fs.blocks_available(), fs.blocks());
    assert_eq!(store.read(T, "memories/0").unwrap().bytes, [7; 8192], "reading goes on");
    assert!(matches!(refused, MemoryError::DiskFull(_)), "{refused}");
    assert!(written > 50 && free * 100 >= all * 5, "{written} written, {free} of {all} blocks free");
}

#[test]
fn a_directory_that_may_not_be_written_is_a_failure_and_no_refusal() {
    let (dir, store) = store();
    store.write(T, P, b"x", &within(TENANT_QUOTA)).unwrap();
    fs::set_permissions(real(&dir, "memories"), fs::Permissions::from_mode(0o500)).unwrap();
    // Root may still write: then it must simply work.
    match store.write(T, "memories/b", b"", &within(TENANT_QUOTA)) {
        Ok(_) => assert!(nix::unistd::geteuid().is_root()),
        Err(e) => assert!(!is_quota(&e) && e.to_string().contains("memories/b"), "{e}"),
    }
}

#[test]
fn concurrent_writers_of_one_path_leave_one_whole_content_and_a_right_sum() {
    let (_dir, store) = store();
    std::thread::scope(|s| {
        for letter in [b'a', b'b', b'c', b'd'] {
            let store = &store;
            s.spawn(move || {
                for n in 0..20usize {
                    store.write(T, P, &vec![letter; 1 + n * 1000], &within(TENANT_QUOTA)).unwrap();
                    let read = store.read(T, P).unwrap().bytes;
                    assert!(read.iter().all(|b| *b == read[0]), "two contents mixed");
                }
            });
        }
    });
    let size = store.read(T, P).unwrap().bytes.len() as u64;
    let directories = 3 * cost(&store, 0) - cost(&store, 0);
    assert_eq!(store.used(T) - cost(&store, size) - directories, cost(&store, 0), "and .tmp");
}

const CHILD: &str = "CYBEROS_TEST_MEMORY_CHILD";

/// What the next test runs in a process that it kills.
#[test]
fn child_of_the_next_test() {
    let Some(tenants) = std::env::var_os(CHILD) else { return };
    let store = Store::open(Path::new(&tenants)).unwrap();
    for letter in (b'a'..=b'z').cycle() {
        store.write(T, P, &vec![letter; 300_000], &within(TENANT_QUOTA)).unwrap();
        println!("\nwritten");
    }
}

#[test]
fn a_killed_writer_leaves_the_old_or_the_new_content() {
    use std::io::{BufRead, BufReader};
    let (dir, store) = store();
    drop(store);
    let tenants = dir.path().join("tenants");
    for round in 0..15 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::store::tests::child_of_the_next_test", "--nocapture"])
            .env(CHILD, &tenants)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = lines.map(Result::unwrap).filter(|line| line == "written").take(1 + round % 3).count();
        assert_eq!(seen, 1 + round % 3);
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(&tenants).unwrap();
        let bytes = store.read(T, P).unwrap().bytes;
        assert_eq!(bytes.len(), 300_000);
        assert!(bytes.iter().all(|b| *b == bytes[0]));
        assert_eq!(leftovers(&dir), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a map: what any sequence of writes leaves, and what it costs.
    #[test]
    fn the_store_is_a_map_of_paths_to_bytes(
        writes in prop::collection::vec(("(a|b|c/d|c/e|\\PC{1,3})", prop::collection::vec(any::<u8>(), 0..5000)), 1..12),
    ) {
        let (dir, store) = store();
        let mut model = std::collections::BTreeMap::new();
        for (name, bytes) in &writes {
            let path = format!("memories/{name}");
            match store.write(T, &path, bytes, &within(TENANT_QUOTA)) {
                Ok(written) => prop_assert_eq!(written.replaced, model.insert(path, bytes).is_some()),
                Err(MemoryError::BadPath { .. }) => prop_assert!(name.split('/').any(|s| matches!(s, "" | "." | ".."))),
                // `c` as a file and as a directory.
                Err(MemoryError::NotAFile { .. }) => {}
                Err(e) => prop_assert!(false, "{}", e),
            }
        }
        for (path, bytes) in &model {
            prop_assert_eq!(&&store.read(T, path).unwrap().bytes, bytes);
        }
        let used = store.used(T);
        drop(store);
        prop_assert_eq!(Store::open(&dir.path().join("tenants")).unwrap().used(T), used);
    }
}
