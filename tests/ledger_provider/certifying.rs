//! What `certify` and `init` promise to the operator [9.10].

use super::*;

#[test]
fn certify_takes_only_what_a_skill_may_hold_and_leaves_nothing_behind() {
    let place = Place::new();
    let skill = place.make("demo");
    let odd = skill.join("lib/odd");
    type Plant = fn(&Path, &Place);
    let cases: [(Plant, &str); 5] = [
        (|p, _| symlink("/etc/passwd", p).unwrap(), "leaves the skill"),
        (|p, _| symlink("../../other/.skill-meta", p).unwrap(), "leaves the skill"),
        (|p, _| nix::unistd::mkfifo(p, nix::sys::stat::Mode::S_IRWXU).unwrap(), "no regular file"),
        (|p, _| fs::File::create(p).unwrap().set_len(300 << 20).unwrap(), "256 MiB"),
        (
            |p, place| {
                fs::write(place.path("secret"), "root's").unwrap();
                set_mode(&place.path("secret"), 0o600);
                fs::hard_link(place.path("secret"), p).unwrap();
            },
            "hard link",
        ),
    ];
    for (plant, because) in cases {
        plant(&odd, &place);
        let said = place.refused("demo");
        assert!(said.contains("lib/odd") && said.contains(because), "{said}");
        assert_eq!(fs::read_dir(skill.join(".skill-meta/versions")).unwrap().count(), 0);
        fs::remove_file(&odd).unwrap();
    }
    assert!(place.refused("absent").contains("No such file"));
    // Nor is a link to a folder a skill: root would publish whatever it leads to.
    place.make("real");
    symlink("real", place.skill("linked")).unwrap();
    assert!(place.refused("linked").contains("is a symlink"));
    assert!(!place.skill("real/.skill-meta").exists());
    place.certify("demo", None);
}

#[test]
fn a_snapshot_is_safe_whatever_the_source_is_like() {
    let place = Place::new();
    let skill = place.make("demo");
    fs::create_dir(skill.join("deep")).unwrap();
    fs::write(skill.join("deep/suid"), "x").unwrap();
    fs::hard_link(skill.join("SKILL.md"), skill.join("deep/again")).unwrap();
    for (path, mode) in [("deep/suid", 0o6777), ("deep", 0o1777), ("SKILL.md", 0o666), ("lib/data", 0o600)] {
        chown(skill.join(path), Some(4242), Some(4242)).unwrap();
        set_mode(&skill.join(path), mode);
    }
    chown(&skill, Some(4242), Some(4242)).unwrap();
    set_mode(&skill, 0o777);
    succeeded(&place.root_with_umask("077", &[OsStr::new("certify"), skill.as_os_str()]));
    let mut left = vec![place.version("demo", "v000001.snapshot")];
    let mut files = 0;
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            assert_eq!(stat.mode() & 0o7777, 0o555, "{path:?}");
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if stat.is_file() {
            files += 1;
            let want = if ["main", "suid"].map(OsStr::new).contains(&path.file_name().unwrap()) {
                0o555
            } else {
                0o444
            };
            assert_eq!((stat.mode() & 0o7777, stat.nlink(), stat.uid()), (want, 1, 0), "{path:?}");
        }
    }
    assert_eq!(files, 5);
    assert_eq!(fs::read_link(place.version("demo", "v000001.snapshot/link")).unwrap(), Path::new("lib/data"));
    assert_eq!(fs::metadata(place.version("demo", "v000001.json")).unwrap().mode() & 0o7777, 0o444);
    // SkillFS's user can't read the one file that was private, and that is said.
    place.resolve("demo").is("error", "hidden", "").because("lib/data: cannot be read");
    set_mode(&skill.join("lib/data"), 0o604);
    place.resolve("demo").is("pass", "current", "v000001");
}

#[test]
fn a_signing_key_within_reach_of_others_is_refused() {
    let place = Place::new();
    place.make("demo");
    let key = place.path("keys/local.key");
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(place.path("keys")).unwrap().mode() & 0o7777, 0o700);
    for mode in [0o640, 0o604, 0o644, 0o660, 0o620] {
        set_mode(&key, mode);
        assert!(place.refused("demo").contains("chmod 0600"), "{mode:o}");
    }
    set_mode(&key, 0o600);
    set_mode(&place.path("keys"), 0o777);
    assert!(place.refused("demo").contains("chmod 0700"));
    set_mode(&place.path("keys"), 0o700);
    chown(&key, Some(4242), None).unwrap();
    assert!(place.refused("demo").contains("belongs to somebody else"));
    chown(&key, Some(SKILLFS), None).unwrap();
    assert!(place.refused("demo").contains("SkillFS's user"));
    chown(place.path("keys"), Some(SKILLFS), None).unwrap();
    chown(place.skill("demo"), Some(SKILLFS), None).unwrap();
    let mut command = place.skillfs_command();
    let output = command
        .arg("--keys")
        .arg(place.path("keys"))
        .arg("certify")
        .arg(place.skill("demo"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("SkillFS's user"));
    chown(place.path("keys"), Some(0), None).unwrap();
    chown(&key, Some(0), None).unwrap();
    fs::rename(&key, place.path("keys/other.key")).unwrap();
    symlink("other.key", &key).unwrap();
    place.refused("demo");
    fs::remove_file(&key).unwrap();
    assert!(place.refused("demo").contains("skill-ledger init"));
    assert!(!place.skill("demo").join(".skill-meta").exists(), "nothing was begun");
}

