//! Whose a store is (`[6.4]`): root writes in none as root that another can change, and a ledger follows no link.

use super::*;

/// Calls `accept-loss` on a damaged store of root's, made ready by `prepare` (the folder of it all, and the store) for
/// `THIEF`, and says what became of a file of root's.
fn accepted_after(prepare: impl FnOnce(&Path, &Path)) -> (Ran, bool) {
    let dir = reachable_dir("cyberos-test-whose-");
    let store = dir.join("state/store");
    fs::create_dir(dir.join("state")).unwrap();
    let copied = Command::new("cp").arg("-a").arg(store_of(3).path()).arg(&store).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(store.join("audit"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut bytes = fs::read(current(&store)).unwrap();
    bytes[40] ^= 1;
    fs::write(current(&store), &bytes).unwrap();
    fs::write(dir.join("file"), "root's").unwrap();
    fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(0o644)).unwrap();
    prepare(&dir, &store);
    let ran = audit(&store, &["accept-loss", "--yes"]);
    let meta = fs::metadata(dir.join("file")).unwrap();
    let same = fs::read(dir.join("file")).unwrap() == b"root's" && meta.mode() & 0o7777 == 0o644;
    (ran, same)
}

const THIEF: u32 = 1_899_999_002;

fn give(path: &Path, uid: u32) {
    std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
}

#[test]
fn root_writes_in_no_store_that_another_can_change_but_as_that_user() {
    let link = |dir: &Path, at: PathBuf| symlink(dir.join("file"), at).unwrap();
    // What is inside is another's, who has put a link there.
    let (refused, same) = accepted_after(|dir, store| {
        give(&store.join("audit"), THIEF);
        link(dir, store.join("audit/.good.binlog"));
    });
    assert!(same && refused.exit == 1 && refused.stderr.contains("chown -R cyberos:"), "{refused}");
    // A folder above is another's, who could exchange the store.
    let (refused, same) = accepted_after(|_, store| give(store.parent().unwrap(), THIEF));
    assert!(same && refused.exit == 1 && refused.stderr.contains("chown -R cyberos:"), "{refused}");
    // Two users.
    let (refused, _) = accepted_after(|_, store| {
        give(&store.join("audit"), THIEF);
        give(&store.join("HEAD"), THIEF + 1);
    });
    let named = [THIEF, THIEF + 1].iter().all(|uid| refused.stderr.contains(&uid.to_string()));
    assert!(refused.exit == 1 && named && refused.stderr.contains("two users"), "{refused}");
    // Root's alone, and yet anybody's; sticky is no help inside.
    for (name, mode) in [("audit", 0o1777), ("", 0o777), ("..", 0o777), ("HEAD", 0o666)] {
        let (refused, _) = accepted_after(|_, store| {
            fs::set_permissions(store.join(name), fs::Permissions::from_mode(mode)).unwrap();
        });
        assert!(refused.exit == 1 && refused.stderr.contains("chmod go-w"), "{name}: {refused}");
    }
    // A link that somebody has left.
    for name in [".lock", "lost", ".HEAD.spare", "audit/.good.binlog"] {
        let (refused, same) = accepted_after(|dir, store| {
            let _ = fs::remove_file(store.join(name));
            link(dir, store.join(name));
        });
        assert!(same && refused.exit == 1 && refused.stderr.contains(name), "{name}: {refused}");
    }
    // Root's alone, and all of it the broker's.
    let (done, _) = accepted_after(|_, _| {});
    assert_eq!(done.exit, 0, "{done}");
    let (done, same) = accepted_after(|dir, store| {
        link(dir, store.join("audit/.good.binlog"));
        let all = Command::new("chown").args(["-hR", &format!("{THIEF}:{THIEF}")]).arg(store).status();
        assert!(all.unwrap().success());
    });
    assert!(same && done.exit == 0, "{done}");
}

#[test]
fn a_ledger_writes_through_no_link() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    let fresh = || {
        let _ = fs::remove_file(&file);
        fs::write(&file, "other").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    };
    let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
    for name in [".lock", ".HEAD.spare", "audit/current.binlog"] {
        let dir = store_of(0);
        fresh();
        let _ = fs::remove_file(dir.path().join(name));
        symlink(&file, dir.path().join(name)).unwrap();
        assert!(open(dir.path()).is_err(), "{name}");
        assert_eq!((fs::read(&file).unwrap(), mode()), (b"other".to_vec(), 0o644), "{name}");
    }
    // A second name of another's file is given no other mode.
    let dir = store_of(1);
    fresh();
    fs::remove_file(dir.path().join(".lock")).unwrap();
    fs::hard_link(&file, dir.path().join(".lock")).unwrap();
    let refused = open(dir.path()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("hard link") && mode() == 0o644, "{refused}");
    // What an earlier try left, be it a link, is in nobody's way.
    let dir = store_of(3);
    let mut bytes = fs::read(current(dir.path())).unwrap();
    bytes[40] ^= 1;
    fs::write(current(dir.path()), &bytes).unwrap();
    symlink(&file, dir.path().join("audit/.good.binlog")).unwrap();
    accept_shown(dir.path()).unwrap();
    assert_eq!((fs::read(&file).unwrap(), whole(dir.path()).len()), (b"other".to_vec(), 1));
}

#[test]
fn a_ledger_writes_into_no_file_that_has_another_name_too() {
    let place = tempfile::tempdir().unwrap();
    for name in [".HEAD.spare", "HEAD", "audit/current.binlog"] {
        let dir = store_of(2);
        let (inside, outside) = (dir.path().join(name), place.path().join("kept"));
        let _ = fs::remove_file(&outside);
        // As a backup by links is made, or by somebody who wants another file written.
        fs::hard_link(&inside, &outside).unwrap();
        let before = fs::read(&outside).unwrap();
        let (ledger, _) = open(dir.path()).unwrap();
        for n in 3..=5 {
            ledger.append(&support::store::numbered(n), support::store::ASKS).unwrap();
            until("HEAD", || frame::read_head(dir.path()).unwrap() == Some(n));
        }
        ledger.close().unwrap();
        assert_eq!(fs::read(&outside).unwrap(), before, "{name}");
        assert_eq!(whole(dir.path()).len(), 5, "{name}");
    }
    // An empty segment, and one that is cut.
    for rows in [0, 2] {
        let dir = store_of(rows);
        let torn =
            [fs::read(current(dir.path())).unwrap(), b"torn"[..4 * usize::from(rows > 0)].to_vec()].concat();
        fs::write(current(dir.path()), &torn).unwrap();
        fs::hard_link(current(dir.path()), place.path().join(format!("cut{rows}"))).unwrap();
        let (ledger, _) = open(dir.path()).unwrap();
        ledger.append(&support::store::numbered(1), support::store::ASKS).unwrap();
        ledger.close().unwrap();
        assert_eq!(fs::read(place.path().join(format!("cut{rows}"))).unwrap(), torn);
        assert_eq!(whole(dir.path()).len() as u64, rows + 1);
    }
}
