//! Promises of `skill-ledger` [9.10]: whoever can write the source cannot make SkillFS show anything but what was certified,
//! and whatever lies in the source, the provider answers in the protocol's words.

#[path = "ledger_provider/certifying.rs"]
mod certifying;
#[path = "ledger_provider/history.rs"]
mod history;
#[path = "ledger_provider/judging.rs"]
mod judging;
#[path = "ledger_provider/owners.rs"]
mod owners;
mod support;
#[path = "ledger_provider/tampering.rs"]
mod tampering;

use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use support::binaries::binary;
use support::ledger::{Place, SKILLFS, certified, copy_tree, replace, set_mode, succeeded};

/// Gives a tree to a user.
fn give(tree: &Path, user: u32) {
    succeeded(&Command::new("chown").arg("-R").arg(format!("{user}:{user}")).arg(tree).output().unwrap());
}

/// A command that a user without any rights of root's runs.
fn as_user(user: u32, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
    command.arg(program);
    command
}

#[test]
fn what_was_never_certified_is_hidden() {
    let place = Place::new();
    let skill = place.make("demo");
    let answer = place.resolve("demo");
    answer.is("none", "hidden", "").because(" certify ").because("skill-ledger");
    assert_eq!(answer.str("declaredName"), "declared");
    fs::create_dir_all(skill.join(".skill-meta/versions")).unwrap();
    fs::write(skill.join(".skill-meta/versions/notes.txt"), "").unwrap();
    place.resolve("demo").is("none", "hidden", "");
}

