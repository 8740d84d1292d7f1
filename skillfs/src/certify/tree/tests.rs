use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn walk_at(path: &Path, rules: Rules) -> Result<Vec<Entry>, TreeError> {
    let root = fs::File::open(path).unwrap();
    walk(root.as_fd(), rules, &mut Nothing)
}

fn unfit_at(path: &Path, rules: Rules) -> String {
    match walk_at(path, rules) {
        Err(e @ TreeError::Unfit { .. }) => e.to_string(),
        other => panic!("expected Unfit, got {other:?}"),
    }
}

#[test]
fn a_tree_is_digested_as_the_rule_says() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join("b")).unwrap();
    fs::create_dir_all(root.join(".skill-meta/versions")).unwrap();
    fs::write(root.join(".skill-meta/versions/x"), "not counted").unwrap();
    fs::write(root.join("b/a"), "abc").unwrap();
    fs::write(root.join("b.c"), "").unwrap();
    fs::set_permissions(root.join("b.c"), fs::Permissions::from_mode(0o610)).unwrap();
    symlink("b/a", root.join("l")).unwrap();

    let mut want = b"cyberos-tree-1\n".to_vec();
    let mut row = |kind: u8, path: &[u8], size: u64, hash: [u8; 32]| {
        want.push(kind);
        want.extend_from_slice(&u32::try_from(path.len()).unwrap().to_be_bytes());
        want.extend_from_slice(path);
        want.extend_from_slice(&size.to_be_bytes());
        want.extend_from_slice(&hash);
    };
    row(b'd', b"b", 0, [0; 32]);
    row(b'x', b"b.c", 0, Sha256::digest(b"").into());
    row(b'f', b"b/a", 3, Sha256::digest(b"abc").into());
    row(b'l', b"l", 3, Sha256::digest(b"b/a").into());
    let want: [u8; 32] = Sha256::digest(&want).into();

    let mut entries = walk_at(root, Rules::Live).unwrap();
    assert_eq!(digest(&mut entries), want);
    assert_eq!(digest_of(fs::File::open(root).unwrap().as_fd(), Rules::Live).unwrap(), tree::written(&want));
}

#[test]
fn links_that_leave_are_refused_however_they_are_spelt() {
    for (links, good) in [
        (&[("l", "/etc/passwd")][..], false),
        (&[("l", "../x")], false),
        (&[("d/l", "../../x")], false),
        (&[("l", "d/../../x")], false),
        (&[("l", ".skill-meta/versions")], false),
        (&[("d/l", "../.skill-meta")], false),
        // The words stay inside, but `..` is taken after `here` has led back to the top.
        (&[("here", "."), ("l", "here/here/../../etc")], false),
        (&[("l", "d/..")], true),
        (&[("d/l", "../f")], true),
        (&[("l", "missing/too")], true),
        (&[("l", "l")], true),
        (&[("l", "d/.skill-meta")], true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::create_dir(dir.path().join(".skill-meta")).unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        for (name, target) in links {
            symlink(target, dir.path().join(name)).unwrap();
        }
        let walked = walk_at(dir.path(), Rules::Live);
        assert_eq!(walked.is_ok(), good, "{links:?}: {walked:?}");
    }
}

#[test]
fn only_files_folders_and_links_are_walked() {
    use nix::sys::stat::{Mode, SFlag, mknod};
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("odd");
    nix::unistd::mkfifo(&odd, Mode::S_IRWXU).unwrap();
    assert!(unfit_at(dir.path(), Rules::Live).starts_with("odd: is no regular file"));
    fs::remove_file(&odd).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(&odd).unwrap();
    assert!(unfit_at(dir.path(), Rules::Live).starts_with("odd: is no regular file"));
    drop(socket);
    fs::remove_file(&odd).unwrap();

    // Making a device takes root, as the project's tests have it; without, the case above stands for it.
    if mknod(&odd, SFlag::S_IFCHR, Mode::S_IRWXU, nix::libc::makedev(1, 3)).is_ok() {
        assert!(unfit_at(dir.path(), Rules::Live).starts_with("odd: is no regular file"));
    }
}

#[test]
fn a_tree_has_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let big = fs::File::create(dir.path().join("big")).unwrap();
    big.set_len(MAX_BYTES + 1).unwrap();
    assert!(unfit_at(dir.path(), Rules::Live).contains("256 MiB"));
    drop(big);
    fs::remove_file(dir.path().join("big")).unwrap();

    let mut deep = dir.path().to_owned();
    for _ in 0..MAX_DEPTH {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(walk_at(dir.path(), Rules::Live).unwrap().len(), MAX_DEPTH);
    fs::create_dir(deep.join("d")).unwrap();
    assert!(unfit_at(dir.path(), Rules::Live).contains("64 folders deep"));
    fs::remove_dir_all(dir.path().join("d")).unwrap();

    for i in 0..MAX_ENTRIES {
        fs::File::create(dir.path().join(i.to_string())).unwrap();
    }
    fs::create_dir(dir.path().join(".skill-meta")).unwrap();
    assert_eq!(walk_at(dir.path(), Rules::Live).unwrap().len(), MAX_ENTRIES);
    fs::File::create(dir.path().join("one more")).unwrap();
    assert!(unfit_at(dir.path(), Rules::Live).contains("20,000"));
}

#[test]
fn names_of_any_bytes_are_walked() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let names: [&[u8]; 5] = [b"\xff\xfe", b"new\nline", b"\x1b[31m", b"--help", b"a\\b"];
    for name in names {
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    let entries = walk_at(dir.path(), Rules::Live).unwrap();
    let mut sorted = names.to_vec();
    sorted.sort();
    assert_eq!(entries.iter().map(|e| e.path.as_slice()).collect::<Vec<_>>(), sorted);
}

#[test]
fn a_snapshot_must_be_out_of_anyones_reach() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("s");
    fs::create_dir(&top).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let file = top.join("f");
    fs::write(&file, "").unwrap();
    mode(&top, 0o755);
    mode(&file, 0o444);
    walk_at(&top, Rules::Snapshot).unwrap();
    for (path, bad) in
        [(&file, 0o464), (&file, 0o446), (&file, 0o4555), (&file, 0o2555), (&top, 0o775), (&top, 0o1755)]
    {
        let good = fs::metadata(path).unwrap().permissions();
        mode(path, bad);
        assert!(unfit_at(&top, Rules::Snapshot).contains("writable by group"), "{path:?} {bad:o}");
        walk_at(&top, Rules::Live).unwrap();
        fs::set_permissions(path, good).unwrap();
    }
    fs::hard_link(&file, dir.path().join("outside")).unwrap();
    assert!(unfit_at(&top, Rules::Snapshot).contains("hard link"));
    walk_at(&top, Rules::Live).unwrap();
    fs::remove_file(dir.path().join("outside")).unwrap();
    fs::create_dir(top.join(".skill-meta")).unwrap();
    assert!(unfit_at(&top, Rules::Snapshot).contains("no place in a snapshot"));
}

#[test]
fn a_linked_secret_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("s");
    fs::create_dir(&top).unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "").unwrap();
    fs::hard_link(&secret, top.join("f")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(unfit_at(&top, Rules::Publish).contains("copy of its own"));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    walk_at(&top, Rules::Publish).unwrap();
}
