//! What `certify` takes for a skill, and what it takes for content [9.10, 0.1].

use super::*;

/// Runs `git` in the skill's folder.
fn git(skill: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    succeeded(&command.arg("-C").arg(skill).args(args).output().unwrap());
}

#[test]
fn a_folder_that_holds_skills_is_not_certified_for_one_and_the_skills_are_named() {
    let place = Place::new();
    for name in ["plugin/one", "plugin/two", "plugin/deep/three", "empty/x"] {
        fs::create_dir_all(place.skill(name)).unwrap();
    }
    for name in ["one", "two", "deep/three"] {
        fs::write(place.skill("plugin").join(name).join("SKILL.md"), "---\nname: x\n---\n").unwrap();
    }
    let said = place.refused("plugin");
    assert!(said.contains("has no SKILL.md") && said.contains("holds skills"), "{said}");
    for named in ["plugin/one", "plugin/two", "plugin/deep/three"] {
        assert!(said.contains(named), "{named} in {said}");
    }
    assert!(!place.skill("plugin/.skill-meta").exists(), "nothing was begun");
    // Nor is a folder inside a skill one, and the skill that was probably meant is named.
    place.make("demo");
    let said = place.refused("demo/lib");
    assert!(said.contains("has no SKILL.md") && said.contains("lies in the skill"), "{said}");
    assert!(said.contains(&*place.skill("demo").to_string_lossy()), "{said}");
    let said = place.refused("empty");
    assert!(said.contains("has no SKILL.md") && said.contains("is no skill"), "{said}");
    let said = place.refused("demo/SKILL.md");
    assert!(said.contains("is a file") && said.contains("the skill's folder"), "{said}");
    fs::rename(place.skill("demo/SKILL.md"), place.skill("demo/skill.md")).unwrap();
    let said = place.refused("demo");
    assert!(said.contains("skill.md") && said.contains("call it SKILL.md"), "{said}");
    assert!(!place.skill("demo/.skill-meta").exists() && !place.skill("demo/lib/.skill-meta").exists());
}

#[test]
fn a_skill_md_that_no_agent_could_read_is_not_certified() {
    let place = Place::new();
    let skill = place.make("demo");
    let md = skill.join("SKILL.md");
    let ours = |more: &str| {
        format!(
            "---\nid: demo\nversion: 1.0.0\ndescription: d\nallowed_memory_scopes: []\nallowed_tools: []\n{more}---\n"
        )
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "is empty"),
        (b"# Demo\n\nNo frontmatter.\n".to_vec(), "first line"),
        (b"\n---\nname: demo\n---\n".to_vec(), "first line"),
        (b"---\nname: demo\nNever closed.\n".to_vec(), "closing line"),
        (b"---\n\n# only a comment\n---\n".to_vec(), "no key"),
        (b"---\nname: caf\xe9\n---\n".to_vec(), "UTF-8"),
        (b"---\nname: a\0b\n---\n".to_vec(), "control character"),
        (b"---\nname: a\nname: b\n---\n".to_vec(), "second time"),
        ([b"---\nname: x\n".to_vec(), vec![b'x'; 2 << 20]].concat(), "1 MiB"),
        ([b"---\nname: x\nd: ".to_vec(), vec![b'x'; 70 << 10], b"\n---\n".to_vec()].concat(), "64 KiB"),
        (ours("").replace("id: demo", "id: other").into_bytes(), "other"),
        (ours("").replace("version: 1.0.0\n", "").into_bytes(), "version"),
        (ours("id: demo\n").into_bytes(), "second time"),
    ];
    for (text, why) in cases {
        fs::write(&md, &text).unwrap();
        let said = place.refused("demo");
        assert!(said.contains("SKILL.md") && said.contains(why), "{why} in {said}");
        assert!(!skill.join(".skill-meta").exists(), "nothing was begun: {said}");
    }
    type Plant = fn(&Path);
    let kinds: [(Plant, &str); 4] = [
        (|p| symlink("main", p).unwrap(), "symlink"),
        (|p| symlink("/etc/shadow", p).unwrap(), "symlink"),
        (|p| fs::create_dir(p).unwrap(), "no regular file"),
        (|p| nix::unistd::mkfifo(p, nix::sys::stat::Mode::S_IRWXU).unwrap(), "no regular file"),
    ];
    for (plant, why) in kinds {
        let _ = fs::remove_file(&md);
        plant(&md);
        let said = place.refused("demo");
        assert!(said.contains("SKILL.md") && said.contains(why), "{why} in {said}");
        let _ = fs::remove_dir(&md);
    }
    let _ = fs::remove_file(&md);
    assert!(!skill.join(".skill-meta").exists());
    // What other agents' skills look like is taken: any keys, folded and missing descriptions, another name.
    for text in [
        "---\nname: demo\ndescription: >\n  folded: with a colon\n  # no comment\nlicense: MIT\n---\nText.\n"
            .to_owned(),
        "\u{feff}---\r\nname: another-name\r\nallowed-tools: Bash(git:*)\r\n---\r\n".to_owned(),
        "---\ndescription: Use when: it has a colon\n---\n".to_owned(),
        "---  \nmetadata:\n  a: 1\n  b:\n    a: 2\nvendor-key: {x: y}\n---\t\n".to_owned(),
        ours("x-note: mine\n"),
    ] {
        fs::write(&md, &text).unwrap();
        place.certify("demo", None);
        assert_eq!(place.resolve("demo").str("status"), "pass", "{text:?}");
    }
}

