//! One row of the ledger in both directions (`[6.3]`): a [`Draft`] becomes a payload that knows its place in the chain,
//! and a payload becomes a [`Row`] only if every byte of it is as the format says. It knows no file and no kind of row.

use super::canonical::{canonical, hex, unhex32, write_string};
use super::frame::Frame;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// `prev_chain` of the first row.
pub const GENESIS: [u8; 32] = [0; 32];

/// A row before it has a place: everything but seq, time and chain.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The skill's id.
    pub actor: String,
    /// The row's kind.
    pub op: &'static str,
    /// The memory file's path for memory rows, else empty.
    pub path: String,
    /// The memory file's SHA-256 for memory rows, else empty.
    pub content_sha256: String,
    /// The kind's payload.
    pub extra: Map<String, Value>,
}

/// A [`Draft`] in canonical JSON with holes where chain, prev_chain and ts_ns go: what can be done without the writer's
/// lock is done here.
#[derive(Debug)]
pub(super) struct Prepared {
    head: String,
    middle: String,
}

impl Prepared {
    pub(super) fn new(draft: &Draft) -> Self {
        let mut head = String::from("{\"actor\":");
        write_string(&draft.actor, &mut head);
        head.push_str(",\"chain\":\"");
        let mut middle = String::from("\",\"content_sha256\":");
        write_string(&draft.content_sha256, &mut middle);
        middle.push_str(",\"extra\":");
        super::canonical::write_map(&draft.extra, &mut middle);
        middle.push_str(",\"op\":");
        write_string(draft.op, &mut middle);
        middle.push_str(",\"path\":");
        write_string(&draft.path, &mut middle);
        middle.push_str(",\"prev_chain\":\"");
        Prepared { head, middle }
    }

    /// Bytes that the payload will have at most.
    pub(super) fn max_len(&self) -> usize {
        self.head.len() + self.middle.len() + 2 * 64 + 32
    }

    /// The payload of the row that follows `prev`, and its chain.
    pub(super) fn seal(&self, prev: &[u8; 32], ts_ns: u64) -> (Vec<u8>, [u8; 32]) {
        let tail = format!("{}\",\"ts_ns\":{ts_ns}}}", hex(prev));
        let chain: [u8; 32] = Sha256::new()
            .chain_update(&self.head)
            .chain_update(&self.middle)
            .chain_update(&tail)
            .chain_update(prev)
            .finalize()
            .into();
        (format!("{}{}{}{tail}", self.head, hex(&chain), self.middle).into_bytes(), chain)
    }
}

/// A row as the ledger holds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Position in the ledger, from 1.
    pub seq: u64,
    /// Its time, ns since 1970.
    pub ts_ns: u64,
    /// The row's kind.
    pub op: String,
    /// Who acted: the skill's id.
    pub actor: String,
    /// The kind's payload.
    pub extra: Map<String, Value>,
    /// The memory file's path for memory rows, else empty.
    pub path: String,
    /// The memory file's SHA-256 for memory rows, else empty.
    pub content_sha256: String,
    /// SHA-256 over this row and `prev_chain`, 64 hex digits.
    pub chain: String,
    /// The chain of the row before.
    pub prev_chain: String,
}

/// What is wrong with a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// Not JSON.
    #[error("the payload is not JSON: {0}")]
    Json(String),
    /// JSON in another spelling than the canonical one.
    #[error("the payload is not canonical JSON")]
    NotCanonical,
    /// Not the eight fields, or one of another type.
    #[error("the payload's field {0} is missing, of the wrong type, or unknown")]
    Field(String),
    /// Header and payload disagree.
    #[error("the frame says time {header}, its payload {payload}")]
    Time {
        /// `ts_ns` of the header.
        header: u64,
        /// `ts_ns` of the payload.
        payload: u64,
    },
    /// `chain` is not the hash of the row.
    #[error("the row does not have the hash that its chain field says: it was changed after it was written")]
    Chain,
}

impl Row {
    /// The row in `frame`, if its payload is canonical, has exactly the eight fields, agrees with the header, and has
    /// the chain that it claims. Whether it follows the row before is the caller's to check.
    pub fn parse(frame: &Frame) -> Result<Row, RowFault> {
        let value: Value =
            serde_json::from_slice(&frame.payload).map_err(|e| RowFault::Json(e.to_string()))?;
        if canonical(&value) != frame.payload {
            return Err(RowFault::NotCanonical);
        }
        let Value::Object(mut map) = value else {
            return Err(RowFault::Json("not an object".into()));
        };
        let chain = take_text(&mut map, "chain")?;
        let prev_chain = take_text(&mut map, "prev_chain")?;
        let prev = unhex32(&prev_chain).ok_or_else(|| RowFault::Field("prev_chain".into()))?;
        let ts_ns =
            map.remove("ts_ns").and_then(|v| v.as_u64()).ok_or_else(|| RowFault::Field("ts_ns".into()))?;
        let Some(Value::Object(extra)) = map.remove("extra") else {
            return Err(RowFault::Field("extra".into()));
        };
        let row = Row {
            seq: frame.seq,
            ts_ns,
            op: take_text(&mut map, "op")?,
            actor: take_text(&mut map, "actor")?,
            extra,
            path: take_text(&mut map, "path")?,
            content_sha256: take_text(&mut map, "content_sha256")?,
            chain,
            prev_chain,
        };
        if let Some((unknown, _)) = map.into_iter().next() {
            return Err(RowFault::Field(unknown));
        }
        if frame.ts_ns != row.ts_ns {
            return Err(RowFault::Time { header: frame.ts_ns, payload: row.ts_ns });
        }
        if row.hash(&prev) != row.chain {
            return Err(RowFault::Chain);
        }
        Ok(row)
    }

