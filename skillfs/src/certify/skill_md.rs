//! Whether a folder is a skill that an agent could use, as far as that can be told without reading YAML: `certify` asks
//! before it signs. A folder that is none would be shown as a skill of its name, with `pass`.
//!
//! It is strict about what no reader of skills takes, and about nothing else: skills for other agents are certified as they
//! are (`[1.8]`). Of a skill that is meant to run it says what stands plainly there and keeps it from running; the rest of
//! that only `cyberos skill validate` can tell. No text of the file is quoted but names and single words.

use super::frontmatter::{self, Key};
use super::words::{quoted, shown};
use crate::beneath;
use cyberos_proto::folder::may_be_published;
use cyberos_proto::ids::SkillName;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstat, fstatat};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

const NAME: &str = "SKILL.md";
/// Largest SKILL.md, in bytes (`[1.1]`).
const MAX_FILE: u64 = 1 << 20;
/// How many names of a folder are looked at, how deep, and how many skills or faults are named.
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
    match cyberos_proto::beneath::kind(&stat) {
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
    judge(&bytes, name, path)
}

/// Every key that a skill may have (`[1.2]`–`[1.4]`); others are its author's own if they begin with `x-`. The first ones it
/// must have; `allowed_tools` is what tells it from a skill for other agents.
const KEYS: [&str; 22] = [
    "id",
    "version",
    "description",
    "allowed_memory_scopes",
    "allowed_tools",
    "signature",
    "min_broker_version",
    "max_broker_version",
    "disallowed_tools",
    "sync_class",
    "tenant_scope",
    "effort_minutes",
    "tags",
    "x-allowed-files",
    "x-allowed-domains",
    "x-memory-mb",
    "x-max-processes",
    "x-tmp-mb",
    "x-rate-limit-per-minute",
    "x-entrypoint",
    "x-content-sha256",
    "x-tests",
];
const REQUIRED: usize = 5;
/// The tools that there are (`[1.5]`).
const TOOLS: [&str; 11] = [
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "HttpFetch",
    "HttpPost",
    "MemoryEmit",
    "MemoryRead",
    "MemorySearch",
    "Read",
    "Write",
];

fn judge(bytes: &[u8], name: &SkillName, path: &Path) -> Result<Vec<String>, String> {
    let wrong = |why: String| format!("{NAME}: {why}");
    let keys = frontmatter::keys(bytes).map_err(wrong)?;
    let key = |wanted: &str| keys.iter().find(|key| key.name == wanted);
    let ours = key("allowed_tools").is_some();
    if ours && let Some(missing) = KEYS[..REQUIRED].iter().find(|wanted| key(wanted).is_none()) {
        return Err(wrong(format!(
            "it has allowed_tools, so it is meant to run, and it lacks the key {missing}; {}",
            validate(path)
        )));
    }
    let declared = if ours { key("id") } else { key("name") };
    match declared.and_then(Key::text).filter(|declared| *declared != name.as_str()) {
        Some(other) if ours => Err(wrong(format!(
            "its id is {:?} and the folder is called {:?}; they must be equal",
            shown(other.as_bytes(), 64),
            shown(name.as_str().as_bytes(), 64)
        ))),
        Some(other) => Ok(vec![format!(
            "the skill calls itself {:?}; SkillFS shows it by its folder's name",
            shown(other.as_bytes(), 64)
        )]),
        None if ours => Ok(will_not_run(&keys, path).into_iter().collect()),
        None => Ok(Vec::new()),
    }
}

/// Which command tells all that is wrong.
fn validate(path: &Path) -> String {
    format!("`cyberos skill validate {}` lists every fault", quoted(&path.to_string_lossy()))
}

/// What the broker would refuse of a skill that is meant to run. The content is certified all the same: that it is what
/// somebody looked at says nothing of whether it runs.
fn will_not_run(keys: &[Key<'_>], path: &Path) -> Option<String> {
    let mut faults: Vec<(usize, String)> = Vec::new();
    for key in keys {
        let short = |text: &str| format!("{:?}", shown(text.as_bytes(), 64));
        if !KEYS.contains(&key.name) && !key.name.starts_with("x-") {
            faults.push((key.line, format!("there is no key {}", short(key.name))));
        }
        let unless = |good: bool, what: &str| {
            let text = key.text().filter(|_| !good)?;
            Some((key.line, format!("{} must be {what}, not {}", key.name, short(text))))
        };
        let is = |words: &[&str]| key.text().is_none_or(|text| words.contains(&text));
        faults.extend(match key.name {
            "signature" => Some((key.line, "signatures cannot be checked yet".to_owned())),
            "sync_class" => unless(is(&["private", "shareable"]), "private or shareable"),
            "tenant_scope" => unless(is(&["any", "pinned"]), "any or pinned"),
            "effort_minutes" | "x-memory-mb" | "x-max-processes" | "x-tmp-mb" | "x-rate-limit-per-minute" => {
                let whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.parse() != Ok(0u64);
                unless(key.text().is_none_or(whole), "a whole number from 1")
            }
            _ => None,
        });
        faults.extend(key.items().into_iter().filter_map(|(line, item)| match key.name {
            "allowed_tools" | "disallowed_tools" if !TOOLS.contains(&item) => {
                Some((line, format!("no tool is called {}", short(item))))
            }
            "x-allowed-files" if !item.starts_with('/') => {
                Some((line, format!("{} is no absolute path", short(item))))
            }
            _ => None,
        }));
    }
    let more = faults.len().saturating_sub(MAX_TOLD);
    let told: Vec<String> =
        faults.into_iter().take(MAX_TOLD).map(|(line, what)| format!("line {line}: {what}")).collect();
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!told.is_empty()).then(|| {
        format!("it is certified, but it will not run: {NAME}: {}{more}; {}", told.join(", "), validate(path))
    })
}

/// The id that a skill which is meant to run gives itself, where it can be told. For people; nothing is decided by it.
pub fn declared_id(root: BorrowedFd<'_>) -> Option<String> {
    let (file, _) = beneath::open_file(root, NAME).ok()?;
    let bytes = beneath::read_open(file, MAX_FILE).ok()?;
    let keys = frontmatter::keys(&bytes).ok()?;
    keys.iter().find(|key| key.name == "allowed_tools")?;
    keys.iter().find(|key| key.name == "id")?.text().map(str::to_owned)
}

/// What to say of a folder without SKILL.md, and which folder was probably meant.
fn no_skill(root: BorrowedFd<'_>, path: &Path) -> String {
    let here = path.display();
    let names = beneath::list_in_order(root, MAX_NAMES).unwrap_or_default();
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
    for (name, _) in beneath::list_in_order(dir, MAX_NAMES).unwrap_or_default() {
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
