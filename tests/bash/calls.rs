//! One call from its arguments to its result.

use super::*;
use std::time::{Duration, Instant};
use support::up::eventually;

#[test]
fn a_command_line_says_how_it_went() {
    let bash = Bash::new();
    let answers = bash.calls(
        "reader",
        &json!([
            {"cmd": "echo out; echo err >&2; exit 7"},
            {"cmd": "kill -SEGV $$"},
            {"cmd": "printf 'a\\377b'"},
            {"cmd": "exit 0"},
            {"cmd": "no-such-program"},
        ]),
    );
    let expected = [
        json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7, "truncated": false}),
        json!({"stdout": "", "stderr": "", "exit_code": 139, "signal": 11, "truncated": false}),
        json!({"stdout": "a\u{fffd}b", "stderr": "", "exit_code": 0, "truncated": false}),
        json!({"stdout": "", "stderr": "", "exit_code": 0, "truncated": false}),
    ];
    for (answer, result) in answers.iter().zip(&expected) {
        assert_eq!(answer[1], *result);
    }
    assert_eq!(answers[4][1]["exit_code"], 127, "{}", answers[4]);
    let rows = bash.up.rows("skill.tool_call_completed");
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|r| r["extra"]["outcome"] == "success" && r["extra"]["tool_name"] == "Bash"));
}

#[test]
fn arguments_that_cannot_be_run_are_bad_parameters_and_the_tool_is_listed() {
    let bash = Bash::new();
    let answers = bash.calls(
        "reader",
        &json!([
            {"cmd": ""}, {"cmd": "a\0b"}, {"cmd": "@131072"}, {"cmd": "true", "cwd": "/proc/self/fd/7"},
            {"cmd": "true", "timeout_ms": 0}, {},
        ]),
    );
    for answer in &answers {
        assert_eq!(answer[1]["code"], -32602, "{answer}");
    }
    assert!(answers[2][0].as_str().unwrap().contains("at most 130048"), "{}", answers[2]);
    assert_eq!(bash.prints("reader", "echo @130043").len(), 130_043, "the longest");
}

/// Cases 76 and 77: what programs look for is there; what [4.6] names, and nothing else, is in the environment.
#[test]
fn case_076_environment_directory_and_identity_are_exactly_what_the_rules_say() {
    let bash = Bash::new();
    let mut environment: Vec<_> =
        bash.prints("reader", "env -u _ -u PWD -u SHLVL -u OLDPWD").lines().map(str::to_owned).collect();
    environment.sort();
    assert_eq!(
        environment,
        [
            "GIT_CONFIG_SYSTEM=/etc/gitconfig",
            "GIT_TERMINAL_PROMPT=0",
            "HOME=/tmp",
            "LANG=C.UTF-8",
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "TMPDIR=/tmp"
        ]
    );
    // What bash sets itself is not from us; the kernel has what we gave.
    let given = bash.prints("reader", "tr '\\0' '\\n' < /proc/$$/environ | wc -l");
    assert_eq!(given, "6");
    assert_eq!(bash.prints("reader", "pwd; cd; pwd; touch \"$(mktemp)\" && echo ok"), "/tmp\n/tmp\nok");
    let uid = bash.prints("reader", "id -u");
    assert_eq!(
        bash.prints("reader", "whoami; python3 -c 'import os,pwd; print(pwd.getpwuid(os.getuid()).pw_dir)'"),
        "skill\n/tmp"
    );
    let started = bash.up.rows("skill.invoked_started");
    let skill_uid = started.iter().find(|r| r["extra"]["uid"] == uid.parse::<u64>().unwrap());
    assert!(skill_uid.is_none_or(|_| started.len() > 1), "another uid than its own skill's");
    assert_eq!(
        bash.prints("reader", "set -- /proc/[0-9]*; echo $#; ls /proc/self/fd | tr '\\n' ' '"),
        "1\n0 1 2 3"
    );
    assert_eq!(
        bash.prints("reader", "ls /opt/cyberos/skills/reader | tr '\\n' ' '"),
        "SKILL.md cyberos.py main"
    );
    let socket = bash.run("reader", "ls /tmp/cyberos-* 2>&1; echo ${CYBEROS_BROKER_SOCKET:-none}");
    assert!(socket["stdout"].as_str().unwrap().ends_with("none\n"), "{socket}");
    assert!(socket["stdout"].as_str().unwrap().contains("No such file"), "{socket}");
}

