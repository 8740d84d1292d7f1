//! `cyberos-call`, the program, against a real session (`[7.7]`), under the limits that a skill has.

use crate::support::{Line, Options};
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};

fn line() -> Line {
    let frontmatter = "allowed_tools: [Read, MemoryEmit]\nallowed_memory_scopes: [\"memories/**\"]\nx-allowed-files: [\"$DIR/work/**\"]";
    Line::new(Options { frontmatter: frontmatter.into(), ..Options::default() })
}

/// Runs it with 512 MiB of address space and 8 processes, on a thread that may block.
async fn run(line: &Line, args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new("prlimit");
    command
        .args(["--as=536870912", "--nproc=8", "--nofile=16", env!("CARGO_BIN_EXE_cyberos-call")])
        .args(args)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("CYBEROS_BROKER_SOCKET", line.dir.path().join("sock"));
    piped(command, stdin.to_owned()).await
}

async fn piped(mut command: Command, stdin: String) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let work = move || {
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || std::io::Write::write_all(&mut pipe, stdin.as_bytes()));
        let output = child.wait_with_output().unwrap();
        let _ = feed.join();
        output
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_one_line_of_json_on_stdout() {
    let line = line();
    std::fs::write(line.work("x"), "é\n").unwrap();
    let args = json!({"path": line.work("x")}).to_string();
    for (words, stdin) in [(&["Read", &args][..], ""), (&["Read", "-"], args.as_str())] {
        let output = run(&line, words, stdin).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty());
        assert_eq!(output.stdout.iter().filter(|b| **b == b'\n').count(), 1);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["content"], "é\n");
    }
    let output = run(&line, &["--list"], "").await;
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_the_error_object_on_stderr_and_exit_status_1() {
    let line = line();
    for (words, code) in [
        (&["Bash", "{\"cmd\":\"ls\"}"][..], -32603),
        (&["Read"], -32602),
        (&["Read", "1"], -32602),
        (&["Read", "{\"path\":\"/x\",\"path\":\"/y\"}"], -32600),
        (&["a\"b", "{}"], -32603),
    ] {
        let output = run(&line, words, "").await;
        assert_eq!(output.status.code(), Some(1), "{words:?} {output:?}");
        assert!(output.stdout.is_empty());
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["code"], code, "{words:?}");
    }
    let large = json!({"kind": "a.b", "payload": "x".repeat(2 << 20)}).to_string();
    let output = run(&line, &["MemoryEmit", "-"], &large).await;
    assert_eq!(output.status.code(), Some(1));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["message"], "request_too_large");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_result_fits_into_a_skill_s_memory() {
    let line = line();
    std::fs::write(line.work("big"), "x".repeat(15 << 20)).unwrap();
    let output = run(&line, &["Read", &json!({"path": line.work("big")}).to_string()], "").await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.len() > 15 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_2_and_no_broker_is_4() {
    let line = line();
    for words in
        [&[][..], &["--nope"], &["Read", "{"], &["Read", "{}", "x"], &["Read", "{} {}"], &["Read", "{}},{"]]
    {
        assert_eq!(run(&line, words, "").await.status.code(), Some(2), "{words:?}");
    }
    assert_eq!(run(&line, &["--help"], "").await.status.code(), Some(0));
    line.session.close().await;
    let gone = run(&line, &["--list"], "").await;
    assert_eq!(gone.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("sock"), "it names the path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cyberos-call"));
    command.arg("--list").env_remove("CYBEROS_BROKER_SOCKET");
    assert_eq!(piped(command, String::new()).await.status.code(), Some(4));
}
