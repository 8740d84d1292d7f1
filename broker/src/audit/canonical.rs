//! Canonical JSON (`[6.3]`) and the hashes over it (`[6.2]`): the one form in which a value has one spelling. It knows
//! no row. The ledger writes its payloads in it, the reader checks them against it, and whoever needs an `args_hash`,
//! `result_hash` or chain comes here.
//!
//! The form: objects with their keys sorted by UTF-8 bytes, no blanks, raw UTF-8 (U+2028 and `/` are not escaped), and
//! only `"`, `\` and C0 control characters escaped, the shortest way. A number is kept digit by digit as it was written,
//! so no integer is ever rounded.

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The canonical JSON of `value`.
pub fn canonical(value: &Value) -> Vec<u8> {
    let mut out = String::new();
    write_value(value, &mut out);
    out.into_bytes()
}

/// SHA-256 of the canonical JSON of `value`, 64 hex digits.
pub fn hash(value: &Value) -> String {
    hex(&Sha256::digest(canonical(value)))
}

/// [`hash`] of an object.
pub fn hash_object(map: &Map<String, Value>) -> String {
    hex(&Sha256::digest(canonical_object(map)))
}

fn canonical_object(map: &Map<String, Value>) -> Vec<u8> {
    let mut out = String::new();
    write_map(map, &mut out);
    out.into_bytes()
}

/// Lower-case hex digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// The 32 bytes that 64 lower-case hex digits spell. Upper case is refused: a chain has one spelling.
pub fn unhex32(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// `audit.hash_key` (`[6.2]`): with it, hashes of arguments and results are HMAC-SHA-256, so that low-entropy
/// arguments can't be guessed from the ledger by whoever lacks the key.
#[derive(Clone)]
pub struct HashKey(Hmac<Sha256>);

impl HashKey {
    /// A key of any length, as HMAC takes it.
    pub fn new(key: &[u8]) -> Self {
        HashKey(
            KeyInit::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes a key of any length")),
        )
    }

    /// HMAC-SHA-256 of the canonical JSON of `value`, 64 hex digits.
    pub fn hash(&self, value: &Value) -> String {
        hex(&self.mac(&canonical(value)))
    }

    /// [`HashKey::hash`] of an object.
    pub fn hash_object(&self, map: &Map<String, Value>) -> String {
        hex(&self.mac(&canonical_object(map)))
    }

    fn mac(&self, message: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(message).finalize().into_bytes().into()
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(…)")
    }
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(n.as_str()),
        Value::String(s) => write_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => write_map(map, out),
    }
}

/// Appends the canonical JSON of an object.
pub(super) fn write_map(map: &Map<String, Value>, out: &mut String) {
    let mut entries: Vec<(&String, &Value)> = map.iter().collect();
    // `str` compares by bytes, which is the order of code points too.
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (i, (key, item)) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write_value(item, out);
    }
    out.push('}');
}

/// Appends `s` as a canonical JSON string.
pub(super) fn write_string(s: &str, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (i, b) in s.bytes().enumerate() {
        let escape = match b {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0c => "\\f",
            b'\r' => "\\r",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(&s[plain..i]);
        plain = i + 1;
        if escape.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{b:04x}");
        } else {
            out.push_str(escape);
        }
    }
    out.push_str(&s[plain..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use serde_json::json;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn text(v: &Value) -> String {
        String::from_utf8(canonical(v)).unwrap()
    }

    #[test]
    fn one_value_has_one_spelling() {
        let v: Value = serde_json::from_str(
            r#" { "b" : 1, "a" : [ true , null, "\u2028\"\\\/\u0001\b\u007f" ], "\ud83d\ude00": 0, "\uffee": {} } "#,
        )
        .unwrap();
        assert_eq!(
            text(&v),
            "{\"a\":[true,null,\"\u{2028}\\\"\\\\/\\u0001\\b\u{7f}\"],\"b\":1,\"\u{ffee}\":{},\"😀\":0}",
            "keys go by bytes, not by UTF-16 units"
        );
    }

    #[test]
    fn integers_are_kept_in_full() {
        let v: Value =
            serde_json::from_str("[18446744073709551617,-9007199254740993,1796033177922094751]").unwrap();
        assert_eq!(text(&v), "[18446744073709551617,-9007199254740993,1796033177922094751]");
    }

    #[test]
    fn hashes_are_those_of_the_standards() {
        assert_eq!(hash(&json!({})), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        // RFC 4231, cases 2 and 6.
        let mac = |key: &[u8], m: &str| hex(&HashKey::new(key).mac(m.as_bytes()));
        assert_eq!(
            mac(b"Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            mac(&[0xaa; 131], "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn hex_reads_back_what_it_wrote_and_nothing_else() {
        let bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 8).unwrap());
        assert_eq!(unhex32(&hex(&bytes)), Some(bytes));
        for bad in ["", "00", &"A".repeat(64), &"g".repeat(64), &"0".repeat(65)] {
            assert_eq!(unhex32(bad), None, "{bad}");
        }
    }

    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\\x00-\\x20\"\\\\/\u{7f}\u{2028}\u{fffd}\u{10ffff}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    /// A second implementation that shares nothing with ours: Python's json, whose sorted keys are in code point order.
    #[test]
    fn python_spells_every_value_the_same_way() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = prop::collection::vec(any_json(), 400);
        let values = strategy.new_tree(&mut runner).unwrap().current();
        let script = "import json,sys\n\
             for l in open(0, encoding='utf-8', newline='\\n'):\n  \
               sys.stdout.buffer.write((json.dumps(json.loads(l), sort_keys=True, ensure_ascii=False, separators=(',', ':')) + '\\n').encode())\n";
        let mut python = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed as the second implementation");
        let mut stdin = python.stdin.take().unwrap();
        let lines: String = values.iter().map(|v| serde_json::to_string(v).unwrap() + "\n").collect();
        let feed = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
        let out = python.wait_with_output().unwrap();
        feed.join().unwrap();
        assert!(out.status.success());
        let ours: Vec<u8> = values.iter().flat_map(|v| [canonical(v), b"\n".to_vec()].concat()).collect();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), String::from_utf8(ours).unwrap());
    }

    proptest! {
        #[test]
        fn canonical_json_reads_back_as_the_same_value(v in any_json()) {
            let bytes = canonical(&v);
            let back: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&canonical(&back), &bytes);
            prop_assert_eq!(back, v);
        }
    }
}
