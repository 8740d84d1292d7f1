//! What a command answers reaches whoever asked (`[7.3]`), or he is told that it does not.

mod support;

use std::fs::File;
use std::process::{Command, Stdio};
use support::binaries::binary;
use support::up::{Options, Ran, Skill, Up, python};

/// Runs a command that writes its answer to a full disk.
fn to_a_full_disk(command: &mut Command) -> Ran {
    let full = File::options().write(true).open("/dev/full").unwrap();
    command.stdin(Stdio::null()).stdout(full).output().unwrap().into()
}

#[test]
fn an_answer_that_cannot_be_written_is_told_and_is_no_success() {
    let up = Up::with(Options { provider: Some(String::new()), ..Options::default() }, |source| {
        Skill { id: "says", main: &python("print('x')"), ..Skill::default() }.write(source);
        // A program in the sandbox, too.
        let call = "import subprocess\nr = subprocess.run(['/opt/cyberos/bin/cyberos-call', '--list'], \
                    stdout=open('/dev/full', 'wb'), stderr=subprocess.PIPE)\nprint(r.returncode, r.stderr.decode())";
        Skill { id: "calls", main: &python(call), ..Skill::default() }.write(source);
    });
    for skill in ["says", "calls"] {
        up.certify(skill);
        up.shown(skill, "current");
    }
    let ran = up.run("calls", &[]);
    assert!(ran.exit == 0 && ran.stdout.starts_with("1 cyberos-call: cannot write the result"), "{ran}");
    let id = up.run_json("says", &[]).1["ended"]["invocation_id"].as_str().unwrap().to_owned();
    let folder = up.skills.join("says").display().to_string();
    let mut told = Vec::new();
    for args in [
        &["status"][..],
        &["skill", "list"],
        &["skill", "show", "says"],
        &["skill", "run", "says"],
        &["skill", "logs", &id],
        &["skill", "validate", &folder],
        &["skillfs", "explain", "says"],
        &["skillfs", "refresh"],
        &["replay", "--invocation", &id],
        &["tail", "--invocation", &id],
        &["why", "--invocation", &id],
        &["audit", "show"],
        &["audit", "verify"],
        &["doctor"],
        &["--json", "status"],
        &["--json", "skill", "run", "says"],
        &["--json", "skill", "wait", &id],
        // The answer to a failure.
        &["--json", "skill", "show", "absent"],
    ] {
        told.push((format!("{args:?}"), to_a_full_disk(&mut up.command(args))));
    }
    for args in [&["status"][..], &["scan"], &["resolve"], &["certify"], &["prune"]] {
        let mut command = Command::new(binary("skill-ledger"));
        command.args(args).arg(&folder);
        for dir in ["keys", "trusted"] {
            command.arg(format!("--{dir}")).arg(up.state.join(dir));
        }
        command.arg("--state").arg(up.state.join("skillfs/ledger"));
        told.push((format!("skill-ledger {args:?}"), to_a_full_disk(&mut command)));
    }
    for args in [&["status"][..], &["status", "--json"], &["explain", "says"], &["refresh"]] {
        let mut command = Command::new(binary("skillfs"));
        command.args(args).arg("--control").arg(up.state.join("run/skillfs/control.sock"));
        told.push((format!("skillfs {args:?}"), to_a_full_disk(&mut command)));
    }
    let wrong: Vec<String> = told
        .iter()
        .filter(|(_, ran)| ran.exit != 1 || !ran.stderr.contains("No space left on device"))
        .map(|(command, ran)| format!("{command}: {ran}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_run_whose_output_cannot_be_written_is_stopped() {
    let up = Up::new(|source| {
        let endless = python("print('x', flush=True)\nos.read(os.pipe()[0], 1)");
        Skill { id: "endless", more: "effort_minutes: 9\n", main: &endless, ..Skill::default() }
            .write(source);
    });
    let ran = to_a_full_disk(&mut up.command(&["skill", "run", "endless"]));
    assert!(ran.exit == 1 && ran.stderr.contains("cannot write the answer: No space left"), "{ran}");
    let ended = support::up::eventually(std::time::Duration::from_secs(20), || {
        up.rows("skill.invoked_completed").iter().any(|row| row["extra"]["outcome"] == "stopped")
    });
    assert!(ended, "nobody reads what it prints any more");
}

#[test]
fn an_empty_variable_for_the_socket_is_as_good_as_none() {
    let status = |socket: &str| -> Ran {
        let mut command = Command::new(binary("cyberos"));
        command.env("CYBEROS_OPERATOR_SOCKET", socket).arg("status").output().unwrap().into()
    };
    let ran = status("");
    // Another broker may be there.
    assert!(ran.exit == 0 || ran.stderr.contains("at /run/cyberos/broker.sock"), "{ran}");
    assert!(status("/nonexistent").stderr.contains("at /nonexistent"));
}

#[test]
fn a_command_that_makes_its_own_broker_lists_no_socket_and_refuses_one() {
    let cyberos =
        |args: &[&str]| -> Ran { Command::new(binary("cyberos")).args(args).output().unwrap().into() };
    for command in ["up", "demo"] {
        let help = cyberos(&[command, "--help"]);
        assert!(help.exit == 0 && help.stdout.contains("--state"), "{help}");
        assert!(!help.stdout.contains("--socket"), "{help}");
        for args in [[command, "--socket", "/x"], ["--socket", "/x", command]] {
            let ran = cyberos(&args);
            assert!(
                ran.exit == 2 && ran.stderr.contains("--socket names a broker that runs"),
                "{args:?}: {ran}"
            );
        }
    }
    assert!(cyberos(&["status", "--help"]).stdout.contains("--socket"));
}
