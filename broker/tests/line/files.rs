//! Read, from the socket to the descriptor (`[4.4]`, section 5).

use crate::support::{Client, Line, Options};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;

fn line() -> Line {
    let frontmatter = "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-allowed-files: [\"$DIR/work/**\", \"$DIR/store-like/*.md\"]";
    let line = Line::new(Options { frontmatter: frontmatter.into(), ..Options::default() });
    std::fs::write(line.work("x"), "one\ntwo\n").unwrap();
    std::fs::create_dir(line.dir.path().join("secret")).unwrap();
    std::fs::write(line.dir.path().join("secret/there"), "SECRET").unwrap();
    line
}

async fn read(client: &mut Client, path: impl AsRef<Path>) -> Value {
    let path = path.as_ref();
    client.call("Read", json!({"path": path})).await
}

/// The answer without what was asked for.
fn shape(answer: &Value) -> Value {
    let mut answer = answer.clone();
    answer["error"]["data"]["path"].take();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_granted_file_is_read_and_both_rows_are_there() {
    let line = line();
    let mut client = line.client().await;
    let answer = read(&mut client, line.work("x")).await;
    assert_eq!(answer["result"]["content"], "one\ntwo\n");
    assert_eq!(answer["result"]["size"], 8);
    let listed = client.ask(r#"{"jsonrpc":"2.0","id":1,"method":"tool.list"}"#).await;
    assert_eq!(listed["result"].as_array().unwrap().len(), 1);
    assert_eq!(listed["result"][0]["name"], "Read");
    assert_eq!(listed["result"][0]["input_schema"]["type"], "object");
    let rows = line.settled().await;
    let ops: Vec<_> = rows.iter().map(|r| r.op.as_str()).collect();
    assert_eq!(ops, ["skill.tool_call_started", "skill.tool_call_completed"]);
    assert_eq!(rows[0].extra["args_hash"], line.audit.hash(&json!({"path": line.work("x")})));
    assert_eq!(rows[1].extra["result_hash"], line.audit.hash(&answer["result"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_the_grant_there_is_one_answer_whether_the_thing_exists_or_not() {
    let line = line();
    let mut client = line.client().await;
    let secret = line.dir.path().join("secret");
    symlink(secret.join("there"), line.work("to-there")).unwrap();
    symlink(secret.join("none"), line.work("to-none")).unwrap();
    symlink("../secret/there", line.work("rel-there")).unwrap();
    symlink("../secret/none", line.work("rel-none")).unwrap();
    symlink("/proc/self/environ", line.work("environ")).unwrap();
    symlink("/proc/self/root", line.work("root")).unwrap();
    let mut seen: Option<Value> = None;
    let asked = [
        secret.join("there"),
        secret.join("none"),
        secret.clone(),
        line.work("../secret/there"),
        line.work("../work-evil/x"),
        "/etc/shadow".into(),
        "/nowhere/at/all".into(),
        "/proc/self/environ".into(),
        "/proc/self/fd/0".into(),
        "work/x".into(),
        line.work("to-there"),
        line.work("to-none"),
        line.work("rel-there"),
        line.work("rel-none"),
        line.work("environ"),
        line.work("root/etc/passwd"),
    ];
    for path in &asked {
        let answer = read(&mut client, path).await;
        assert_eq!(answer["error"]["code"], -32603, "{}: {answer}", path.display());
        assert_eq!(answer["error"]["message"], "file_violation");
        let shape = shape(&answer);
        assert_eq!(*seen.get_or_insert_with(|| shape.clone()), shape, "{}", path.display());
        assert!(!answer.to_string().contains("SECRET"));
    }
    assert_eq!(read(&mut client, line.work("x")).await["result"]["size"], 8, "the next good call works");
    let rows = line.settled().await;
    let denied = rows.iter().filter(|r| r.op == "skill.tool_denied").count();
    assert_eq!(denied, asked.len(), "one row each");
    assert_eq!(rows.len(), asked.len() + 2, "and none of them started");
    let led = rows
        .iter()
        .find(|r| r.extra.get("subject").is_some_and(|s| s.as_str().unwrap().ends_with("to-there")));
    assert!(led.is_some(), "the ledger names what was asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_the_grant_what_is_wrong_with_a_file_is_said() {
    let line = line();
    let mut client = line.client().await;
    mkfifo(&line.work("fifo"), Mode::S_IRWXU).unwrap();
    mknod(&line.work("zero"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(line.work("socket")).unwrap();
    std::fs::create_dir(line.work("dir")).unwrap();
    std::fs::write(line.work("binary"), b"\xff\xfe").unwrap();
    std::fs::hard_link(line.dir.path().join("secret/there"), line.work("hard")).unwrap();
    for (name, reason) in [
        ("fifo", "not_a_file"),
        ("zero", "not_a_file"),
        ("socket", "not_a_file"),
        ("dir", "is_a_directory"),
        ("none", "not_found"),
        ("x/y", "not_found"),
        ("binary", "not_utf8"),
    ] {
        let answer = read(&mut client, line.work(name)).await;
        assert_eq!(answer["error"]["code"], -32000, "{name}: {answer}");
        assert_eq!(answer["error"]["message"], "tool_error");
        assert_eq!(answer["error"]["data"]["reason"], reason, "{name}");
        assert_eq!(answer["error"]["data"]["tool"], "Read");
    }
    // A hard link is the file that has this name (fs.protected_hardlinks says who may make one).
    assert_eq!(read(&mut client, line.work("hard")).await["result"]["content"], "SECRET");
    line.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_115_spellings_of_a_path() {
    let line = line();
    let mut client = line.client().await;
    let work = line.dir.path().join("work");
    let work = work.to_str().unwrap();
    for good in [format!("{work}/./x"), format!("/{work}//x"), format!("{work}/a/../x"), format!("{work}/x/")]
    {
        assert_eq!(read(&mut client, &good).await["result"]["size"], 8, "{good}");
    }
    for bad in ["", "/a\0b"] {
        assert_eq!(read(&mut client, bad).await["error"]["code"], -32602, "{bad:?}");
    }
    let name_too_long = format!("{work}/{}", "y".repeat(300));
    assert_eq!(read(&mut client, &name_too_long).await["error"]["data"]["reason"], "invalid_path");
    let path_too_long = format!("{work}/{}", "y".repeat(5000));
    assert_eq!(read(&mut client, &path_too_long).await["error"]["code"], -32602);
    for other in ["x", "./x", "../x", "."] {
        assert_eq!(read(&mut client, other).await["error"]["message"], "file_violation", "{other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_093_a_file_over_the_response_cap_is_cut_and_still_json() {
    let line = line();
    let mut client = line.client().await;
    for content in ["x".repeat(17 << 20), "\u{1}".repeat(3 << 20)] {
        std::fs::write(line.work("big"), &content).unwrap();
        let answer = read(&mut client, line.work("big")).await;
        assert_eq!(answer["result"]["truncated"], true);
        assert_eq!(answer["result"]["size"], content.len());
        assert!(content.starts_with(answer["result"]["content"].as_str().unwrap()));
    }
    std::fs::write(line.work("big"), "x".repeat(7 << 20)).unwrap();
    let one =
        serde_json::from_str::<Value>(&crate::support::call(1, "Read", json!({"path": line.work("big")})))
            .unwrap();
    let batch = json!([one, one, one]);
    let answers = client.ask(batch.to_string()).await;
    assert!(answers.to_string().len() <= 16 << 20);
    assert_eq!(answers[0]["result"]["truncated"], false);
    assert_eq!(answers[1]["result"]["truncated"], true);
    assert_eq!(answers[2]["error"]["data"]["reason"], "result_too_large");
    line.settled().await;
}
