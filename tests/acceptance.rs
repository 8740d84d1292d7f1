//! The acceptance criteria of the capability broker, each shown by a skill that runs in the real sandbox under a real
//! `cyberos up`. A test is named for the criterion that it keeps (SPEC.md, appendix).

mod support;

use serde_json::{Value, json};
use support::up::{Skill, Up, memory_file, python};

const SCOPE: &str = "memories/projects/cyberos/**";

/// One skill with MemoryRead and one scope, which prints what its calls answered, a JSON value a line.
fn reader(body: &str) -> Up {
    let main = python(body);
    Up::new(|source| {
        Skill { id: "reader", tools: &["MemoryRead"], scopes: &[SCOPE], main: &main, ..Skill::default() }
            .write(source);
    })
}

/// The lines that the skill printed, as JSON.
fn printed(up: &Up, skill: &str, args: &[&str]) -> Vec<Value> {
    let ran = up.run(skill, args);
    assert_eq!(ran.exit, 0, "{ran}");
    ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {ran}"))).collect()
}

fn is_hash(value: &Value) -> bool {
    value.as_str().is_some_and(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[test]
fn criterion_01_a_call_of_an_allowed_tool_succeeds() {
    let up = reader("print(json.dumps(call('MemoryRead', path='memories/projects/cyberos/notes/x.md')))");
    memory_file(&up, "memories/projects/cyberos/notes/x.md", "hello\n");
    let lines = printed(&up, "reader", &[]);
    assert_eq!(lines[0][0], "ok");
    assert_eq!(lines[0][1]["body"], "hello\n");
    assert_eq!(
        lines[0][1]["content_hash"],
        "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    );
}

#[test]
fn criterion_02_a_tool_that_is_not_allowed_is_rejected_and_recorded() {
    let up = reader("print(json.dumps(call('Bash', cmd='ls')))");
    let lines = printed(&up, "reader", &[]);
    assert_eq!(lines[0][0], "tool_not_allowed");
    assert_eq!(lines[0][1]["reason"], "tool_not_in_allowed_tools");
    let rows = up.rows("skill.tool_denied");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["extra"]["reason"], "tool_not_in_allowed_tools");
    assert_eq!(rows[0]["extra"]["tool_name"], "Bash");
}

#[test]
fn criterion_03_the_list_of_disallowed_tools_wins() {
    let main = python("print(json.dumps(call('Read', path='/etc/hosts')))");
    let up = Up::new(|source| {
        let more = "disallowed_tools: [Read]\nx-allowed-files: [\"/etc/hosts\"]\n";
        Skill { id: "both", tools: &["MemoryRead", "Read"], more, main: &main, ..Skill::default() }
            .write(source);
    });
    let lines = printed(&up, "both", &[]);
    assert_eq!(lines[0][0], "tool_not_allowed");
    assert_eq!(lines[0][1]["reason"], "tool_in_disallowed_tools");
}

#[test]
fn criterion_04_memory_scopes_bound_what_is_read() {
    let up = reader(
        "for p in ('memories/projects/cyberos/x.md', 'memories/people/y.md', 'memories/people/absent.md'):\n    print(json.dumps(call('MemoryRead', path=p)))",
    );
    memory_file(&up, "memories/projects/cyberos/x.md", "mine");
    memory_file(&up, "memories/people/y.md", "theirs");
    let lines = printed(&up, "reader", &[]);
    assert_eq!(lines[0][1]["body"], "mine");
    assert_eq!(lines[1][0], "scope_violation");
    // Whether the thing exists makes no difference to the skill.
    let without = |v: &Value| {
        let mut v = v.clone();
        v[1].as_object_mut().unwrap().remove("path");
        v
    };
    assert_eq!(without(&lines[1]), without(&lines[2]));
}

#[test]
fn criterion_05_a_path_is_canonical_before_it_is_matched() {
    let up = reader(
        "for p in ('memories/projects/cyberos/../people/y.md', 'memories/projects/cyberos/../../people/y.md', './memories//projects/./cyberos/x.md'):\n    print(json.dumps(call('MemoryRead', path=p)))",
    );
    memory_file(&up, "memories/projects/cyberos/x.md", "mine");
    memory_file(&up, "memories/people/y.md", "theirs");
    let lines = printed(&up, "reader", &[]);
    assert_eq!(lines[0][0], "scope_violation");
    assert_eq!(lines[1][0], "scope_violation");
    assert_eq!(lines[2][1]["body"], "mine");
    let subjects: Vec<_> =
        up.rows("skill.tool_denied").iter().map(|r| r["extra"]["subject"].clone()).collect();
    assert_eq!(subjects, [json!("memories/projects/people/y.md"), json!("memories/people/y.md")]);
}

#[test]
fn criterion_06_files_are_read_within_the_grant_alone() {
    let granted = support::up::reachable_dir("cyberos-files-");
    std::fs::write(granted.join("x.txt"), "granted\n").unwrap();
    let main = python("for p in sys.argv[1:]:\n    print(json.dumps(call('Read', path=p)))");
    let pattern = format!("{}/**", granted.display());
    let config = format!("grants:\n  default:\n    files: [\"{pattern}\"]\n");
    let options = support::up::Options { config: Some(config), ..Default::default() };
    let up = Up::with(options, |source| {
        let more = format!("x-allowed-files: [\"{pattern}\"]\n");
        Skill { id: "files", tools: &["Read"], more: &more, main: &main, ..Skill::default() }.write(source);
    });
    let path = |name: &str| granted.join(name).display().to_string();
    std::os::unix::fs::symlink("/etc/passwd", granted.join("link")).unwrap();
    let dots = format!("{}/../../../etc/passwd", granted.display());
    let lines =
        printed(&up, "files", &[&path("x.txt"), "/etc/passwd", &path("link"), &dots, "/proc/self/environ"]);
    assert_eq!(lines[0][1]["content"], "granted\n");
    for line in &lines[1..] {
        assert_eq!(line[0], "file_violation", "{line}");
        assert_eq!(line[1]["code"], -32603);
    }
    let denied = up.rows("skill.tool_denied");
    assert_eq!(denied.len(), 4);
    // What the link leads to was not looked at, so neither the ledger nor the skill says it.
    assert_eq!(denied[1]["extra"]["subject"], path("link"));
    assert!(!lines[2].to_string().contains("passwd"));
}

#[test]
fn criterion_08_the_environment_holds_what_the_rule_names_and_no_secret() {
    let main = "#!/bin/sh\nexec /usr/bin/env\n";
    let up = Up::new(|source| drop(Skill { id: "env", main, ..Skill::default() }.write(source)));
    let mut command = up.command(&["skill", "run", "env"]);
    command.env("AWS_SECRET_ACCESS_KEY", "x").env("JWT_SECRET", "y");
    let ran = support::up::Ran::from(command.output().unwrap());
    assert_eq!(ran.exit, 0, "{ran}");
    // PWD, SHLVL and _ are the shell's own; env(1) was started by it.
    let mut names: Vec<_> = ran.stdout.lines().filter_map(|l| l.split_once('=')).map(|(n, _)| n).collect();
    names.retain(|n| !matches!(*n, "PWD" | "SHLVL" | "_" | "OLDPWD"));
    names.sort_unstable();
    assert_eq!(names, support::up::ENVIRONMENT, "{ran}");
    for line in ["PATH=/usr/local/bin:/usr/bin:/bin", "RUST_LOG=warn", "HOME=/tmp", "LANG=C.UTF-8"] {
        assert!(ran.stdout.lines().any(|l| l == line), "{line}: {ran}");
    }
}

#[test]
fn criterion_09_exactly_the_three_standard_descriptors_are_open() {
    let main = "#!/usr/bin/python3\nimport os\nd = os.open('/proc/self/fd', os.O_RDONLY)\nprint(sorted(int(n) for n in os.listdir(d) if int(n) != d))\nprint([os.isatty(n) for n in (0, 1, 2)])\n";
    let up = Up::new(|source| drop(Skill { id: "fds", main, ..Skill::default() }.write(source)));
    let ran = up.run("fds", &[]);
    // listdir() opens a directory stream of its own while it reads.
    let fds = ran.stdout.lines().next().unwrap_or_default().to_owned();
    assert!(fds == "[0, 1, 2]" || fds == "[0, 1, 2, 4]", "{ran}");
    assert!(ran.stdout.contains("[False, False, False]"), "{ran}");
}

#[test]
fn criterion_10_a_gigabyte_cannot_be_had() {
    let main = "#!/usr/bin/python3\ntry:\n    b = bytearray(1 << 30)\nexcept MemoryError:\n    print('MemoryError')\nelse:\n    print('got it')\n";
    let up = Up::new(|source| {
        Skill { id: "hog", main, ..Skill::default() }.write(source);
        Skill { id: "data", main, more: "x-memory-mb: 512\n", ..Skill::default() }.write(source);
    });
    for skill in ["hog", "data"] {
        let ran = up.run(skill, &[]);
        assert_eq!(ran.stdout, "MemoryError\n", "{ran}");
    }
}

#[test]
fn criterion_11_forks_end_at_eight_processes() {
    let main = "#!/usr/bin/python3\nimport os, time\nn = 1\nfor i in range(16):\n    try:\n        if os.fork() == 0:\n            time.sleep(30)\n            os._exit(0)\n        n += 1\n    except BlockingIOError:\n        break\nprint(n)\n";
    let up = Up::new(|source| drop(Skill { id: "forks", main, ..Skill::default() }.write(source)));
    let ran = up.run("forks", &[]);
    assert_eq!(ran.stdout, "8\n", "the skill itself counts: {ran}");
    assert_eq!(ran.exit, 0, "its children end with it: {ran}");
}

#[test]
fn criterion_14_a_successful_call_has_one_started_and_one_completed_row() {
    let up = reader(
        "for i in range(3):\n    print(json.dumps(call('MemoryRead', path='memories/projects/cyberos/x.md')))",
    );
    memory_file(&up, "memories/projects/cyberos/x.md", "mine");
    assert_eq!(printed(&up, "reader", &[]).len(), 3);
    let (started, completed) = (up.rows("skill.tool_call_started"), up.rows("skill.tool_call_completed"));
    assert_eq!((started.len(), completed.len()), (3, 3));
    for (i, (s, c)) in started.iter().zip(&completed).enumerate() {
        let (s, c) = (&s["extra"], &c["extra"]);
        assert_eq!(s["call"], i + 1);
        for field in ["invocation_id", "call", "skill_id", "tool_name", "trace_id"] {
            assert_eq!(s[field], c[field], "{field}");
        }
        assert_eq!(c["outcome"], "success");
        assert!(is_hash(&s["args_hash"]) && is_hash(&c["result_hash"]), "{s} {c}");
        assert!(c["duration_ms"].is_u64(), "{c}");
    }
    let verified = up.cyberos(&["audit", "verify"]);
    assert_eq!(verified.exit, 0, "{verified}");
}

#[test]
fn criterion_15_each_violation_has_a_denied_row_with_reason_hash_and_trace() {
    let up = reader(
        "call('Bash', cmd='ls')\ncall('MemoryRead', path='memories/people/y.md')\ncall('Nonsense')\ncall('MemoryRead', path='/abs')",
    );
    let ran = up.run("reader", &[]);
    assert_eq!(ran.exit, 0, "{ran}");
    let rows = up.rows("skill.tool_denied");
    let reasons: Vec<_> = rows.iter().map(|r| r["extra"]["reason"].as_str().unwrap()).collect();
    assert_eq!(
        reasons,
        ["tool_not_in_allowed_tools", "scope_violation", "tool_not_in_allowed_tools", "scope_violation"]
    );
    let invocation = &up.rows("skill.invoked_started")[0]["extra"];
    for row in &rows {
        let extra = &row["extra"];
        assert!(is_hash(&extra["attempted_args_hash"]), "{extra}");
        assert_eq!(extra["trace_id"], invocation["trace_id"]);
        assert_eq!(extra["invocation_id"], invocation["invocation_id"]);
        assert!(extra["rule"].as_str().is_some_and(|r| !r.is_empty()), "{extra}");
    }
    assert_eq!(up.rows("skill.tool_call_started").len(), 0, "a refused call does not start");
}

#[test]
fn criterion_16_a_request_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let body = r#"
import socket, struct
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ['CYBEROS_BROKER_SOCKET'])
f = s.makefile('rb')
def answer():
    n = struct.unpack('>I', f.read(4))[0]
    print(f.read(n).decode())
big = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'tool.list', 'pad': 'x' * (2 << 20)}).encode()
s.sendall(struct.pack('>I', len(big)) + big)
answer()
ok = b'{"jsonrpc":"2.0","id":2,"method":"tool.list"}'
s.sendall(struct.pack('>I', len(ok)) + ok)
answer()
"#;
    let up = reader(body);
    let lines = printed(&up, "reader", &[]);
    assert_eq!(lines[0]["error"]["message"], "request_too_large");
    assert_eq!(lines[0]["error"]["code"], -32603);
    assert_eq!(lines[0]["id"], Value::Null);
    assert_eq!(lines[1]["result"][0]["name"], "MemoryRead");
    assert_eq!(up.rows("skill.tool_denied")[0]["extra"]["reason"], "request_too_large");
}

