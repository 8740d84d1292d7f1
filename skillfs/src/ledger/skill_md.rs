//! Whether a folder is a skill that an agent could use, as far as that can be told without reading YAML: `certify` asks
//! before it signs. A folder that is none would be shown as a skill of its name, with `pass`.
//!
//! It is strict about what no reader of skills takes, and about nothing else: skills for other agents are certified as they
//! are (`[1.8]`). What only `cyberos skill validate` can tell is left to it. No text of the file is quoted but names.

use super::beneath::{self, shown};
use cyberos_proto::folder::may_be_published;
use cyberos_proto::ids::SkillName;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstat, fstatat};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

const NAME: &str = "SKILL.md";
/// Largest SKILL.md, and largest frontmatter, in bytes (`[1.1]`).
const MAX_FILE: u64 = 1 << 20;
const MAX_FRONTMATTER: usize = 64 << 10;
/// What a skill that runs must have (`[1.2]`); `allowed_tools` is what tells it from a skill for other agents.
const REQUIRED: [&str; 5] = ["id", "version", "description", "allowed_memory_scopes", "allowed_tools"];

/// How many names of a folder are looked at, how deep, and how many skills are named.
const MAX_NAMES: usize = 2_000;
const MAX_DEPTH: usize = 3;
const MAX_TOLD: usize = 5;

/// Looks at the SKILL.md in `root`, the folder of the skill `name` at `path`. The error says what is wrong and what to do;
/// the notes what an author should know.
pub fn check(root: BorrowedFd<'_>, name: &SkillName, path: &Path) -> Result<Vec<String>, String> {
    let stat = match fstatat(root, NAME, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::ENOENT) => return Err(no_skill(root, path)),
        Err(e) => return Err(format!("{NAME}: {}", e.desc())),
    };
    match beneath::kind(&stat) {
        SFlag::S_IFREG => {}
        SFlag::S_IFLNK => return Err(format!("{NAME} is a symlink: put the file itself there")),
        _ => return Err(format!("{NAME} is no regular file: put the skill's text there")),
    }
    // What was opened is what is judged: the name may lead to another file by now.
    let read = fstat(root).and_then(|top| Ok((top.st_uid, beneath::open_file(root, NAME)?)));
    let (owner, (file, stat)) = read.map_err(|e| format!("{NAME} cannot be read: {}", e.desc()))?;
    may_be_published(&stat, owner).map_err(|why| format!("{NAME} {why}"))?;
    let bytes = match beneath::read_open(file, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(Errno::EFBIG) => return Err(format!("{NAME} is larger than 1 MiB, which no agent reads")),
        Err(e) => return Err(format!("{NAME} cannot be read: {}", e.desc())),
    };
    judge(&bytes, name)
}

fn judge(bytes: &[u8], name: &SkillName) -> Result<Vec<String>, String> {
    let wrong = |why: &str| Err(format!("{NAME}: {why}"));
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
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for (number, line) in (2..).zip(head) {
        let Ok(line) = std::str::from_utf8(line) else {
            return wrong(&format!("line {number} is not UTF-8; save the file in that encoding"));
        };
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return wrong(&format!("a control character stands in line {number}"));
        }
        let Some((key, value)) = top_level(line) else { continue };
        if keys.iter().any(|(known, _)| *known == key) {
            return wrong(&format!(
                "line {number}: the key {:?} stands there a second time",
                shown(key.as_bytes(), 64)
            ));
        }
        keys.push((key, value));
    }
    if keys.is_empty() {
        return wrong("there is no key between the '---' lines; agents need name and description");
    }
    let value = |wanted: &str| keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
    let ours = value("allowed_tools").is_some();
    if ours && let Some(missing) = REQUIRED.iter().find(|key| value(key).is_none()) {
        return wrong(&format!(
            "it has allowed_tools, so it is meant to run, and it lacks the key {missing}; \
             `cyberos skill validate` lists every fault"
        ));
    }
    let declared = if ours { value("id") } else { value("name") };
    match declared.and_then(plain).filter(|declared| *declared != name.as_str()) {
        Some(other) if ours => wrong(&format!(
            "its id is {:?} and the folder is called {:?}; they must be equal",
            shown(other.as_bytes(), 64),
            shown(name.as_str().as_bytes(), 64)
        )),
        Some(other) => Ok(vec![format!(
            "the skill calls itself {:?}; SkillFS shows it by its folder's name",
            shown(other.as_bytes(), 64)
        )]),
        None => Ok(Vec::new()),
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

/// What to say of a folder without SKILL.md, and which folder was probably meant.
fn no_skill(root: BorrowedFd<'_>, path: &Path) -> String {
    let here = path.display();
    let names = beneath::list(root, MAX_NAMES).unwrap_or_default();
    let twin = names.iter().find(|(name, _)| name.to_bytes().eq_ignore_ascii_case(NAME.as_bytes()));
    if let Some((twin, _)) = twin {
        return format!("{here} has no {NAME}, but {}: call it {NAME}", shown(twin.to_bytes(), 64));
    }
    let mut found = Vec::new();
    skills_below(root, path, MAX_DEPTH, &mut found);
    if !found.is_empty() {
        let more = if found.len() > MAX_TOLD { " and more" } else { "" };
        found.truncate(MAX_TOLD);
        return format!(
            "{here} has no {NAME}: it is no skill but holds skills; certify each by itself: {}{more}",
            found.join(", ")
        );
    }
    let above = path.ancestors().skip(1).take(MAX_DEPTH);
    if let Some(skill) = above.into_iter().find(|dir| dir.join(NAME).symlink_metadata().is_ok()) {
        return format!("{here} has no {NAME}: it lies in the skill {}; certify that", skill.display());
    }
    format!("{here} has no {NAME}, so it is no skill: name the folder that has one")
}

fn skills_below(dir: BorrowedFd<'_>, path: &Path, depth: usize, found: &mut Vec<String>) {
    for (name, _) in beneath::list(dir, MAX_NAMES).unwrap_or_default() {
        if found.len() > MAX_TOLD {
            return;
        }
        let Ok(inner) = beneath::open_dir(dir, name.as_c_str()) else { continue };
        let path = path.join(std::ffi::OsStr::new(&*name.to_string_lossy()));
        if fstatat(&inner, NAME, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
            found.push(path.display().to_string());
        } else if depth > 1 {
            skills_below(inner.as_fd(), &path, depth - 1, found);
        }
    }
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
}
