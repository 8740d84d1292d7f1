//! What a body takes once it is a tree, told from its bytes alone (`[3.3]`): nothing is decoded and nothing allocated.

/// An upper bound of the memory that [`super::parse`] needs for `body`, in bytes: a body of small values takes many times
/// its length, and `session` must know before it parses. What stands in strings is text, whatever it looks like.
pub fn weight(body: &[u8]) -> usize {
    /// Bodies, keys, strings, digits: as sent, in the tree, and as they are written on.
    const TEXTS: usize = 3;
    /// One more value: its place in a vector that doubles as it grows, and the allocation of a number's digits.
    const VALUE: usize = 192;
    /// A vector has place for four, and its first value has digits.
    const ARRAY: usize = 4 * 80 + 48;
    /// A map has place for four members, and an index.
    const OBJECT: usize = 4 * 112 + 96;
    /// What a member has beyond a value: its key, its hash, and its share of an index that doubles.
    const MEMBER: usize = 128;
    let (mut weight, mut quoted, mut escaped) = (body.len().saturating_mul(TEXTS) + VALUE, false, false);
    for byte in body {
        if quoted {
            quoted = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        weight += match byte {
            b'"' => {
                quoted = true;
                0
            }
            b',' => VALUE,
            b'[' => ARRAY,
            b'{' => OBJECT,
            b':' => MEMBER,
            _ => 0,
        };
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::super::MAX_REQUEST;
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_weight_of_a_body_is_above_what_its_tree_takes() {
        assert!(size_of::<Value>() <= 80, "{}", size_of::<Value>());
        assert!(weight(&b"0,".repeat(MAX_REQUEST / 2)) >= MAX_REQUEST / 2 * (size_of::<Value>() + 32));
        let of = |text: &str| weight(text.as_bytes()) - 3 * text.len();
        assert_eq!(of(r#""[1,2,{\"a\":1}]""#), of("1"), "text weighs what it is long");
        assert_eq!(of(r#""\\",1"#), of("1,1"), "an escaped backslash ends no escape of a quote");
        assert!(of("[[1],[1]]") > of("[11,111]") && of(r#"{"a":1}"#) > of("[1]"));
    }
}
