//! What the provider says is what the view shows: the decision protocol, on a real mount with real providers.
#![allow(clippy::unwrap_used)]

mod support;
#[path = "decisions/waits.rs"]
mod waits;

use cyberos_proto::control::{ControlReply, ControlRequest, Verdict};
use std::time::{Duration, Instant};
use support::skillfs::{Bench, answer, name, read, until};

#[test]
fn every_vector_is_shown_as_it_says() {
    let vectors: serde_json::Value = serde_json::from_str(include_str!("vectors/decisions.json")).unwrap();
    let mut bench = Bench::new();
    // The skill's name is part of what the vectors judge, so each case has a source of its own, one after the other.
    bench.write("demo-weather/SKILL.md", "live");
    bench.snapshot("demo-weather", "v000001", "trusted");
    bench.program("provider", "[ $1 = scan ] && exit 0\ncat $STUB/out\nexit $(cat $STUB/exit)");
    let stub = bench.path("stub");
    std::fs::write(stub.join("out"), "").unwrap();
    std::fs::write(stub.join("exit"), "0").unwrap();
    bench.mount(&[]);
    for case in vectors["cases"].as_array().unwrap() {
        let title = case["name"].as_str().unwrap();
        std::fs::write(stub.join("out"), case["stdout"].as_str().unwrap()).unwrap();
        std::fs::write(stub.join("exit"), case["exit"].to_string()).unwrap();
        assert_eq!(bench.refresh("demo-weather"), ControlReply::Refreshed { decided: 1 }, "{title}");
        let state = bench.state("demo-weather");
        let shown = read(bench.view("demo-weather/SKILL.md"));
        let listed = std::fs::read_dir(bench.path("mnt")).unwrap().count();
        match case["expect"].as_str().unwrap() {
            "current" => {
                assert_eq!(
                    (state.verdict, shown.unwrap().as_str(), listed),
                    (Verdict::Current, "live", 1),
                    "{title}"
                );
            }
            "fallback" => {
                assert_eq!(
                    (state.verdict, shown.unwrap().as_str(), listed),
                    (Verdict::Fallback, "trusted", 1),
                    "{title}"
                );
                assert_eq!(state.target.as_deref(), case["target"].as_str(), "{title}");
            }
            _ => {
                assert_eq!(state.verdict, Verdict::Hidden, "{title}");
                assert_eq!(shown.unwrap_err().raw_os_error(), Some(nix::libc::ENOENT), "{title}");
                assert_eq!(listed, 0, "{title}");
            }
        }
        assert_eq!(state.warning.is_some(), case["warn"] == true, "{title}: {state:?}");
        assert_eq!(
            case["expect"] == "reject",
            state.status == "error" && title != "error mapped to hidden",
            "{title}: {state:?}"
        );
        assert!(!state.pending, "{title}");
    }
}

#[test]
fn a_mismatched_name_is_hidden_by_default_and_never_becomes_an_alias() {
    let mut bench = Bench::new();
    bench.write("demo-weather/SKILL.md", "live");
    bench.says_current("demo-weather");
    bench.mount(&["--ledger-demo-mode"]);
    assert_eq!(bench.state("demo-weather").verdict, Verdict::Current);
    bench.says("demo-weather", &answer("other", "pass", "current", None));
    bench.refresh("demo-weather");
    assert!(read(bench.view("demo-weather/SKILL.md")).is_err());
    assert!(std::fs::symlink_metadata(bench.view("other")).is_err());
    let state = bench.state("demo-weather");
    assert_eq!((state.verdict, state.status.as_str()), (Verdict::Hidden, "error"));
    assert!(state.reason.unwrap().contains("other"));
    bench.says_current("demo-weather");
    bench.refresh("demo-weather");
    assert_eq!(read(bench.view("demo-weather/SKILL.md")).unwrap(), "live");
}

#[test]
fn keep_previous_keeps_the_mapping_of_before() {
    let mut bench = Bench::new();
    bench.write("demo-weather/SKILL.md", "live");
    bench.snapshot("demo-weather", "v1", "trusted");
    bench.write("never-decided/SKILL.md", "x");
    bench.says_fallback("demo-weather", "v1");
    bench.says("never-decided", "nonsense");
    bench.mount(&["--on-failure", "keep-previous"]);
    bench.settle();
    bench.says("demo-weather", &answer("other", "pass", "current", None));
    bench.refresh("demo-weather");
    assert_eq!(read(bench.view("demo-weather/SKILL.md")).unwrap(), "trusted");
    let state = bench.state("demo-weather");
    assert_eq!(state.verdict, Verdict::Fallback);
    assert!(state.warning.unwrap().contains("kept"));
    assert!(read(bench.view("never-decided/SKILL.md")).is_err(), "there was nothing to keep");
    assert!(std::fs::symlink_metadata(bench.view("other")).is_err());
}