#[test]
fn a_certified_skill_is_shown_until_it_is_edited_and_again_when_the_edit_is_undone() {
    let place = Place::new();
    let skill = place.make("demo");
    let certified = place.certify("demo", None);
    assert_eq!((&certified["version"], &certified["made"]), (&"v000001".into(), &true.into()));
    let answer = place.resolve("demo");
    answer.is("pass", "current", "v000001");
    assert_eq!(answer.0["contentDigest"], certified["treeDigest"]);

    let before = fs::read(skill.join("main")).unwrap();
    type Edit = fn(&Path);
    let edits: [(Edit, &str, &str); 7] = [
        (|s| fs::write(s.join("main"), "#!/bin/sh\necho EVIL\n").unwrap(), "1 changed", "main"),
        (|s| set_mode(&s.join("SKILL.md"), 0o755), "1 changed", "SKILL.md"),
        (|s| fs::write(s.join("new\nline"), "").unwrap(), "1 added", "new%0Aline"),
        (|s| fs::create_dir(s.join("empty")).unwrap(), "1 added", "empty"),
        (|s| fs::remove_file(s.join("lib/data")).unwrap(), "1 removed", "lib/data"),
        (
            |s| nix::unistd::mkfifo(&s.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap(),
            "fifo",
            "no regular file",
        ),
        (|s| symlink("/etc/passwd", s.join("out")).unwrap(), "out", "leaves the skill"),
    ];
    let kept = place.path("kept");
    copy_tree(&skill, &kept);
    for (edit, what, which) in edits {
        edit(&skill);
        let answer = place.resolve("demo");
        answer.is("drifted", "fallback", "v000001").because(what).because(which);
        assert_eq!(answer.0["contentDigest"], certified["treeDigest"], "the digest is the snapshot's");
        assert_eq!(fs::read(skill.join(answer.str("target")).join("main")).unwrap(), before);
        replace(&skill, &kept);
        place.resolve("demo").is("pass", "current", "v000001");
    }
}

#[test]
fn certifying_again_makes_a_version_only_when_content_or_findings_changed() {
    let (place, skill) = certified();
    let again = place.certify("demo", None);
    assert_eq!((&again["version"], &again["made"]), (&"v000001".into(), &false.into()));
    let said = place.root([OsStr::new("certify"), skill.as_os_str()]);
    assert!(String::from_utf8(said.stdout).unwrap().starts_with("unchanged demo v000001 pass sha256:"));

    let noted = place.certify("demo", Some(&place.report(&["note"])));
    assert_eq!((&noted["version"], &noted["made"]), (&"v000002".into(), &true.into()));
    assert_eq!(place.certify("demo", Some(&place.report(&["note"])))["made"], false);
    fs::write(skill.join("main"), "two").unwrap();
    assert_eq!(place.certify("demo", Some(&place.report(&["note"])))["version"], "v000003");
    place.resolve("demo").is("pass", "current", "v000003");
    // An older content is not the newest, whoever put it back.
    fs::write(skill.join("main"), "#!/bin/sh\necho one\n").unwrap();
    let answer = place.resolve("demo");
    answer.is("drifted", "fallback", "v000003").because("is v000002 again, but v000003 is the newest");
    assert_eq!(answer.str("currentVersion"), "v000002");
}

#[test]
fn findings_decide_and_the_last_good_version_is_fallen_back_to() {
    let place = Place::new();
    let skill = place.make("demo");
    let bad = place.certify("demo", Some(&place.report(&["warning", "error"])));
    assert_eq!(bad["status"], "deny");
    let answer = place.resolve("demo");
    answer.is("deny", "hidden", "").because("found 1 errors and 1 warnings: R: found");
    assert_eq!(answer.0["findingsSummary"]["errors"], 1);

    fs::write(skill.join("main"), "good").unwrap();
    let good = place.certify("demo", Some(&place.report(&[])));
    place.resolve("demo").is("pass", "current", "v000002");
    fs::write(skill.join("main"), "doubtful").unwrap();
    place.certify("demo", Some(&place.report(&["warning"])));
    let answer = place.resolve("demo");
    answer.is("warn", "fallback", "v000002");
    assert_eq!(answer.str("currentVersion"), "v000003");
    assert_eq!(answer.0["contentDigest"], good["treeDigest"]);
    fs::write(skill.join("main"), "worse").unwrap();
    place.certify("demo", Some(&place.report(&["error"])));
    place.resolve("demo").is("deny", "fallback", "v000002");
    // The live folder equals an older version: its findings are still true.
    fs::write(skill.join("main"), "doubtful").unwrap();
    place.resolve("demo").is("warn", "fallback", "v000002");
    fs::write(skill.join("main"), "never seen").unwrap();
    place.resolve("demo").is("drifted", "fallback", "v000002");
}

#[test]
fn what_cannot_be_read_or_remembered_is_an_error_and_hidden() {
    let (place, skill) = certified();
    set_mode(&place.path("state"), 0o555);
    place.resolve("demo").is("error", "hidden", "").because("must be writable");
    set_mode(&place.path("state"), 0o755);
    place.resolve("demo").is("pass", "current", "v000001");
    for (path, because) in [
        (skill.join("main"), "main: cannot be read"),
        (skill.join("lib"), "lib: cannot be read"),
        (place.version("demo", "v000001.json"), "v000001.json"),
        (place.version("demo", "v000001.snapshot"), "v000001.snapshot"),
        (skill.join(".skill-meta"), ".skill-meta"),
        (skill.clone(), "opening the folder"),
    ] {
        let good = fs::metadata(&path).unwrap().permissions();
        set_mode(&path, 0);
        place.resolve("demo").is("error", "hidden", "").because(because);
        fs::set_permissions(&path, good).unwrap();
    }
    set_mode(&place.path("state/ledger"), 0o777);
    place.resolve("demo").is("error", "hidden", "").because("can be written by others");
    set_mode(&place.path("state/ledger"), 0o700);
    let record = fs::read_dir(place.path("state/ledger")).unwrap().next().unwrap().unwrap().path();
    fs::write(&record, "{}").unwrap();
    place.resolve("demo").is("error", "hidden", "").because("is damaged");
    fs::remove_file(record).unwrap();
    place.resolve("demo").is("pass", "current", "v000001");
    place.resolve("absent").is("error", "hidden", "").because("No such file");
    fs::write(place.skill("file"), "").unwrap();
    place.resolve("file").is("error", "hidden", "").because("Not a directory");
}

#[test]
fn no_tree_is_too_hostile_to_be_answered_about() {
    let (place, skill) = certified();
    let start = std::time::Instant::now();
    type Plant = fn(&Path);
    let cases: [(Plant, &str); 9] = [
        (|d| nix::unistd::mkfifo(&d.join("x"), nix::sys::stat::Mode::S_IRWXU).unwrap(), "no regular file"),
        (|d| drop(std::os::unix::net::UnixListener::bind(d.join("x")).unwrap()), "no regular file"),
        (
            |d| {
                use nix::sys::stat::{Mode, SFlag, makedev, mknod};
                // The console: opening it could wait, or take it.
                mknod(&d.join("x"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(5, 1)).unwrap();
            },
            "no regular file",
        ),
        (|d| symlink("/proc/self/fd/0", d.join("x")).unwrap(), "leaves the skill"),
        (|d| symlink("../../demo2", d.join("x")).unwrap(), "leaves the skill"),
        (
            |d| {
                let deep = std::iter::repeat_n("d", 70).collect::<std::path::PathBuf>();
                fs::create_dir_all(d.join(deep)).unwrap();
            },
            "64 folders deep",
        ),
        (
            |d| {
                for n in 0..20_001 {
                    fs::File::create(d.join(n.to_string())).unwrap();
                }
            },
            "20,000 entries",
        ),
        (|d| fs::File::create(d.join("holes")).unwrap().set_len(1 << 40).unwrap(), "256 MiB"),
        (
            |d| {
                symlink("b", d.join("a")).unwrap();
                symlink("a", d.join("b")).unwrap();
                symlink("..", d.join("up")).unwrap();
            },
            "4 added",
        ),
    ];
    for (plant, because) in cases {
        let dir = skill.join("planted");
        fs::create_dir(&dir).unwrap();
        plant(&dir);
        place.resolve("demo").is("drifted", "fallback", "v000001").because(because);
        fs::remove_dir_all(&dir).unwrap();
    }
    // A mount in the skill belongs to somebody else.
    let dir = skill.join("planted");
    fs::create_dir(&dir).unwrap();
    nix::mount::mount(Some("none"), &dir, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
    let answer = place.resolve("demo");
    nix::mount::umount(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    answer.is("drifted", "fallback", "v000001").because("planted: is a mount point");
    place.resolve("demo").is("pass", "current", "v000001");
    fs::remove_file(skill.join("SKILL.md")).unwrap();
    nix::unistd::mkfifo(&skill.join("SKILL.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.resolve("demo").is("drifted", "fallback", "v000001");
    assert!(start.elapsed().as_secs() < 60, "nothing is waited for");
}

#[test]
fn names_of_any_kind_are_answered_under_the_folders_name() {
    let place = Place::new();
    let longest = "x".repeat(64);
    for name in ["--help", "-rf", "a b", "ünï", "new\nline", "\u{1b}[2J", "*", "..a", "'\"$(id)", &longest]
    {
        let skill = place.make(name);
        fs::write(skill.join(OsStr::from_bytes(b"\xff\xfe\n%")), "bytes").unwrap();
        place.certify(name, None);
        place.resolve(name).is("pass", "current", "v000001");
    }
    for name in [OsStr::from_bytes(b"\xff"), OsStr::new(&"x".repeat(65)), OsStr::new("a\\b")] {
        place.make(name);
        place.resolve(name).is("error", "hidden", "").because("no skill name");
    }
    let status = place.root([OsStr::new("status"), place.path("source").as_os_str()]);
    succeeded(&status);
    let table = String::from_utf8(status.stdout).unwrap();
    // A line of titles, and every folder but the one whose name begins with a dot.
    assert_eq!(table.lines().count(), 13, "{table}");
    assert!(!table.contains('\u{1b}'), "no escape sequence reaches the terminal");
}

#[test]
fn answers_during_edits_and_certifies_are_always_about_something_certified() {
    let place = Place::new();
    let skill = place.make("demo");
    let mut certified = vec![place.certify("demo", None)["treeDigest"].clone()];
    place.resolve("demo").is("pass", "current", "v000001");
    let done = std::sync::atomic::AtomicBool::new(false);
    let shown = std::thread::scope(|scope| {
        let ask = scope.spawn(|| {
            let mut shown = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let answer = place.resolve_only(&skill);
                let status = answer.str("status").to_owned();
                assert!(["pass", "drifted", "tampered"].contains(&status.as_str()), "{answer:?}");
                shown.extend(answer.0.get("contentDigest").cloned());
            }
            shown
        });
        for n in 0..12 {
            fs::write(skill.join("main"), format!("edit {n}")).unwrap();
            certified.push(place.certify("demo", None)["treeDigest"].clone());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        ask.join().unwrap()
    });
    assert!(!shown.is_empty());
    assert!(shown.iter().all(|digest| certified.contains(digest)));
    place.resolve("demo").is("pass", "current", "v000013");
}

#[test]
fn status_shows_people_the_same_and_remembers_nothing() {
    let place = Place::new();
    place.make("one");
    place.make("two");
    place.certify("two", None);
    fs::create_dir(place.skill(".hidden")).unwrap();
    let source = place.path("source");
    let output = place.root([OsStr::new("status"), source.as_os_str()]);
    succeeded(&output);
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().take(5).collect()).collect();
    assert_eq!(rows[0], ["SKILL", "STATUS", "SHOWN", "VERSION", "TRUSTED"]);
    assert_eq!(rows[1], ["one", "none", "hidden", "-", "-"]);
    assert_eq!(rows[2], ["two", "pass", "current", "v000001", "v000001"]);
    let output = place.root([OsStr::new("status"), source.as_os_str(), OsStr::new("--json")]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["skills"][1]["status"], "pass");
    let output = place.root([OsStr::new("status"), place.skill("two").as_os_str(), OsStr::new("--json")]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["skillName"], "two");
    assert!(!place.path("state/ledger").exists());
    assert_eq!(place.root([OsStr::new("status"), OsStr::new("/nonexistent")]).status.code(), Some(1));
}