/// What a skill that runs begins with.
const RUNS: &str = "---\nid: demo\nversion: 1.0.0\ndescription: d\nallowed_memory_scopes: []\n";

#[test]
fn what_keeps_a_skill_from_running_is_a_warning_that_names_validate() {
    let place = Place::new();
    let skill = place.make("demo");
    let validate = |skill: &Path| {
        let mut command = Command::new(binary("cyberos"));
        command.args(["skill", "validate"]).arg(skill).output().unwrap().status.code()
    };
    let notes = |rest: &str| {
        fs::write(skill.join("SKILL.md"), format!("{RUNS}{rest}\n---\n")).unwrap();
        place.certify("demo", None)["notes"].as_array().unwrap().clone()
    };
    for (rest, why) in [
        ("allowed_tools: []\nefort_minutes: 5", "line 7: there is no key \"efort_minutes\""),
        ("allowed_tools: []\nname: demo", "there is no key \"name\""),
        ("allowed_tools: [Read, Bsah]", "line 6: no tool is called \"Bsah\""),
        (
            "allowed_tools:\n  - Read # to look\n  - 'Bash(git:*)'",
            "line 8: no tool is called \"Bash(git:*)\"",
        ),
        ("allowed_tools: []\ndisallowed_tools: [bash]", "no tool is called \"bash\""),
        (
            "allowed_tools: [Read]\nx-allowed-files:\n- /srv/a\n- srv/b/**",
            "line 9: \"srv/b/**\" is no absolute path",
        ),
        ("allowed_tools: []\neffort_minutes: 0", "effort_minutes must be a whole number from 1, not \"0\""),
        ("allowed_tools: []\nx-memory-mb: 512M", "x-memory-mb must be a whole number"),
        ("allowed_tools: []\nsync_class: public", "sync_class must be private or shareable"),
        ("allowed_tools: []\ntenant_scope: one", "tenant_scope must be any or pinned"),
        ("allowed_tools: []\nsignature: x", "signatures cannot be checked"),
    ] {
        let notes = notes(rest);
        let [note] = notes.as_slice() else { panic!("{rest:?}: {notes:?}") };
        let note = note.as_str().unwrap();
        let command = format!("`cyberos skill validate {}`", skill.display());
        assert!(note.contains("will not run") && note.contains(why) && note.contains(&command), "{note}");
        assert_eq!(validate(&skill), Some(6), "the broker says so too: {rest:?}");
    }
    // A person reads it too, and how much more there is.
    fs::write(skill.join("SKILL.md"), format!("{RUNS}allowed_tools: [A, B, C, D, E, F, G]\n---\n")).unwrap();
    let output = place.root([OsStr::new("certify"), skill.as_os_str()]);
    succeeded(&output);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("WARN") && said.contains("\"E\", and 2 more; `cyberos skill validate "), "{said}");

    // What runs is not warned of: all tools and values, in each form, and whatever only a reader of YAML could tell.
    let tools = cyberos_broker::catalogue::NATIVE.join(", ");
    for rest in [
        format!("allowed_tools: [{tools}]"),
        format!("allowed_tools:\n- {}", tools.replace(", ", "\n- ")),
        "allowed_tools: []\nx-allowed-files: ['/srv/{a,b}/**', \"/srv/c\"] # both".into(),
        "allowed_tools: []\neffort_minutes: 30 # minutes\nsync_class: 'private'\ntenant_scope: any".into(),
        "allowed_tools: []\nx-note: mine\ntags: [a, b]\nx-entrypoint: main".into(),
    ] {
        assert_eq!(notes(&rest), Vec::<serde_json::Value>::new(), "{rest:?}");
        assert_eq!(validate(&skill), Some(0), "{rest:?}");
    }
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../packaging/skill.schema.json")).unwrap();
    for key in schema["properties"].as_object().unwrap().keys().filter(|key| !RUNS.contains(key.as_str())) {
        let more = if key == "allowed_tools" { String::new() } else { format!("{key}: |\n  x\n") };
        let said = notes(&format!("allowed_tools: []\n{more}"));
        assert!(!format!("{said:?}").contains("there is no key"), "{key}: {said:?}");
    }
}

