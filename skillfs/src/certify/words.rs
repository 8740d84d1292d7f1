//! What a folder holds, made fit for a message: for a terminal, and for a shell.

use cyberos_proto::terminal::turns_direction;

/// `bytes` as one line of at most `max` characters that is safe on a terminal and in a log: control and direction-changing
/// characters are escaped.
pub fn shown(bytes: &[u8], max: usize) -> String {
    let mut out = String::new();
    let mut room = max;
    for c in String::from_utf8_lossy(bytes).chars() {
        let unfit = c.is_control() || turns_direction(c) || matches!(c, '\u{2028}' | '\u{2029}');
        let escaped = unfit.then(|| c.escape_default());
        let Some(left) = room.checked_sub(escaped.as_ref().map_or(1, |e| e.len())) else {
            out.push('…');
            break;
        };
        room = left;
        match escaped {
            Some(escaped) => out.extend(escaped),
            None => out.push(c),
        }
    }
    out
}

/// `word` as a shell takes it for one.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_holds_no_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\n", 99), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown("x\u{202e}y\u{85}".as_bytes(), 99), "x\\u{202e}y\\u{85}");
        assert_eq!(shown(b"\xff", 99), "\u{fffd}");
        assert_eq!(shown(b"abcdef", 3), "abc…");
        assert_eq!(shown(b"abc", 3), "abc");
        assert_eq!(shown(b"a\x1bbc", 4), "a…");
    }
}
