//! The operator's commands (`[1.7]`, `[2.1]`, `[4.0]`, `[7.1]`–`[7.5]`): what they answer, to whom, and with which
//! exit status.

mod support;

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::Command;
use support::binaries::binary;
use support::up::{Options, Ran, Skill, Up, python, reachable_dir};

#[test]
fn a_stranger_reads_which_group_is_missing() {
    let up = Up::new(|source| drop(Skill::default().write(source)));
    // Where everybody can execute it, wherever the checkout is.
    let program = up.dir().join("cyberos");
    support::binaries::copy("cyberos", &program);
    let command = || {
        let mut command = Command::new(&program);
        command.env("CYBEROS_OPERATOR_SOCKET", up.socket()).arg("status");
        command
    };
    let ran = Ran::from(command().uid(65534).gid(65534).output().unwrap());
    assert_eq!(ran.exit, 4, "{ran}");
    assert!(ran.stderr.contains("not an operator") && ran.stderr.contains("group"), "{ran}");
    // A member of the operators' group is one.
    let group = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(up.socket()).unwrap());
    let ran = Ran::from(command().uid(65534).gid(group).output().unwrap());
    assert_eq!(ran.exit, 0, "{ran}");
    // A leased uid never is, whatever group it has.
    let ran = Ran::from(command().uid(1_900_000_077).gid(group).output().unwrap());
    assert_eq!(ran.exit, 4, "{ran}");
    assert!(ran.stderr.contains("sandbox"), "{ran}");
}

#[test]
fn without_a_broker_the_message_says_where_it_looked() {
    let ran = Ran::from(
        Command::new(binary("cyberos"))
            .args(["--socket", "/nonexistent/broker.sock", "status"])
            .output()
            .unwrap(),
    );
    assert_eq!(ran.exit, 4, "{ran}");
    assert!(ran.stderr.contains("/nonexistent/broker.sock") && ran.stderr.contains("cyberos up"), "{ran}");
}

#[test]
fn up_without_root_says_what_is_missing() {
    let mut command = Command::new(binary("cyberos"));
    let dir = reachable_dir("cyberos-bin-");
    support::binaries::copy("cyberos", &dir.join("cyberos"));
    let mut copied = Command::new(dir.join("cyberos"));
    std::mem::swap(&mut command, &mut copied);
    let ran = Ran::from(command.arg("up").uid(65534).gid(65534).output().unwrap());
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stderr.contains("needs root"), "{ran}");
}

#[test]
fn up_refuses_directories_that_others_can_change() {
    let dir = reachable_dir("cyberos-open-");
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let state = dir.join("state");
    let ran =
        Ran::from(Command::new(binary("cyberos")).args(["up", "--state"]).arg(&state).output().unwrap());
    assert!(!state.exists());
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stderr.contains(dir.to_str().unwrap()) && ran.stderr.contains("chmod"), "{ran}");
}

#[test]
fn a_scaffolded_skill_validates_and_runs() {
    let up = Up::new(|_| {});
    let made = up.cyberos(&["skill", "scaffold", "starter", "--dir", up.skills.to_str().unwrap()]);
    assert_eq!(made.exit, 0, "{made}");
    let valid = up.cyberos(&["--json", "skill", "validate", up.skills.join("starter").to_str().unwrap()]);
    assert_eq!(valid.exit, 0, "{valid}");
    assert_eq!(serde_json::from_str::<Value>(&valid.stdout).unwrap()["status"], "ok");
    up.shown("starter", "current");
    let ran = up.run("starter", &[]);
    assert_eq!(ran.exit, 0, "{ran}");
    let elsewhere = up.dir().join("no/such/folder").display().to_string();
    let made = up.cyberos(&["skill", "scaffold", "starter", "--dir", &elsewhere]);
    assert!(made.exit == 0 && made.stdout == format!("{elsewhere}/starter\n"), "it makes the folder: {made}");
    let again = up.cyberos(&["skill", "scaffold", "starter", "--dir", up.skills.to_str().unwrap()]);
    assert_eq!(again.exit, 1, "it never overwrites: {again}");
}

