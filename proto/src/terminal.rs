//! Text that others chose, made fit to be printed (`[2.6]`): what a skill, a provider, a file name or a ledger row says can't
//! move the cursor, colour the screen, turn the reading direction, or make a line or a field that looks like one of ours.
//! Every human output of a foreign text goes through here, logs included; machine output (`--json`) does not. It knows
//! nothing of who prints it.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;

/// `text` with control characters shown as `\x1b` or `\u{202e}`. Newline and tab stay.
pub fn escape_for_terminal(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unfit(c) { shown(c, &mut out) } else { out.push(c) }
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

/// [`escape_line`] for a value among others (`name=value  name=value`): in quotes unless it is one plain word, so that
/// nothing in it can pass for the next field.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !is_unfit(c) && !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\' | '=');
    if !text.is_empty() && text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // Blanks that are not the plain one look like it, or like nothing.
            c if is_unfit(c) || (c.is_whitespace() && c != ' ') => shown(c, &mut out),
            c => out.push(c),
        }
    }
    out.push('"');
    Cow::Owned(out)
}

/// JSON text in which the same characters are written as JSON escapes: the same value, fit for a terminal.
pub fn escape_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Outside of strings JSON has none of them.
        if is_unfit(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn shown(c: char, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = match u32::from(c) {
        n @ 0..0x100 => write!(out, "\\x{n:02x}"),
        n => write!(out, "\\u{{{n:x}}}"),
    };
}

/// C0 but newline and tab, DEL, C1; what turns the reading direction; line ends of Unicode; what is not seen at all.
pub fn is_unfit(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => true,
        '\u{2028}' | '\u{2029}' => true,
        c => is_unseen(c) || turns_direction(c),
    }
}

/// Marks, embeddings, overrides and isolates of the reading direction: a text with one can look like another.
pub fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Characters that nobody sees, and that mean nothing in any script.
pub fn is_unseen(c: char) -> bool {
    matches!(c, '\u{200b}' | '\u{2060}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// A log that is written an event at a time: whatever is in an event, it stays one line.
#[derive(Debug)]
pub struct Events<W>(pub W);

impl<W: io::Write> io::Write for Events<W> {
    /// Takes one event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = escape_line(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
