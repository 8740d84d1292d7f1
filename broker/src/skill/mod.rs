//! SKILL.md: what a skill asks for (`[1.1]`–`[1.8]`). [`parse`] gives a [`Skill`] or every fault there is, each with
//! its line; nothing half-valid leaves this module. It knows nothing of operators, grants or the file system's view:
//! the caller says which directory name to expect and which tools from elsewhere exist.
//!
//! ```text
//! bytes → split (fences, caps) → yaml (node tree with lines) → fields (one rule a key) → Skill | faults
//! ```

pub(crate) mod faults;
mod fields;
mod folder;
mod host;
mod lists;
#[cfg(test)]
mod remark_tests;
mod schema;
mod split;

pub use faults::{Code, Fault, Report};
pub(crate) use folder::open_place;
pub use host::HostPattern;
pub use schema::schema;
pub use split::{MAX_FILE, MAX_FRONTMATTER};

use crate::catalogue::{HERE, NATIVE};
use crate::glob::Pattern;
use crate::yaml;
use nix::errno::Errno;
use nix::sys::stat::SFlag;
use serde_json::Value;
use std::io;
use std::path::Path;

/// One element of a list, with its line in SKILL.md: rules are named as "allowed_memory_scopes line 7".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<T> {
    /// The element.
    pub value: T,
    /// Its line, counted from 1.
    pub line: u32,
}

/// How far what a skill emits may travel (`[1.3]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncClass {
    /// Stays on this machine.
    #[default]
    Private,
    /// May be shared.
    Shareable,
}

impl SyncClass {
    /// The word in SKILL.md and in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            SyncClass::Private => "private",
            SyncClass::Shareable => "shareable",
        }
    }
}

/// Under which tenants a skill runs (`[1.3]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantScope {
    /// Any.
    #[default]
    Any,
    /// The one recorded when it was approved.
    Pinned,
}

impl TenantScope {
    /// The word in SKILL.md.
    pub fn as_str(self) -> &'static str {
        match self {
            TenantScope::Any => "any",
            TenantScope::Pinned => "pinned",
        }
    }
}

/// What a skill asks for. Every field has passed its rule.
#[derive(Clone, Debug)]
pub struct Skill {
    /// `id`: the directory's name.
    pub id: String,
    /// `version`, as written.
    pub version: String,
    /// `description`.
    pub description: String,
    /// `allowed_memory_scopes`.
    pub allowed_memory_scopes: Vec<Item<Pattern>>,
    /// `allowed_tools`.
    pub allowed_tools: Vec<Item<String>>,
    /// `disallowed_tools`: wins over `allowed_tools`.
    pub disallowed_tools: Vec<Item<String>>,
    /// `sync_class`.
    pub sync_class: SyncClass,
    /// `tenant_scope`.
    pub tenant_scope: TenantScope,
    /// `effort_minutes`, 1 to 1440.
    pub effort_minutes: u32,
    /// `tags`.
    pub tags: Vec<String>,
    /// The known `x-` keys.
    pub extensions: Extensions,
}

/// The `x-` keys that mean something here (`[1.4]`).
#[derive(Clone, Debug)]
pub struct Extensions {
    /// `x-allowed-files`: patterns of absolute paths.
    pub allowed_files: Vec<Item<Pattern>>,
    /// `x-allowed-domains`.
    pub allowed_domains: Vec<Item<HostPattern>>,
    /// `x-memory-mb`: asks for RLIMIT_DATA of that size instead of RLIMIT_AS.
    pub memory_mb: Option<u32>,
    /// `x-max-processes`.
    pub max_processes: Option<u32>,
    /// `x-tmp-mb`.
    pub tmp_mb: Option<u32>,
    /// `x-rate-limit-per-minute`: tool calls a minute; none is unbounded.
    pub rate_limit_per_minute: Option<u32>,
    /// `x-entrypoint`: relative path of the executable.
    pub entrypoint: String,
    /// `x-content-sha256`: `sha256:` and 64 hex digits.
    pub content_sha256: Option<String>,
    /// `x-tests`: calls with their expected decision, as written.
    pub tests: Vec<Value>,
}