#[test]
fn validate_lists_every_fault_with_its_line() {
    let dir = reachable_dir("cyberos-faults-");
    let skill = dir.join("faulty");
    std::fs::create_dir(&skill).unwrap();
    let text = "---\nid: Faulty\nversion: one\ndescription: x\nallowed_memory_scopes: []\nallowed_tools: [Bsah]\ncolour: red\n---\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    let ran = Ran::from(
        Command::new(binary("cyberos")).args(["--json", "skill", "validate"]).arg(&skill).output().unwrap(),
    );
    assert_eq!(ran.exit, 6, "{ran}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let faults: Vec<_> = report["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["code"].as_str().unwrap().to_owned(), e["line"].as_u64().unwrap()))
        .collect();
    for want in [("InvalidId", 2), ("InvalidVersion", 3), ("UnknownTool", 6), ("UnknownField", 7)] {
        assert!(faults.contains(&(want.0.to_owned(), want.1)), "{want:?} in {faults:?}");
    }
    assert!(ran.stdout.contains("Bash"), "a near miss gets a suggestion: {ran}");
    let absent = Ran::from(
        Command::new(binary("cyberos")).args(["skill", "validate"]).arg(dir.join("absent")).output().unwrap(),
    );
    assert_eq!(absent.exit, 1, "{absent}");
}

#[test]
fn approval_grants_what_was_shown_and_nothing_wider() {
    let granted = reachable_dir("cyberos-approve-");
    std::fs::write(granted.join("a.txt"), "a\n").unwrap();
    let main = python("print(json.dumps(call('Read', path=sys.argv[1])))");
    let pattern = format!("x-allowed-files: [\"{}/**\"]\n", granted.display());
    let up = Up::new(|source| {
        drop(
            Skill { id: "asks", tools: &["Read"], more: &pattern, main: &main, ..Skill::default() }
                .write(source),
        )
    });
    let path = granted.join("a.txt").display().to_string();
    let before = up.run("asks", &[&path]);
    assert!(before.stdout.contains("not_granted_by_operator"), "{before}");
    assert!(before.stderr.contains("not granted"), "the run names what was not granted: {before}");

    let shown: Value =
        serde_json::from_str(&up.cyberos(&["--json", "skill", "show", "asks"]).stdout).unwrap();
    assert_eq!(shown["approved"], false, "{shown}");
    assert!(shown["wishes"].to_string().contains(granted.to_str().unwrap()), "{shown}");
    let approved = up.cyberos(&["skill", "approve", "asks", "--yes"]);
    assert_eq!(approved.exit, 0, "{approved}");
    let after = up.run("asks", &[&path]);
    assert!(after.stdout.contains("\"content\": \"a\\n\""), "{after}");

    // Asking for more asks again.
    let skill_md = up.skills.join("asks/SKILL.md");
    let text = std::fs::read_to_string(&skill_md).unwrap().replace("/**\"]", "/**\", \"/srv/other/**\"]");
    std::fs::write(&skill_md, text).unwrap();
    assert!(support::up::eventually(std::time::Duration::from_secs(10), || {
        let shown: Value = serde_json::from_str(&up.cyberos(&["--json", "skill", "show", "asks"]).stdout)
            .unwrap_or_default();
        shown["approved"] == false
    }));
    let wider = up.run("asks", &[&path]);
    assert!(wider.stdout.contains("not_granted_by_operator"), "{wider}");
}

#[test]
fn never_grantable_paths_stay_closed_whatever_is_granted() {
    let main = python("for p in sys.argv[1:]:\n    print(json.dumps(call('Read', path=p)))");
    let options = Options { grant_requested: true, ..Options::default() };
    let up = Up::with(options, |source| {
        let more = "x-allowed-files: [\"/**\"]\n";
        Skill { id: "greedy", tools: &["Read"], more, main: &main, ..Skill::default() }.write(source);
    });
    let state = up.state.join("broker/store/HEAD").display().to_string();
    let source = up.skills.join("greedy/SKILL.md").display().to_string();
    let view = up.mount().join("greedy/SKILL.md").display().to_string();
    let link = format!("{}/via-link", up.dir().display());
    support::up::link("/etc/shadow", std::path::Path::new(&link));
    let paths = [
        "/etc/hostname",
        "/etc/shadow",
        "/proc/self/status",
        "/dev/null",
        "/run/x",
        &state,
        &source,
        &view,
        &link,
    ];
    let ran = up.run("greedy", &paths);
    let lines: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), paths.len(), "{ran}");
    for (path, line) in paths.iter().zip(&lines).skip(1) {
        assert_eq!(line[0], "file_violation", "{path}: {line}");
        // A link out of its folder is not followed, so nobody looks what it leads to.
        let reason = if **path == link { "file_violation" } else { "never_grantable" };
        assert_eq!(line[1]["reason"], reason, "{path}: {line}");
    }
}

