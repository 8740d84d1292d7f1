use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

struct Bench {
    _dir: tempfile::TempDir,
    source: PathBuf,
    sealed: PathBuf,
    sealer: Sealer,
}

fn bench(caps: Caps) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let (source, sealed) = (dir.path().join("demo"), dir.path().join("sealed"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("SKILL.md"), "text\n").unwrap();
    std::fs::write(source.join("main"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(source.join("main"), std::fs::Permissions::from_mode(0o4701)).unwrap();
    let sealer = Sealer::open(&sealed, dir.path(), caps, &DiskGuard::open(dir.path()).unwrap()).unwrap();
    Bench { _dir: dir, source, sealed, sealer }
}

impl Bench {
    fn seal(&self) -> Result<Arc<Sealed>, SealError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(&self.source, flags, Mode::empty()).unwrap();
        self.sealer.seal_tree(&SkillName::new("demo").unwrap(), fd)
    }

    fn left(&self) -> usize {
        std::fs::read_dir(&self.sealed).unwrap().count()
    }

    fn refused(&self, path: &str, word: &str) {
        let error = self.seal().unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, SealError::Unfit { .. }) && text.contains(path) && text.contains(word),
            "{text}"
        );
        assert_eq!(self.left(), 0, "a refused copy leaves nothing");
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_copy_has_normal_modes_and_times_and_is_named_by_its_digest() {
    let b = bench(Caps::default());
    std::fs::create_dir(b.source.join("lib")).unwrap();
    std::fs::write(b.source.join("lib/a b"), [0u8, 255, 10]).unwrap();
    symlink("lib/a b", b.source.join("link")).unwrap();
    symlink("nowhere", b.source.join("dangling")).unwrap();
    std::fs::create_dir(b.source.join(".skill-meta")).unwrap();
    std::fs::write(b.source.join(".skill-meta/x"), "private").unwrap();
    std::fs::create_dir(b.source.join(".git")).unwrap();
    std::fs::write(b.source.join(".git/index"), "git's own").unwrap();
    std::fs::create_dir(b.source.join("lib/.git")).unwrap();
    let sealed = b.seal().unwrap();
    let root = b.sealed.join(sealed.digest().strip_prefix("sha256:").unwrap());
    for (path, want) in
        [("", 0o555), ("SKILL.md", 0o444), ("main", 0o555), ("lib", 0o555), ("lib/a b", 0o444)]
    {
        assert_eq!(mode(&root.join(path)), want, "{path}");
        assert_eq!(std::fs::metadata(root.join(path)).unwrap().mtime(), 946_684_800, "{path}");
    }
    assert_eq!(std::fs::read(root.join("lib/a b")).unwrap(), [0, 255, 10]);
    assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("lib/a b"));
    assert!(!root.join(".skill-meta").exists() && !root.join(".git").exists());
    assert!(root.join("lib/.git").exists(), "only at the top");
    std::fs::write(b.source.join(".git/index"), "after git status").unwrap();
    assert_eq!(b.seal().unwrap().digest(), sealed.digest());
    std::fs::remove_dir_all(b.source.join(".git")).unwrap();
    assert_eq!(b.seal().unwrap().digest(), sealed.digest());
    assert!(
        sealed.open("link").is_some() && sealed.open("dangling").is_none() && sealed.open("lib").is_none()
    );
}

