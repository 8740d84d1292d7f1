//! Whoever can write the source can rewrite everything in `.skill-meta`, and put older states back [9.10].

use super::*;

#[test]
fn a_version_that_is_found_bad_later_is_never_shown_again() {
    let (place, skill) = certified();
    fs::write(skill.join("main"), "two").unwrap();
    place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000002");
    // New rules of the scanner condemn what had passed; the version before it is still good.
    assert_eq!(place.certify("demo", Some(&place.report(&["error"])))["version"], "v000003");
    place.resolve("demo").is("deny", "fallback", "v000001");
    fs::write(skill.join("main"), "three").unwrap();
    place.certify("demo", Some(&place.report(&["error"])));
    place.resolve("demo").is("deny", "fallback", "v000001");
    // Taking the condemning versions away does not bring the condemned one back.
    for name in ["v000003.json", "v000004.json"] {
        fs::remove_file(place.version("demo", name)).unwrap();
    }
    for name in ["v000003.snapshot", "v000004.snapshot"] {
        fs::remove_dir_all(place.version("demo", name)).unwrap();
    }
    fs::write(skill.join("main"), "two").unwrap();
    place.resolve("demo").is("tampered", "fallback", "v000001").because("v000004 has been seen");
}

#[test]
fn every_way_to_tamper_with_a_version_is_noticed() {
    type Tamper = fn(&Place);
    fn manifest(place: &Place, change: impl Fn(String) -> String) {
        let path = place.version("demo", "v000002.json");
        let text = change(fs::read_to_string(&path).unwrap());
        fs::write(&path, text).unwrap();
    }
    fn snapshot(place: &Place) -> std::path::PathBuf {
        place.version("demo", "v000002.snapshot")
    }
    let cases: [(&str, Tamper, &str); 25] = [
        ("status", |p| manifest(p, |t| t.replace("\"pass\"", "\"warn\"")), "bad signature"),
        ("time", |p| manifest(p, |t| t.replace("\"created\": \"2", "\"created\": \"3")), "bad signature"),
        (
            "signature",
            |p| {
                manifest(p, |t| {
                    let at = t.rfind("\"\n}").unwrap() - 1;
                    let digit = if t.as_bytes()[at] == b'0' { "1" } else { "0" };
                    format!("{}{digit}{}", &t[..at], &t[at + 1..])
                })
            },
            "bad signature",
        ),
        ("a blank", |p| manifest(p, |t| t + " "), "not a manifest"),
        (
            "a field",
            |p| manifest(p, |t| t.replace("\"created\"", "\"more\": 1, \"created\"")),
            "not a manifest",
        ),
        ("garbage", |p| manifest(p, |_| "\0\0".repeat(999)), "not a manifest"),
        ("deep", |p| manifest(p, |_| "[".repeat(1 << 20)), "not a manifest"),
        ("empty", |p| manifest(p, |_| String::new()), "not a manifest"),
        (
            "number",
            |p| {
                fs::copy(p.version("demo", "v000002.json"), p.version("demo", "v000003.json")).unwrap();
            },
            "was made for v000002",
        ),
        (
            "huge",
            |p| fs::File::create(p.version("demo", "v000002.json")).unwrap().set_len(1 << 40).unwrap(),
            "larger than any",
        ),
        ("no manifest", |p| fs::remove_file(p.version("demo", "v000002.json")).unwrap(), "no manifest"),
        (
            "manifest a link",
            |p| {
                let path = p.version("demo", "v000002.json");
                fs::rename(&path, p.path("elsewhere")).unwrap();
                symlink(p.path("elsewhere"), path).unwrap();
            },
            "symlink",
        ),
        (
            "manifest a FIFO",
            |p| {
                let path = p.version("demo", "v000002.json");
                fs::remove_file(&path).unwrap();
                nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
            },
            "no regular file",
        ),
        (
            "manifest a folder",
            |p| {
                let path = p.version("demo", "v000002.json");
                fs::remove_file(&path).unwrap();
                fs::create_dir(path).unwrap();
            },
            "no regular file",
        ),
        (
            "content",
            |p| fs::write(snapshot(p).join("main"), "#!/bin/sh\necho EVIL\n").unwrap(),
            "other content",
        ),
        (
            "more content",
            |p| {
                fs::write(snapshot(p).join("sitecustomize.py"), "").unwrap();
                set_mode(&snapshot(p).join("sitecustomize.py"), 0o444);
            },
            "other content",
        ),
        ("less content", |p| fs::remove_file(snapshot(p).join("lib/data")).unwrap(), "other content"),
        ("writable", |p| set_mode(&snapshot(p).join("main"), 0o757), "group or others"),
        ("linked", |p| fs::hard_link(snapshot(p).join("main"), p.path("outside")).unwrap(), "hard link"),
        (
            "snapshot a link",
            |p| {
                fs::rename(snapshot(p), p.path("moved")).unwrap();
                symlink(p.path("moved"), snapshot(p)).unwrap();
            },
            "no real folder",
        ),
        (
            "snapshot a link to the live folder",
            |p| {
                fs::remove_dir_all(snapshot(p)).unwrap();
                symlink("../..", snapshot(p)).unwrap();
            },
            "no real folder",
        ),
        (
            "snapshot a file",
            |p| {
                fs::remove_dir_all(snapshot(p)).unwrap();
                fs::write(snapshot(p), "").unwrap();
            },
            "no real folder",
        ),
        (
            "snapshot a FIFO",
            |p| {
                fs::remove_dir_all(snapshot(p)).unwrap();
                nix::unistd::mkfifo(&snapshot(p), nix::sys::stat::Mode::S_IRWXU).unwrap();
            },
            "no real folder",
        ),
        (
            "snapshot empty",
            |p| {
                fs::remove_dir_all(snapshot(p)).unwrap();
                fs::create_dir(snapshot(p)).unwrap();
            },
            "other content",
        ),
        ("no snapshot", |p| fs::remove_dir_all(snapshot(p)).unwrap(), "missing"),
    ];
    let (place, skill) = certified();
    fs::write(skill.join("main"), "two").unwrap();
    place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000002");
    let kept = place.path("kept");
    copy_tree(&skill, &kept);
    for (what, tamper, reason) in cases {
        tamper(&place);
        let answer = place.resolve("demo");
        println!("{what}: {}", answer.0);
        // The older version is never shown instead: that would let a tamperer choose it.
        let unharmed = matches!(what, "number");
        if unharmed {
            answer.is("tampered", "fallback", "v000002").because(reason);
        } else {
            answer.is("tampered", "hidden", "").because(reason);
        }
        // With an edit on top it is still tampering, not mere drift.
        fs::write(skill.join("main"), "edited").unwrap();
        assert_eq!(place.resolve("demo").str("status"), "tampered", "{what}");
        fs::remove_dir_all(&skill).unwrap();
        let _ = fs::remove_file(place.path("outside"));
        let _ = fs::remove_file(place.path("elsewhere"));
        let _ = fs::remove_dir_all(place.path("moved"));
        copy_tree(&kept, &skill);
        place.resolve("demo").is("pass", "current", "v000002");
    }
}