#[test]
fn strict_refuses_the_mount_when_a_first_decision_fails() {
    let bench = Bench::new();
    bench.write("good/SKILL.md", "x");
    bench.write("bad/SKILL.md", "x");
    bench.says_current("good");
    bench.says("bad", "nonsense");
    let arguments = bench.arguments(&["--strict"]);
    let output = bench.command(&arguments).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--strict") && said.contains("bad"), "{said}");
    assert_eq!(bench.mounts(), 0);
}

#[test]
fn start_up_errors_say_what_to_do() {
    let bench = Bench::new();
    let s = |p: &str| bench.path(p).display().to_string();
    let (src, mnt) = (s("src"), s("mnt"));
    let provider = s("bin/provider");
    for (arguments, hint) in [
        (vec!["mount", &src, &mnt, "--decision-command", &provider, "--foreground"], "--read-only"),
        (vec!["mount", &src, &mnt, "--read-only", "--foreground"], "--decision-command"),
        (vec!["mount", &src, &mnt, "--read-only", "--foreground", "--decision-command", " "], "empty"),
        (vec!["mount", &src, &mnt, "--read-only", "--foreground", "--decision-command", "rel/x"], "absolute"),
        (
            vec!["mount", &src, &mnt, "--read-only", "--unprotected", "--ledger-demo-mode"],
            "--decision-command",
        ),
        (vec!["mount", &src, &src, "--read-only", "--foreground", "--unprotected"], "overlap"),
    ] {
        let output = bench.command(&arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(hint), "{arguments:?}: {said}");
    }
    let as_root = bench.arguments(&[]);
    let output = std::process::Command::new(bench.path("bin/skillfs")).args(as_root).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("root"), "{said}");
}

