//! `traceparent` (`[5.2]`): W3C Trace Context, version 00.

use crate::call::TraceId;
use data_encoding::HEXLOWER;
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
    let (Some(trace), Some(parent), Some([_flags])) = (bytes(trace), bytes(parent), bytes(flags)) else {
        return bad("a part of the wrong length, or not lower-case hex digits");
    };
    match TraceId::new(trace) {
        Some(id) if parent != [0; 8] => Ok(id),
        _ => bad("an id that is all zero"),
    }
}

/// What two lower-case hex digits a byte spell, if it is just so many.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
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