#[test]
fn the_providers_folder_itself_may_be_anything() {
    let (place, skill) = certified();
    place.resolve("demo").is("pass", "current", "v000001");
    let meta = skill.join(".skill-meta");
    fs::rename(&meta, place.path("meta")).unwrap();
    place.resolve("demo").is("tampered", "hidden", "").because("v000001 has been seen");
    symlink(place.path("meta"), &meta).unwrap();
    place.resolve("demo").is("tampered", "hidden", "").because("no real folder");
    fs::remove_file(&meta).unwrap();
    fs::write(&meta, "").unwrap();
    place.resolve("demo").is("tampered", "hidden", "").because("no real folder");
    assert!(place.refused("demo").contains(".skill-meta is no real folder"));
    fs::remove_file(&meta).unwrap();
    nix::unistd::mkfifo(&meta, nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.resolve("demo").is("tampered", "hidden", "");
    fs::remove_file(&meta).unwrap();
    fs::create_dir(&meta).unwrap();
    fs::write(meta.join("versions"), "").unwrap();
    place.resolve("demo").is("tampered", "hidden", "");
    fs::remove_dir_all(&meta).unwrap();
    fs::rename(place.path("meta"), &meta).unwrap();
    place.resolve("demo").is("pass", "current", "v000001");
}

#[test]
fn an_older_state_that_is_put_back_is_tampering() {
    let (place, skill) = certified();
    let old = place.path("old");
    copy_tree(&skill, &old);
    fs::write(skill.join("main"), "fixed").unwrap();
    place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000002");
    let new = place.path("new");
    copy_tree(&skill, &new);

    // In place, in a folder moved there, and through a link: the record goes by the path.
    replace(&skill, &old);
    place.resolve("demo").is("tampered", "hidden", "").because("an older state was put back");
    fs::remove_dir_all(&skill).unwrap();
    copy_tree(&old, &place.path("other"));
    symlink(place.path("other"), &skill).unwrap();
    place.resolve("demo").is("tampered", "hidden", "");
    place.resolve_only(&place.path("source/./demo/")).is("tampered", "hidden", "");
    fs::remove_file(&skill).unwrap();
    copy_tree(&new, &skill);
    place.resolve("demo").is("pass", "current", "v000002");

    // A second history with the same numbers and the same key, as of another machine, is no better.
    let second = Place::new();
    second.make("demo");
    fs::write(second.skill("demo").join("main"), "other").unwrap();
    for (from, to) in [("keys", "keys"), ("trusted", "trusted")] {
        fs::remove_dir_all(second.path(to)).unwrap();
        copy_tree(&place.path(from), &second.path(to));
    }
    second.certify("demo", None);
    second.certify("demo", Some(&second.report(&["note"])));
    second.resolve("demo").is("pass", "current", "v000002");
    replace(&skill, &second.skill("demo"));
    place.resolve("demo").is("tampered", "hidden", "").because("another signed manifest of v000002");
    // Certifying goes on after what was seen, and heals it.
    assert_eq!(place.certify("demo", None)["version"], "v000003");
    place.resolve("demo").is("pass", "current", "v000003");
    // So does a folder that begins anew.
    fs::remove_dir_all(&skill).unwrap();
    place.make("demo");
    place.resolve("demo").is("tampered", "hidden", "").because("versions are gone");
    assert_eq!(place.certify("demo", None)["version"], "v000004");
    place.resolve("demo").is("pass", "current", "v000004");
}

#[test]
fn another_skills_versions_and_a_strangers_key_prove_nothing() {
    let place = Place::new();
    place.make("demo");
    place.make("other");
    place.certify("other", None);
    copy_tree(&place.skill("other").join(".skill-meta"), &place.skill("demo").join(".skill-meta"));
    place.resolve("demo").is("tampered", "hidden", "").because("made for the skill \"other\"");
    place.resolve("other").is("pass", "current", "v000001");

    let stranger = Place::new();
    stranger.make("third");
    stranger.certify("third", None);
    copy_tree(&stranger.skill("third"), &place.skill("third"));
    let meta = place.skill("third").join(".skill-meta");
    fs::copy(stranger.path("trusted/local.pub"), meta.join("local.pub")).unwrap();
    fs::copy(stranger.path("trusted/local.pub"), meta.join("versions/local.pub")).unwrap();
    place.resolve("third").is("tampered", "hidden", "").because("not among the trusted keys");
    // Not even when the provider is pointed there.
    let mut command = place.skillfs_command();
    command.arg("--trusted").arg(&meta).arg("resolve").arg(place.skill("third"));
    let output = command.output().unwrap();
    assert!(!output.status.success(), "an option given twice is a usage error");
    let mut command = Command::new(place.path("skill-ledger"));
    std::os::unix::process::CommandExt::uid(&mut command, SKILLFS);
    command.arg("--trusted").arg(&meta).arg("--state").arg(place.path("state/ledger"));
    let output = command.arg("resolve").arg(place.skill("third")).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["status"], &answer["decision"]), (&"error".into(), &"hidden".into()), "{answer}");
}

