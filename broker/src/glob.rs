//! One glob pattern of a rule, compiled once, with the semantics of `[4.2]`: literal separators (`*`, `?` and
//! character classes stay within a component, `**` crosses), case-sensitive, bytes compared as they are. It knows
//! neither who wrote the pattern nor what it is matched against. Skills, configuration and grants share it, so that a
//! pattern means the same at load and at call.

use crate::terminal::turns_direction;
use globset::{GlobBuilder, GlobMatcher};
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest pattern, in bytes (`[4.2]`).
pub const MAX_PATTERN: usize = 1024;
/// Most patterns in one list (`[4.2]`).
pub const MAX_PATTERNS: usize = 256;

/// Why a text is not a pattern. The sentence says what to write instead where that is clear.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Nothing at all.
    #[error("an empty pattern matches nothing; remove it")]
    Empty,
    /// More than [`MAX_PATTERN`] bytes.
    #[error("the pattern has {0} bytes; at most {MAX_PATTERN} are allowed")]
    TooLong(usize),
    /// A control character or direction mark: no file that a rule should name has one, terminals act on them, and the
    /// operator who reads the rule must see what it says.
    #[error("the pattern holds a control character or direction mark ({0})")]
    Control(String),
    /// Non-ASCII in `[…]`: names are compared as bytes, so such a class would match single bytes of a character.
    #[error(
        "character classes may hold ASCII characters only ({0:?} has more than one byte); write {{a,b}} \
         instead"
    )]
    WideClass(char),
    /// `**` that touches a brace in the middle of a component: `work{**/x}` would also match `work-other/x`.
    #[error("'**' inside braces must stand alone between slashes, as in /srv/{{a/**,b}}")]
    StrayRecursion,
    /// globset's own word on it.
    #[error("{0}")]
    Syntax(String),
}

/// A compiled pattern.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

impl Pattern {
    /// Compiles `text`.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        if text.is_empty() {
            return Err(BadPattern::Empty);
        }
        if text.len() > MAX_PATTERN {
            return Err(BadPattern::TooLong(text.len()));
        }
        if let Some(c) = text.chars().find(|c| c.is_control() || turns_direction(*c)) {
            return Err(BadPattern::Control(c.escape_unicode().to_string()));
        }
        check_shape(text)?;
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .case_insensitive(false)
            .build()
            .map_err(|e| BadPattern::Syntax(e.kind().to_string()))?;
        Ok(Pattern { text: text.to_owned(), matcher: glob.compile_matcher() })
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether `path` matches, byte for byte.
    pub fn matches(&self, path: impl AsRef<Path>) -> bool {
        self.matcher.is_match(path)
    }

    /// Whether it names exactly one path: no glob character, no escape.
    pub fn is_literal(&self) -> bool {
        !self.text.contains(META)
    }

    /// The literal root of an absolute pattern: its longest directory part without glob characters; a literal's
    /// parent (`[4.4]`).
    pub fn root(&self) -> PathBuf {
        let literal = &self.text[..self.text.find(META).unwrap_or(self.text.len())];
        match literal.rfind('/') {
            Some(0) => PathBuf::from("/"),
            Some(end) => PathBuf::from(&literal[..end]),
            None => PathBuf::new(),
        }
    }
}

/// What ends the literal part of a pattern. An escape ends it too: a shorter root is never wrong.
const META: &[char] = &['*', '?', '[', '{', '\\'];

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

