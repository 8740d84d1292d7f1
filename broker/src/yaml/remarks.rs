//! What YAML makes of a text that its author surely did not mean, though it is valid: values that are cut, or that hold
//! what nobody sees. It knows the text around a scalar and no field's rule; each remark is a warning with line and cure.

use crate::terminal::is_unseen;
use crate::words::shortened;

/// Why a text is not accepted, or what its author surely did not mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// Keys whose value is a sentence. A comment after one is hardly ever meant.
const SENTENCES: [&str; 2] = ["description", "tags"];

/// A scalar, as it stands in the text.
pub(super) struct Scalar<'a> {
    /// The top-level key that it belongs to, or is.
    pub(super) key: &'a str,
    /// Its line.
    pub(super) line: u32,
    /// Its value.
    pub(super) value: &'a str,
    /// Whether it has no quotes and is no block.
    pub(super) plain: bool,
    /// Whether it stands in double quotes, where a backslash means something.
    pub(super) escapes: bool,
    /// What follows it in its last line.
    pub(super) rest: &'a str,
}

/// What there is to say of it.
pub(super) fn of(scalar: &Scalar<'_>) -> Option<Problem> {
    let message =
        cut(scalar).or_else(|| unseen(scalar)).or_else(|| quotes(scalar)).or_else(|| escaped(scalar))?;
    Some(Problem { line: scalar.line, message })
}

/// ` #` begins a comment: the text ends before it.
fn cut(scalar: &Scalar<'_>) -> Option<String> {
    let comment = scalar.rest.trim_start();
    if !scalar.plain || !comment.starts_with('#') || scalar.rest.starts_with('#') || scalar.value.is_empty() {
        return None;
    }
    // In a rule a comment is ordinary; `#12` is hardly one.
    let tight = comment.chars().nth(1).is_some_and(|c| !c.is_whitespace() && c != '#');
    (tight || SENTENCES.contains(&scalar.key)).then(|| {
        format!(
            "' #' begins a comment, so the text ends before it and {:?} is not part of it; \
             put the whole text in quotes, or the comment in a line of its own",
            shortened(comment.trim_end())
        )
    })
}

/// Characters that look like a blank, or like nothing.
fn unseen(scalar: &Scalar<'_>) -> Option<String> {
    let sentence = SENTENCES.contains(&scalar.key);
    let strange = |c: char| match c {
        '\u{a0}' | '\u{2007}' | '\u{202f}' => !sentence,
        '\u{ad}' => true,
        // Between letters and in emoji they have a meaning.
        '\u{200c}' | '\u{200d}' => !sentence,
        c => is_unseen(c),
    };
    let c = scalar.value.chars().find(|&c| strange(c))?;
    Some(format!(
        "{:?} holds a character that nobody sees ({}); type it anew",
        shortened(scalar.value),
        c.escape_unicode()
    ))
}

/// Typographic quotes are letters to YAML.
fn quotes(scalar: &Scalar<'_>) -> Option<String> {
    let first =
        scalar.value.chars().next().filter(|c| matches!(c, '“' | '”' | '„' | '‘' | '’' | '‚' | '«' | '»'))?;
    let last = scalar.value.chars().next_back().filter(|c| matches!(c, '“' | '”' | '‘' | '’' | '«' | '»'));
    (scalar.plain && last.is_some() && scalar.value.chars().count() > 1)
        .then(|| format!("{first} is no quote to YAML but part of the text; write \" or ' around it"))
}

/// In double quotes `\n` and `\t` are a line end and a tab, as in "C:\new".
fn escaped(scalar: &Scalar<'_>) -> Option<String> {
    let c = scalar.value.chars().find(|c| matches!(c, '\n' | '\t')).filter(|_| scalar.escapes)?;
    let (written, is) = if c == '\n' { ("\\n", "line end") } else { ("\\t", "tab") };
    Some(format!("{written} in double quotes is a {is}; if a backslash is meant, use single quotes"))
}