#[test]
fn cyberos_call_makes_one_call_from_any_shell() {
    let main = "#!/bin/sh\n/opt/cyberos/bin/cyberos-call MemoryRead '{\"path\":\"memories/a/x.md\"}'\necho \"exit $?\"\n\
                echo '{\"path\":\"memories/b/x.md\"}' | /opt/cyberos/bin/cyberos-call MemoryRead - 2>&1\necho \"exit $?\"\n\
                /opt/cyberos/bin/cyberos-call MemoryRead 'not json' 2>/dev/null\necho \"exit $?\"\n";
    let up = Up::new(|source| {
        Skill { id: "shell", tools: &["MemoryRead"], scopes: &["memories/a/**"], main, ..Skill::default() }
            .write(source);
    });
    support::up::memory_file(&up, "memories/a/x.md", "text\n");
    let ran = up.run("shell", &[]);
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].contains("\"body\":\"text\\n\"") && lines[1] == "exit 0", "{ran}");
    assert!(
        ran.stdout.contains("scope_violation")
            && ran.stdout.contains("exit 1")
            && ran.stdout.ends_with("exit 2\n"),
        "{ran}"
    );
}

#[test]
fn hidden_skills_say_why_and_what_would_show_them() {
    let built_in = Options { provider: Some(String::new()), ..Options::default() };
    let up = Up::with(built_in, |source| drop(Skill::default().write(source)));
    up.shown("demo", "hidden");
    let ran = up.run("demo", &[]);
    assert_eq!(ran.exit, 5, "{ran}");
    assert!(
        ran.stderr.contains("hidden by the provider (status none") && ran.stderr.contains(" certify "),
        "{ran}"
    );
    up.certify("demo");
    up.shown("demo", "current");
    assert_eq!(up.run("demo", &[]).exit, 0);
    let row = up.rows("skill.invoked_started")[0]["extra"].clone();
    assert_eq!(row["verdict"], "current");
    assert_eq!(
        row["content_digest"],
        up.explain("demo")["content_digest"],
        "the provider's digest and ours are one"
    );
}

#[test]
fn the_environment_of_a_terminal_is_never_the_skills() {
    let up = Up::new(|source| {
        Skill { id: "tty", main: "#!/bin/sh\nfor i in 0 1 2; do [ -t $i ] && echo terminal; done\n( : < /dev/tty ) 2> /dev/null && echo devtty\nprintf '\\033]0;x\\007'\n", ..Skill::default() }.write(source);
    });
    let ran = up.run("tty", &[]);
    assert_eq!(ran.stdout, "\u{1b}]0;x\u{7}", "raw where it is no terminal: {ran}");
}

#[test]
fn faults_are_told_once_before_anything_starts_and_nothing_is_left() {
    let dir = reachable_dir("cyberos-faulty-");
    let skills = dir.join("skills");
    std::fs::create_dir(&skills).unwrap();
    let config = dir.join("mine.yaml");
    std::fs::write(&config, "grants:\n  default:\n    fils: []\n").unwrap();
    let full = dir.join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("x"), "").unwrap();
    let closed = dir.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let path = |p: &std::path::Path| p.display().to_string();
    let (skills_text, inside) = (path(&skills), path(&skills.join("state")));
    for (args, words) in [
        (vec!["--config".to_owned(), path(&config)], vec![path(&config), "line 3".into(), "files".into()]),
        (vec!["--mount".into(), path(&full)], vec![path(&full), "not empty".into()]),
        (vec!["--mount".into(), "/proc".into()], vec!["/proc".into(), "not empty".into()]),
        (
            vec!["--skills".into(), skills_text.clone(), "--state".into(), inside],
            vec!["lie in each other".into()],
        ),
        (vec!["--skills".into(), path(&dir.join("absent"))], vec!["not a directory".into()]),
        (vec!["--skills".into(), path(&closed)], vec![path(&closed), "cannot read it".into()]),
        (
            vec!["--state".into(), path(&closed.join("new/state"))],
            vec![path(&closed), "cannot reach it".into()],
        ),
        (vec!["--state".into(), path(&dir.join("with space"))], vec!["blanks".into()]),
        (
            vec!["--decision-command".into(), "/nonexistent/provider".into()],
            vec!["/nonexistent/provider".into()],
        ),
    ] {
        let ran = Ran::from(Command::new(binary("cyberos")).arg("up").args(&args).output().unwrap());
        assert_eq!(ran.exit, 1, "{args:?}: {ran}");
        assert!(words.iter().all(|w| ran.stderr.contains(w)), "{args:?} {words:?}: {ran}");
        let told = ran.stderr.matches(words[0].as_str()).count();
        assert!(told <= 2, "{args:?}: told {told} times: {ran}");
    }
    assert_eq!(std::fs::read_dir(&skills).unwrap().count(), 0, "no debris among the skills");
    assert!(!dir.join("with space").exists() && !closed.join("new").exists());
}