/// What matches exactly `path` and nothing else, as a pattern: for the line that a denial proposes.
pub fn escaped(path: &str) -> String {
    path.chars().fold(String::with_capacity(path.len()), |mut out, c| {
        if matches!(c, '*' | '?' | '[' | '{' | '}' | '\\') {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

/// Refuses the two shapes that globset accepts with a meaning no reader expects.
fn check_shape(text: &str) -> Result<(), BadPattern> {
    let chars: Vec<char> = text.chars().collect();
    let tokens = tokens(&chars)?;
    for &(at, token) in &tokens {
        if token != Token::Recursion {
            continue;
        }
        let left = at.checked_sub(1).map(|i| chars[i]);
        let right = chars.get(at + 2).copied();
        let touches = |c: Option<char>| matches!(c, Some('{' | ',' | '}'));
        let inside = depth_at(&tokens, at) > 0;
        if (touches(left) || touches(right)) && inside {
            let left_ok = left == Some('/') || (touches(left) && opens_component(&tokens, &chars, at));
            let right_ok = right == Some('/') || (touches(right) && closes_component(&tokens, &chars, at));
            if !(left_ok && right_ok) {
                return Err(BadPattern::StrayRecursion);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Recursion,
    Open,
    Close,
}

/// Braces and `**` outside of classes and escapes, with their places.
fn tokens(chars: &[char]) -> Result<Vec<(usize, Token)>, BadPattern> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 1,
            '[' => {
                let mut end = i + 1;
                if matches!(chars.get(end), Some('!' | '^')) {
                    end += 1;
                }
                if chars.get(end) == Some(&']') {
                    end += 1;
                }
                while end < chars.len() && chars[end] != ']' {
                    // `[:alpha:]` inside a class closes with its own bracket.
                    if chars[end] == '['
                        && chars.get(end + 1) == Some(&':')
                        && let Some(close) = posix_end(chars, end + 2)
                    {
                        end = close;
                    }
                    end += 1;
                }
                let end = end.min(chars.len());
                if let Some(&c) = chars[i..end].iter().find(|c| !c.is_ascii()) {
                    return Err(BadPattern::WideClass(c));
                }
                i = end;
            }
            '{' => out.push((i, Token::Open)),
            '}' => out.push((i, Token::Close)),
            '*' if chars.get(i + 1) == Some(&'*') => {
                out.push((i, Token::Recursion));
                i += 1;
            }
            _ => {}
        }
        i += 1;
    }
    Ok(out)
}

/// Where the `]` of a named class is whose name begins at `from`.
fn posix_end(chars: &[char], from: usize) -> Option<usize> {
    let len = chars[from..].iter().take_while(|c| c.is_ascii_lowercase()).count();
    (chars.get(from + len) == Some(&':') && chars.get(from + len + 1) == Some(&']')).then_some(from + len + 1)
}

fn depth_at(tokens: &[(usize, Token)], at: usize) -> usize {
    tokens.iter().take_while(|t| t.0 < at).fold(0, |d, t| match t.1 {
        Token::Open => d + 1,
        Token::Close => usize::saturating_sub(d, 1),
        Token::Recursion => d,
    })
}

/// Whether the alternative at `at` begins where a component begins: every brace around it, too.
fn opens_component(tokens: &[(usize, Token)], chars: &[char], at: usize) -> bool {
    let mut depth = 0usize;
    for &(i, token) in tokens.iter().rev().filter(|t| t.0 < at) {
        match token {
            Token::Close => depth += 1,
            Token::Open if depth > 0 => depth -= 1,
            Token::Open => match i.checked_sub(1).map(|i| chars[i]) {
                None | Some('/') => return true,
                Some('{' | ',') => {}
                Some(_) => return false,
            },
            Token::Recursion => {}
        }
    }
    true
}

/// Whether the alternative at `at` ends where a component ends.
fn closes_component(tokens: &[(usize, Token)], chars: &[char], at: usize) -> bool {
    let mut depth = 0usize;
    for &(i, token) in tokens.iter().filter(|t| t.0 > at) {
        match token {
            Token::Open => depth += 1,
            Token::Close if depth > 0 => depth -= 1,
            Token::Close => match chars.get(i + 1) {
                None | Some('/') => return true,
                Some('}' | ',') => {}
                Some(_) => return false,
            },
            Token::Recursion => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_vector_of_the_glob_rule_holds() {
        let text = include_str!("../tests/vectors/globs.json");
        let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let pattern = Pattern::new(case["glob"].as_str().unwrap());
            if case["compile_error"].as_bool() == Some(true) {
                assert!(pattern.is_err(), "{case}");
            } else {
                assert_eq!(
                    pattern.unwrap().matches(case["path"].as_str().unwrap()),
                    case["match"].as_bool().unwrap(),
                    "{case}"
                );
            }
        }
    }

    #[test]
    fn no_class_matches_a_separator() {
        for class in [
            "[!y]",
            "[^y]",
            "[/]",
            "[+-9]",
            "[.-0]",
            "[!a-z]",
            "[[:punct:]]",
            "[![:alpha:]]",
            "[]/]",
            "[--0]",
        ] {
            let p = Pattern::new(&format!("/srv/c{class}d")).unwrap();
            assert!(!p.matches("/srv/c/d"), "{class}");
        }
        assert!(Pattern::new("/srv/c[+-9]d").unwrap().matches("/srv/c5d"));
    }

    #[test]
    fn case_098_a_pattern_that_cannot_be_meant_is_refused() {
        let long = "x".repeat(MAX_PATTERN + 1);
        for bad in [
            "[a",
            "a\\",
            "{a,b",
            "}",
            "",
            "/srv/[é]",
            "/srv/[a-é]",
            "a\0b",
            "/srv/work{**/x}",
            "/srv/{a,b/**}c",
            &long,
        ] {
            assert!(Pattern::new(bad).is_err(), "{bad:?}");
        }
        for good in
            ["**.md", "a**b", "{a,{b,c}}", "[!a-z]", "/", "**", "/srv/{a/**,b}", "/srv/{**/x,y}", "/x/[{]**"]
        {
            assert!(Pattern::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn roots_end_before_the_first_glob_character() {
        for (pattern, root) in [
            ("/srv/work/**", "/srv/work"),
            ("/srv/work/a.txt", "/srv/work"),
            ("/srv/wo*", "/srv"),
            ("/srv/{a,b}/**", "/srv"),
            ("/**", "/"),
            ("/a", "/"),
            ("/srv/a\\*b/x", "/srv"),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().root(), Path::new(root), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn compiling_never_panics(text in "\\PC{0,40}|[\\[\\]{}*?,!/^a\\\\:-]{0,24}") {
            let _ = Pattern::new(&text);
        }

        /// Whatever stands in a pattern without `**`, a match has as many components as the pattern.
        #[test]
        fn only_recursion_crosses_a_separator(
            pattern in proptest::collection::vec("[a-c*?]{1,3}|\\[[!]?[ac/+-]{1,3}\\]", 1..4),
            path in "[a-c/+.]{1,10}",
        ) {
            let text = pattern.join("/");
            prop_assume!(!text.contains("**"));
            if let Ok(p) = Pattern::new(&text) {
                let parts = pattern.len();
                prop_assert!(!p.matches(&path) || path.split('/').count() == parts, "{} {}", text, path);
            }
        }

        #[test]
        fn an_escaped_path_matches_itself_alone(path in "[a-z*?{}\\[\\]!\\\\/,]{1,12}", other in "[a-z*?{}\\[\\]!\\\\/,]{1,12}") {
            let p = Pattern::new(&escaped(&path)).unwrap();
            prop_assert!(p.matches(&path));
            prop_assert!(path == other || !p.matches(&other));
        }
    }
}
