//! YAML text as a tree of nodes that know their lines. It accepts the plain part of YAML 1.2 alone: no anchors,
//! aliases, merge keys, tags, directives, duplicate keys or second documents (`[1.1]`). It knows no field; the
//! frontmatter and the configuration read their fields from what it returns.
//!
//! It reads the parser's events rather than deserialising: serde's view of a document has no tags, and stops at the
//! first fault.

mod remarks;

pub(crate) use remarks::Problem;

use crate::words::shortened;
use serde_yaml::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput};

/// Deepest nesting of lists and mappings (`[1.1]`).
pub(crate) const MAX_DEPTH: usize = 32;

/// A value with the line on which it begins, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) kind: Kind,
}

/// What a node is. Plain scalars are typed by the YAML 1.2 core schema: `no` and `on` are text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    /// As written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping with its value. Keys are text and unique.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: u32,
    pub(crate) value: Node,
}

/// What an author surely did not mean, and the top-level key that it is about.
pub(crate) type Remark = (String, Problem);

impl Node {
    /// What it is, in words for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".into(),
            Kind::Bool(b) => format!("the truth value {b}"),
            Kind::Number(n) => format!("the number {n}"),
            Kind::Text(t) => format!("the text {:?}", shortened(t)),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a mapping".into(),
        }
    }

    /// The value as JSON: numbers as JSON reads them, or as text where it cannot.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value;
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(b) => Value::Bool(*b),
            Kind::Number(n) => serde_json::from_str(n).unwrap_or_else(|_| Value::String(n.clone())),
            Kind::Text(t) => Value::String(t.clone()),
            Kind::List(items) => items.iter().map(Node::to_json).collect(),
            Kind::Map(entries) => {
                Value::Object(entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect())
            }
        }
    }

    /// A whole number written in plain decimal digits.
    pub(crate) fn as_whole(&self) -> Option<u64> {
        match &self.kind {
            Kind::Number(n)
                if n.bytes().all(|b| b.is_ascii_digit()) && (n.len() == 1 || !n.starts_with('0')) =>
            {
                n.parse().ok()
            }
            _ => None,
        }
    }
}

/// Parses `text` into one node; an empty document is [`Kind::Null`]. All of what this format forbids is listed; a
/// syntax error ends the reading.
pub(crate) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    parse_with_remarks(text).map(|(node, _)| node)
}

/// The same, with what its author surely did not mean ([`remarks`]), each with the top-level key it is about.
pub(crate) fn parse_with_remarks(text: &str) -> Result<(Node, Vec<Remark>), Vec<Problem>> {
    check_characters(text)?;
    let mut options = Options::default();
    options.disallow_directives = true;
    options.emit_unresolved_aliases = true;
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_DEPTH + 1;
    options.block_nesting_limit = MAX_DEPTH + 1;
    let mut builder = Builder {
        parser: Parser::new_from_str_with_options(text, options),
        problems: Vec::new(),
        remarks: Vec::new(),
        at: 1,
        text,
        end: None,
        key: String::new(),
    };
    let root = builder.document().ok();
    match root {
        Some(node) if builder.problems.is_empty() => Ok((node, builder.remarks)),
        _ => {
            builder.problems.sort_by_key(|p| p.line);
            Err(builder.problems)
        }
    }
}

