//! Framings of other protocols, known by how a connection begins: a peer that speaks one is told so at once, and not left
//! to wait for the end of a frame that it never meant (`[3.1]`). Looked at only where the first four bytes, as a length,
//! are more than a request may have; a real frame of that length goes by as it should, since its body is JSON.

use crate::rpc::MAX_REQUEST;
use serde::de::IgnoredAny;

/// Longest message of little-endian framing that is waited for; the first one of a connection is short.
const MAX_LITTLE: usize = 64 * 1024;

/// What a peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Lines,
    ContentLength,
    Http,
    Tls,
    LittleEndian,
    Text,
}

impl Framing {
    /// In words, after "this looks like".
    pub(super) fn words(self) -> &'static str {
        match self {
            Framing::Lines => "JSON without a length before it, as in newline-delimited JSON",
            Framing::ContentLength => "Content-Length headers, as language servers have them",
            Framing::Http => "HTTP",
            Framing::Tls => "TLS",
            Framing::LittleEndian => "a little-endian length",
            Framing::Text => "text without a length before it",
        }
    }
}

/// What the beginning of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Frames, as far as can be told.
    Frames,
    /// Another byte is needed to tell.
    Undecided,
    /// Something else.
    Other(Framing),
}

/// Tells frames from others by the first bytes of a connection.
pub(super) fn beginning(bytes: &[u8]) -> Beginning {
    let Some((header, body)) = bytes.split_first_chunk::<4>() else {
        // A whole line shorter than a header.
        let line = bytes.ends_with(b"\n") && is_json(first_of(bytes));
        return if line { Beginning::Other(Framing::Lines) } else { Beginning::Frames };
    };
    if usize::try_from(u32::from_be_bytes(*header)).is_ok_and(|length| length <= MAX_REQUEST) {
        return Beginning::Frames;
    }
    let text = text(header);
    match body.first() {
        // `[1]` and the end of a line.
        None if text == Some(Framing::Lines) && header.ends_with(b"\n") => Beginning::Other(Framing::Lines),
        None => Beginning::Undecided,
        // A body, so a length stands before it.
        Some(first) if is_json(Some(*first)) => little_endian(*header, body),
        Some(_) => text.map_or(Beginning::Frames, Beginning::Other),
    }
}

/// Whether the length before `body` is meant the other way round: then just that many bytes are one JSON value, which the
/// beginning of a longer one never is.
fn little_endian(header: [u8; 4], body: &[u8]) -> Beginning {
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_LITTLE {
        return Beginning::Frames;
    }
    let Some(value) = body.get(..length) else { return Beginning::Undecided };
    let ends = matches!(value.trim_ascii_end().last(), Some(b'}' | b']'))
        && value.len() - value.trim_ascii_end().len() <= 2;
    match serde_json::from_slice::<IgnoredAny>(value) {
        Ok(_) if ends => Beginning::Other(Framing::LittleEndian),
        _ => Beginning::Frames,
    }
}

/// What text begins with these four bytes; none if they are no text.
fn text(header: &[u8; 4]) -> Option<Framing> {
    const METHODS: [&[u8; 4]; 9] =
        [b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "];
    if header.starts_with(&[0x16, 3]) {
        return Some(Framing::Tls);
    }
    // With a byte order mark, as some write files.
    if let Some(rest) = header.strip_prefix(b"\xef\xbb\xbf") {
        return is_json(first_of(rest)).then_some(Framing::Lines);
    }
    if !header.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return None;
    }
    Some(match header {
        _ if header.eq_ignore_ascii_case(b"cont") => Framing::ContentLength,
        _ if METHODS.contains(&header) => Framing::Http,
        _ if is_json(first_of(header)) => Framing::Lines,
        _ => Framing::Text,
    })
}

fn first_of(bytes: &[u8]) -> Option<u8> {
    bytes.trim_ascii_start().first().copied()
}

fn is_json(first: Option<u8>) -> bool {
    matches!(first, Some(b'{' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"broker.status"}"#;

    fn little(body: &str) -> Vec<u8> {
        [&u32::try_from(body.len()).unwrap().to_le_bytes(), body.as_bytes()].concat()
    }

    #[test]
    fn case_180_other_framings_are_known_as_soon_as_they_can_be() {
        let others: [(Vec<u8>, usize, Framing); 13] = [
            (format!("{REQUEST}\n").into(), 5, Framing::Lines),
            (format!("[{REQUEST}]\n").into(), 5, Framing::Lines),
            (format!(" \n{REQUEST}").into(), 5, Framing::Lines),
            (format!("\u{feff}{REQUEST}").into(), 5, Framing::Lines),
            ("{}\n".into(), 3, Framing::Lines),
            ("[1]\n".into(), 4, Framing::Lines),
            (format!("Content-Length: 49\r\n\r\n{REQUEST}").into(), 5, Framing::ContentLength),
            ("content-type: x\r\n".into(), 5, Framing::ContentLength),
            ("POST / HTTP/1.1\r\n".into(), 5, Framing::Http),
            (b"\x16\x03\x01\x02\x00\x01".into(), 5, Framing::Tls),
            (little(REQUEST), 4 + REQUEST.len(), Framing::LittleEndian),
            (little(&format!("{REQUEST}\n")), 5 + REQUEST.len(), Framing::LittleEndian),
            (format!("49:{REQUEST},").into(), 5, Framing::Text),
        ];
        for (bytes, at, framing) in others {
            let shown = String::from_utf8_lossy(&bytes);
            for n in 0..at {
                let told = beginning(&bytes[..n]);
                assert!(!matches!(told, Beginning::Other(_)), "{n} of {shown}: {told:?}");
            }
            assert_eq!(beginning(&bytes[..at]), Beginning::Other(framing), "{shown}");
            assert_eq!(beginning(&bytes), Beginning::Other(framing), "{shown}");
        }
    }

    #[test]
    fn a_real_frame_is_one_whatever_its_length_looks_like() {
        // As text: {"me, [[[[, POST, Cont; read the other way round: 8,192 and 100 bytes.
        let lengths = [*b"{\"me", *b"[[[[", *b"POST", *b"Cont", [0, 0x20, 0, 0], [100, 0, 0, 0], [0xff; 4]];
        for header in lengths {
            for body in [
                REQUEST.to_owned(),
                format!("{REQUEST}{}", " ".repeat(70_000)),
                format!("[{}", "1,".repeat(50_000)),
            ] {
                let whole = [&header[..], body.as_bytes()].concat();
                // Undecided is right only while what there is could still be a message of the other order.
                let told = beginning(&whole);
                let waits = told == Beginning::Undecided
                    && usize::try_from(u32::from_le_bytes(header)).unwrap() > body.len();
                assert!(told == Beginning::Frames || waits, "{header:?} {}: {told:?}", body.len());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn no_frame_that_is_served_is_taken_for_another(body in prop::collection::vec(any::<u8>(), 1..300)) {
            let framed = [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat();
            for n in 0..=framed.len() {
                prop_assert_eq!(beginning(&framed[..n]), Beginning::Frames);
            }
        }
    }
}