#[test]
fn init_never_replaces_a_key_and_completes_a_pair() {
    let place = Place::new();
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    let (private, public) = (read("keys/local.key"), read("trusted/local.pub"));
    succeeded(&place.root(["init"]));
    fs::remove_file(place.path("trusted/local.pub")).unwrap();
    let said = place.root(["init", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["made"], false);
    assert_eq!((read("keys/local.key"), read("trusted/local.pub")), (private, public.clone()));
    succeeded(&place.root(["init", "--name", "second"]));
    fs::copy(place.path("trusted/second.pub"), place.path("trusted/local.pub")).unwrap();
    let output = place.root(["init"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("another pair"));
    assert_eq!(place.root(["init", "--name", "../x"]).status.code(), Some(1));
}

#[test]
fn only_the_content_that_was_looked_at_is_certified_if_one_asks() {
    let place = Place::new();
    let skill = place.make("demo");
    let digest = place.certify("demo", None)["treeDigest"].as_str().unwrap().to_owned();
    fs::write(skill.join("main"), "changed since").unwrap();
    let output =
        place.root([OsStr::new("certify"), skill.as_os_str(), OsStr::new("--expect"), OsStr::new(&digest)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("look at it again"));
    let names: Vec<_> =
        fs::read_dir(skill.join(".skill-meta/versions")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn many_certifies_at_once_make_one_history() {
    let place = Place::new();
    let skill = place.make("demo");
    let run = |findings: Option<&Path>| {
        let mut command = place.root_command();
        command.arg("certify").arg(&skill).arg("--json");
        command.args(findings.map(|f| format!("--findings={}", f.display())));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let made = |children: Vec<std::process::Child>| -> Vec<String> {
        let outputs = children.into_iter().map(|c| c.wait_with_output().unwrap());
        let answers = outputs.map(|o| {
            succeeded(&o);
            serde_json::from_slice::<serde_json::Value>(&o.stdout).unwrap()
        });
        answers.filter(|a| a["made"] == true).map(|a| a["version"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(made((0..8).map(|_| run(None)).collect()), ["v000001"]);
    let reports: Vec<_> = (1..=8).map(|n| place.report(&vec!["note"; n])).collect();
    let mut versions = made(reports.iter().map(|r| run(Some(r))).collect());
    versions.sort();
    assert_eq!(versions, (2..=9).map(|n| format!("v{n:06}")).collect::<Vec<_>>());
    place.resolve("demo").is("pass", "current", "v000009");
    assert_eq!(fs::read_dir(skill.join(".skill-meta/versions")).unwrap().count(), 18);
}

#[test]
fn a_certify_that_is_killed_leaves_nothing_that_is_believed() {
    let place = Place::new();
    let skill = place.make("demo");
    fs::write(skill.join("big"), vec![7; 4 << 20]).unwrap();
    let certified = place.certify("demo", None);
    place.resolve("demo").is("pass", "current", "v000001");
    let versions = skill.join(".skill-meta/versions");
    let names = || -> Vec<String> {
        fs::read_dir(&versions).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    let mut trusted = certified;
    let mut kills = 0;
    for round in 0.. {
        assert!(round < 100, "it is always done before it can be killed");
        if kills == 4 {
            break;
        }
        fs::write(skill.join("main"), format!("round {round}")).unwrap();
        let mut command = place.root_command();
        command.arg("certify").arg(&skill).arg("--json").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begun = loop {
            if names().iter().any(|n| n.starts_with(".tmp-")) {
                break true;
            }
            if child.try_wait().unwrap().is_some() {
                break false;
            }
        };
        // Whether it was caught is seen by what it says, which it does last.
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        if !begun || output.status.success() {
            trusted = serde_json::from_slice(&output.stdout).unwrap();
            place.resolve("demo").is("pass", "current", trusted["version"].as_str().unwrap());
            continue;
        }
        kills += 1;
        let answer = place.resolve("demo");
        if answer.str("status") == "pass" {
            // Killed between the manifest and the last word: the version is whole.
            assert_eq!(answer.0["contentDigest"], place.certify("demo", None)["treeDigest"]);
            trusted = place.certify("demo", None);
        } else {
            assert_eq!(answer.str("decision"), "fallback", "{answer:?}");
            assert_eq!(answer.0["contentDigest"], trusted["treeDigest"]);
        }
    }
    // Killed between the snapshot and its manifest.
    let certified = place.certify("demo", None);
    let number: u32 = certified["version"].as_str().unwrap().trim_start_matches('v').parse().unwrap();
    fs::create_dir(versions.join(format!("v{:06}.snapshot", number + 1))).unwrap();
    let answer = place.resolve("demo");
    answer
        .is("tampered", "fallback", certified["version"].as_str().unwrap())
        .because("certify was interrupted");
    let next = format!("v{:06}", number + 2);
    assert_eq!(place.certify("demo", None)["version"], *next);
    place.resolve("demo").is("pass", "current", &next);
    assert!(!names().iter().any(|n| n.starts_with(".tmp-")), "{:?}", names());
}

#[test]
fn planted_names_do_not_use_up_the_version_numbers() {
    let place = Place::new();
    place.make("demo");
    place.certify("demo", None);
    fs::write(place.version("demo", "v999999.json"), "{}").unwrap();
    place.resolve("demo").is("tampered", "fallback", "v000001").because("v999999.json is not a manifest");
    fs::write(place.skill("demo").join("main"), "two").unwrap();
    assert!(place.refused("demo").contains("v999999.json is not signed"));
    fs::remove_file(place.version("demo", "v999999.json")).unwrap();
    fs::write(place.version("demo", "v000007.json"), "{}").unwrap();
    assert_eq!(place.certify("demo", None)["version"], "v000008");
    place.resolve("demo").is("pass", "current", "v000008");
}
