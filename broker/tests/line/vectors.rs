//! Every row of tests/vectors/rpc.json, through a real session.

use crate::support::{Line, Options};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/rpc.json");
    let text = std::fs::read_to_string(path).unwrap();
    let Value::Array(cases) = serde_json::from_str::<Value>(&text).unwrap()["cases"].take() else { panic!() };
    assert!(cases.len() >= 27);
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_is_answered_as_it_says() {
    for case in cases() {
        let line = Line::new(Options {
            frontmatter:
                "allowed_tools: [MemoryRead]\nallowed_memory_scopes: [\"memories/projects/cyberos/**\"]"
                    .into(),
            ..Options::default()
        });
        let mut client = line.client().await;
        client.send(case["body"].as_str().unwrap()).await;
        let expect = &case["expect"];
        if expect.is_null() {
            let next = client.ask(r#"{"jsonrpc":"2.0","id":"next","method":"broker.status"}"#).await;
            assert_eq!(next["id"], "next", "{case}: no answer");
        } else {
            let answer = client.recv().await.unwrap();
            match expect.as_str() {
                Some("batch") => {
                    let ids: Vec<_> = answer.as_array().unwrap().iter().map(|a| a["id"].clone()).collect();
                    assert_eq!(Value::from(ids), case["ids"], "{case}");
                }
                Some("ok") => {
                    assert!(answer.get("result").is_some(), "{case}: {answer}");
                    assert_eq!(answer["id"].to_string(), case["id"].to_string(), "digit for digit");
                }
                _ => {
                    assert_eq!(answer["error"]["code"], *expect, "{case}: {answer}");
                    assert_eq!(answer["id"], case["id"], "{case}: {answer}");
                    if let Some(reason) = case.get("reason") {
                        assert_eq!(answer["error"]["data"]["reason"], *reason, "{case}: {answer}");
                    }
                }
            }
            assert_eq!(answer.is_array(), expect == "batch", "{case}");
        }
        assert_eq!(client.status().await["skill_id"], "demo", "{case}: the connection goes on");
        // Enforcement refusals and wrong parameters of tool.call leave exactly one row, other faults none.
        let rows = line.settled().await;
        let is_call = case["body"].as_str().unwrap().contains("tool.call\"");
        let refused = is_call && (expect == -32603 || expect == -32602 || case.get("row").is_some());
        let kinds: Vec<_> = rows.iter().map(|r| r.op.as_str()).collect();
        if refused {
            assert_eq!(kinds, ["skill.tool_denied"], "{case}");
        } else {
            assert!(kinds.is_empty(), "{case}: {kinds:?}");
        }
        if let Some(row) = case.get("row") {
            assert_eq!(*row, kinds[0]);
        }
    }
}