/// Control characters are no YAML, and to the parser a NUL is the end: what follows it would be dropped in silence.
fn check_characters(text: &str) -> Result<(), Vec<Problem>> {
    let problems: Vec<Problem> = (1u32..)
        .zip(text.split('\n'))
        .filter_map(|(line, text)| {
            let text = text.strip_suffix('\r').unwrap_or(text);
            let c = text.chars().find(|&c| c.is_control() && c != '\t')?;
            Some(Problem {
                line,
                message: format!("a control character ({}) stands in the text", c.escape_unicode()),
            })
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Reading cannot go on; the reason is in the list.
struct Stop;

struct Builder<'t> {
    parser: Parser<'t, StrInput<'t>>,
    problems: Vec<Problem>,
    remarks: Vec<Remark>,
    /// Line of the last event, for faults without a place.
    at: u32,
    /// What is parsed.
    text: &'t str,
    /// Where the last event ends in it.
    end: Option<usize>,
    /// The top-level key whose value is being read.
    key: String,
}

impl<'t> Builder<'t> {
    fn next(&mut self) -> Result<(Event<'t>, u32), Stop> {
        match self.parser.next() {
            Some(Ok((event, span))) => {
                self.at = line_of(&span);
                self.end = span.end.byte_offset();
                Ok((event, self.at))
            }
            Some(Err(e)) => Err(self.stop(line_at(e.marker().line()), syntax_message(&e))),
            None => Err(self.stop(self.at, "the text ends in the middle of a value".into())),
        }
    }

    fn stop(&mut self, line: u32, message: String) -> Stop {
        self.problem(line, message);
        Stop
    }

    fn problem(&mut self, line: u32, message: String) {
        self.problems.push(Problem { line, message });
    }

    fn document(&mut self) -> Result<Node, Stop> {
        let mut root = None;
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(self.stop(line, "a second document begins here; only one is allowed".into()));
                }
                Event::DocumentStart(..) => {
                    let first = self.next()?;
                    root = Some(self.node(first, 0)?);
                }
                Event::StreamEnd => return Ok(root.unwrap_or(Node { line: 1, kind: Kind::Null })),
                _ => return Err(self.stop(line, "a value where none is expected".into())),
            }
        }
    }

    fn node(&mut self, (event, line): (Event<'t>, u32), depth: usize) -> Result<Node, Stop> {
        if depth > MAX_DEPTH {
            return Err(self.stop(line, format!("nested more than {MAX_DEPTH} deep")));
        }
        let kind = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_properties(line, anchor, tag.is_some());
                self.remark(line, &text, style);
                if style == ScalarStyle::Plain { plain(&text) } else { Kind::Text(text.into_owned()) }
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_properties(line, anchor, tag.is_some());
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Kind::List(items),
                        other => items.push(self.node(other, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_properties(line, anchor, tag.is_some());
                self.mapping(depth)?
            }
            Event::Alias(_) => {
                self.problem(line, ALIAS.into());
                Kind::Null
            }
            Event::UnresolvedAlias(name) => {
                self.problem(
                    line,
                    format!("{ALIAS} (a pattern that begins with '*' needs quotes: \"*{name}\")"),
                );
                Kind::Null
            }
            _ => return Err(self.stop(line, "a value is missing".into())),
        };
        Ok(Node { line, kind })
    }

    fn mapping(&mut self, depth: usize) -> Result<Kind, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut lines = std::collections::HashMap::new();
        loop {
            let first = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Kind::Map(entries)),
                first => first,
            };
            if depth == 0 {
                self.key.clear();
            }
            let key = self.node(first, depth + 1)?;
            if let (0, Kind::Text(name)) = (depth, &key.kind) {
                self.key.clone_from(name);
            }
            let value = self.next()?;
            let value = self.node(value, depth + 1)?;
            let line = key.line;
            let Kind::Text(name) = key.kind else {
                self.problem(line, format!("a key must be text, not {}; put it in quotes", key.describe()));
                continue;
            };
            if name == "<<" {
                self.problem(line, "merge keys ('<<') are not allowed; write the keys out".into());
            } else if let Some(first) = lines.insert(name.clone(), line) {
                self.problem(
                    line,
                    format!(
                        "the key {name:?} stands here a second time ({} lines after the first)",
                        line - first
                    ),
                );
            } else {
                entries.push(Entry { key: name, line, value });
            }
        }
    }

    fn remark(&mut self, line: u32, value: &str, style: ScalarStyle) {
        let end = self.end.unwrap_or(self.text.len());
        let before = self.text.get(..end).unwrap_or_default().trim_end_matches([' ', '\t']);
        let rest = self.text.get(before.len()..).unwrap_or_default();
        let scalar = remarks::Scalar {
            key: &self.key,
            line,
            value,
            plain: style == ScalarStyle::Plain,
            escapes: style == ScalarStyle::DoubleQuoted,
            rest: rest.split('\n').next().unwrap_or_default(),
        };
        self.remarks.extend(remarks::of(&scalar).map(|found| (self.key.clone(), found)));
    }

    fn check_properties(&mut self, line: u32, anchor: usize, tagged: bool) {
        if anchor != 0 {
            self.problem(line, "anchors ('&name') are not allowed; write the value out".into());
        }
        if tagged {
            self.problem(
                line,
                "tags ('!name') are not allowed; put text that begins with '!' in quotes".into(),
            );
        }
    }
}

const ALIAS: &str = "aliases ('*name') are not allowed; write the value out";

fn line_at(line: usize) -> u32 {
    u32::try_from(line.max(1)).unwrap_or(u32::MAX)
}

fn line_of(span: &Span) -> u32 {
    line_at(span.start.line())
}

/// The parser's words, with the two hints that authors need most.
fn syntax_message(e: &ScanError) -> String {
    let words = e.info();
    let hint = if words.contains("mapping values are not allowed") {
        "; a text that holds ': ' must be put in quotes"
    } else if words.contains("tab") {
        "; indent with spaces, not with tabs"
    } else {
        ""
    };
    format!("not YAML: {words} (column {}){hint}", e.marker().col() + 1)
}

/// The YAML 1.2 core schema for a scalar without quotes.
fn plain(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ if is_number(text) => Kind::Number(text.to_owned()),
        _ => Kind::Text(text.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    if let Some(hex) = text.strip_prefix("0x") {
        return !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return !octal.is_empty() && octal.bytes().all(|b| matches!(b, b'0'..=b'7'));
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((m, e)) => (m, Some(e.strip_prefix(['+', '-']).unwrap_or(e))),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|e| !e.is_empty() && digits(e))
}

#[cfg(test)]
mod tests;
