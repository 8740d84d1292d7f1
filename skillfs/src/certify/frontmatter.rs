//! The lines of a SKILL.md's frontmatter, as far as they can be told without reading YAML: which keys begin where, and what
//! stands plainly behind them. It knows no key's meaning. [`super::skill_md`] asks it.

use super::words::shown;

/// Largest frontmatter, in bytes (`[1.1]`).
const MAX_FRONTMATTER: usize = 64 << 10;

/// One key of the top level.
pub(super) struct Key<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Its line in the file.
    pub(super) line: usize,
    /// What follows its colon in that line.
    pub(super) value: &'a str,
    /// The lines after it, up to the next key, each with its number.
    below: Vec<(usize, &'a str)>,
}

/// The keys, in their order. The error says what no agent could read.
pub(super) fn keys(bytes: &[u8]) -> Result<Vec<Key<'_>>, String> {
    let wrong = |why: &str| Err(why.to_owned());
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return wrong("it is empty; it must begin with '---', keys such as name and description, and '---'");
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = bytes.split(|b| *b == b'\n');
    if !lines.next().is_some_and(is_fence) {
        return wrong("the first line must be '---', alone and with nothing before it");
    }
    let mut head: Vec<&[u8]> = Vec::new();
    let mut size = 0;
    loop {
        let Some(line) = lines.next() else {
            return wrong("the closing line '---' of the frontmatter is missing");
        };
        if is_fence(line) {
            break;
        }
        size += line.len() + 1;
        if size > MAX_FRONTMATTER {
            return wrong("the frontmatter is larger than 64 KiB, or its closing line '---' is missing");
        }
        head.push(line);
    }
    let mut keys: Vec<Key<'_>> = Vec::new();
    for (number, line) in (2..).zip(head) {
        let Ok(line) = std::str::from_utf8(line) else {
            return wrong(&format!("line {number} is not UTF-8; save the file in that encoding"));
        };
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return wrong(&format!("a control character stands in line {number}"));
        }
        let Some((name, value)) = top_level(line) else {
            if let Some(key) = keys.last_mut() {
                key.below.push((number, line));
            }
            continue;
        };
        if keys.iter().any(|known| known.name == name) {
            let name = shown(name.as_bytes(), 64);
            return wrong(&format!("line {number}: the key {name:?} stands there a second time"));
        }
        keys.push(Key { name, line: number, value, below: Vec::new() });
    }
    if keys.is_empty() {
        return wrong("there is no key between the '---' lines; agents need name and description");
    }
    Ok(keys)
}

impl<'a> Key<'a> {
    /// The text of its value, if it stands plainly in its line.
    pub(super) fn text(&self) -> Option<&'a str> {
        plain(self.value)
    }

    /// The texts of its list that stand plainly there, each with its line: of a list in one line, or with one a line.
    pub(super) fn items(&self) -> Vec<(usize, &'a str)> {
        let value = self.value.split(" #").next().unwrap_or_default().trim();
        if let Some(inside) = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) {
            let mut quote = None;
            let between = |c: char| {
                match (quote, c) {
                    (None, '"' | '\'') => quote = Some(c),
                    (Some(open), _) if open == c => quote = None,
                    _ => {}
                }
                quote.is_none() && c == ','
            };
            return inside.split(between).filter_map(|item| Some((self.line, plain(item)?))).collect();
        }
        if !value.is_empty() {
            return Vec::new();
        }
        let item =
            |(line, text): &(usize, &'a str)| Some((*line, plain(text.trim_start().strip_prefix("- ")?)?));
        self.below.iter().filter_map(item).collect()
    }
}

/// `---`, then blanks at most.
fn is_fence(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.strip_prefix(b"---").is_some_and(|rest| rest.iter().all(|b| matches!(b, b' ' | b'\t')))
}

/// The key that begins in column 0 of a line, if it is a plain word, and what follows its colon.
fn top_level(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let word = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    (word && (value.is_empty() || value.starts_with([' ', '\t']))).then_some((key, value))
}

/// The text of a value that stands plainly in its line; anything else is for a reader of YAML.
fn plain(value: &str) -> Option<&str> {
    let value = value.trim();
    let text = match value.chars().next()? {
        quote @ ('"' | '\'') => {
            let (text, rest) = value.strip_prefix(quote)?.split_once(quote)?;
            let rest = rest.trim_start();
            (rest.is_empty() || rest.starts_with('#')).then_some(text)?
        }
        '|' | '>' | '&' | '*' | '!' | '[' | '{' | '#' | '%' | '@' | '`' => return None,
        _ => value.split(" #").next()?.trim_end(),
    };
    (!text.is_empty() && !text.contains('\\')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_seen_where_they_stand_plainly() {
        for (line, want) in [
            ("id: x", Some(("id", " x"))),
            ("allowed_tools:", Some(("allowed_tools", ""))),
            ("a-b.c:\tx", Some(("a-b.c", "\tx"))),
            (" id: x", None),
            ("id:x", None),
            ("- id: x", None),
            ("# id: x", None),
            ("two words: x", None),
            ("\"id\": x", None),
        ] {
            assert_eq!(top_level(line), want, "{line:?}");
        }
        for (value, want) in [
            (" demo", Some("demo")),
            (" 'demo' # x", Some("demo")),
            (" demo # x", Some("demo")),
            (" \"de\\x6do\"", None),
            (" |", None),
            (" 'a' b", None),
            ("", None),
        ] {
            assert_eq!(plain(value), want, "{value:?}");
        }
    }

    #[test]
    fn the_items_of_a_list_are_seen_where_they_stand_plainly() {
        for (text, want) in [
            ("k: [a, 'b', \"c\"] # x", &[(2, "a"), (2, "b"), (2, "c")][..]),
            ("k: []", &[]),
            ("k: # x\n  - a # y\n- 'b'\n  # - c\n", &[(3, "a"), (4, "b")]),
            ("k: ['a,b', *c, d, \"e'\"]", &[(2, "a,b"), (2, "d"), (2, "e'")]),
            ("k: |\n  - a\n", &[]),
            ("k: a", &[]),
        ] {
            let text = format!("---\n{text}\n---\n");
            assert_eq!(keys(text.as_bytes()).unwrap()[0].items(), want, "{text:?}");
        }
    }
}