#[test]
fn the_digest_is_of_names_types_and_content_only() {
    let b = bench(Caps::default());
    let first = b.seal().unwrap();
    std::fs::set_permissions(b.source.join("main"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::hard_link(b.source.join("SKILL.md"), b.source.join("twin")).unwrap();
    let twin = b.seal().unwrap();
    assert_ne!(first.digest(), twin.digest());
    std::fs::remove_file(b.source.join("twin")).unwrap();
    let again = b.seal().unwrap();
    assert!(Arc::ptr_eq(&first, &again), "one tree, one copy");
    std::fs::set_permissions(b.source.join("main"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_ne!(first.digest(), b.seal().unwrap().digest(), "the execute bit counts");
}

#[test]
fn hard_links_become_files_of_their_own() {
    let b = bench(Caps::default());
    std::fs::hard_link(b.source.join("SKILL.md"), b.source.join("twin")).unwrap();
    let sealed = b.seal().unwrap();
    let root = b.sealed.join(sealed.digest().strip_prefix("sha256:").unwrap());
    assert_eq!(std::fs::metadata(root.join("twin")).unwrap().nlink(), 1);
}

#[test]
fn links_that_leave_are_refused_also_by_way_of_others() {
    for (name, target) in [("out", "/etc/passwd"), ("up", "../demo/SKILL.md"), ("deep", "a/../../x")] {
        let b = bench(Caps::default());
        std::fs::create_dir(b.source.join("a")).unwrap();
        symlink(target, b.source.join(name)).unwrap();
        b.refused(name, "leads out");
    }
    // Each link alone stays inside; followed after each other they leave.
    let b = bench(Caps::default());
    std::fs::create_dir_all(b.source.join("x/y")).unwrap();
    symlink("../..", b.source.join("x/y/d")).unwrap();
    symlink("d/../foo", b.source.join("x/y/l")).unwrap();
    b.refused("x/y/l", "leads out");
}

#[test]
fn pipes_sockets_and_devices_are_refused_and_nothing_waits_for_them() {
    let b = bench(Caps::default());
    nix::unistd::mkfifo(&b.source.join("pipe"), Mode::S_IRWXU).unwrap();
    b.refused("pipe", "FIFO");
    std::fs::remove_file(b.source.join("pipe")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(b.source.join("sock")).unwrap();
    b.refused("sock", "socket");
}

#[test]
fn caps_count_apparent_sizes_and_name_the_path() {
    let b = bench(Caps { max_bytes: 1 << 20, ..Caps::default() });
    File::create(b.source.join("hole")).unwrap().set_len(2 << 20).unwrap();
    b.refused("hole", "seal.max_bytes");
    let b = bench(Caps { max_entries: 3, ..Caps::default() });
    std::fs::create_dir(b.source.join("a")).unwrap();
    std::fs::create_dir(b.source.join("b")).unwrap();
    b.refused("demo", "seal.max_entries");
}

#[test]
fn copies_that_nobody_holds_go_when_the_cache_is_full_and_all_go_at_the_start() {
    let b = bench(Caps { cache: 20, ..Caps::default() });
    let held = b.seal().unwrap();
    for i in 0..5 {
        std::fs::write(b.source.join("SKILL.md"), format!("version {i}, some more bytes\n")).unwrap();
        drop(b.seal().unwrap());
    }
    let root = b.sealed.join(held.digest().strip_prefix("sha256:").unwrap());
    assert!(root.join("SKILL.md").exists(), "a held copy stays");
    assert!(b.left() <= 2, "{}", b.left());
    let path = b.sealed.clone();
    let mount = b.source.parent().unwrap().to_owned();
    drop(held);
    let _again = Sealer::open(&path, &mount, Caps::default(), &DiskGuard::open(&mount).unwrap()).unwrap();
    assert_eq!(b.left(), 0);
}

#[test]
fn what_is_not_a_skillfs_mount_is_refused() {
    let b = bench(Caps::default());
    let error = b.sealer.seal(&SkillName::new("demo").unwrap()).unwrap_err();
    assert!(matches!(error, SealError::NotMounted(_)), "{error}");
}

#[test]
fn a_copy_is_known_again_only_at_the_same_epoch() {
    let b = bench(Caps::default());
    let name = SkillName::new("demo").unwrap();
    let sealed = b.seal().unwrap();
    b.sealer.remember(&name, "e-1", &sealed);
    assert!(b.sealer.known(&name, "e-1").is_some());
    assert!(b.sealer.known(&name, "e-2").is_none());
}

/// [2.8]: a copy that would leave less than 5 % is not made; one that is there goes on being used.
#[test]
fn no_copy_is_made_on_a_disk_that_is_nearly_full_and_the_disk_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let tmpfs = Some("tmpfs");
    nix::mount::mount(tmpfs, dir.path(), tmpfs, nix::mount::MsFlags::empty(), Some("size=1m"))
        .expect("this test needs root, to mount a small file system");
    let (source, sealed) = (dir.path().join("demo"), dir.path().join("sealed"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("main"), vec![7; 300 << 10]).unwrap();
    let space = DiskGuard::open(dir.path()).unwrap();
    let sealer = Sealer::open(&sealed, dir.path(), Caps::default(), &space).unwrap();
    let bench = Bench { _dir: tempfile::tempdir().unwrap(), source, sealed, sealer };
    let first = bench.seal().unwrap();
    bench.sealer.remember(&SkillName::new("demo").unwrap(), "e1", &first);
    std::fs::write(bench.source.join("more"), vec![8; 60 << 10]).unwrap();
    let refused = bench.seal().unwrap_err().to_string();
    let named = format!("the disk at {} is nearly full", dir.path().display());
    assert!(refused.contains(&named) && refused.starts_with("demo runs from a copy"), "{refused}");
    assert_eq!(bench.left(), 1, "nothing half-done stays");
    assert!(bench.sealer.known(&SkillName::new("demo").unwrap(), "e1").is_some());
    drop((bench, first, space));
    nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn a_write_that_is_refused_for_want_of_space_names_the_disk_of_the_copies() {
    let dir = tempfile::tempdir().unwrap();
    let tmpfs = Some("tmpfs");
    let sealed = dir.path().join("sealed");
    std::fs::create_dir(&sealed).unwrap();
    nix::mount::mount(tmpfs, &sealed, tmpfs, nix::mount::MsFlags::empty(), Some("size=1m"))
        .expect("this test needs root, to mount a small file system");
    let state = DiskGuard::open(dir.path()).unwrap();
    let sealer = Sealer::open(&sealed, dir.path(), Caps::default(), &state).unwrap();
    let refused = os("copy", "main")(Errno::ENOSPC);
    let said = sealer.named_disk(&SkillName::new("demo").unwrap(), refused).to_string();
    drop(sealer);
    nix::mount::umount2(&sealed, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert!(said.contains(&format!("the disk at {} is nearly full", sealed.display())), "{said}");
}
