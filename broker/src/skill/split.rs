//! SKILL.md into frontmatter and body (`[1.1]`). It works on bytes and knows no YAML.

use super::faults::{Code, Fault};

/// Largest SKILL.md, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;
/// Largest frontmatter, in bytes, fences not counted.
pub const MAX_FRONTMATTER: usize = 64 * 1024;

/// The text between the fences, with LF line ends; it begins on line 2 of the file.
pub(super) fn frontmatter(bytes: &[u8]) -> Result<String, Fault> {
    if bytes.len() > MAX_FILE {
        return Err(fault(
            Code::YamlParse,
            1,
            format!("SKILL.md has {} bytes; at most {MAX_FILE} are allowed", bytes.len()),
        ));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = bytes.split_inclusive(|&b| b == b'\n');
    let first = lines.next().unwrap_or_default();
    if !is_fence(first) {
        return Err(fault(Code::MissingFrontmatter, 1, no_opening(first)));
    }
    let mut out = Vec::new();
    for (number, line) in (2u32..).zip(lines) {
        if is_fence(line) {
            return finish(out);
        }
        if line.starts_with(b"...") && line[3..].iter().all(u8::is_ascii_whitespace) {
            let message = "'...' does not end the frontmatter; close it with a line '---'";
            return Err(fault(Code::MissingFrontmatter, number, message.into()));
        }
        match line.strip_suffix(b"\r\n") {
            Some(text) => {
                out.extend_from_slice(text);
                out.push(b'\n');
            }
            None => out.extend_from_slice(line),
        }
        if out.len() > MAX_FRONTMATTER {
            let message = format!(
                "the frontmatter has more than {MAX_FRONTMATTER} bytes, or its closing line '---' is missing"
            );
            return Err(fault(Code::YamlParse, number, message));
        }
    }
    Err(fault(Code::MissingFrontmatter, 1, "the closing line '---' is missing".into()))
}

fn finish(out: Vec<u8>) -> Result<String, Fault> {
    let line_of = |end: usize, bytes: &[u8]| {
        let newlines = bytes[..end].iter().filter(|&&b| b == b'\n').count();
        u32::try_from(newlines).unwrap_or(u32::MAX).saturating_add(2)
    };
    if let Some(at) = out.iter().position(|&b| b == b'\r') {
        let message = "a carriage return that ends no line; save the file with LF or CRLF line ends";
        return Err(fault(Code::YamlParse, line_of(at, &out), message.into()));
    }
    String::from_utf8(out).map_err(|e| {
        let line = line_of(e.utf8_error().valid_up_to(), e.as_bytes());
        fault(Code::YamlParse, line, "not UTF-8; save the file in that encoding".into())
    })
}

/// `---`, then blanks at most, then the line's end.
fn is_fence(line: &[u8]) -> bool {
    line.strip_prefix(b"---").is_some_and(|rest| {
        let rest = rest.strip_suffix(b"\n").unwrap_or(rest);
        let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
        rest.iter().all(|&b| b == b' ' || b == b'\t')
    })
}

fn no_opening(first: &[u8]) -> String {
    let found = if first.iter().all(u8::is_ascii_whitespace) {
        "is blank".to_owned()
    } else if first.starts_with(b"---\r") {
        "ends in a bare carriage return; save the file with LF or CRLF line ends".to_owned()
    } else if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
        "is UTF-16; save the file as UTF-8".to_owned()
    } else {
        format!("is {:?}", crate::words::shortened(String::from_utf8_lossy(first).trim_end()))
    };
    format!("the first line must be '---', alone and with nothing before it; it {found}")
}

fn fault(code: Code, line: u32, message: String) -> Fault {
    Fault { field: "frontmatter".into(), code, message, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_131_boms_line_ends_and_blanks_change_nothing() {
        for text in [
            "---\nid: a\n---\nbody",
            "\u{feff}---\nid: a\n---\n",
            "---\r\nid: a\r\n---\r\nbody\r\n",
            "--- \t\nid: a\n---  ",
            "---\nid: a\n---\nbody\n---\nmore\n",
        ] {
            assert_eq!(frontmatter(text.as_bytes()).unwrap(), "id: a\n", "{text:?}");
        }
    }

    #[test]
    fn case_131_anything_else_is_refused_with_its_line_and_never_taken_for_no_rules() {
        let long = format!("---\n{}\n---\n", "#".repeat(MAX_FRONTMATTER + 1));
        let huge = "x".repeat(MAX_FILE + 1);
        for (text, code, line) in [
            ("", Code::MissingFrontmatter, 1),
            ("\n---\nid: a\n---\n", Code::MissingFrontmatter, 1),
            ("<!-- x -->\n---\nid: a\n---\n", Code::MissingFrontmatter, 1),
            (" ---\nid: a\n---\n", Code::MissingFrontmatter, 1),
            ("---- \nid: a\n---\n", Code::MissingFrontmatter, 1),
            ("--- # x\nid: a\n---\n", Code::MissingFrontmatter, 1),
            ("---\rid: a\r---\r", Code::MissingFrontmatter, 1),
            ("---\nid: a\n", Code::MissingFrontmatter, 1),
            ("---\nid: a\n ---\n", Code::MissingFrontmatter, 1),
            ("---\nid: a\n...\n---\n", Code::MissingFrontmatter, 3),
            ("---\nid: a\nb: x\ry: z\n---\n", Code::YamlParse, 3),
            ("\u{feff}\u{feff}---\nid: a\n---\n", Code::MissingFrontmatter, 1),
            (&long, Code::YamlParse, 2),
            (&huge, Code::YamlParse, 1),
        ] {
            let fault = frontmatter(text.as_bytes()).unwrap_err();
            assert_eq!((fault.code, fault.line), (code, line), "{:?}", shortened(text));
        }
        let latin = frontmatter(b"---\nid: a\ndescription: caf\xe9\n---\n").unwrap_err();
        assert_eq!((latin.code, latin.line), (Code::YamlParse, 3));
    }

    use crate::words::shortened;
}