#[test]
fn case_181_git_status_does_not_uncertify_a_skill() {
    let place = Place::new();
    let skill = place.make("demo");
    git(&skill, &["init", "-q"]);
    git(&skill, &["add", "."]);
    git(&skill, &["commit", "-qm", "one"]);
    let output = place.root([OsStr::new("certify"), skill.as_os_str()]);
    succeeded(&output);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(".git is left out"), "certify says so: {said}");
    place.resolve("demo").is("pass", "current", "v000001");
    assert!(!place.version("demo", "v000001.snapshot/.git").exists(), "it is not in the snapshot");

    // What git does to its own folder is no edit of the skill; neither is its absence.
    fs::File::open(skill.join("main")).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    git(&skill, &["status", "--short"]);
    git(&skill, &["commit", "-q", "--allow-empty", "-m", "two"]);
    place.resolve("demo").is("pass", "current", "v000001");
    fs::remove_dir_all(skill.join(".git")).unwrap();
    let digest = place.resolve("demo").0["contentDigest"].clone();
    // A worktree or submodule has a file of that name.
    fs::write(skill.join(".git"), "gitdir: /elsewhere\n").unwrap();
    let answer = place.resolve("demo");
    answer.is("pass", "current", "v000001");
    assert_eq!(answer.0["contentDigest"], digest);
    assert_eq!(place.certify("demo", None)["made"], false);
    fs::remove_file(skill.join(".git")).unwrap();

    // Only at the top: a folder of that name below is content, and so is every other name.
    for name in ["lib/.git", ".gitignore", "git"] {
        fs::create_dir(skill.join(name)).unwrap();
        place.resolve("demo").is("drifted", "fallback", "v000001").because(name);
        fs::remove_dir(skill.join(name)).unwrap();
    }
    // In any letter case, as the view leaves it out.
    fs::create_dir(skill.join(".Git")).unwrap();
    place.resolve("demo").is("pass", "current", "v000001");
    fs::remove_dir(skill.join(".Git")).unwrap();
    // Content that nobody certified cannot be reached through it, nor hide in a snapshot.
    fs::create_dir(skill.join(".git")).unwrap();
    fs::write(skill.join(".git/hidden"), "x").unwrap();
    symlink(".git/hidden", skill.join("door")).unwrap();
    place.resolve("demo").is("drifted", "fallback", "v000001").because("door").because(".git");
    assert!(place.refused("demo").contains("door"));
    fs::remove_file(skill.join("door")).unwrap();
    place.resolve("demo").is("pass", "current", "v000001");
    fs::create_dir(place.version("demo", "v000001.snapshot/.git")).unwrap();
    place.resolve("demo").is("tampered", "hidden", "").because(".git");
}

#[test]
fn debris_of_programs_counts_and_is_named_as_debris() {
    let (place, skill) = certified();
    for path in [
        "__pycache__/x.cpython-311.pyc",
        "lib/__pycache__/y.pyc",
        "lib/z.pyc",
        ".DS_Store",
        "lib/.DS_Store",
        "Thumbs.db",
        "desktop.ini",
        ".idea/workspace.xml",
        ".vscode/settings.json",
        "lib/.main.swp",
        "main~",
        ".pytest_cache/v",
        "node_modules/.cache/x",
    ] {
        let file = skill.join(path);
        let made = file.parent().unwrap().to_owned();
        fs::create_dir_all(&made).unwrap();
        fs::write(&file, "").unwrap();
        place.resolve("demo").is("drifted", "fallback", "v000001").because(&format!("debris {path} added"));
        fs::remove_file(&file).unwrap();
        let mut dir = made;
        while dir != skill && fs::remove_dir(&dir).is_ok() {
            dir = dir.parent().unwrap().to_owned();
        }
        place.resolve("demo").is("pass", "current", "v000001");
    }
    // An edit is told before debris, and is never called that.
    fs::write(skill.join("lib/z.pyc"), "").unwrap();
    fs::write(skill.join("main"), "edited").unwrap();
    place
        .resolve("demo")
        .because("1 changed, 1 added, 0 removed, first main")
        .because("debris lib/z.pyc added");
    fs::remove_file(skill.join("lib/z.pyc")).unwrap();
    let answer = place.resolve("demo");
    assert!(!answer.str("reason").contains("debris"), "{answer:?}");
    // Certified together with debris, it is said.
    fs::write(skill.join("lib/z.pyc"), "").unwrap();
    let said = place.certify("demo", None)["notes"].to_string();
    assert!(said.contains("debris") && said.contains("lib/z.pyc"), "{said}");
}

