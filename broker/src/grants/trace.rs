//! `traceparent` (`[5.2]`): W3C Trace Context, version 00.

use crate::call::TraceId;
use serde_json::Value;

/// The trace id of `00-<32 hex>-<16 hex>-<2 hex>`, lower case, no id all zero. The error is the message of −32602.
pub(crate) fn trace_of(value: &Value) -> Result<TraceId, String> {
    let bad =
        |why: &str| Err(format!("traceparent: {why} (expected 00-<32 hex>-<16 hex>-<2 hex>, lower case)"));
    let Value::String(text) = value else { return bad("not a text") };
    let mut parts = text.split('-');
    let (Some(version), Some(trace), Some(parent), Some(flags), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return bad("not four parts");
    };
    if version != "00" {
        return bad("not version 00");
    }
    let mut id = [0; 16];
    let mut span = [0; 8];
    if !hex(trace, &mut id) || !hex(parent, &mut span) || !hex(flags, &mut [0; 1]) {
        return bad("a part of the wrong length, or not lower-case hex digits");
    }
    match TraceId::new(id) {
        Some(id) if span != [0; 8] => Ok(id),
        _ => bad("an id that is all zero"),
    }
}

fn hex(text: &str, out: &mut [u8]) -> bool {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    text.len() == out.len() * 2
        && text.chunks_exact(2).zip(out).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_w3c_calls_valid_is_taken() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(trace_of(&good.into()).unwrap().to_string(), "0af7651916cd43dd8448eb211c80319c");
        for bad in [
            "",
            "00",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319ý-b7ad6b7169203331-01",
        ] {
            assert!(trace_of(&bad.into()).is_err(), "{bad}");
        }
        assert!(trace_of(&Value::Null).is_err());
    }
}
