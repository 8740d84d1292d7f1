//! What belongs to another user is neither given away, published nor removed by root's commands.

use super::history::certify_versions;
use super::*;

#[test]
fn root_gives_no_file_away_that_the_folders_user_named_as_its_lock() {
    let (place, skill) = certified();
    place.resolve("demo").is("pass", "current", "v000001");
    let (ledger, file) = (place.path("state/ledger"), place.path("roots"));
    set_mode(&ledger, 0o755);
    for (content, linked) in [("root's", false), ("", false), ("root's", true)] {
        let _ = fs::remove_file(ledger.join(".lock"));
        let _ = fs::remove_file(&file);
        // A new version, which resolve has to remember.
        fs::write(skill.join("main"), format!("{content}{linked}")).unwrap();
        place.certify("demo", None);
        let _ = fs::remove_file(ledger.join(".lock"));
        fs::write(&file, content).unwrap();
        set_mode(&file, 0o644);
        if linked {
            symlink(&file, ledger.join(".lock")).unwrap();
        } else {
            fs::hard_link(&file, ledger.join(".lock")).unwrap();
        }
        let output = place.root([OsStr::new("resolve"), skill.as_os_str(), OsStr::new("--json")]);
        // A resolve says its errors as its answer.
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no empty file of its own"), "{said}");
        let meta = fs::metadata(&file).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o644), "{content} {linked}");
    }
}

#[test]
fn what_another_user_owns_is_not_removed_for_who_moved_it_to_where_left_overs_lie() {
    const VICTIM: u32 = 61_001;
    const THIEF: u32 = 61_002;
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 2);
    place.resolve("demo").is("pass", "current", "v000002");
    give(&skill, THIEF);
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o777);
    // A folder that everybody may write to, and in it one of its owner's alone.
    let moved = |owner: u32, to: &str| {
        let open = shared.join("open");
        fs::create_dir_all(open.join("private")).unwrap();
        fs::write(open.join("private/diary"), "dear").unwrap();
        fs::write(open.join("aside"), "").unwrap();
        give(&open, owner);
        set_mode(&open, 0o777);
        set_mode(&open.join("private"), 0o700);
        succeeded(
            &as_user(THIEF, "mv").arg("-T").arg(&open).arg(place.version("demo", to)).output().unwrap(),
        );
        [place.version("demo", to).join("private/diary"), place.version("demo", to).join("aside")]
    };
    let mut kept = moved(VICTIM, ".tmp-x").to_vec();
    kept.extend(moved(0, ".tmp-y"));
    // What certify itself leaves, and what the folder's owner does, goes.
    for (name, owner) in [(".tmp-own", 0), (".tmp-his", THIEF)] {
        let left = place.version("demo", name);
        fs::create_dir_all(left.join("lib")).unwrap();
        fs::write(left.join("lib/data"), "").unwrap();
        give(&left, owner);
        set_mode(&left.join("lib"), 0o555);
    }
    fs::write(skill.join("main"), "three").unwrap();
    let output = place.root([OsStr::new("certify"), skill.as_os_str()]);
    succeeded(&output);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(".tmp-x") && said.contains("1 more") && said.contains("another user"), "{said}");
    assert!(kept.iter().all(|file| file.exists()), "{said}");
    assert!(!place.version("demo", ".tmp-own").exists() && !place.version("demo", ".tmp-his").exists());

    // A version's name makes it no version's.
    fs::remove_dir_all(place.version("demo", "v000001.snapshot")).unwrap();
    kept.extend(moved(VICTIM, "v000001.snapshot"));
    place.resolve("demo").is("pass", "current", "v000003");
    let output = place.root_command().args(["prune", "--keep", "1"]).arg(&skill).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("v000001") && said.contains("another user"), "{said}");
    assert!(kept.iter().all(|file| file.exists()), "{said}");
    assert!(place.version("demo", "v000001.json").exists(), "nothing is half done");
    place.resolve("demo").is("pass", "current", "v000003");
}