#[test]
fn a_report_is_read_from_a_file_of_the_operators_and_never_quoted() {
    let place = Place::new();
    let skill = place.make("demo");
    let certify = |report: &Path| {
        let output = place
            .root_command()
            .arg("certify")
            .arg(&skill)
            .arg("--findings")
            .arg(report)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // Whoever wrote the skill does not judge it.
    fs::copy(place.report(&[]), skill.join("report.sarif")).unwrap();
    let (code, said) = certify(&skill.join("report.sarif"));
    assert!(code == Some(1) && said.contains("lies in the skill"), "{said}");
    // A link is somebody's word for another file; a FIFO is not waited for; what is in the file stays there.
    symlink(place.report(&[]), place.path("link.sarif")).unwrap();
    let (code, said) = certify(&place.path("link.sarif"));
    assert!(code == Some(1) && said.contains("symlink"), "{said}");
    let fifo = place.path("fifo.sarif");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (code, said) = certify(&fifo);
    assert!(code == Some(1) && said.contains("no regular file"), "{said}");
    let (code, said) = certify(Path::new("/dev/zero"));
    assert!(code == Some(1) && said.contains("no regular file"), "{said}");
    for secret in [r#"{"version": "s3cret", "runs": []}"#, r#"{"version": 5, "runs": "s3cret"}"#, "s3cret"] {
        fs::write(place.path("secret.json"), secret).unwrap();
        let (code, said) = certify(&place.path("secret.json"));
        assert!(code == Some(1) && !said.contains("s3cret"), "{said}");
    }
    // A pipe of the operator's own is read, as shells give it.
    let report = fs::read(place.report(&["note"])).unwrap();
    let mut child = place
        .root_command()
        .args(["certify", "--findings", "-"])
        .arg(&skill)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &report).unwrap();
    succeeded(&child.wait_with_output().unwrap());
}

#[test]
fn a_secret_of_another_users_that_was_moved_into_the_skill_is_not_published() {
    const VICTIM: u32 = 61_001;
    const THIEF: u32 = 61_002;
    let place = Place::new();
    let skill = place.make("demo");
    give(&skill, THIEF);
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o777);
    let moved = |from: &Path, to: &Path| {
        succeeded(&as_user(THIEF, "mv").arg(from).arg(to).output().unwrap());
    };
    let secret = |owner: u32, name: &str, mode: u32| {
        let file = shared.join(name);
        fs::write(&file, "---\nname: s3cret\n---\n").unwrap();
        chown(&file, Some(owner), Some(owner)).unwrap();
        set_mode(&file, mode);
        file
    };
    // Root's own counts as well: root leaves private files in other people's folders.
    for (owner, mode) in [(VICTIM, 0o600), (VICTIM, 0o640), (0, 0o600)] {
        let token = skill.join("lib/token");
        moved(&secret(owner, "token", mode), &token);
        assert!(!as_user(THIEF, "cat").arg(&token).output().unwrap().status.success());
        let said = place.refused("demo");
        assert!(said.contains("lib/token") && said.contains("another user"), "{said}");
        assert!(said.contains("chmod") && said.contains("chown") && !said.contains("s3cret"), "{said}");
        assert_eq!(fs::read_dir(place.version("demo", "")).unwrap().count(), 0, "nothing is left of it");
        fs::remove_file(&token).unwrap();
    }
    // A folder that is not everybody's hides what is in it.
    let folder = skill.join("private");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("note"), "s3cret").unwrap();
    set_mode(&folder, 0o711);
    chown(&folder, Some(VICTIM), None).unwrap();
    let said = place.refused("demo");
    assert!(said.contains("private") && said.contains("chmod o+rx"), "{said}");
    fs::remove_dir_all(&folder).unwrap();
    // SKILL.md is read before anything is copied, and quoted.
    let kept = place.path("kept.md");
    fs::rename(skill.join("SKILL.md"), &kept).unwrap();
    moved(&secret(VICTIM, "text", 0o600), &skill.join("SKILL.md"));
    let said = place.refused("demo");
    assert!(said.contains("SKILL.md") && said.contains("another user") && !said.contains("s3cret"), "{said}");
    fs::rename(kept, skill.join("SKILL.md")).unwrap();
    // What the folder's owner keeps private is the owner's to publish, and what everybody can read is nobody's secret.
    set_mode(&skill.join("main"), 0o700);
    moved(&secret(VICTIM, "public", 0o644), &skill.join("lib/public"));
    assert_eq!(place.certify("demo", None)["version"], "v000001");
}
