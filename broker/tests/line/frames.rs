//! What a peer may do to a connection, and what it may not (`[3.1]`–`[3.3]`).

use crate::support::{Client, Line, Options, call, frame, within};
use cyberos_broker::audit::{AuditOptions, Ended, InvokedStarted, Outcome};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STATUS: &str = r#"{"jsonrpc":"2.0","id":"s","method":"broker.status"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_085_bodies_that_are_not_json_are_answered_and_the_connection_goes_on() {
    let line = Line::new(Options::default());
    let mut client = line.client().await;
    let bodies: [&[u8]; 6] = [
        b"\xff",
        b"\x80{\"jsonrpc\":\"2.0\"}",
        b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"broker.status\"}",
        b"{\0}\0",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tool.call\",\"params\":{\"tool\":\"\xc3\x28\",\"args\":{}}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":\"\\ud800\",\"method\":\"broker.status\"}",
    ];
    for body in bodies {
        let answer = client.ask(body).await;
        assert_eq!(answer["error"]["code"], -32700, "{answer}");
        assert!(answer.as_object().unwrap().contains_key("id") && answer["id"].is_null(), "{answer}");
        assert_eq!(client.ask(STATUS).await["result"]["skill_id"], "demo");
    }
    let utf16: Vec<u8> = STATUS.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(client.ask(utf16).await["error"]["code"], -32700);
    assert_eq!(line.settled().await.len(), 0, "a body that is not a call leaves no row");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_085_whoever_has_said_all_still_hears_the_answers() {
    let line = Line::new(Options::default());
    let mut client = line.client().await;
    for id in 0..5 {
        client.send(call(id, "Read", json!({"path": "/etc/hostname"}))).await;
    }
    client.stream.shutdown().await.unwrap();
    let mut ids = BTreeSet::new();
    while let Some(answer) = client.recv().await {
        ids.insert(answer["id"].as_u64().unwrap());
    }
    assert_eq!(ids, (0..5).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_095_a_request_one_byte_over_the_cap_is_refused_recorded_and_gone() {
    let line = Line::new(Options::default());
    let mut client = line.client().await;
    let padded = |length: usize| format!("{STATUS}{}", " ".repeat(length - STATUS.len()));
    assert_eq!(client.ask(padded(1 << 20)).await["id"], "s");
    for length in [(1 << 20) + 1, 2 << 20, 40 << 20] {
        let answer = client.ask(padded(length)).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(answer["error"]["message"], "request_too_large");
        assert_eq!(answer["error"]["data"]["reason"], "request_too_large");
        assert_eq!(answer["error"]["data"]["skill_id"], "demo");
        assert!(answer["id"].is_null());
        assert_eq!(client.ask(STATUS).await["id"], "s", "the connection goes on");
    }
    assert_eq!(client.status().await["denied"], 3);
    let rows = line.settled().await;
    assert_eq!(rows.len(), 3);
    for (row, number) in rows.iter().zip(1..) {
        assert_eq!(row.op, "skill.tool_denied");
        assert_eq!(row.extra["reason"], "request_too_large");
        assert_eq!(row.extra["call"], number);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_length_0_or_cut_short_closes_its_connection_and_no_other() {
    let line = Line::new(Options::default());
    let mut good = line.client().await;
    let mut zero = line.client().await;
    zero.send_raw(&[0; 4]).await;
    assert!(zero.is_closed().await);
    for cut in [&[0u8, 0][..], &[0, 0, 0, 9, b'{'][..]] {
        let mut client = line.client().await;
        client.send_raw(cut).await;
        client.stream.shutdown().await.unwrap();
        assert!(client.is_closed().await);
    }
    assert_eq!(good.status().await["calls"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_not_complete_within_30_s_closes_its_connection() {
    let line = Line::new(Options::default());
    let mut good = line.client().await;
    let body = frame(STATUS);
    let mut slow = line.client().await;
    // One byte every second: each is progress, the frame is none.
    let began = tokio::time::Instant::now();
    let mut sent = 0;
    while slow.stream.write_all(&body[sent..=sent]).await.is_ok() {
        sent += 1;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(good.status().await["calls"], 0, "nobody else waits");
    }
    assert!((29..=32).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    // An oversized one has no longer.
    let mut skipped = line.client().await;
    skipped.send_raw(&u32::MAX.to_be_bytes()).await;
    let began = tokio::time::Instant::now();
    assert!(skipped.is_closed().await);
    assert!((29..=32).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    // Silence between frames is no offence.
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert_eq!(good.status().await["calls"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seventeenth_connection_is_closed_and_has_its_place_when_one_ends() {
    let line = Line::new(Options::default());
    let mut clients = Vec::new();
    for _ in 0..16 {
        let mut client = line.client().await;
        client.status().await;
        clients.push(client);
    }
    for _ in 0..50 {
        let mut refused = line.client().await;
        let _ = refused.stream.write_all(&frame(STATUS)).await;
        assert!(refused.is_closed().await);
    }
    for client in &mut clients {
        assert_eq!(client.status().await["calls"], 0);
    }
    drop(clients.pop());
    // The place is free when the broker has noticed.
    loop {
        let mut next = line.client().await;
        let _ = next.stream.write_all(&frame(STATUS)).await;
        if next.recv().await.is_some() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_094_a_thousand_requests_in_one_write_are_each_answered_once() {
    let line = Line::new(Options::default());
    std::fs::write(line.work("x"), "text").unwrap();
    let mut client = line.client().await;
    let requests: Vec<u8> =
        (0..1000).flat_map(|id| frame(call(id, "Read", json!({"path": "/etc/passwd"})))).collect();
    client.send_raw(&requests).await;
    let mut ids = BTreeSet::new();
    for _ in 0..1000 {
        assert!(ids.insert(client.recv().await.unwrap()["id"].as_u64().unwrap()));
    }
    assert_eq!(ids.len(), 1000);
    let status = client.status().await;
    assert_eq!((&status["calls"], &status["denied"]), (&json!(1000), &json!(1000)));
    assert_eq!(status["invocation_id"], line.invocation.id.to_string());
    assert!(status["remaining_ms"].as_u64().unwrap() <= 60_000);
    let rows = line.settled().await;
    let numbers: BTreeSet<u64> = rows.iter().map(|r| r.extra["call"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=1000).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_a_thousand_requests_before_it_reads_is_served() {
    let line = Line::new(Options::default());
    let mut client = line.client().await;
    for id in 0..1000 {
        client.send(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"broker.status"}}"#)).await;
    }
    for _ in 0..1000 {
        client.recv().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_answers_than_memory_are_all_delivered_once_somebody_reads() {
    let frontmatter =
        "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-allowed-files: [\"$DIR/work/**\"]".to_owned();
    let line = Line::new(Options { frontmatter, ..Options::default() });
    // 16 connections × 8 answers × 512 KiB = 64 MiB, of which 20 may wait.
    std::fs::write(line.work("big"), "x".repeat(512 << 10)).unwrap();
    let path = line.work("big");
    let mut clients = Vec::new();
    for _ in 0..16 {
        let mut client = line.client().await;
        for id in 0..8 {
            client.send(call(id, "Read", json!({"path": path}))).await;
        }
        clients.push(client);
    }
    let reads = clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            let mut ids = BTreeSet::new();
            for _ in 0..8 {
                let answer = String::from_utf8(client.recv_raw().await.unwrap()).unwrap();
                assert!(answer.len() > 512 << 10 && answer.ends_with("\"truncated\":false}}"));
                ids.insert(answer[..40].split(&[',', ':'][..]).nth(3).unwrap().to_owned());
            }
            ids.len()
        })
    });
    for read in reads.collect::<Vec<_>>() {
        assert_eq!(within(read).await.unwrap(), 8);
    }
    assert_eq!(line.settled().await.len(), 2 * 128);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_at_once_though_every_room_is_full_and_nobody_reads() {
    let frontmatter =
        "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-allowed-files: [\"$DIR/work/**\"]".to_owned();
    let line = Line::new(Options { frontmatter, ..Options::default() });
    std::fs::write(line.work("big"), "x".repeat(2 << 20)).unwrap();
    let one = call(1, "Read", json!({"path": line.work("big")}));
    let batch = format!("[{one},{one},{one}]");
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = line.client().await;
        for body in [&one, &batch, &one, &batch, &one, &batch, &one, &batch] {
            client.send(body).await;
        }
        clients.push(client);
    }
    // Full when the first answers are on their way, and more calls have started than rooms hold.
    let mut byte = [0; 1];
    within(clients[0].stream.read_exact(&mut byte)).await.unwrap();
    line.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_for_30_s_is_dropped_and_holds_nobody_up() {
    let frontmatter =
        "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-allowed-files: [\"$DIR/work/**\"]".to_owned();
    let line = Line::new(Options { frontmatter, ..Options::default() });
    std::fs::write(line.work("big"), "x".repeat(4 << 20)).unwrap();
    let big = json!({"path": line.work("big")});
    let mut deaf = line.client().await;
    for id in 0..8 {
        deaf.send(call(id, "Read", big.clone())).await;
    }
    let mut good = line.client().await;
    assert_eq!(good.status().await["skill_id"], "demo", "small answers need no room");
    // The room that the deaf one holds comes back.
    assert_eq!(good.call("Read", big).await["result"]["size"], 4 << 20);
    let mut rest = Vec::new();
    let _ = within(deaf.stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < 8 * (4 << 20), "it was dropped");
    line.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_091_garbage_never_ends_the_session() {
    let line = Line::new(Options::default());
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..200 {
        let mut client = line.client().await;
        let bytes: Vec<u8> = (0..next() % 300).map(|_| (next() >> 32) as u8).collect();
        let _ = client.stream.write_all(&bytes).await;
        if next() % 2 == 0 {
            let _ = client.stream.write_all(&frame(&bytes)).await;
        }
    }
    assert_eq!(status_of_a_new_one(&line).await["skill_id"], "demo");
    line.settled().await;
}

/// Connections of others may still be ending.
async fn status_of_a_new_one(line: &Line) -> Value {
    loop {
        let mut client: Client = line.client().await;
        let _ = client.stream.write_all(&frame(STATUS)).await;
        if let Some(answer) = client.recv().await {
            return answer["result"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_another_uid_is_dropped_unheard() {
    let mine = nix::unistd::geteuid().as_raw();
    let line = Line::new(Options { uid: mine + 1, ..Options::default() });
    for _ in 0..20 {
        let mut stranger = line.client().await;
        let _ = stranger.stream.write_all(&frame(call(1, "Read", json!({"path": "/etc/passwd"})))).await;
        assert!(stranger.is_closed().await);
    }
    let connected = line.session.first_connection();
    tokio::select! {
        biased;
        () = connected => panic!("a stranger counts as the skill"),
        () = std::future::ready(()) => {}
    }
    assert!(line.settled().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_answered_together_and_notifications_not_at_all() {
    let line = Line::new(Options::default());
    let mut client = line.client().await;
    let one = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"broker.status"}}"#);
    let sixty_four = format!("[{}]", (0..64).map(one).collect::<Vec<_>>().join(","));
    assert_eq!(client.ask(&sixty_four).await.as_array().unwrap().len(), 64);
    let sixty_five = format!("[{}]", (0..65).map(one).collect::<Vec<_>>().join(","));
    assert_eq!(client.ask(&sixty_five).await["error"]["code"], -32600);
    client.send(r#"[{"jsonrpc":"2.0","method":"broker.status"},{"jsonrpc":"2.0","method":"nope"}]"#).await;
    client.send(r#"{"jsonrpc":"2.0","method":"nope"}"#).await;
    assert_eq!(client.ask(STATUS).await["id"], "s", "nothing came before it");
    let mixed = client.ask(r#"[1,{"jsonrpc":"2.0","id":7,"method":"nope"}]"#).await;
    assert_eq!(mixed[0]["error"]["code"], -32600);
    assert_eq!(mixed[1]["error"]["code"], -32601);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_count_against_the_rate_and_stop_filling_the_ledger() {
    let frontmatter =
        "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-rate-limit-per-minute: 4".to_owned();
    let audit = AuditOptions { run_quota: 16 << 10, ..AuditOptions::default() };
    let line = Line::new(Options { frontmatter, audit, ..Options::default() });
    let facts = InvokedStarted {
        caller: "0",
        uid: 1,
        args_hash: "",
        verdict: "current",
        epoch: "",
        content_digest: "",
        sandbox: Value::Null,
    };
    line.audit.invoked_started(&line.invocation, &facts).await.unwrap();
    let mut client = line.client().await;
    // Each of these is refused for another reason, and counts.
    assert_eq!(client.call("Bash", json!({})).await["error"]["data"]["reason"], "tool_not_in_allowed_tools");
    assert_eq!(client.call("Read", json!({})).await["error"]["code"], -32602);
    assert_eq!(client.ask(call(1, "Read", json!(7))).await["error"]["code"], -32602);
    assert_eq!(client.call("Read", json!({"path": "/x"})).await["error"]["data"]["reason"], "file_violation");
    assert_eq!(client.call("Read", json!({"path": "/x"})).await["error"]["data"]["reason"], "rate_limited");
    assert_eq!(client.call("Bash", json!({})).await["error"]["data"]["reason"], "tool_not_in_allowed_tools");
    let path = format!("/{}", "é".repeat(2040));
    let mut last = Value::Null;
    for _ in 0..200 {
        last = client.call("Bash", json!({"path": path})).await;
    }
    assert_eq!(last["error"]["message"], "quota_exceeded", "the ledger takes no more of it");
    assert_eq!(last["error"]["data"]["reason"], "ledger_quota");
    assert_eq!(client.status().await["denied"], 206);
    // Counted while the run goes on, before any row says so.
    assert_eq!((line.audit.status().tool_calls_today, line.audit.status().denied_today), (206, 206));
    line.audit.invoked_completed(
        &line.invocation,
        &Ended { outcome: Outcome::Success, exit_code: Some(0), signal: None, duration_ms: 1 },
    );
    let rows = line.settled().await;
    let denied = rows.iter().filter(|row| row.op == "skill.tool_denied").count();
    assert!((6..60).contains(&denied), "{denied}");
    let [.., counted, last] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(
        (counted.op.as_str(), last.op.as_str()),
        ("skill.calls_unrecorded", "skill.invoked_completed")
    );
    let number = |field: &str| counted.extra[field].as_u64().unwrap();
    assert_eq!(
        (number("first_call"), number("last_call"), number("count")),
        (denied as u64 + 1, 206, 206 - denied as u64)
    );
    assert!(std::fs::metadata(line.dir.path().join("store/audit/current.binlog")).unwrap().len() < 24 << 10);
}
