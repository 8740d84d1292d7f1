//! JSON-RPC 2.0 between bytes and values (`[3.1]`–`[3.5]`): the body of one frame becomes requests, a reply becomes
//! the body of one frame. Pure: it knows no socket, no method, no tool and no grant. `session` calls it.
//!
//! The bytes come from a skill, so nothing here trusts them: keys are compared before one of two wins, ids are given
//! back as they came, and what cannot be read once and in one way is not read at all.

mod encode;
mod tree;
mod weight;

pub use encode::{Encoded, encode};
pub use weight::weight;

use serde_json::{Map, Number, Value};

/// Longest body of a request, in bytes (`[3.1]`).
pub const MAX_REQUEST: usize = 1 << 20;
/// Longest body of a response, in bytes (`[3.1]`).
pub const MAX_RESPONSE: usize = 16 << 20;
/// Most requests in one batch (`[3.2]`).
pub const MAX_BATCH: usize = 64;
/// Longest id of a request, in bytes: it is given back, so nobody may make answers large with it.
pub const MAX_ID: usize = 256;
/// Deepest nesting of arrays and objects in a body. No tool needs a tenth of it.
pub const MAX_DEPTH: usize = 64;

/// The text is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON, but not a request.
pub const INVALID_REQUEST: i32 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The parameters are not those of the method.
pub const INVALID_PARAMS: i32 = -32602;
/// A rule refuses (`[3.4]`).
pub const REFUSED: i32 = -32603;
/// A tool ran and failed (`[3.4]`).
pub const TOOL_ERROR: i32 = -32000;

/// A request's id, echoed as it came: big and fractional numbers keep their digits.
#[derive(Clone, Debug, PartialEq)]
pub enum Id {
    /// `null`, and the id of an answer to something that had none that could be read.
    Null,
    /// A number, with the digits that were sent (an exponent is written `e+2`).
    Number(Number),
    /// A string.
    Text(String),
}

/// One request or notification.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// None is a notification: done, recorded, and not answered.
    pub id: Option<Id>,
    /// As given, known or not.
    pub method: String,
    /// As given; absent is not the same as `null`.
    pub params: Option<Value>,
}

/// Something that is not a request. It is always answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The id to answer with.
    pub id: Id,
    /// −32700 or −32600.
    pub code: i32,
    /// What is wrong with it.
    pub message: String,
}

/// A request, or what to answer in its place.
pub type Item = Result<Request, Fault>;

/// What one frame holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// One object, or something that gets one answer.
    One(Item),
    /// A batch: one to [`MAX_BATCH`] of them, answered together.
    Batch(Vec<Item>),
}

/// The `error` member of a response.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// One of the codes above.
    pub code: i32,
    /// For −32603 the class, for −32000 `tool_error`, else a sentence.
    pub message: String,
    /// More for programs.
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        RpcError { code, message: message.into(), data: None }
    }
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `result`.
    Result(Value),
    /// `error`.
    Error(RpcError),
}

/// Reads the body of one frame.
pub fn parse(body: &[u8]) -> Body {
    let refused = |code, why: &str| Body::One(Err(fault(Id::Null, code, why)));
    let Ok(text) = core::str::from_utf8(body) else {
        return refused(PARSE_ERROR, "the body is not UTF-8");
    };
    let value = match tree::read(text) {
        Ok(value) => value,
        Err(tree::Unreadable::NotJson(why)) => return refused(PARSE_ERROR, &why),
        Err(tree::Unreadable::Flaw(why)) => return refused(INVALID_REQUEST, why),
    };
    match value {
        Value::Object(members) => Body::One(request(members)),
        Value::Array(items) if items.is_empty() => refused(INVALID_REQUEST, "an empty batch"),
        Value::Array(items) if items.len() > MAX_BATCH => {
            refused(INVALID_REQUEST, "a batch holds at most 64 requests")
        }
        Value::Array(items) => Body::Batch(
            items
                .into_iter()
                .map(|item| match item {
                    Value::Object(members) => request(members),
                    _ => Err(fault(Id::Null, INVALID_REQUEST, "a request is an object")),
                })
                .collect(),
        ),
        _ => refused(INVALID_REQUEST, "a request is an object, a batch an array of them"),
    }
}