#[test]
fn a_skill_that_becomes_hidden_is_told_or_terminated_as_configured() {
    // Hides a skill that holds a file named 'revoked'.
    let provider = "#!/bin/sh\n[ \"$1\" = resolve ] || exit 0\nd=current; [ -e \"$2/revoked\" ] && d=hidden\n\
                    printf '{\"schemaVersion\":1,\"skillName\":\"%s\",\"status\":\"pass\",\"decision\":\"%s\"}\\n' \"${2##*/}\" $d\n";
    for (policy, exit) in [("terminate", 130), ("tell", 0)] {
        let options = Options {
            config: Some(format!("on_hidden: {policy}\n")),
            provider: Some(provider.into()),
            ..Options::default()
        };
        let main = "#!/bin/sh\nread line\nexit 0\n";
        let up =
            Up::with(options, |source| drop(Skill { id: "held", main, ..Skill::default() }.write(source)));
        let mut command = up.command(&["skill", "run", "held", "--stdin"]);
        command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        assert!(support::up::eventually(std::time::Duration::from_secs(10), || !up
            .rows("skill.invoked_started")
            .is_empty()));
        std::fs::write(up.skills.join("held/revoked"), "").unwrap();
        if policy == "tell" {
            let told = support::up::eventually(std::time::Duration::from_secs(10), || {
                let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
                status["invocations"][0]["hidden"].as_str().is_some_and(|w| w.contains("hides held now"))
            });
            assert!(told);
            drop(child.stdin.take());
        }
        let input = child.stdin.take();
        let ran = Ran::from(child.wait_with_output().unwrap());
        drop(input);
        assert_eq!(ran.exit, exit, "{policy}: {ran}");
        assert!(ran.stderr.contains("hides held now"), "{policy}: {ran}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly() {
    let up = Up::new(|source| {
        drop(Skill { id: "noisy", main: "#!/bin/sh\nyes\n", ..Skill::default() }.write(source))
    });
    for args in [&["skill", "list"][..], &["status"], &["skill", "run", "noisy"]] {
        let mut child = up
            .command(args)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.exit, ran.stderr.as_str()), (141, ""), "{args:?}");
    }
}

#[test]
fn without_stdin_the_end_of_input_is_there_at_once_and_wait_knows_ended_runs() {
    let up = Up::new(|source| {
        drop(Skill { id: "reads", main: "#!/bin/sh\ncat\nexit 9\n", ..Skill::default() }.write(source))
    });
    assert_eq!(up.run("reads", &[]).exit, 9);
    let id = up.rows("skill.invoked_started")[0]["extra"]["invocation_id"].as_str().unwrap().to_owned();
    assert_eq!(up.cyberos(&["skill", "wait", &id]).exit, 9, "the ledger knows how it ended");
    let unknown = up.cyberos(&["tail", "--invocation", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.exit, 1, "{unknown}");
}

#[test]
fn what_the_configuration_requires_and_the_sandbox_lacks_is_refused_before_the_skill_begins() {
    let options = Options {
        config: Some("sandbox:\n  require: [cgroup]\n".into()),
        // No control groups of any kind in sight.
        prelude: Some("mount -t tmpfs none /sys/fs/cgroup".into()),
        ..Options::default()
    };
    let up = Up::with(options, |source| {
        drop(Skill { id: "strict", main: "#!/bin/sh\necho began\n", ..Skill::default() }.write(source))
    });
    let ran = up.run("strict", &[]);
    assert!(ran.exit == 125 && ran.stderr.contains("cgroup") && ran.stdout.is_empty(), "{ran}");
    assert_eq!(up.rows("skill.invoked_started").len(), 0);
    assert_eq!(up.rows("skill.invoked_completed").len(), 0);
}
