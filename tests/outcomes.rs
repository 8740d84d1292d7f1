//! How an invocation ends, and what of it is in its exit status, its row, and on the machine afterwards
//! (`[2.1]`, `[2.2]`, `[2.4]`–`[2.7]`).

mod support;
#[path = "outcomes/waits.rs"]
mod waits;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::up::{Options, Skill, Up, eventually, python, signal};

fn up(skills: &[(&str, &str)]) -> Up {
    Up::new(|source| {
        for (id, main) in skills {
            Skill { id, main, tools: &["MemoryRead"], scopes: &["memories/**"], ..Skill::default() }
                .write(source);
        }
    })
}

fn completed(up: &Up) -> Value {
    let rows = up.rows("skill.invoked_completed");
    rows.last().expect("a completed row")["extra"].clone()
}

/// The socket of the last invocation is gone, and nothing of it runs.
fn nothing_left(up: &Up) {
    let started = up.rows("skill.invoked_started").last().unwrap()["extra"].clone();
    let socket = format!("/tmp/cyberos-skill-broker.{}.sock", started["invocation_id"].as_str().unwrap());
    assert!(!Path::new(&socket).exists(), "{socket}");
    let uid = started["uid"].as_u64().unwrap();
    assert_eq!(processes_of(uid), Vec::<String>::new());
    let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
    assert_eq!(status["active_invocations"], 0);
}

fn processes_of(uid: u64) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        if status.lines().any(|l| {
            l.strip_prefix("Uid:").is_some_and(|l| l.split_whitespace().next() == Some(&uid.to_string()))
        }) {
            found.push(status.lines().next().unwrap_or_default().to_owned());
        }
    }
    found
}

#[test]
fn success_error_and_panic_have_their_words_and_statuses() {
    let up = up(&[
        ("good", "#!/bin/sh\nexit 0\n"),
        ("three", "#!/bin/sh\nexit 3\n"),
        ("segv", "#!/usr/bin/python3\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"),
        ("abort", "#!/usr/bin/python3\nimport os\nos.abort()\n"),
    ]);
    for (skill, exit, outcome, code, sig) in [
        ("good", 0, "success", Some(0), None),
        ("three", 3, "error", Some(3), None),
        ("segv", 139, "panic", None, Some(11)),
        ("abort", 134, "panic", None, Some(6)),
    ] {
        let (ran, answer) = up.run_json(skill, &[]);
        assert_eq!(ran.exit, exit, "{skill}: {ran}");
        let row = completed(&up);
        for v in [&row, &answer["ended"]] {
            assert_eq!(v["outcome"], outcome, "{skill}: {v}");
            assert_eq!(v["exit_code"], Value::from(code), "{skill}: {v}");
            assert_eq!(v["signal"], Value::from(sig), "{skill}: {v}");
        }
        nothing_left(&up);
    }
}

