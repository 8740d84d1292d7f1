//! What a request can make the broker hold that is short as text and large as a tree (`[3.3]`): a process of its own, so
//! that its memory is that of this test.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../line/support.rs"]
mod support;

use std::sync::Arc;
use support::{Line, Options, memory};

/// `first`, then `again` until the text has nearly 1 MiB.
fn filled(first: &str, again: impl Fn(usize) -> String, last: &str) -> String {
    let mut text = first.to_owned();
    for n in 0.. {
        text.push_str(&again(n));
        if text.len() > 1_040_000 {
            break;
        }
    }
    text + last
}

/// A note with this payload, which is JSON.
fn note(payload: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tool.call","params":{{"tool":"MemoryEmit","args":{{"kind":"a.b","path":"memories/x.md","payload":{payload}}}}}}}"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_weighs_more_than_its_room_is_refused_unread_and_memory_goes_back() {
    let line = Line::new(Options {
        frontmatter: "allowed_tools: [MemoryEmit]\nallowed_memory_scopes: [\"memories/**\"]".into(),
        write_quota: 1 << 30,
        ..Options::default()
    });
    let mut client = line.client().await;
    // What the broker takes once, for good.
    for _ in 0..3 {
        assert!(client.ask(note(&filled("\"", |_| "x,".into(), "\""))).await["result"].is_object());
    }
    let calls = client.status().await["calls"].as_u64().unwrap();
    let frames: Vec<Vec<u8>> = [
        filled("[1", |_| ",1".into(), "]"),
        filled("[[]", |_| ",[]".into(), "]"),
        filled("[[1]", |_| ",[1]".into(), "]"),
        filled("[{}", |_| ",{}".into(), "]"),
        filled("[{\"a\":1}", |_| ",{\"a\":1}".into(), "]"),
        filled("{\"\":1", |n| format!(",\"{n:x}\":1"), "}"),
        filled("[\"\"", |_| ",\"\"".into(), "]"),
        filled("[1e9", |_| ",1e9".into(), "]"),
        format!("{}{}", "[1,".repeat(50), filled("[1", |_| ",1".into(), &"]".repeat(51))),
    ]
    .iter()
    .map(|payload| note(payload))
    .chain([
        // Heavy though no call of a tool, and though it is no JSON at its end.
        filled("[1", |_| ",1".into(), "]"),
        filled("[1", |_| ",1".into(), ""),
        // A batch weighs as much as all of it.
        format!("[{}]", vec![note(&format!("[1{}]", ",1".repeat(7000))); 64].join(",")),
    ])
    .map(support::frame)
    .collect();
    // Made once, so that what grows from here is the broker's.
    let frames = Arc::new(frames);
    // As heavy as may be: what is served has its place in the rooms, and gives it back.
    let heaviest = Arc::new(support::frame(note(&format!("[1{}]", ",1".repeat(39_000)))));
    let before = memory("VmRSS:");
    let peers: Vec<_> = (0..15)
        .map(|_| {
            let (socket, frames) = (line.dir.path().join("sock"), frames.clone());
            let heaviest = heaviest.clone();
            tokio::spawn(async move {
                let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
                let mut client = support::Client { stream };
                for _ in 0..4 {
                    client.send_raw(&heaviest).await;
                    let answer = client.recv().await.unwrap();
                    assert!(answer["result"].is_object(), "{answer}");
                }
                let mut refused = 0u64;
                for frame in frames.iter() {
                    client.send_raw(frame).await;
                    let answer = client.recv().await.unwrap();
                    assert_eq!(answer["error"]["message"], "request_too_large", "{answer}");
                    assert!(answer["id"].is_null(), "{answer}");
                    refused += 1;
                }
                refused
            })
        })
        .collect();
    let mut refused = 0;
    for peer in peers {
        refused += peer.await.unwrap();
    }
    assert_eq!(refused, 15 * frames.len() as u64);
    let status = client.status().await;
    assert_eq!(status["calls"].as_u64().unwrap(), calls + 15 * 4 + refused, "each is a call, and counted");
    let grown = memory("VmHWM:").saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB more at its peak", grown >> 20);
    // Whoever has his answer has given back what it took: idle, the broker is nearly as small as it was, and what the
    // allocator keeps does not grow with what was sent.
    let kept = memory("VmRSS:").saturating_sub(before);
    assert!(kept <= 32 << 20, "{} MiB are kept", kept >> 20);
    eprintln!("at its peak {} KiB more, {} KiB kept", grown >> 10, kept >> 10);
    let rows = line.settled().await;
    let denied = rows.iter().filter(|row| row.op == "skill.tool_denied");
    let sentences: Vec<_> = denied.map(|row| row.text("sentence").unwrap().to_owned()).collect();
    assert!(sentences[0].contains("as text"), "{}", sentences[0]);
    assert_eq!(sentences.len() as u64, refused);
}
