use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

struct Ground(tempfile::TempDir);

impl Ground {
    fn new() -> Self {
        let t = tempfile::tempdir().unwrap();
        for d in ["a/b/src", "other/b/src"] {
            fs::create_dir_all(t.path().join(d)).unwrap();
        }
        Ground(t)
    }

    fn at(&self, p: &str) -> PathBuf {
        self.0.path().join(p)
    }

    fn way(&self, p: &str) -> Way {
        Way::new(self.at(p), Arc::new(Bell::new().unwrap()))
    }

    fn exchange(&self, a: &str, b: &str) {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        renameat2(AT_FDCWD, &self.at(a), AT_FDCWD, &self.at(b), RenameFlags::RENAME_EXCHANGE).unwrap();
    }
}

#[test]
fn equal_looks_mean_that_nothing_on_the_way_was_exchanged() {
    let ground = Ground::new();
    symlink("a", ground.at("link")).unwrap();
    symlink("b", ground.at("a/inner")).unwrap();
    let way = ground.way("link/inner/src");
    let first = way.look();
    assert!(first.steps.is_ok());
    assert_eq!(way.look(), first);
    fs::write(ground.at("a/b/src/file"), "x").unwrap();
    fs::create_dir(ground.at("a/beside")).unwrap();
    assert_eq!(way.look(), first, "what happens in a directory is no move of it");
    // There and back: of a directory, of its parent, and of the links.
    for (one, other) in [("a/b", "other/b"), ("a", "other"), ("a/b/src", "other/b/src")] {
        let before = way.look();
        ground.exchange(one, other);
        ground.exchange(one, other);
        let after = way.look();
        assert_eq!(after.steps, before.steps, "{one}: the same as before");
        assert_ne!(after, before, "{one}: but moved");
    }
    symlink("other", ground.at("new")).unwrap();
    let before = way.look();
    fs::hard_link(ground.at("link"), ground.at("kept")).unwrap();
    fs::rename(ground.at("new"), ground.at("link")).unwrap();
    fs::remove_file(ground.at("link")).unwrap();
    fs::hard_link(ground.at("kept"), ground.at("link")).unwrap();
    let after = way.look();
    assert_eq!(after.steps, before.steps);
    assert_ne!(after, before, "a link that was another one for a while");
    let before = way.look();
    assert_eq!(way.look(), before, "and then it is quiet again");
}

#[test]
fn a_way_that_leads_elsewhere_or_nowhere_is_another_one() {
    let ground = Ground::new();
    let way = ground.way("a/b/src");
    let first = way.look();
    fs::rename(ground.at("a"), ground.at("gone")).unwrap();
    let second = way.look();
    assert_eq!(second.steps, Err(Errno::ENOENT));
    assert_ne!(first, second);
    fs::write(ground.at("a"), "").unwrap();
    assert_eq!(way.look().steps, Err(Errno::ENOTDIR));
    fs::remove_file(ground.at("a")).unwrap();
    symlink("a", ground.at("a")).unwrap();
    assert_eq!(way.look().steps, Err(Errno::ELOOP));
}

#[test]
fn who_can_exchange_a_step_is_named() {
    let ground = Ground::new();
    let way = ground.way("a/b/src");
    let mode = |p: &str, m| fs::set_permissions(ground.at(p), fs::Permissions::from_mode(m)).unwrap();
    let shared = || {
        way.look();
        way.shared()
    };
    for p in ["", "a", "a/b", "a/b/src"] {
        mode(p, 0o755);
    }
    assert_eq!(shared(), None);
    for (path, open) in [("a", 0o777), ("a/b", 0o775), ("a/b/src", 0o757)] {
        mode(path, open);
        assert!(shared().unwrap().contains(&format!("{} can be written", ground.at(path).display())));
        mode(path, 0o755);
    }
    mode("a", 0o1777);
    assert_eq!(shared(), None, "in a sticky directory nobody else can exchange what is ours");
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let give = |p: &str, uid| std::os::unix::fs::lchown(ground.at(p), Some(uid), None).unwrap();
    give("a/b", 61_999);
    assert!(shared().unwrap().contains("a/b belongs to uid 61999"));
    give("a/b", 0);
    symlink("b", ground.at("a/link")).unwrap();
    give("a/link", 61_999);
    let through = ground.way("a/link/src");
    through.look();
    assert!(through.shared().unwrap().contains("link belongs to uid 61999"));
    mode("a", 0o755);
    through.look();
    assert_eq!(through.shared(), None, "a link is nobody's to change where he cannot write");
}
