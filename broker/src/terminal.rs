//! Text that others chose, made fit for a terminal (`[2.6]`): what a skill, a file name or a ledger row says can't move
//! the cursor, colour the screen, or turn the reading direction. It knows nothing of who prints it; every human output of
//! a foreign text goes through here, machine output (`--json`) does not.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with control characters shown as `\x1b` or `\u{202e}`. Newline and tab stay.
pub fn escape_for_terminal(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !is_unfit(c) {
            out.push(c);
        } else if u32::from(c) < 0x100 {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        } else {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    }
    Cow::Owned(out)
}

/// [`escape_for_terminal`] for a text that must stay on its line: newline and tab are shown too.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    match escape_for_terminal(text) {
        escaped if escaped.contains(['\n', '\t']) => {
            Cow::Owned(escaped.replace('\n', "\\n").replace('\t', "\\t"))
        }
        escaped => escaped,
    }
}

/// JSON text in which the same characters are written as JSON escapes: the same value, fit for a terminal.
pub fn escape_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // All of them are in the basic plane, and outside of strings JSON has none of them.
        if is_unfit(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// C0 but newline and tab, DEL, C1; what turns the reading direction.
fn is_unfit(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => true,
        c => turns_direction(c),
    }
}

/// Marks, embeddings, overrides and isolates of the reading direction: a text with one can look like another.
pub(crate) fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_163_no_text_can_drive_the_terminal() {
        let hostile =
            "\n{\"event\":\"completed\"}\t\x1b[2J\u{202e}exe.\u{9b}31m\x7f\r\0\u{2066}\u{61c}\u{200f}";
        assert_eq!(
            escape_for_terminal(hostile),
            "\n{\"event\":\"completed\"}\t\\x1b[2J\\u{202e}exe.\\x9b31m\\x7f\\x0d\\x00\\u{2066}\\u{61c}\\u{200f}"
        );
        assert_eq!(escape_line("a\nb\tc\x1b"), "a\\nb\\tc\\x1b");
    }

    proptest! {
        #[test]
        fn what_comes_out_is_fit_and_what_was_fit_is_unchanged(text in any::<String>()) {
            let escaped = escape_for_terminal(&text);
            prop_assert!(!escaped.chars().any(is_unfit));
            prop_assert_eq!(&*escape_for_terminal(&escaped), &*escaped);
            prop_assert_eq!(text.chars().any(is_unfit), *escaped != text);
            prop_assert!(!escape_line(&text).contains('\n'));
            let value = serde_json::json!({ text: [1, 2.5] });
            let json = escape_json(&format!("{value:#}")).into_owned();
            prop_assert!(!json.chars().any(is_unfit));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        }
    }
}
