//! A peer that speaks another framing is told so (`[3.1]`).

use crate::support::{Line, Options};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const STATUS: &str = r#"{"jsonrpc":"2.0","id":"s","method":"broker.status"}"#;

#[tokio::test(start_paused = true)]
async fn case_180_a_peer_with_another_framing_is_told_at_once_and_closed() {
    let line = Line::new(Options::default());
    let little = [&u32::try_from(STATUS.len()).unwrap().to_le_bytes(), STATUS.as_bytes()].concat();
    let peers: [(Vec<u8>, &str); 5] = [
        (format!("{STATUS}\n").into(), "newline-delimited JSON"),
        (format!("Content-Length: {}\r\n\r\n{STATUS}", STATUS.len()).into(), "Content-Length"),
        (format!("POST / HTTP/1.1\r\nHost: x\r\n\r\n{STATUS}").into(), "HTTP"),
        (little, "a little-endian length"),
        (b"hello broker\n".to_vec(), "text"),
    ];
    for (bytes, seen) in peers {
        let mut client = line.client().await;
        let began = tokio::time::Instant::now();
        client.send_raw(&bytes).await;
        let raw = client.recv_raw().await.expect("an answer");
        assert!(raw.ends_with(b"}\n"), "who reads lines has one too");
        let answer: Value = serde_json::from_slice(&raw).unwrap();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &json!(null)));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(seen) && message.contains("4-byte big-endian length"), "{message}");
        assert!(client.is_closed().await);
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }
    // A real frame that is too long is none of them, also as the first: 2 MiB read the other way round are 8,192 bytes.
    for length in [2 << 20, 40 << 20] {
        let mut client = line.client().await;
        let answer = client.ask(format!("{STATUS}{}", " ".repeat(length - STATUS.len()))).await;
        assert_eq!(answer["error"]["message"], "request_too_large");
        assert_eq!(client.ask(STATUS).await["id"], "s", "the connection goes on");
    }
    // And a peer that has shown that it sends frames may send one of any length.
    let mut client = line.client().await;
    assert_eq!(client.ask(STATUS).await["id"], "s");
    client.send_raw(b"{\"me").await;
    client.send_raw(&vec![b'x'; 100_000]).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.recv().await, None);
    assert_eq!(line.settled().await.len(), 2, "what is no call leaves no row");
}
