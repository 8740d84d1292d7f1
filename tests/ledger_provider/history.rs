//! What becomes of a skill's versions: taken away, renamed, pruned, and locked by strangers [9.10].

use super::*;
use std::time::{Duration, Instant};

/// Names in the skill's folder of versions.
fn names(place: &Place, skill: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(place.version(skill, ""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn numbered(versions: &[u32]) -> Vec<String> {
    versions.iter().flat_map(|v| [format!("v{v:06}.json"), format!("v{v:06}.snapshot")]).collect()
}

/// Certifies `n` versions, each with other content.
pub(super) fn certify_versions(place: &Place, skill: &str, n: u32) {
    for version in 1..=n {
        fs::write(place.skill(skill).join("main"), format!("version {version}")).unwrap();
        place.certify(skill, None);
    }
}

#[test]
fn versions_lost_in_a_redeploy_are_gone_on_from_also_by_who_cannot_read_what_was_seen() {
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 3);
    place.resolve("demo").is("pass", "current", "v000003");
    fs::remove_dir_all(skill.join(".skill-meta")).unwrap();
    let answer = place.resolve("demo");
    answer.is("tampered", "hidden", "").because("v000003 has been seen").because("certify");
    // The command that is named works, whatever folders SkillFS was told to use, and whoever runs it.
    let reason = answer.str("reason").to_owned();
    let command = reason.split('`').nth(1).unwrap();
    assert!(command.contains(&*place.path("trusted").to_string_lossy()), "{reason}");
    let line = format!("{command} --keys {} --json", place.path("keys").display());
    set_mode(&place.path("state"), 0o700);
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    succeeded(&output);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["version"], "v000004", "{said}");
    place.resolve("demo").is("pass", "current", "v000004");

    // An operator who may not look into the state folder.
    fs::remove_dir_all(skill.join(".skill-meta")).unwrap();
    let answer = place.resolve("demo");
    let reason = answer.str("reason").to_owned();
    assert!(reason.contains("--after v000004"), "{reason}");
    let output = Command::new(place.path("skill-ledger"))
        .args(["certify", "--after", "v000004", "--json", "--state", "/nonexistent/ledger", "--trusted"])
        .arg(place.path("trusted"))
        .arg("--keys")
        .arg(place.path("keys"))
        .arg(&skill)
        .output()
        .unwrap();
    succeeded(&output);
    place.resolve("demo").is("pass", "current", "v000005");
}

#[test]
fn another_history_with_the_same_content_is_healed_by_certifying() {
    let (place, skill) = certified();
    let old = place.path("old");
    copy_tree(&skill, &old);
    fs::remove_dir_all(skill.join(".skill-meta")).unwrap();
    // Signed a second time, so that the manifest has another time in it, and seen.
    let until = Instant::now() + Duration::from_secs(5);
    let first = fs::read(old.join(".skill-meta/versions/v000001.json")).unwrap();
    loop {
        place.certify("demo", None);
        if fs::read(place.version("demo", "v000001.json")).unwrap() != first {
            break;
        }
        assert!(Instant::now() < until, "manifests carry their time");
        fs::remove_dir_all(skill.join(".skill-meta")).unwrap();
    }
    place.resolve("demo").is("pass", "current", "v000001");
    replace(&skill, &old);
    // The content is the same, so it may be fallen back to; until it is certified it stays like that.
    place.resolve("demo").is("tampered", "fallback", "v000001").because("another signed manifest");
    assert_eq!(place.certify("demo", None)["version"], "v000002");
    place.resolve("demo").is("pass", "current", "v000002");
}

#[test]
fn a_renamed_skill_is_told_from_a_tampered_one_and_certified_again() {
    let place = Place::new();
    place.make("before");
    certify_versions(&place, "before", 2);
    place.resolve("before").is("pass", "current", "v000002");
    fs::rename(place.skill("before"), place.skill("after")).unwrap();
    let answer = place.resolve("after");
    answer.is("none", "hidden", "").because("renamed from \"before\"").because("certify");
    let said = place.certify("after", None);
    assert_eq!(said["version"], "v000003", "{said}");
    assert!(said["notes"].to_string().contains("renamed from"), "{said}");
    place.resolve("after").is("pass", "current", "v000003");
    fs::write(place.skill("after/main"), "edited").unwrap();
    place.resolve("after").is("drifted", "fallback", "v000003");

    // Of a skill that runs, its id is still the old name, and that is the first thing to change.
    let place = Place::new();
    let skill = place.make("weather");
    let md = |id: &str| {
        format!(
            "---\nid: {id}\nversion: 1.0.0\ndescription: d\nallowed_memory_scopes: []\nallowed_tools: []\n---\n"
        )
    };
    fs::write(skill.join("SKILL.md"), md("weather")).unwrap();
    place.certify("weather", None);
    fs::rename(&skill, place.skill("forecast")).unwrap();
    let said = place.resolve("forecast");
    said.is("none", "hidden", "")
        .because("renamed from \"weather\": set id in its SKILL.md to forecast, look at it");
    fs::write(place.skill("forecast/SKILL.md"), md("forecast")).unwrap();
    place.resolve("forecast").because("renamed from \"weather\": look at it, then certify again");
    place.certify("forecast", None);
    place.resolve("forecast").is("pass", "current", "v000002");

    // However many versions it had under its old name.
    let place = Place::new();
    let skill = place.make("many");
    succeeded(&place.root([
        OsStr::new("certify"),
        skill.as_os_str(),
        OsStr::new("--after"),
        OsStr::new("v000200"),
    ]));
    fs::rename(skill, place.skill("renamed")).unwrap();
    place.resolve("renamed").is("none", "hidden", "").because("renamed from \"many\"");
    assert_eq!(place.certify("renamed", None)["version"], "v000202");
    place.resolve("renamed").is("pass", "current", "v000202");
    // Where something had been seen under this name, it is no mere rename.
    place.make("seen");
    place.certify("seen", None);
    place.resolve("seen").is("pass", "current", "v000001");
    fs::remove_dir_all(place.skill("seen")).unwrap();
    fs::rename(place.skill("renamed"), place.skill("seen")).unwrap();
    place.resolve("seen").is("tampered", "hidden", "").because("\"renamed\"");
}

#[test]
fn prune_removes_old_versions_and_never_one_that_is_or_may_be_shown() {
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 6);
    place.resolve("demo").is("pass", "current", "v000006");
    let prune = |args: &[&str]| {
        let mut command = place.root_command();
        command.arg("prune").arg("--json").args(args).arg(&skill);
        let output = command.output().unwrap();
        succeeded(&output);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let said = prune(&["--keep", "3"]);
    assert_eq!(said["removed"], serde_json::json!(["v000001", "v000002", "v000003"]), "{said}");
    assert_eq!(names(&place, "demo"), numbered(&[4, 5, 6]));
    place.resolve("demo").is("pass", "current", "v000006");
    assert_eq!(prune(&["--keep", "3"])["removed"], serde_json::json!([]));

    // Versions with findings on top: the one that is fallen back to stays, however old.
    for n in 0..4 {
        fs::write(skill.join("main"), format!("bad {n}")).unwrap();
        place.certify("demo", Some(&place.report(&["error"])));
    }
    place.resolve("demo").is("deny", "fallback", "v000006");
    prune(&["--keep", "1"]);
    // v000005 too: it would be fallen back to if the same content as v000006 were condemned.
    assert_eq!(names(&place, "demo"), numbered(&[5, 6, 10]));
    place.resolve("demo").is("deny", "fallback", "v000006");
    fs::write(skill.join("main"), "version 6").unwrap();
    place.certify("demo", Some(&place.report(&["error"])));
    place.resolve("demo").is("deny", "fallback", "v000005");

    // What SkillFS has seen last is in use until it has seen more.
    certify_versions(&place, "demo", 3);
    prune(&["--keep", "1"]);
    let left = names(&place, "demo");
    assert!(left.contains(&"v000011.json".to_owned()), "seen: {left:?}");
    assert!(left.contains(&"v000005.snapshot".to_owned()), "shown: {left:?}");
    place.resolve("demo").is("pass", "current", "v000014");
    prune(&["--keep", "1"]);
    assert_eq!(names(&place, "demo"), numbered(&[13, 14]));
    // The content of an older version that lies there now is told from any other.
    for bad in ["0", "-1", "x"] {
        let output =
            place.root([OsStr::new("prune"), OsStr::new("--keep"), OsStr::new(bad), skill.as_os_str()]);
        assert_eq!(output.status.code(), Some(2), "--keep {bad}");
    }
}

#[test]
fn what_prune_keeps_beside_the_newest_is_named_with_its_reason() {
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 3);
    for n in 0..2 {
        fs::write(skill.join("main"), format!("bad {n}")).unwrap();
        place.certify("demo", Some(&place.report(&["error"])));
    }
    place.resolve("demo").is("deny", "fallback", "v000003");
    let prune = |args: &[&str]| {
        let output = place.root_command().arg("prune").args(args).arg(&skill).output().unwrap();
        succeeded(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    let said = prune(&["--keep", "2"]);
    assert_eq!(
        said,
        "pruned demo: v000001\n\
         kept v000002 beside the newest 2: it would be shown if the last that passed were found bad\n\
         kept v000003 beside the newest 2: the last that passed: it is shown when the folder is not\n"
    );
    assert_eq!(names(&place, "demo"), numbered(&[2, 3, 4, 5]));
    let said: serde_json::Value = serde_json::from_str(&prune(&["--keep", "2", "--json"])).unwrap();
    assert_eq!(
        (&said["removed"], &said["keptBeside"][1]["version"]),
        (&json!([]), &json!("v000003")),
        "{said}"
    );
    assert!(said["keptBeside"][0]["why"].is_string(), "{said}");
}

#[test]
fn prune_touches_nothing_when_it_cannot_tell_what_is_in_use() {
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 4);
    place.resolve("demo").is("pass", "current", "v000004");
    let before = names(&place, "demo");
    let refused = |why: &str| {
        let output =
            place.root([OsStr::new("prune"), OsStr::new("--keep"), OsStr::new("1"), skill.as_os_str()]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(why), "{why} in {said}");
    };
    set_mode(&place.path("state/ledger"), 0o777);
    refused("state folder");
    set_mode(&place.path("state/ledger"), 0o700);
    fs::rename(place.version("demo", "v000004.json"), place.path("aside")).unwrap();
    refused("certify again");
    fs::write(place.version("demo", "v000004.json"), "{}").unwrap();
    refused("certify again");
    fs::rename(place.path("aside"), place.version("demo", "v000004.json")).unwrap();
    assert_eq!(names(&place, "demo"), before);
    place.resolve("demo").is("pass", "current", "v000004");
}

#[test]
fn certifying_keeps_no_more_versions_than_it_is_told() {
    let place = Place::new();
    let skill = place.make("demo");
    certify_versions(&place, "demo", 14);
    assert_eq!(names(&place, "demo"), numbered(&(5..=14).collect::<Vec<_>>()));
    place.resolve("demo").is("pass", "current", "v000014");
    fs::write(skill.join("main"), "more").unwrap();
    let output =
        place.root([OsStr::new("certify"), OsStr::new("--keep"), OsStr::new("3"), skill.as_os_str()]);
    succeeded(&output);
    assert_eq!(names(&place, "demo"), numbered(&[13, 14, 15]));
    place.resolve("demo").is("pass", "current", "v000015");
}

#[test]
fn an_interrupted_prune_leaves_only_what_the_next_one_takes_away() {
    let place = Place::new();
    let skill = place.make("demo");
    for n in 0..400 {
        fs::write(skill.join(format!("lib/{n}")), "x").unwrap();
    }
    let mut kills = 0;
    let mut newest = String::new();
    for round in 0.. {
        assert!(round < 60, "it is always done before it can be killed");
        if kills == 3 {
            break;
        }
        for n in 0..3 {
            fs::write(skill.join("main"), format!("round {round} {n}")).unwrap();
            newest = place.certify("demo", None)["version"].as_str().unwrap().to_owned();
        }
        place.resolve("demo").is("pass", "current", &newest);
        let mut child = place.root_command().arg("prune").args(["--keep", "1"]).arg(&skill).spawn().unwrap();
        let begun = loop {
            if names(&place, "demo").iter().any(|n| n.starts_with(".tmp-")) {
                break true;
            }
            if child.try_wait().unwrap().is_some() {
                break false;
            }
        };
        let _ = child.kill();
        let finished = child.wait().unwrap().success();
        if begun && !finished {
            kills += 1;
        }
        place.resolve("demo").is("pass", "current", &newest);
        fs::write(skill.join("main"), "edited").unwrap();
        place.resolve("demo").is("drifted", "fallback", &newest);
    }
    succeeded(&place.root([OsStr::new("prune"), OsStr::new("--keep"), OsStr::new("1"), skill.as_os_str()]));
    let left = names(&place, "demo");
    assert!(left.iter().all(|n| n.starts_with('v')) && left.len() <= 4, "{left:?}");
    place.resolve("demo").is("drifted", "fallback", &newest);
}

#[test]
fn no_lock_that_a_stranger_can_hold_keeps_anyone_waiting() {
    let (place, skill) = certified();
    place.resolve("demo").is("pass", "current", "v000001");
    // A stranger locks everything that he can open: what can be read can be locked.
    let script = "import fcntl,os,sys\nheld=[]\nfor top in sys.argv[1:]:\n for d,ds,fs in os.walk(top):\n  \
                  for p in [d]+[os.path.join(d,f) for f in fs]:\n   try:\n    f=os.open(p,os.O_RDONLY|os.O_NONBLOCK)\n    \
                  fcntl.flock(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\n    held.append(f)\n   except OSError:pass\n\
                  print(len(held),flush=True)\nsys.stdin.read()\n";
    set_mode(&place.path("state/ledger"), 0o755);
    set_mode(&place.path("keys"), 0o755);
    let mut stranger = Command::new("/usr/bin/python3");
    std::os::unix::process::CommandExt::uid(&mut stranger, 65534);
    let mut stranger = stranger
        .args(["-c", script])
        .args([place.path("source"), place.path("state"), place.path("keys"), place.path("trusted")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stranger.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert!(line.trim().parse::<u32>().unwrap() >= 8, "he holds {line}");
    let start = Instant::now();
    fs::write(skill.join("main"), "two").unwrap();
    assert_eq!(place.certify("demo", None)["version"], "v000002");
    place.resolve("demo").is("pass", "current", "v000002");
    assert!(start.elapsed() < Duration::from_secs(20), "it waited for him: {:?}", start.elapsed());
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
}

#[test]
fn a_skill_that_is_a_link_is_never_read_through_it() {
    let place = Place::new();
    let secret = place.path("private");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("SKILL.md"), "---\nname: s3cret\n---\n").unwrap();
    symlink(&secret, place.skill("linked")).unwrap();
    for end in ["linked", "linked/", "linked/."] {
        let answer = place.resolve_only(&place.path("source").join(end));
        let text = answer.0.to_string();
        assert!(!text.contains("s3cret"), "{end}: {text}");
        assert_eq!((answer.str("status"), answer.str("decision")), ("error", "hidden"), "{end}: {text}");
        answer.because("symlink");
        let scanned =
            place.skillfs_command().arg("scan").arg(place.path("source").join(end)).output().unwrap();
        assert!(String::from_utf8(scanned.stdout).unwrap().contains("symlink"));
    }
    // In a list of skills it is no skill, as in the view.
    let status = place.root([OsStr::new("status"), place.path("source").as_os_str(), OsStr::new("--json")]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(!text.contains("s3cret") && !text.contains("linked"), "{text}");
    // Nor is a link that somebody else has put on the way there followed, to publish what it leads to.
    let theirs = place.path("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(secret.join("demo")).unwrap();
    fs::write(secret.join("demo/SKILL.md"), "---\nname: s3cret\n---\n").unwrap();
    symlink(&secret, theirs.join("skills")).unwrap();
    std::os::unix::fs::lchown(theirs.join("skills"), Some(65534), Some(65534)).unwrap();
    let output = place.root([OsStr::new("certify"), theirs.join("skills/demo").as_os_str()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("symlink") && said.contains("theirs/skills"),
        "{said}"
    );
    assert!(!secret.join("demo/.skill-meta").exists());
    // One of root's own is the site's layout.
    std::os::unix::fs::lchown(theirs.join("skills"), Some(0), Some(0)).unwrap();
    succeeded(&place.root([OsStr::new("certify"), theirs.join("skills/demo").as_os_str()]));
}
