//! How answers reach a person or a program (`[7.3]`): tables on a terminal, JSON when asked for, and nothing that a
//! skill printed reaches a terminal with its control characters alive (`[2.6]`).

use crate::exit::{Exit, OperatorError};
use crate::terminal::{escape_for_terminal, escape_json, escape_line, quoted};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints to standard output. What cannot be printed ends this command: whoever reads half an answer must not take it for
/// the whole.
fn put(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_fmt(text).and_then(|()| out.flush()) {
        std::process::exit(unwritten(&e).code().into());
    }
}

/// A whole line.
pub(super) fn put_line(text: std::fmt::Arguments<'_>) {
    put(format_args!("{text}\n"));
}

/// One line to standard output.
macro_rules! line {
    ($($part:tt)*) => { $crate::cli::output::put_line(format_args!($($part)*)) };
}

/// One line to standard error.
macro_rules! note {
    ($($part:tt)*) => { $crate::cli::output::put_note(format_args!($($part)*)) };
}

/// Whether what a skill has printed to standard error ends in the middle of a line.
static AMID_LINE: AtomicBool = AtomicBool::new(false);

/// Prints a line of its own to standard error, also after half a line of a skill's. That somebody has closed it keeps this
/// command from nothing.
pub(super) fn put_note(text: std::fmt::Arguments<'_>) {
    let end_theirs = if AMID_LINE.swap(false, Ordering::Relaxed) { "\n" } else { "" };
    let _ = writeln!(std::io::stderr(), "{end_theirs}{text}");
}

/// Notes what of a skill's has gone to standard error.
pub(super) fn relayed_to_stderr(bytes: &[u8]) {
    if let Some(last) = bytes.last() {
        AMID_LINE.store(*last != b'\n', Ordering::Relaxed);
    }
}

pub(super) use line;
pub(super) use note;

/// What a command exits with whose output could not be written. A reader that has gone (`| head`) ends it quietly, as
/// SIGPIPE would have; anything else is said.
pub(super) fn unwritten(e: &std::io::Error) -> Exit {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        return Exit::PIPE_CLOSED;
    }
    note!("cyberos: cannot write the answer: {e}");
    Exit::FAILED
}

/// What a person at the terminal answers to a question.
pub(super) fn asked(question: &str) -> Result<String, OperatorError> {
    put(format_args!("{question}"));
    let mut answer = String::new();
    match std::io::stdin().read_line(&mut answer) {
        Ok(_) => Ok(answer.trim().to_owned()),
        Err(e) => Err(OperatorError::new(Exit::FAILED, format!("your answer could not be read: {e}"))),
    }
}

/// Prints a failure and gives its exit status.
pub(super) fn failed(failure: &OperatorError, json: bool) -> ExitCode {
    if json {
        let mut answer = serde_json::json!({ "error": failure.message, "exit": failure.exit });
        if !failure.detail.is_null() {
            answer["detail"] = failure.detail.clone();
        }
        self::json(&answer);
    } else {
        // Faults come a line each; whoever wrote into one of them gets no line that begins like ours.
        note!("cyberos: {}", escape_for_terminal(&failure.message).replace('\n', "\n  "));
    }
    ExitCode::from(failure.exit)
}

/// Prints a value as one line of JSON: as it is for a program, with JSON's own escapes on a terminal.
pub(super) fn json(value: &Value) {
    if std::io::stdout().is_terminal() {
        line!("{}", escape_json(&value.to_string()));
    } else {
        line!("{value}");
    }
}

/// Prints a value as JSON with a field a line, for a person.
pub(super) fn pretty(value: &Value) {
    line!("{}", escape_json(&format!("{value:#}")));
}

/// A field as text for a table or a sentence: strings bare, null as a dash.
pub(super) fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::Null => "-".into(),
        Value::String(s) => escape_line(s).into_owned(),
        other => escape_line(&other.to_string()).into_owned(),
    }
}

/// A field of somebody else's choosing as one word, in quotes unless it is one.
pub(super) fn word(value: &Value, field: &str) -> String {
    quoted(value[field].as_str().unwrap_or("-")).into_owned()
}

/// Prints rows under a header, columns aligned.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut out = String::new();
        for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            out.push_str(cell);
            if i + 1 < cells.len() {
                out.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
        }
        line!("{}", out.trim_end());
    };
    line(header.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}

/// A stream of a skill's output towards this process's own: with control characters shown escaped on a terminal, always,
/// and elsewhere when asked; else as it is. Bytes that end inside a character wait for the rest.
#[derive(Debug)]
pub(super) struct Relay {
    escape: bool,
    held: Vec<u8>,
}

impl Relay {
    /// For an output that is or is not a terminal.
    pub(super) fn new(terminal: bool, escape: bool) -> Self {
        Relay { escape: escape || terminal, held: Vec::new() }
    }

    /// For standard output.
    pub(super) fn stdout(escape: bool) -> Self {
        Relay::new(std::io::stdout().is_terminal(), escape)
    }

    /// For standard error.
    pub(super) fn stderr(escape: bool) -> Self {
        Relay::new(std::io::stderr().is_terminal(), escape)
    }

    /// Writes what can be written of `bytes`.
    pub(super) fn write(&mut self, to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
        if !self.escape {
            to.write_all(bytes)?;
            return to.flush();
        }
        self.held.extend_from_slice(bytes);
        let complete = match std::str::from_utf8(&self.held) {
            Ok(_) => self.held.len(),
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            Err(_) => self.held.len(),
        };
        let rest = self.held.split_off(complete);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
        to.write_all(escape_for_terminal(&text).as_bytes())?;
        to.flush()
    }

    /// Writes what waits for a rest that does not come: the stream has ended.
    pub(super) fn finish(&mut self, to: &mut impl Write) -> std::io::Result<()> {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned();
        to.write_all(escape_for_terminal(&text).as_bytes())?;
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_escape_sequence_of_a_skill_and_characters_stay_whole() {
        let mut out = Vec::new();
        let mut relay = Relay::new(true, false);
        for piece in [&b"a\x1b]0;owned\x07b\r\n\xc3"[..], &b"\xa9 \xff\n"[..]] {
            relay.write(&mut out, piece).unwrap();
        }
        // A stream that ends inside a character loses nothing.
        relay.write(&mut out, b"end\xc3").unwrap();
        relay.finish(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\nend\u{fffd}"), "{text:?}");
        assert!(!text.contains('\x1b') && !text.contains('\x07') && !text.contains('\r'), "{text:?}");
        assert!(text.contains('é'), "{text:?}");
    }

    #[test]
    fn a_pipe_gets_the_bytes_as_they_are() {
        let mut out = Vec::new();
        Relay::new(false, false).write(&mut out, b"\x1b[1m\xff").unwrap();
        assert_eq!(out, b"\x1b[1m\xff");
        // Unless they are asked for escaped.
        let mut out = Vec::new();
        Relay::new(false, true).write(&mut out, b"\x1b[1m").unwrap();
        assert_eq!(out, b"\\x1b[1m");
    }
}