    /// The 32 bytes of its chain.
    pub fn chain_bytes(&self) -> Option<[u8; 32]> {
        unhex32(&self.chain)
    }

    /// A text field of `extra`.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.extra.get(field).and_then(Value::as_str)
    }

    /// A number field of `extra`.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.extra.get(field).and_then(Value::as_u64)
    }

    fn hash(&self, prev: &[u8; 32]) -> String {
        let unchained = serde_json::json!({
            "actor": self.actor, "chain": "", "content_sha256": self.content_sha256, "extra": self.extra,
            "op": self.op, "path": self.path, "prev_chain": self.prev_chain, "ts_ns": self.ts_ns,
        });
        hex(&Sha256::new().chain_update(canonical(&unchained)).chain_update(prev).finalize())
    }
}

fn take_text(map: &mut Map<String, Value>, field: &str) -> Result<String, RowFault> {
    match map.remove(field) {
        Some(Value::String(s)) => Ok(s),
        _ => Err(RowFault::Field(field.into())),
    }
}

/// The kind of a payload without parsing it. In canonical JSON no string holds a bare `"op":"`, and behind the row's own
/// comes nothing that could: so the last one is it. None for a payload that is not in the form.
pub(super) fn quick_op(payload: &[u8]) -> Option<&str> {
    const MARK: &[u8] = b"\"op\":\"";
    let at = payload.windows(MARK.len()).rposition(|w| w == MARK)? + MARK.len();
    let end = payload[at..].iter().position(|b| *b == b'"')? + at;
    std::str::from_utf8(&payload[at..end]).ok()
}

/// Whether some object of a payload has this key, without parsing it: in canonical JSON no string holds a bare `"key":`.
pub(super) fn quick_has(payload: &[u8], key: &str) -> bool {
    let mark = format!("\"{key}\":");
    payload.windows(mark.len()).any(|w| w == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn draft() -> Draft {
        let Value::Object(extra) = json!({"z": 1, "a": "\"op\":\"x", "op": "inner"}) else { unreachable!() };
        Draft {
            actor: "s".into(),
            op: "skill.x",
            path: "p\"op\":\"y".into(),
            content_sha256: String::new(),
            extra,
        }
    }

    #[test]
    fn a_sealed_draft_parses_back_and_is_canonical() {
        let (payload, chain) = Prepared::new(&draft()).seal(&GENESIS, 5);
        let row = Row::parse(&Frame { seq: 1, ts_ns: 5, payload: payload.clone() }).unwrap();
        assert_eq!(row.chain_bytes(), Some(chain));
        assert_eq!((row.op.as_str(), row.actor.as_str(), row.number("z")), ("skill.x", "s", Some(1)));
        assert_eq!(quick_op(&payload), Some("skill.x"));
        assert!(quick_has(&payload, "z") && !quick_has(&payload, "x") && !quick_has(&payload, "inner"));
        assert!(payload.len() <= Prepared::new(&draft()).max_len());
        let (next, _) = Prepared::new(&draft()).seal(&chain, u64::MAX);
        assert_eq!(
            Row::parse(&Frame { seq: 2, ts_ns: u64::MAX, payload: next }).unwrap().prev_chain,
            row.chain
        );
    }

    #[test]
    fn a_payload_that_is_not_exactly_a_row_is_refused() {
        let (payload, _) = Prepared::new(&draft()).seal(&GENESIS, 5);
        let text = String::from_utf8(payload.clone()).unwrap();
        let fault = |text: &str, ts_ns| {
            Row::parse(&Frame { seq: 1, ts_ns, payload: text.as_bytes().to_vec() }).unwrap_err()
        };
        assert_eq!(fault(&text, 6), RowFault::Time { header: 6, payload: 5 });
        assert_eq!(fault(&text.replace("skill.x", "skill.y"), 5), RowFault::Chain);
        assert_eq!(fault(&text.replace(":1", ": 1"), 5), RowFault::NotCanonical);
        assert_eq!(
            fault(&text.replace("{\"actor\"", "{\"actor\":\"s\",\"actor\""), 5),
            RowFault::NotCanonical
        );
        assert_eq!(
            fault(&text.replace("\"ts_ns\":5", "\"ts_ns\":5,\"y\":5"), 5),
            RowFault::Field("y".into())
        );
        assert_eq!(fault(&text.replace("\"ts_ns\":5", "\"ts_ns\":-5"), 5), RowFault::Field("ts_ns".into()));
        assert!(matches!(fault("{", 5), RowFault::Json(_)));
        assert!(matches!(fault("[]", 5), RowFault::Json(_)));
    }
}
