//! What one invocation can make the broker hold (`[3.3]`): a process of its own, so that its peak is that of this test.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

#[path = "../line/support.rs"]
mod support;

use std::sync::Arc;
use support::{Line, Options, frame, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How often each peer sends each of the four bodies.
const ROUNDS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_peers_that_send_a_lot_and_hardly_read_cost_no_more_than_the_rooms_hold() {
    let line = Line::new(Options::default());
    let long = "a".repeat(1_040_000);
    let bodies = [
        format!(r#"{{"jsonrpc":"2.0","id":"{long}","method":"x"}}"#),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{{"tool":"{long}","args":{{}}}}}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{{"tool":"Read","{long}":1}}}}"#),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{{"tool":"Read","args":{{"{long}":1}}}}}}"#
        ),
    ];
    let frames: Arc<Vec<Vec<u8>>> = Arc::new(bodies.iter().map(frame).collect());
    drop((bodies, long));
    let before = memory("VmHWM:");
    let mut peers = Vec::new();
    for _ in 0..16 {
        let (read, mut write) = line.client().await.stream.into_split();
        let frames = frames.clone();
        let sending = tokio::spawn(async move {
            for _ in 0..ROUNDS {
                for frame in frames.iter() {
                    // In pieces that end nowhere near a frame's end.
                    for piece in frame.chunks(70_001) {
                        write.write_all(piece).await.unwrap();
                    }
                }
            }
        });
        peers.push((sending, read));
    }
    let mut answers = 0;
    for (sending, mut read) in peers {
        // It takes a byte now and then while it sends, and the rest when all is sent.
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut buffer = vec![0; 64 << 10];
            loop {
                match read.read(&mut buffer).await.unwrap() {
                    0 => return all,
                    n => all.extend_from_slice(&buffer[..n]),
                }
            }
        });
        sending.await.unwrap();
        let all = reading.await.unwrap();
        let mut rest = &all[..];
        while let Some((header, body)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*header) as usize;
            assert!(length < 4096, "an answer of {length} bytes");
            rest = &body[length..];
            answers += 1;
        }
    }
    assert_eq!(answers, 16 * ROUNDS * 4);
    let grown = memory("VmHWM:") - before;
    assert!(grown < 96 << 20, "{} MiB more", grown >> 20);
}