#[test]
fn criterion_17_every_refusal_has_code_minus_32603() {
    let up = reader(
        "for t, a in (('Bash', {'cmd': 'ls'}), ('MemoryRead', {'path': 'memories/people/y.md'}), ('Nope', {}), ('HttpFetch', {'url': 'http://x/'})):\n    print(json.dumps(call(t, **a)))",
    );
    for line in printed(&up, "reader", &[]) {
        assert_eq!(line[1]["code"], -32603, "{line}");
        assert_eq!(line[1]["skill_id"], "reader", "{line}");
        assert!(line[1]["reason"].is_string() && line[1]["tool"].is_string(), "{line}");
    }
}

#[test]
fn criterion_20_status_counts_invocations_calls_and_refusals() {
    let up = reader(
        "call('MemoryRead', path='memories/projects/cyberos/x.md')\ncall('Bash', cmd='ls')\nprint('ready', flush=True)\nsys.stdin.read()",
    );
    let mut running = up.command(&["skill", "run", "reader", "--stdin"]);
    let mut running =
        running.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(running.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
    assert_eq!(status["active_invocations"], 1, "{status}");
    assert_eq!(status["tool_calls_today"], 2, "{status}");
    assert_eq!(status["denied_today"], 1, "{status}");
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
    let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
    assert_eq!(status["active_invocations"], 0, "{status}");
}

#[test]
fn criterion_24_two_invocations_cannot_reach_each_others_sockets() {
    let body = r#"
import glob, socket
print(os.environ['CYBEROS_BROKER_SOCKET'], flush=True)
other = sys.stdin.readline().strip()
for path in (other, '/proc/1/root' + other, '/tmp/../tmp/' + os.path.basename(other)):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print('CONNECTED', path)
    except OSError as e:
        print('refused', e.errno)
print(sorted(glob.glob('/tmp/*')) == [os.environ['CYBEROS_BROKER_SOCKET']], flush=True)
sys.stdin.readline()
"#;
    let up = reader(body);
    let start = || {
        let mut command = up.command(&["skill", "run", "reader", "--stdin"]);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut socket = String::new();
        std::io::BufRead::read_line(&mut out, &mut socket).unwrap();
        (child, out, socket)
    };
    let (mut a, mut a_out, a_socket) = start();
    let (mut b, mut b_out, b_socket) = start();
    assert_ne!(a_socket, b_socket);
    for (socket, id) in [(&a_socket, 0), (&b_socket, 1)] {
        let path = socket.trim();
        assert!(path.starts_with("/tmp/cyberos-skill-broker.") && path.ends_with(".sock"), "{path}");
        let meta = std::fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{path} ({id}): {e}"));
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&meta) & 0o7777, 0o600);
    }
    use std::io::{Read, Write};
    a.stdin.as_mut().unwrap().write_all(format!("{b_socket}\n").as_bytes()).unwrap();
    b.stdin.as_mut().unwrap().write_all(format!("{a_socket}\n").as_bytes()).unwrap();
    for (child, out) in [(&mut a, &mut a_out), (&mut b, &mut b_out)] {
        drop(child.stdin.take());
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("CONNECTED"), "{rest}");
        assert_eq!(rest.matches("refused").count(), 3, "{rest}");
        assert!(rest.ends_with("True\n"), "{rest}");
        assert!(child.wait().unwrap().success());
    }
    for socket in [a_socket, b_socket] {
        assert!(!std::path::Path::new(socket.trim()).exists(), "the socket goes with its invocation");
    }
}
