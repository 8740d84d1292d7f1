//! MemoryRead and MemoryEmit, from the socket to the store and the ledger (`[5.3]`).

use crate::support::{Line, Options, call};
use cyberos_broker::audit::replay::{replay, why};
use cyberos_broker::audit::{Audit, AuditOptions};
use serde_json::{Value, json};

fn options(scopes: &str) -> Options {
    Options {
        frontmatter: format!("allowed_tools: [MemoryRead, MemoryEmit]\nallowed_memory_scopes: [{scopes}]"),
        ..Options::default()
    }
}

fn file(line: &Line, path: &str) -> std::path::PathBuf {
    line.dir.path().join("tenants").join(line.invocation.tenant.to_string()).join(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_emitted_is_read_back_with_its_frontmatter_and_a_row_of_its_own() {
    let line = Line::new(options("\"memories/**\""));
    let mut client = line.client().await;
    let emitted = client
        .ask(
            json!({"jsonrpc": "2.0", "id": 1, "method": "tool.call", "params": {
                "tool": "MemoryEmit", "args": {"kind": "note.daily", "payload": "text\n---\nmore"},
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            }})
            .to_string(),
        )
        .await["result"]
        .clone();
    let path = emitted["path"].as_str().unwrap();
    let row_id = emitted["row_id"].as_str().unwrap();
    assert!(path.starts_with("memories/note/daily/2") && path.ends_with(&format!("/{row_id}.md")), "{path}");
    assert_eq!(path.split('/').count(), 6);
    assert_eq!(emitted["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    let read = client.call("MemoryRead", json!({"path": path})).await["result"].clone();
    assert_eq!(read["body"], "text\n---\nmore");
    assert_eq!(read["meta"]["kind"], "note.daily");
    assert_eq!(read["meta"]["sync_class"], "shareable");
    assert_eq!(read["meta"]["skill_id"], "demo");
    assert_eq!(read["meta"]["trace_id"], emitted["trace_id"]);
    let rows = line.settled().await;
    let ops: Vec<_> = rows.iter().map(|r| r.op.as_str()).collect();
    let started = ["skill.tool_call_started", "memory.emit", "skill.tool_call_completed"];
    assert_eq!(ops[..3], started);
    let row = &rows[1];
    assert_eq!((row.seq, row.path.as_str()), (emitted["seq"].as_u64().unwrap(), path));
    assert_eq!(row.content_sha256, read["content_hash"].as_str().unwrap());
    assert_eq!(row.extra["row_id"], row_id);
    assert_eq!(row.extra["trace_id"], emitted["trace_id"]);
    let asked = json!({"kind": "note.daily", "payload": "text\n---\nmore"});
    assert_eq!(rows[0].extra["args_hash"], line.audit.hash(&asked), "the arguments as they were given");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_that_are_not_text_are_json_and_a_path_may_be_given() {
    let line = Line::new(options("\"memories/**\""));
    let mut client = line.client().await;
    for payload in [
        json!({"b": 1, "a": [1.50, null]}),
        json!(12345678901234567890u64),
        json!(""),
        json!("---\n{}\n---\n"),
    ] {
        let path = "memories/./a//x.md";
        let args = json!({"kind": "a.b", "payload": payload, "path": path});
        let emitted = client.call("MemoryEmit", args).await["result"].clone();
        assert_eq!(emitted["path"], "memories/a/x.md", "the canonical one");
        let body =
            client.call("MemoryRead", json!({"path": "memories/a/x.md"})).await["result"]["body"].clone();
        match &payload {
            Value::String(text) => assert_eq!(body, text.as_str()),
            other => assert_eq!(body, other.to_string()),
        }
    }
    std::fs::write(file(&line, "memories/a/plain.md"), "---\ntitle: yaml\n---\nbody").unwrap();
    let plain = client.call("MemoryRead", json!({"path": "memories/a/plain.md"})).await["result"].clone();
    assert_eq!(plain["body"], "---\ntitle: yaml\n---\nbody");
    assert!(plain.get("meta").is_none());
    std::fs::write(file(&line, "memories/a/binary.md"), b"\xff").unwrap();
    for (path, reason) in [("binary.md", "not_utf8"), ("none.md", "not_found"), ("", "not_a_file")] {
        let answer = client.call("MemoryRead", json!({"path": format!("memories/a/{path}")})).await;
        assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
    }
    line.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_derived_path_is_decided_like_a_given_one() {
    let line = Line::new(options("\"memories/note/**\""));
    let mut client = line.client().await;
    assert!(client.call("MemoryEmit", json!({"kind": "note.a", "payload": "x"})).await["result"].is_object());
    let answer = client.call("MemoryEmit", json!({"kind": "people.a", "payload": "x"})).await;
    assert_eq!(answer["error"]["message"], "scope_violation");
    assert!(answer["error"]["data"]["path"].as_str().unwrap().starts_with("memories/people/a/"));
    assert!(!file(&line, "memories/people").exists());
    for path in [
        "memories/note/../people/x.md",
        "memories/people/x.md",
        "../x",
        "/memories/note/x",
        "memories\\note\\x",
    ] {
        for (tool, args) in [
            ("MemoryEmit", json!({"kind": "note.a", "payload": "x", "path": path})),
            ("MemoryRead", json!({"path": path})),
        ] {
            let answer = client.call(tool, args).await;
            assert_eq!(answer["error"]["message"], "scope_violation", "{path}: {answer}");
            assert_eq!(answer["error"]["data"]["path"], path);
        }
    }
    let rows = line.settled().await;
    let denied: Vec<_> = rows.iter().filter(|r| r.op == "skill.tool_denied").collect();
    assert_eq!(denied.len(), 11);
    // The path was made up for this call alone; what would help the next one is its kind's pattern.
    let sentence = denied[0].text("sentence").unwrap();
    assert!(sentence.contains("The line `- \"memories/people/a/**\"` there would allow it"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_class_only_narrows() {
    let args = |class| json!({"kind": "a.b", "payload": "x", "path": "memories/x/y.md", "sync_class": class});
    for (private, class, stored) in [
        (false, "private", Some("private")),
        (false, "shareable", Some("shareable")),
        (true, "private", Some("private")),
        (true, "shareable", None),
    ] {
        let line = Line::new(Options { sync_private: private, ..options("\"memories/**\"") });
        let mut client = line.client().await;
        let answer = client.call("MemoryEmit", args(class)).await;
        match stored {
            Some(stored) => {
                let read = client.call("MemoryRead", json!({"path": "memories/x/y.md"})).await;
                assert_eq!(read["result"]["meta"]["sync_class"], stored);
            }
            None => {
                assert_eq!(answer["error"]["code"], -32602);
                assert!(answer["error"]["message"].as_str().unwrap().contains("sync_class"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_name_the_field_and_leave_a_row() {
    let line = Line::new(options("\"memories/**\""));
    let mut client = line.client().await;
    for (args, field) in [
        (json!({"payload": "x"}), "kind"),
        (json!({"kind": "note", "payload": "x"}), "kind"),
        (json!({"kind": "a.b"}), "payload"),
        (json!({"kind": 1, "payload": "x"}), "kind"),
        (json!({"kind": "a.b", "payload": "x", "Path": "y"}), "Path"),
        (json!({"kind": "a.b", "payload": "x", "sync_class": "public"}), "sync_class"),
    ] {
        let answer = client.call("MemoryEmit", args.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{args}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(field), "{args}: {answer}");
    }
    assert_eq!(client.status().await["denied"], 6);
    let rows = line.settled().await;
    assert!(rows.iter().all(|r| r.op == "skill.tool_denied" && r.extra["tool_name"] == "MemoryEmit"));
    assert_eq!(rows.len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_quotas_refuse_and_failed_writes_cost_nothing() {
    // Room for two directories and five notes of a block.
    let line =
        Line::new(Options { write_quota: 7 * 4096, tenant_quota: 64 << 10, ..options("\"memories/**\"") });
    let mut client = line.client().await;
    let emit = |bytes: usize, n: u32| json!({"kind": "a.b", "payload": "x".repeat(bytes), "path": format!("memories/x/{n}.md")});
    assert!(client.call("MemoryEmit", emit(60, 1)).await["result"].is_object());
    for (bytes, n) in [(4 * 4096 + 1, 2), (8 * 4096, 2)] {
        let answer = client.call("MemoryEmit", emit(bytes, n)).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(answer["error"]["message"], "quota_exceeded");
        assert_eq!(answer["error"]["data"]["reason"], "write_quota");
        assert!(!file(&line, "memories/x/2.md").exists());
    }
    // A directory in the way: the write fails, and its block is still there to be used.
    std::fs::create_dir(file(&line, "memories/x/3.md")).unwrap();
    assert_eq!(client.call("MemoryEmit", emit(40, 3)).await["error"]["data"]["reason"], "not_a_file");
    for n in 4..8 {
        assert!(client.call("MemoryEmit", emit(40, n)).await["result"].is_object());
    }
    assert_eq!(client.call("MemoryEmit", emit(40, 8)).await["error"]["data"]["reason"], "write_quota");
    let rows = line.settled().await;
    let last: Vec<_> = rows.iter().map(|r| r.op.as_str()).collect();
    assert_eq!(last.iter().filter(|op| **op == "skill.tool_denied").count(), 3);

    let line = Line::new(Options { tenant_quota: 16 << 10, ..options("\"memories/**\"") });
    let mut client = line.client().await;
    let answer = client.call("MemoryEmit", emit(32 << 10, 1)).await;
    assert_eq!(answer["error"]["message"], "quota_exceeded", "{answer}");
    assert_eq!(client.status().await["denied"], 1);
    let rows = line.settled().await;
    let kinds: Vec<_> = rows.iter().map(|r| r.op.as_str()).collect();
    assert_eq!(kinds, ["skill.tool_call_started", "skill.tool_denied"], "one row closes the call");
    let (started, denied) = (&rows[0].extra, &rows[1].extra);
    for same in ["invocation_id", "call", "skill_id", "tool_name", "trace_id"] {
        assert_eq!(started[same], denied[same], "{same}");
    }
    assert_eq!(started["args_hash"], denied["attempted_args_hash"]);
    // Counted once, while the broker runs and after it has read its rows again.
    let numbers = |audit: &Audit| {
        let status = audit.status();
        (status.tool_calls_today, status.denied_today)
    };
    assert_eq!(numbers(&line.audit), (1, 1));
    let id = line.invocation.id.to_string();
    let store = line.dir.path().join("store");
    let told = replay(&store, &id).unwrap().unwrap();
    assert_eq!(told.calls.len(), 1, "{told:?}");
    assert_eq!((told.calls[0].call, told.calls[0].outcome.as_str()), (1, "denied"));
    assert!(told.calls[0].denial.is_some());
    assert_eq!(why(&store, &id, None, None).unwrap().unwrap().len(), 1);
    line.audit.close().unwrap();
    assert_eq!(numbers(&Audit::open(&store, AuditOptions::default()).unwrap()), (1, 1));
}

/// Bytes of the disk that lie below a directory, itself left out.
fn on_disk(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| {
        let meta = entry.metadata().unwrap();
        meta.blocks() * 512 + if meta.is_dir() { on_disk(&entry.path()) } else { 0 }
    });
    sizes.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invocation_takes_no_more_of_the_disk_than_its_write_quota_however_little_it_says() {
    let quota = 2 << 20;
    let line = Line::new(Options { write_quota: quota, ..options("\"memories/**\"") });
    let mut client = line.client().await;
    let before = on_disk(&line.dir.path().join("tenants"));
    let mut written = 0;
    let refused = loop {
        // 29 new directories a call, and nothing to put into them.
        let path = format!("memories/{written}{}/x.md", "/d".repeat(28));
        let answer = client.call("MemoryEmit", json!({"kind": "a.b", "payload": "", "path": path})).await;
        if answer["error"].is_object() {
            break answer["error"].clone();
        }
        written += 1;
        assert!(written < 1000, "{written} calls cost nothing");
    };
    assert_eq!(
        (&refused["message"], &refused["data"]["reason"]),
        (&json!("quota_exceeded"), &json!("write_quota"))
    );
    // The tenant's own directory and its .tmp are made once, and are nobody's.
    let taken = on_disk(&line.dir.path().join("tenants")) - before - 2 * 4096;
    assert!(taken <= quota && taken + (256 << 10) > quota, "{taken} bytes taken of {quota}");
    line.settled().await;

    // A tenant's own bound is counted the same way, and so is a note: its whole file.
    let tenant_quota = 1 << 20;
    let line = Line::new(Options { tenant_quota, ..options("\"memories/**\"") });
    let mut client = line.client().await;
    let mut written = 0;
    let refused = loop {
        let answer = client.call("MemoryEmit", json!({"kind": "a.b", "payload": format!("{written}")})).await;
        if answer["error"].is_object() {
            break answer["error"].clone();
        }
        written += 1;
    };
    assert_eq!(
        (&refused["message"], &refused["data"]["reason"]),
        (&json!("quota_exceeded"), &json!("memory_quota"))
    );
    let taken = on_disk(&line.dir.path().join("tenants").join(line.invocation.tenant.to_string()));
    assert!(taken <= tenant_quota && taken + (64 << 10) > tenant_quota, "{taken} bytes of {tenant_quota}");
    line.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_104_the_list_and_the_calls_agree() {
    let line = Line::new(Options {
        frontmatter:
            "allowed_tools: [MemoryRead, HttpPost, Read]\ndisallowed_tools: [Read]\nallowed_memory_scopes: []"
                .into(),
        ..Options::default()
    });
    let mut client = line.client().await;
    let listed = client.ask(r#"{"jsonrpc":"2.0","id":1,"method":"tool.list"}"#).await;
    let names: Vec<_> = listed["result"].as_array().unwrap().iter().map(|t| t["name"].clone()).collect();
    assert_eq!(names, ["MemoryRead"]);
    for (tool, message, reason) in [
        ("Read", "tool_not_allowed", "tool_in_disallowed_tools"),
        ("MemoryEmit", "tool_not_allowed", "tool_not_in_allowed_tools"),
        ("HttpPost", "unknown_tool", "unknown_tool"),
        ("memoryread", "tool_not_allowed", "tool_not_in_allowed_tools"),
        ("MemoryRead ", "tool_not_allowed", "tool_not_in_allowed_tools"),
        ("MemoryRead\0", "tool_not_allowed", "tool_not_in_allowed_tools"),
        ("MemoryRe\u{430}d", "tool_not_allowed", "tool_not_in_allowed_tools"),
        ("", "tool_not_allowed", "tool_not_in_allowed_tools"),
    ] {
        let answer = client.call(tool, json!({"path": "/etc/passwd"})).await;
        assert_eq!(answer["error"]["message"], message, "{tool:?}: {answer}");
        assert_eq!(answer["error"]["data"], json!({"reason": reason, "tool": tool, "skill_id": "demo"}));
    }
    client.send(call(9, "MemoryRead", json!({"path": "memories/a/b"}))).await;
    assert_eq!(client.recv().await.unwrap()["error"]["message"], "scope_violation", "no scopes, no memory");
    assert_eq!(line.settled().await.len(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_that_validation_knows_are_those_that_are_served() {
    let line = Line::with_tools(&cyberos_broker::catalogue::NATIVE.join(", ")).await;
    let mut client = line.client().await;
    let list = client.ask(r#"{"jsonrpc":"2.0","id":1,"method":"tool.list"}"#).await;
    let names: Vec<_> =
        list["result"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, cyberos_broker::catalogue::HERE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_keeps_its_spelling_and_words_are_words() {
    let line = Line::new(options("\"memories/**\""));
    let mut client = line.client().await;
    let call = |args: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{{"tool":"MemoryEmit","args":{args}}}}}"#
        )
    };
    for payload in ["-0", "[-0,1.10,18446744073709551617]"] {
        let args = format!(r#"{{"kind":"note.a","path":"memories/x.md","payload":{payload}}}"#);
        assert!(client.ask(call(&args)).await["result"].is_object());
        let read = client.call("MemoryRead", json!({"path": "memories/x.md"})).await;
        assert_eq!(read["result"]["body"], payload);
    }
    let answer = client.ask(call(r#"{"kind":"note.a","payload":"x","sync_class":{"private":null}}"#)).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    for path in ["memories/a\nb.md", "memories/\u{1b}[2J", "memories/\u{7f}", "memories/\u{9b}31m"] {
        for answer in [
            client.call("MemoryEmit", json!({"kind": "note.a", "payload": "x", "path": path})).await,
            client.call("MemoryRead", json!({"path": path})).await,
        ] {
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_heavy_only_as_text_and_ordinary_data_are_served() {
    let line = Line::new(Options { write_quota: 1 << 30, ..options("\"memories/**\"") });
    let mut client = line.client().await;
    let records: Vec<Value> = (0..1500)
        .map(|n| json!({"id": n, "name": format!("name {n}"), "tags": ["a", "b"], "size": n * 1000}))
        .collect();
    for payload in [
        json!((0..30_000).collect::<Vec<u32>>()),
        json!(records),
        json!("[{,:\"\\".repeat(100_000)),
        json!("1,2,3\n".repeat(140_000)),
    ] {
        let args = json!({"kind": "a.b", "path": "memories/x.md", "payload": payload});
        let answer = client.ask(call(1, "MemoryEmit", args)).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
}