#[test]
fn keys_that_others_could_have_written_are_passed_over() {
    let place = Place::new();
    place.make("demo");
    place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000001");
    let key = place.path("trusted/local.pub");
    set_mode(&key, 0o666);
    place.resolve("demo").is("tampered", "hidden", "").because("local.pub: can be written by others");
    set_mode(&key, 0o644);
    fs::write(place.path("trusted/broken.pub"), "-----BEGIN").unwrap();
    place.resolve("demo").is("pass", "current", "v000001");
    set_mode(&place.path("trusted"), 0o777);
    place.resolve("demo").is("error", "hidden", "").because("can be written by others");
    set_mode(&place.path("trusted"), 0o755);
    chown(place.path("trusted"), Some(12345), None).unwrap();
    place.resolve("demo").is("error", "hidden", "");
    chown(place.path("trusted"), Some(0), None).unwrap();
    fs::rename(place.path("trusted"), place.path("gone")).unwrap();
    place.resolve("demo").is("error", "hidden", "").because("skill-ledger init");
}

#[test]
fn planted_manifests_cost_little_time_whatever_their_number_and_size() {
    let place = Place::new();
    place.make("demo");
    place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000001");
    let row = r#"{"path":"a","kind":"d","size":0},"#;
    let rows = row.repeat((7 << 20) / row.len());
    let planted = place.version("demo", "v000100.json");
    fs::write(&planted, format!(r#"{{"manifest":{{"files":[{}]"#, rows.trim_end_matches(','))).unwrap();
    for n in 101..160 {
        fs::hard_link(&planted, place.version("demo", &format!("v{n:06}.json"))).unwrap();
    }
    let start = std::time::Instant::now();
    place.resolve("demo").is("tampered", "fallback", "v000001").because("v000159.json is not a manifest");
    assert!(start.elapsed().as_secs() < 20, "the search ends: it took {:?}", start.elapsed());
}