#[test]
fn a_sigkill_from_outside_is_killed() {
    let up = up(&[("sleeper", "#!/bin/sh\nexec sleep 1000\n")]);
    let child = up
        .command(&["skill", "run", "sleeper"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = None;
    let found = eventually(Duration::from_secs(10), || {
        let rows = up.rows("skill.invoked_started");
        let uid = rows.last().and_then(|r| r["extra"]["uid"].as_u64());
        pid = uid.and_then(|uid| {
            std::fs::read_dir("/proc").unwrap().flatten().find_map(|e| {
                let status = std::fs::read_to_string(e.path().join("status")).ok()?;
                let ours =
                    status.contains(&format!("\nUid:\t{uid}\t")) && status.starts_with("Name:\tsleep\n");
                ours.then(|| e.file_name().to_string_lossy().parse::<i32>().ok()).flatten()
            })
        });
        pid.is_some()
    });
    assert!(found, "the skill runs as its leased uid");
    signal(pid.unwrap(), Signal::SIGKILL);
    let ran = support::up::Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.exit, 137, "{ran}");
    assert!(
        ran.stderr.contains("ended by SIGKILL (signal 9): ") && ran.stderr.contains("from inside"),
        "{ran}"
    );
    assert_eq!(completed(&up)["outcome"], "killed");
    assert_eq!(completed(&up)["signal"], 9);
    nothing_left(&up);
}

#[test]
fn an_operator_stops_a_run_by_id_and_by_leaving_it() {
    let up = up(&[("sleeper", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")]);
    let ran = up.cyberos(&["skill", "run", "sleeper", "--detach"]);
    assert_eq!(ran.exit, 0, "{ran}");
    let id = ran.stdout.trim().to_owned();
    let stopped = up.cyberos(&["--json", "skill", "stop", &id]);
    assert_eq!(stopped.exit, 0, "{stopped}");
    assert_eq!(completed(&up)["outcome"], "stopped");
    nothing_left(&up);

    let mut child = up.command(&["skill", "run", "sleeper"]).spawn().unwrap();
    assert!(eventually(Duration::from_secs(10), || up.rows("skill.invoked_started").len() == 2));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(eventually(Duration::from_secs(10), || up.rows("skill.invoked_completed").len() == 2));
    assert_eq!(completed(&up)["outcome"], "stopped");
    nothing_left(&up);
}

#[test]
fn wait_and_logs_follow_a_detached_run() {
    let up = up(&[("talker", "#!/bin/sh\necho out one\necho err one >&2\nread line\nexit 7\n")]);
    let id = up.cyberos(&["skill", "run", "talker", "--detach"]).stdout.trim().to_owned();
    // Whether it runs still or has ended by now, the answer is the run's own.
    for _ in 0..2 {
        let waited = up.cyberos(&["skill", "wait", &id]);
        assert_eq!((waited.exit, waited.stderr.as_str()), (7, ""), "{waited}");
    }
    let logs = up.cyberos(&["skill", "logs", &id]);
    assert_eq!(
        (logs.exit, logs.stdout.as_str(), logs.stderr.as_str()),
        (0, "out one\n", "err one\n"),
        "{logs}"
    );
    for of in ["wait", "logs"] {
        let unknown = up.cyberos(&["skill", of, "00000000-0000-4000-8000-000000000000"]);
        assert_eq!(unknown.exit, 1, "{unknown}");
    }
    let unknown = up.cyberos(&["skill", "logs", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.exit, 1, "{unknown}");
    let bad = up.cyberos(&["skill", "logs", "../../etc"]);
    assert_eq!(bad.exit, 2, "{bad}");
}

#[test]
fn one_byte_beyond_ten_mebibytes_is_marked_truncated() {
    let main = "#!/usr/bin/python3\nimport sys\nn = int(sys.argv[1])\nwhile n:\n    k = min(n, 1 << 16)\n    sys.stdout.write('x' * k)\n    n -= k\n";
    let up = up(&[("writer", main)]);
    for (bytes, truncated) in [((10 << 20), false), ((10 << 20) + 1, true)] {
        let (ran, answer) = up.run_json("writer", &[&bytes.to_string()]);
        assert_eq!(ran.exit, 0, "a program that writes too much goes on");
        assert_eq!(answer["ended"]["stdout_truncated"], truncated, "{answer}");
        assert_eq!(answer["ended"]["stdout_bytes"], 10 << 20, "{answer}");
    }
}

#[test]
fn a_start_is_on_record_before_the_first_instruction_whatever_that_does() {
    let clock = python("import time\nprint(time.time_ns())");
    let up = up(&[("brief", "#!/bin/sh\nkill -9 $$\n"), ("clock", &clock)]);
    for runs in 1..=5 {
        assert_eq!(up.run("brief", &[]).exit, 137);
        assert_eq!(up.rows("skill.invoked_started").len(), runs);
        assert_eq!(completed(&up)["outcome"], "killed");
    }
    let ran = up.run("clock", &[]);
    let first: u64 = ran.stdout.trim().parse().unwrap_or_else(|_| panic!("{ran}"));
    let started = up.rows("skill.invoked_started").last().unwrap()["ts_ns"].as_u64().unwrap();
    assert!(started < first, "recorded at {started}, ran at {first}");
}

#[test]
fn what_cannot_be_executed_is_named_with_its_cause() {
    let up = Up::new(|source| {
        Skill { id: "noshebang", main: "echo hi\n", ..Skill::default() }.write(source);
        Skill { id: "nointerp", main: "#!/usr/bin/no-such-thing\n", ..Skill::default() }.write(source);
        Skill { id: "crlf", main: "#!/bin/sh\r\necho hi\r\n", ..Skill::default() }.write(source);
        let noexec = Skill { id: "noexec", ..Skill::default() }.write(source);
        std::fs::set_permissions(noexec.join("main"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .unwrap();
        let nomain = Skill { id: "nomain", ..Skill::default() }.write(source);
        std::fs::remove_file(nomain.join("main")).unwrap();
        let dirmain = Skill { id: "dirmain", ..Skill::default() }.write(source);
        std::fs::remove_file(dirmain.join("main")).unwrap();
        std::fs::create_dir(dirmain.join("main")).unwrap();
    });
    for (skill, exit, words) in [
        ("noshebang", 126, "neither a program of this machine nor a script"),
        ("nointerp", 127, "/usr/bin/no-such-thing"),
        ("crlf", 127, "/bin/sh\\r"),
        ("noexec", 126, "chmod +x"),
        ("nomain", 127, "no such regular file"),
        ("dirmain", 127, "no such regular file"),
    ] {
        let ran = up.run(skill, &[]);
        assert_eq!(ran.exit, exit, "{skill}: {ran}");
        assert!(ran.stderr.contains(words), "{skill}: {ran}");
    }
    // What could be told before it was tried has no rows. The rest has a start on record, and its end says that it had none.
    let ends = up.rows("skill.invoked_completed").into_iter().map(|row| row["extra"].clone());
    let ends = ends.map(|end| (end["skill_id"].clone(), end["outcome"].clone(), end["exit_code"].clone()));
    let error = |skill: &str, exit: u8| (skill.into(), "error".into(), exit.into());
    let expected: Vec<(Value, Value, Value)> =
        vec![error("noshebang", 126), error("nointerp", 127), error("crlf", 127)];
    assert_eq!(ends.collect::<Vec<_>>(), expected);
    assert_eq!(up.rows("skill.invoked_started").len(), 3);
    nothing_left(&up);
    assert_eq!(up.cyberos(&["skill", "run", "absent"]).exit, 5);
}

#[test]
fn an_unknown_configuration_key_is_an_error_with_its_line() {
    let config =
        Some("tenant: 00000000-0000-0000-0000-000000000000\nquotas:\n  invocation_write_mb: 1\n".to_owned());
    let said =
        Up::try_with(Options { config, ..Options::default() }, |_| {}).err().expect("refuses to start");
    assert!(said.contains("line 2") && said.contains("quotas") && said.contains("quota"), "{said}");
}