impl Skill {
    /// Whether the content is what SKILL.md, whose bytes `text` are, declares: `digest` is that of everything beside it.
    pub fn check_content(&self, digest: &str, text: &[u8]) -> Result<(), Fault> {
        match &self.extensions.content_sha256 {
            Some(declared) if declared != digest => Err(content_fault(
                text,
                format!(
                    "is {declared}, but everything beside SKILL.md has {digest}; if that is the content that \
                     is meant, write that (`cyberos skill validate` tells it for a folder)"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// For a site with `require_signatures` (`[1.6]`). No skill passes: signatures cannot be checked yet, so a file that
    /// has one is refused when it is read, and one that has none is refused here.
    pub fn check_required_signature(&self) -> Result<(), Fault> {
        Err(Fault {
            field: "signature".into(),
            code: Code::SignatureFailed,
            message: "require_signatures is set, and this broker cannot check signatures yet: no skill runs"
                .into(),
            line: 1,
        })
    }
}

impl Default for Extensions {
    fn default() -> Self {
        Extensions {
            allowed_files: Vec::new(),
            allowed_domains: Vec::new(),
            memory_mb: None,
            max_processes: None,
            tmp_mb: None,
            rate_limit_per_minute: None,
            entrypoint: "main".into(),
            content_sha256: None,
            tests: Vec::new(),
        }
    }
}

/// Reads a SKILL.md. `expected_id` is the name of its directory; `known` says whether a tool from elsewhere (MCP)
/// exists. Every fault is in the error, in the order of lines.
pub fn parse(
    bytes: &[u8],
    expected_id: Option<&str>,
    known: &dyn Fn(&str) -> bool,
) -> Result<Skill, Vec<Fault>> {
    let (skill, report) = examine(bytes, expected_id, known);
    skill.ok_or(report.errors)
}

/// The same, as the report of `cyberos skill validate` (`[1.7]`): warnings too, and what could be read of a skill
/// that is not valid.
pub fn report(bytes: &[u8], expected_id: Option<&str>, known: &dyn Fn(&str) -> bool) -> Report {
    examine(bytes, expected_id, known).1
}

/// [`report`] of `dir/SKILL.md`, with the directory's name as the expected id, and warnings of what keeps it from
/// running here: tools that this build does not have, an entry point that is none. An error means that there is no
/// such file, or that it cannot be read. A link, a pipe or a device in its place is an error too; it is neither followed
/// nor waited for. A declared digest is compared with what lies there.
pub fn report_dir(dir: &Path, known: &dyn Fn(&str) -> bool) -> io::Result<Report> {
    let folder = folder::Folder::open(dir)?;
    let bytes = folder.text()?;
    let (skill, mut report) = examine(&bytes, folder.name.as_deref(), known);
    if let Some(skill) = skill {
        report.warnings.extend(absent_tools(&skill));
        report.warnings.extend(no_entry_point(&folder, &skill, &bytes));
        report.warnings.sort_by_key(|f| f.line);
        if skill.extensions.content_sha256.is_some() {
            let fault = match folder.content_digest() {
                Ok(digest) => skill.check_content(&digest, &bytes).err(),
                Err(why) => {
                    Some(content_fault(&bytes, format!("cannot be compared with what lies there: {why}")))
                }
            };
            report.errors.extend(fault);
        }
    }
    Ok(report)
}

const CONTENT_KEY: &str = "x-content-sha256";

fn content_fault(text: &[u8], message: String) -> Fault {
    Fault { field: CONTENT_KEY.into(), code: Code::InvalidField, message, line: line_of(text, CONTENT_KEY) }
}

/// The line of a top-level key; the first where it stands nowhere.
fn line_of(text: &[u8], key: &str) -> u32 {
    let begins = |line: &[u8]| line.strip_prefix(key.as_bytes()).is_some_and(|rest| rest.starts_with(b":"));
    let at = text.split(|b| *b == b'\n').position(begins);
    at.and_then(|at| u32::try_from(at + 1).ok()).unwrap_or(1)
}

fn absent_tools(skill: &Skill) -> impl Iterator<Item = Fault> {
    let absent = skill
        .allowed_tools
        .iter()
        .filter(|t| NATIVE.contains(&t.value.as_str()) && !HERE.contains(&t.value.as_str()));
    absent.map(|tool| Fault {
        field: "allowed_tools".into(),
        code: Code::UnknownTool,
        message: format!("{} is valid, but this version does not have it: its calls are refused", tool.value),
        line: tool.line,
    })
}

fn no_entry_point(folder: &folder::Folder, skill: &Skill, text: &[u8]) -> Option<Fault> {
    let path = &skill.extensions.entrypoint;
    let message = match folder.look(path) {
        Err(Errno::ENOENT) => {
            format!("the folder has no {path}: there is nothing to run (x-entrypoint, default main)")
        }
        Err(e) => format!("{path} cannot be looked at: {}", e.desc()),
        Ok(stat) if cyberos_proto::beneath::kind(&stat) != SFlag::S_IFREG => {
            format!("{path} is not a regular file, so it cannot be run")
        }
        Ok(stat) if stat.st_mode & 0o111 == 0 => format!("{path} is not executable: chmod +x it"),
        Ok(_) => return None,
    };
    let line = line_of(text, "x-entrypoint");
    Some(Fault { field: "x-entrypoint".into(), code: Code::InvalidField, message, line })
}

fn examine(bytes: &[u8], expected_id: Option<&str>, known: &dyn Fn(&str) -> bool) -> (Option<Skill>, Report) {
    let text = match split::frontmatter(bytes) {
        Ok(text) => text,
        Err(fault) => return (None, Report { errors: vec![fault], ..Report::default() }),
    };
    match yaml::parse_with_remarks(&text) {
        Ok((node, remarks)) => {
            let (skill, mut report) = fields::read(&node, expected_id, known);
            report.warnings.extend(remarks.into_iter().map(|(field, remark)| Fault {
                field: crate::words::shortened(&field),
                code: Code::YamlParse,
                message: remark.message,
                line: remark.line.saturating_add(fields::OFFSET),
            }));
            report.warnings.sort_by_key(|f| f.line);
            (skill, report)
        }
        Err(problems) => {
            let errors = problems.into_iter().map(|p| Fault {
                field: "frontmatter".into(),
                code: Code::YamlParse,
                message: p.message,
                line: p.line.saturating_add(fields::OFFSET),
            });
            (None, Report { errors: errors.collect(), ..Report::default() })
        }
    }
}

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
