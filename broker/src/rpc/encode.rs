//! One reply to JSON that fits: what is longer than its room is cut inside its largest text field, marked
//! `"truncated": true`, and stays valid JSON (`[3.5]`).

use super::{Id, Reply, RpcError, TOOL_ERROR};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use serde_json::{Value, json};

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// It is there in full.
    Whole,
    /// It is there, cut inside its largest text field.
    Cut,
    /// It could not be cut to fit; an error that says so is there instead.
    Replaced,
}

/// Appends the response object to `out`, at most `room` bytes. Room for 256 bytes and the id is always needed: with
/// less, the error that takes the reply's place is longer than `room`.
pub fn encode(out: &mut Vec<u8>, id: &Id, reply: Reply, room: usize) -> Encoded {
    let start = out.len();
    let mut reply = reply;
    write(out, id, &reply);
    let length = out.len() - start;
    if length <= room {
        return Encoded::Whole;
    }
    out.truncate(start);
    if let Reply::Result(result) = &mut reply
        && cut(result, length - room)
    {
        write(out, id, &reply);
        if out.len() - start <= room {
            return Encoded::Cut;
        }
        out.truncate(start);
    }
    let too_long = RpcError {
        code: TOOL_ERROR,
        message: "tool_error".to_owned(),
        data: Some(json!({
            "reason": "result_too_large",
            "message": "the answer exceeds what a response may hold; ask for less at once",
        })),
    };
    write(out, id, &Reply::Error(too_long));
    Encoded::Replaced
}

struct Response<'a> {
    id: &'a Id,
    reply: &'a Reply,
}

impl Serialize for Response<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Response", 3)?;
        s.serialize_field("jsonrpc", "2.0")?;
        match self.id {
            Id::Null => s.serialize_field("id", &())?,
            Id::Number(n) => s.serialize_field("id", n)?,
            Id::Text(t) => s.serialize_field("id", t)?,
        }
        match self.reply {
            Reply::Result(result) => s.serialize_field("result", result)?,
            Reply::Error(error) => s.serialize_field("error", error)?,
        }
        s.end()
    }
}

impl Serialize for RpcError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Error", 3)?;
        s.serialize_field("code", &self.code)?;
        s.serialize_field("message", &self.message)?;
        if let Some(data) = &self.data {
            s.serialize_field("data", data)?;
        }
        s.end()
    }
}

fn write(out: &mut Vec<u8>, id: &Id, reply: &Reply) {
    let start = out.len();
    // Writing values with string keys into memory has no way to fail; should one appear, the peer still gets JSON.
    if serde_json::to_writer(&mut *out, &Response { id, reply }).is_err() {
        out.truncate(start);
        out.extend_from_slice(
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"tool_error"}}"#,
        );
    }
}

/// Shortens the largest text of `result` by at least `excess` bytes of JSON and marks the result. False when there is
/// no such text, or nowhere to put the mark.
fn cut(result: &mut Value, excess: usize) -> bool {
    const MARK: &str = ",\"truncated\":true";
    let Value::Object(members) = result else { return false };
    let excess = excess + MARK.len();
    let Some(text) = members.values_mut().filter_map(largest).max_by_key(|t| t.len()) else { return false };
    let written: usize = text.chars().map(written_length).sum();
    let Some(keep) = written.checked_sub(excess) else { return false };
    let mut used = 0;
    let end = text
        .char_indices()
        .find(|(_, c)| {
            used += written_length(*c);
            used > keep
        })
        .map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    members.insert("truncated".to_owned(), Value::Bool(true));
    true
}

/// The largest string below `value`, keys excluded. As deep as the values that tools make.
fn largest(value: &mut Value) -> Option<&mut String> {
    match value {
        Value::String(s) => Some(s),
        Value::Array(items) => items.iter_mut().filter_map(largest).max_by_key(|s| s.len()),
        Value::Object(members) => members.values_mut().filter_map(largest).max_by_key(|s| s.len()),
        _ => None,
    }
}

/// Bytes that serde_json writes for `c` inside a string.
fn written_length(c: char) -> usize {
    match c {
        '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_RESPONSE;
    use super::*;
    use proptest::prelude::*;

    fn encoded(result: Value, room: usize) -> (Encoded, Value, usize) {
        let mut out = Vec::new();
        let how = encode(&mut out, &Id::Text("é".to_owned()), Reply::Result(result), room);
        (how, serde_json::from_slice(&out).unwrap(), out.len())
    }

    #[test]
    fn case_093_a_result_over_the_cap_is_cut_in_its_largest_text() {
        for content in ["a".repeat(17 << 20), "\u{1}".repeat(3 << 20), "é\n\"\\😀".repeat(2 << 20)] {
            let (how, back, length) =
                encoded(json!({"content": content, "size": 1, "note": "kept"}), MAX_RESPONSE);
            assert_eq!(how, Encoded::Cut);
            assert!(length <= MAX_RESPONSE && length > MAX_RESPONSE - 64, "{length}");
            assert_eq!(back["result"]["truncated"], true);
            assert_eq!(back["result"]["note"], "kept");
            assert!(content.starts_with(back["result"]["content"].as_str().unwrap()));
        }
    }

    #[test]
    fn a_result_that_fits_to_the_byte_is_whole_and_one_more_is_cut() {
        let frame = encoded(json!({"c": ""}), 1000).2;
        assert_eq!(encoded(json!({"c": "x".repeat(1000 - frame)}), 1000).0, Encoded::Whole);
        assert_eq!(encoded(json!({"c": "x".repeat(1001 - frame)}), 1000).0, Encoded::Cut);
    }

    #[test]
    fn a_result_that_cannot_be_cut_says_so() {
        for result in [json!(vec![1; 1000]), json!({"a": vec!["x"; 1000]}), json!("x".repeat(2000))] {
            let (how, back, length) = encoded(result, 1000);
            assert_eq!(how, Encoded::Replaced);
            assert!(length <= 1000);
            assert_eq!(back["error"]["data"]["reason"], "result_too_large");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn whatever_is_cut_fits_and_is_json(
            texts in prop::collection::vec("[\\x00-\\u{10FFFF}]{0,200}", 1..5),
            room in 300usize..1500,
        ) {
            let (how, back, length) = encoded(json!({"a": texts}), room);
            prop_assert!(length <= room);
            prop_assert_eq!(how == Encoded::Replaced, back.get("error").is_some());
        }
    }
}