#[test]
fn case_038_a_blocked_provider_blocks_only_its_skill() {
    let mut bench = Bench::new();
    bench.write("a/SKILL.md", "a");
    bench.write("b/SKILL.md", "b");
    bench.says_current("b");
    std::fs::write(bench.path("stub/a.sh"), "sleep 60606").unwrap();
    bench.mount(&[]);
    bench.state("b");
    let began = Instant::now();
    assert_eq!(read(bench.view("b/SKILL.md")).unwrap(), "b");
    assert!(read(bench.view("a/SKILL.md")).is_err(), "undecided is hidden");
    let names: Vec<_> =
        std::fs::read_dir(bench.path("mnt")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["b"]);
    // Who waits for A does not keep others from asking.
    let waiting = bench.control();
    let request = ControlRequest::Await { skill: name("a"), timeout_ms: 30_000 };
    waiting.send(&request, &[], cyberos_proto::link::Wait::Block).unwrap();
    assert_eq!(bench.state("b").verdict, Verdict::Current);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // Neither the provider nor its child outlives SkillFS.
    let sleeps = || {
        let found = std::process::Command::new("pgrep").args(["-f", "sleep 60606"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    until("its provider runs", || !sleeps().is_empty());
    bench.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(bench.wait().success());
    until("the provider is gone", || sleeps().is_empty());
}

#[test]
fn case_013_a_snapshot_that_is_not_safe_is_not_shown() {
    let mut bench = Bench::new();
    let versions = "s/.skill-meta/versions";
    bench.write("s/SKILL.md", "live");
    bench.says_fallback("s", "v1");
    bench.mount(&[]);
    let snapshot = bench.source(&format!("{versions}/v1.snapshot"));
    let clear = || {
        let _ = std::fs::remove_dir_all(&snapshot);
        let _ = std::fs::remove_file(&snapshot);
        std::fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    };
    let plants: [(&str, &dyn Fn()); 6] = [
        ("absent", &|| {}),
        ("a symlink to the live folder", &|| std::os::unix::fs::symlink("../..", &snapshot).unwrap()),
        ("a symlink to /etc", &|| std::os::unix::fs::symlink("/etc", &snapshot).unwrap()),
        ("a file", &|| std::fs::write(&snapshot, "x").unwrap()),
        ("a FIFO", &|| nix::unistd::mkfifo(&snapshot, nix::sys::stat::Mode::S_IRUSR).unwrap()),
        ("a file of others' inside", &|| {
            use std::os::unix::fs::PermissionsExt;
            bench.snapshot("s", "v1", "x");
            let mode = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(snapshot.join("SKILL.md"), mode).unwrap();
        }),
    ];
    for (title, plant) in plants {
        clear();
        plant();
        bench.refresh("s");
        assert_eq!(bench.state("s").verdict, Verdict::Hidden, "{title}");
        assert!(read(bench.view("s/SKILL.md")).is_err(), "{title}");
    }
    clear();
    bench.snapshot("s", "v1", "trusted");
    bench.refresh("s");
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "trusted");
    // Bytes of a snapshot that is shown are edited: it goes, and comes back only by a new decision.
    std::fs::write(bench.path("stub/s.sh"), "exit 1").unwrap();
    std::fs::write(snapshot.join("SKILL.md"), "tampered").unwrap();
    until("the edited snapshot is gone", || read(bench.view("s/SKILL.md")).is_err());
    assert_eq!(bench.state("s").verdict, Verdict::Hidden);
}

#[test]
fn case_016_the_provider_gets_the_path_as_configured() {
    let mut bench = Bench::new();
    bench.write("demo/SKILL.md", "x");
    std::os::unix::fs::symlink("src", bench.path("link")).unwrap();
    bench.says_current("demo");
    bench.program("provider", "echo \"$@\" >>$STUB/../run/log; [ $1 = scan ] || cat $STUB/$skill.json");
    let (link, mnt) = (bench.path("link/"), bench.path("mnt"));
    let arguments = bench.arguments(&[]);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let spelt = link.display().to_string();
    arguments[1] = &spelt;
    assert_eq!(arguments[2], mnt.display().to_string());
    bench.mount_with(&arguments);
    until("decided", || {
        bench.ask(&ControlRequest::Explain { skill: name("demo") }) != ControlReply::NoSuchSkill
    });
    assert_eq!(bench.state("demo").verdict, Verdict::Current);
    let log = read(bench.path("run/log")).unwrap();
    let path = bench.path("link/demo").display().to_string();
    assert_eq!(log, format!("scan {path} --json\nresolve {path} --json\n"));
}

#[test]
fn a_provider_that_writes_its_metadata_is_not_run_for_ever() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    std::fs::create_dir_all(bench.source("s/.skill-meta")).unwrap();
    nix::unistd::chown(&bench.source("s/.skill-meta"), Some(support::skillfs::SKILLFS_UID.into()), None)
        .unwrap();
    bench.says_current("s");
    std::fs::write(
        bench.path("stub/s.scan"),
        "date +%N >$dir/.skill-meta/scan.json; echo run >>$STUB/../run/runs",
    )
    .unwrap();
    bench.mount(&[]);
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    let runs = || read(bench.path("run/runs")).unwrap().lines().count();
    assert_eq!(runs(), 2, "once, and once more to tell its own writing from others'");
    // What others write there is decided.
    let before = bench.state("s").epoch;
    bench.write("s/.skill-meta/manifest.json", "1");
    until("decided again", || runs() >= 3 && !bench.state("s").pending);
    assert_ne!(bench.state("s").epoch, before);
    assert!(runs() <= 5);
}

#[test]
fn a_sighup_decides_everything_again() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says_hidden("s");
    bench.mount(&[]);
    assert_eq!(bench.state("s").verdict, Verdict::Hidden);
    bench.says_current("s");
    bench.signal(nix::sys::signal::Signal::SIGHUP);
    until("shown", || read(bench.view("s/SKILL.md")).is_ok());
}

#[test]
fn case_015_the_operators_commands_say_what_changed() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says("s", &answer("s", "deny", "hidden", None));
    bench.mount(&[]);
    bench.state("s");
    let control = bench.path("run/control.sock").display().to_string();
    let run = |arguments: &[&str]| {
        let output = bench.command(&[arguments, &["--control", &control]].concat()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(&["explain", "s"]);
    assert!(code == 0 && text.contains("hidden") && text.contains("deny"), "{text}");
    bench.says("s", &answer("s", "tampered", "current", None));
    let (code, text) = run(&["refresh", "s", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["verdict"]), (0, &serde_json::json!("current")));
    assert!(json["warning"].as_str().unwrap().contains("tampered"));
    let (code, text) = run(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["mounted"], &json["total"]), (0, &true.into(), &1.into()));
    assert_eq!(run(&["explain", "absent"]).0, 1);
    let nobody = bench.command(&["status", "--control", "/nonexistent"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(4));
}