#[test]
fn case_083_standard_input_is_at_its_end_and_nothing_prompts() {
    let bash = Bash::new();
    let begun = Instant::now();
    for cmd in [
        "cat",
        "read x; echo $?",
        "git clone https://example.invalid/private",
        "python3 -c 'input()'",
        "bash -i",
    ] {
        let answer = bash.call("reader", json!({"cmd": cmd, "timeout_ms": 30000}));
        assert_eq!(answer[0], "ok", "{cmd}: {answer}");
    }
    assert_eq!(bash.prints("reader", "cat; read x; echo $?"), "1");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn ordinary_programs_run() {
    let bash = Bash::new();
    assert_eq!(
        bash.prints("reader", "echo a b c | tr ' ' '\\n' | sort -r | head -2 | tail -1 | cat"),
        "b",
        "a pipeline of six"
    );
    for cmd in [
        "python3 -m pip --version",
        "printf 'int main(){return 0;}' > a.c && cc a.c -o a && ./a && echo compiled",
        "python3 -c 'import asyncio; print(asyncio.run(asyncio.sleep(0, 7)))'",
        "git --version",
        "ls /usr/bin | wc -l",
    ] {
        assert!(!bash.prints("reader", cmd).is_empty(), "{cmd}");
    }
    let node = Bash::with("x-memory-mb: 1024\nx-max-processes: 24\n", &["DIR/**"]);
    assert!(node.prints("reader", "npm --version").starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(
        node.prints("reader", "node -e 'fetch(\"data:,x\").then(r=>r.text()).then(console.log)'"),
        "x"
    );
}

#[test]
fn output_is_cut_at_one_mebibyte_each_and_the_command_goes_on() {
    let bash = Bash::new();
    let result = bash.run("reader", "head -c 3000000 /dev/zero | tr '\\0' x; head -c 1048576 /dev/zero | tr '\\0' y >&2; echo end > /tmp/e; cat /tmp/e >&2; exit 4");
    assert_eq!(result["exit_code"], 4);
    assert_eq!(result["truncated"], true);
    assert_eq!(result["stdout"].as_str().unwrap().len(), 1 << 20);
    assert_eq!(result["stderr"].as_str().unwrap(), "y".repeat(1 << 20));
    let exact = bash.run("reader", "head -c 1048576 /dev/zero | tr '\\0' x");
    assert_eq!(exact["truncated"], false);
}

/// Case 75: a timeout says which one it was and how long it took.
#[test]
fn case_075_a_call_that_takes_too_long_is_ended_and_recorded_as_timeout() {
    let bash = Bash::new();
    let begun = Instant::now();
    let answers = bash.calls(
        "reader",
        &json!([{"cmd": "trap '' TERM; sleep 1000", "timeout_ms": 700}, {"cmd": "echo next"}]),
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!((&answers[0][0], &answers[0][1]["reason"]), (&json!("tool_error"), &json!("timeout")));
    let message = answers[0][1]["message"].as_str().unwrap();
    assert!(message.contains("SIGKILL") && message.contains("its timeout_ms was 700"), "{message}");
    assert_eq!(answers[1][1]["stdout"], "next\n");
    let outcomes: Vec<_> =
        bash.up.rows("skill.tool_call_completed").iter().map(|r| r["extra"]["outcome"].clone()).collect();
    assert_eq!(outcomes, ["timeout", "success"]);
}

/// Every way a call can end leaves no process of it behind: each of these starts one in the background, in a session
/// of its own, that holds the pipes.
#[test]
fn nothing_of_a_call_outlives_it() {
    let bash = Bash::new();
    // A name that no other test's process has.
    let name = format!("9{:05}", std::process::id());
    let background = format!("setsid sleep {name} & disown; ");
    let running = || {
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|e| {
                std::fs::read(e.path().join("cmdline")).unwrap_or_default()
                    == format!("sleep\0{name}\0").as_bytes()
            })
            .count()
    };
    let begun = Instant::now();
    assert_eq!(bash.prints("reader", &format!("{background} echo done")), "done");
    assert!(begun.elapsed() < Duration::from_secs(20), "a grandchild that holds the pipes holds nobody up");
    assert_eq!(running(), 0, "the command ended");
    let answer = bash.call("reader", json!({"cmd": format!("{background} sleep 999"), "timeout_ms": 500}));
    assert_eq!(answer[1]["reason"], "timeout", "{answer}");
    assert_eq!(running(), 0, "its time was over");

    // The skill goes away in the middle of its call: the connection leaves, and then the run ends.
    let gone = python(&format!(
        "import threading, time\nthreading.Thread(target=lambda: call('Bash', cmd='{background} sleep 999'), daemon=True).start()\n\
         time.sleep(float(sys.argv[1]))\nif sys.argv[2] == 'close':\n    import socket\n    c._socket.shutdown(socket.SHUT_RDWR)\n    time.sleep(100)\nos._exit(0)"
    ));
    Skill { id: "goner", tools: &["Bash"], main: &gone, ..Skill::default() }.write(&bash.up.skills);
    bash.up.shown("goner", "current");
    let ran = bash.up.run("goner", &["1", "exit"]);
    assert_eq!(ran.exit, 0, "{ran}");
    assert_eq!(running(), 0, "the run ended");
    let mut closing = bash.up.command(&["skill", "run", "goner", "--", "2", "close"]).spawn().unwrap();
    assert!(eventually(Duration::from_secs(10), || running() == 1), "it was started");
    assert!(eventually(Duration::from_secs(10), || running() == 0), "the connection left");
    closing.kill().unwrap();
    closing.wait().unwrap();
}

#[test]
fn a_fork_bomb_is_bounded_and_the_next_call_works() {
    let bash = Bash::new();
    let answers = bash.calls(
        "reader",
        &json!([
            {"cmd": "bomb() { bomb | bomb & }; bomb; sleep 30", "timeout_ms": 2000},
            {"cmd": "for i in $(seq 20); do sleep 5 & done 2>&1; pgrep -c sleep"},
            {"cmd": "python3 -c 'x = bytearray(1 << 30)' 2>&1 | tail -1"},
            {"cmd": "echo alive"},
        ]),
    );
    assert!(answers[0][0] == "ok" || answers[0][1]["reason"] == "timeout", "{}", answers[0]);
    let most: u32 = answers[1][1]["stdout"].as_str().unwrap().lines().last().unwrap().parse().unwrap_or(0);
    assert!(most < 8, "{}", answers[1]);
    assert_eq!(answers[2][1]["stdout"], "MemoryError\n", "{}", answers[2]);
    assert_eq!(answers[3][1]["stdout"], "alive\n");
}

#[test]
fn threat_a15_a_skill_at_its_limit_of_processes_can_call_bash() {
    let bash = Bash::new();
    let full = python(
        "import subprocess\nkids = []\ntry:\n    while True: kids.append(subprocess.Popen(['sleep', '100']))\nexcept OSError: pass\n\
         print(len(kids), call('Bash', cmd='echo a | cat | cat | cat | cat | cat; kill -9 -1; id -u')[1]['stdout'].split()[0])\n\
         print(sum(k.poll() is None for k in kids))",
    );
    Skill { id: "full", tools: &["Bash"], main: &full, ..Skill::default() }.write(&bash.up.skills);
    bash.up.shown("full", "current");
    let ran = bash.up.run("full", &[]);
    let lines: Vec<_> = ran.stdout.lines().collect();
    // Seven children beside the skill, all of them alive after a Bash that killed everything that it could.
    assert_eq!(lines, ["7 a", "7"], "{ran}");
}

#[test]
fn several_calls_at_once_each_have_a_sandbox_of_their_own() {
    let bash = Bash::new();
    let many = python(
        "import concurrent.futures as f\ndef one(i):\n    b = cyberos.connect()\n    r = b.call('Bash', {'cmd': f'echo {i} > /tmp/x; sleep 0.3; cat /tmp/x; ls /tmp | wc -l; id -u'})\n    b.close()\n    return r['stdout'].split()\n\
         with f.ThreadPoolExecutor(6) as pool: print(json.dumps(list(pool.map(one, range(6)))))",
    );
    Skill { id: "many", tools: &["Bash"], main: &many, more: "x-max-processes: 16\n", ..Skill::default() }
        .write(&bash.up.skills);
    bash.up.shown("many", "current");
    let ran = bash.up.run("many", &[]);
    let answers: Vec<Vec<String>> =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}"));
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer[..2], [i.to_string(), "1".to_owned()], "{answers:?}");
    }
}