/// `text` as one object, read as strictly as a request is.
pub(crate) fn read_object(text: &str) -> Option<Map<String, Value>> {
    match tree::read(text) {
        Ok(Value::Object(members)) => Some(members),
        _ => None,
    }
}

fn fault(id: Id, code: i32, message: &str) -> Fault {
    Fault { id, code, message: message.to_owned() }
}

fn request(mut members: Map<String, Value>) -> Item {
    let invalid = |id: &Option<Id>, why| Err(fault(id.clone().unwrap_or(Id::Null), INVALID_REQUEST, why));
    let id = match members.swap_remove("id") {
        None => None,
        Some(Value::Null) => Some(Id::Null),
        Some(Value::Number(n)) if n.as_str().len() <= MAX_ID => Some(Id::Number(n)),
        Some(Value::String(s)) if s.len() <= MAX_ID => Some(Id::Text(s)),
        Some(Value::Number(_) | Value::String(_)) => {
            return invalid(&None, "an id has at most 256 bytes");
        }
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            return invalid(&None, "an id is a string, a number or null");
        }
    };
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid(&id, "\"jsonrpc\" must be \"2.0\"");
    }
    let Some(Value::String(method)) = members.swap_remove("method") else {
        return invalid(&id, "\"method\" must be a string");
    };
    Ok(Request { id, method, params: members.swap_remove("params") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(body: &str) -> Item {
        match parse(body.as_bytes()) {
            Body::One(item) => item,
            Body::Batch(_) => panic!("a batch: {body}"),
        }
    }

    fn refusal(body: &[u8]) -> (i32, Id) {
        match parse(body) {
            Body::One(Err(f)) => (f.code, f.id),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn case_085_bytes_that_are_not_json_are_parse_errors_with_id_null() {
        let bodies: [&[u8]; 14] = [
            b"",
            b"\xff",
            b"\x80{}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}",
            b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}",
            b"{\0\"\0",
            b"\0\0\0",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\0",
            b"{\"jsonrpc\":\"2.0\",\"id\":\"\\ud800\",\"method\":\"m\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"} x",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}{}",
            b"{\"jsonrpc\":\"2.0\",\"id\":01,\"method\":\"m\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":NaN,\"method\":\"m\"}",
            b"{\"a\":\"\x01\"}",
        ];
        for body in bodies {
            assert_eq!(refusal(body), (PARSE_ERROR, Id::Null), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn case_087_ids_come_back_digit_for_digit() {
        for id in [
            "0",
            "-0",
            "1.5",
            "1e+30",
            "9007199254740993",
            "18446744073709551617",
            "1.10",
            "\"\"",
            "\"a\"",
            "null",
        ] {
            let item = one(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#)).unwrap();
            let mut out = Vec::new();
            encode(
                &mut out,
                item.id.as_ref().unwrap(),
                Reply::Error(RpcError::new(METHOD_NOT_FOUND, "x")),
                MAX_RESPONSE,
            );
            let out = String::from_utf8(out).unwrap();
            assert!(out.contains(&format!("\"id\":{id},")), "{id}: {out}");
        }
        assert_eq!(one(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap().id, None);
        for id in ["{\"a\":1}", "[1]", "true", "{\"$serde_json::private::Number\":\"1\"}"] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(refusal(body.as_bytes()), (INVALID_REQUEST, Id::Null), "{id}");
        }
    }

    #[test]
    fn an_id_that_would_make_answers_large_is_refused_with_id_null() {
        for (length, good) in [(MAX_ID, true), (MAX_ID + 1, false), (1_000_000, false)] {
            for id in [format!("\"{}\"", "a".repeat(length)), "1".repeat(length)] {
                let item = one(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
                match item {
                    Ok(request) => assert!(good && request.id.is_some()),
                    Err(f) => assert_eq!((good, f.code, f.id), (false, INVALID_REQUEST, Id::Null)),
                }
            }
        }
    }

    #[test]
    fn case_091_shapes_that_are_not_requests() {
        for body in ["[]", "1", "\"x\"", "null", "{}", r#"{"id":1}"#, r#"{"jsonrpc":"2.0"}"#] {
            assert_eq!(refusal(body.as_bytes()).0, INVALID_REQUEST, "{body}");
        }
        assert_eq!(refusal(br#"{"jsonrpc":2.0,"id":7,"method":"m"}"#), (INVALID_REQUEST, number("7")));
        assert_eq!(refusal(br#"{"jsonrpc":"2.0","id":7,"method":null}"#), (INVALID_REQUEST, number("7")));
        let Body::Batch(items) = parse(b"[1,{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"m\"}]") else {
            panic!()
        };
        assert_eq!(items[0].as_ref().unwrap_err().code, INVALID_REQUEST);
        assert_eq!(items[1].as_ref().unwrap().id, Some(number("3")));
        let many = format!("[{}1]", "1,".repeat(100_000));
        assert_eq!(refusal(many.as_bytes()), (INVALID_REQUEST, Id::Null));
    }

    #[test]
    fn case_091_duplicate_keys_are_refused_at_every_depth() {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"broker.status","method":"tool.call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{"tool":"A","tool":"B"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{"tool":"A","\u0074ool":"B"}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"m","params":[{"a":1,"a":1}]}]"#,
        ] {
            assert_eq!(refusal(body.as_bytes()), (INVALID_REQUEST, Id::Null), "{body}");
        }
        let broken_after = br#"{"a":1,"a":1"#;
        assert_eq!(refusal(broken_after).0, PARSE_ERROR);
    }

    #[test]
    fn nesting_has_a_cap_and_needs_no_stack() {
        let nested = |n: usize| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{}{}}}"#, "[".repeat(n), "]".repeat(n))
        };
        assert!(one(&nested(MAX_DEPTH - 1)).is_ok());
        assert_eq!(refusal(nested(MAX_DEPTH).as_bytes()), (INVALID_REQUEST, Id::Null));
        assert_eq!(refusal(nested(400_000).as_bytes()), (INVALID_REQUEST, Id::Null));
        assert_eq!(refusal("[".repeat(1_000_000).as_bytes()), (PARSE_ERROR, Id::Null));
    }

    fn number(text: &str) -> Id {
        Id::Number(text.parse().unwrap())
    }

    /// Text that is nearly a request, so that the interesting branches are reached.
    fn nearly() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"jsonrpc\"",
            "\"2.0\"",
            "\"id\"",
            "\"method\"",
            "\"params\"",
            "1",
            "-0",
            "1e9",
            "null",
            "true",
            "\"\\ud800\"",
            "\"x\"",
            " ",
            "\"$serde_json::private::Number\"",
        ]);
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    fn answers_are_json(body: &[u8]) {
        let items = match parse(body) {
            Body::One(item) => vec![item],
            Body::Batch(items) => items,
        };
        assert!(!items.is_empty() && items.len() <= MAX_BATCH);
        for item in items {
            let (id, reply) = match item {
                Ok(r) => (r.id.unwrap_or(Id::Null), Reply::Result(r.params.unwrap_or(Value::Null))),
                Err(f) => (f.id, Reply::Error(RpcError::new(f.code, f.message))),
            };
            let mut out = Vec::new();
            encode(&mut out, &id, reply, MAX_RESPONSE);
            let back: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(back["jsonrpc"], "2.0");
            assert!(back.get("result").is_some() != back.get("error").is_some());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn any_bytes_are_answered_with_json(body in prop::collection::vec(any::<u8>(), 0..200)) {
            answers_are_json(&body);
        }

        #[test]
        fn any_text_is_answered_with_json(body in nearly()) {
            answers_are_json(body.as_bytes());
        }

        #[test]
        fn what_the_parser_of_the_field_refuses_is_refused_here(body in nearly()) {
            let theirs = serde_json::from_str::<Value>(&body).is_ok();
            let ours = !matches!(parse(body.as_bytes()), Body::One(Err(f)) if f.code == PARSE_ERROR);
            // The reserved key is the one text that theirs may refuse (as a number that is none) and ours reads.
            if !body.contains("$serde_json") {
                prop_assert_eq!(theirs, ours);
            }
        }
    }
}
