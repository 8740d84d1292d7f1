//! Reads a scanner's report (SARIF 2.1.0) and sums it up as what a manifest records: how many findings of which weight, and
//! the status that follows (`[9.10]`). It knows no skills and runs no scanner; `certify --findings` calls it.
//!
//! A report that does not say clearly that nothing was found is no clean bill: what cannot be understood is an error.

use super::words::shown;
use crate::beneath::{errno, read_open};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest report.
pub const MAX_REPORT: u64 = 64 << 20;
const MAX_EXAMPLES: usize = 5;

/// What a certified version was found to be, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing that counts.
    Pass,
    /// Warnings.
    Warn,
    /// At least one finding of level error.
    Deny,
}

impl Outcome {
    /// The protocol's word.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "pass",
            Outcome::Warn => "warn",
            Outcome::Deny => "deny",
        }
    }
}

/// The summary that is signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// Results of level error.
    pub errors: u32,
    /// Results of level warning.
    pub warnings: u32,
    /// Results of level note.
    pub notes: u32,
    /// The scanners, with their versions where told.
    pub tools: Vec<String>,
    /// The first few results, gravest first: rule, place and message.
    pub examples: Vec<String>,
}

impl Findings {
    /// The status that follows.
    pub fn outcome(&self) -> Outcome {
        match (self.errors, self.warnings) {
            (0, 0) => Outcome::Pass,
            (0, _) => Outcome::Warn,
            _ => Outcome::Deny,
        }
    }
}

/// Why a report cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FindingsError {
    /// It could not be read.
    #[error("the findings {}: {error}", path.display())]
    Io {
        /// The report.
        path: PathBuf,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// It is no SARIF 2.1.0.
    #[error("the findings {}: {why}", path.display())]
    Malformed {
        /// The report.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Reads and sums up the report at `path`; `-` is standard input. It may not lie in the skill at `skill`: whoever wrote that
/// does not judge it. No link is followed and nothing is waited for, but a pipe that the caller opened.
pub fn read(path: &Path, skill: &Path) -> Result<Findings, FindingsError> {
    let io = |error| FindingsError::Io { path: path.to_owned(), error };
    let malformed = |why: &str| FindingsError::Malformed { path: path.to_owned(), why: why.to_owned() };
    let bytes = if is_callers_own(path) {
        let given = if path.as_os_str() == "-" { Path::new("/dev/stdin") } else { path };
        read_open(File::open(given).map_err(io)?, MAX_REPORT)
    } else {
        if let (Ok(report), Ok(skill)) = (path.canonicalize(), skill.canonicalize())
            && report.starts_with(skill)
        {
            return Err(malformed("lies in the skill that it should judge: keep reports elsewhere"));
        }
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = opened.map_err(|e| match errno(&e) {
            Errno::ELOOP => malformed("is a symlink: name the file that it leads to"),
            _ => io(e),
        })?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(malformed("is no regular file; - reads standard input"));
        }
        read_open(file, MAX_REPORT)
    };
    let bytes = bytes.map_err(|e| io(e.into()))?;
    sum_up(&bytes).map_err(|why| malformed(&why))
}

/// What a shell hands over: a descriptor that the caller has opened.
fn is_callers_own(path: &Path) -> bool {
    path.as_os_str() == "-"
        || path == Path::new("/dev/stdin")
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd")
}

#[derive(Deserialize)]
struct Report {
    version: String,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    tool: Tool,
    results: Option<Vec<Finding>>,
    #[serde(default)]
    invocations: Vec<Invocation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Invocation {
    execution_successful: bool,
}

#[derive(Deserialize)]
struct Tool {
    driver: Component,
    #[serde(default)]
    extensions: Vec<Component>,
}

#[derive(Deserialize)]
struct Component {
    name: String,
    version: Option<String>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    id: String,
    default_configuration: Option<Configuration>,
}

#[derive(Deserialize)]
struct Configuration {
    level: Option<Level>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    None,
    Note,
    Warning,
    Error,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    rule_id: Option<String>,
    rule_index: Option<i64>,
    rule: Option<RuleReference>,
    level: Option<Level>,
    kind: Option<String>,
    baseline_state: Option<String>,
    #[serde(default)]
    message: Message,
    #[serde(default)]
    locations: Vec<Location>,
    #[serde(default)]
    suppressions: Vec<Suppression>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleReference {
    id: Option<String>,
    index: Option<i64>,
    tool_component: Option<ComponentReference>,
}

#[derive(Deserialize)]
struct ComponentReference {
    index: Option<i64>,
}

#[derive(Default, Deserialize)]
struct Message {
    text: Option<String>,
    id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: Option<PhysicalLocation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PhysicalLocation {
    artifact_location: Option<ArtifactLocation>,
}

#[derive(Deserialize)]
struct ArtifactLocation {
    uri: Option<String>,
}

#[derive(Deserialize)]
struct Suppression {
    kind: String,
    status: Option<String>,
}

fn sum_up(bytes: &[u8]) -> Result<Findings, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // The place alone: the parser's own words quote the file, and that may be another than the caller thinks.
    let report: Report = serde_json::from_slice(bytes).map_err(|e| {
        format!("is no SARIF report that can be read (line {}, column {})", e.line(), e.column())
    })?;
    if report.version != "2.1.0" {
        return Err("is of another SARIF version; 2.1.0 is what can be read".to_owned());
    }
    if report.runs.is_empty() {
        return Err("holds no run of any scanner, so it says nothing".to_owned());
    }
    let mut findings = Findings::default();
    let mut examples: Vec<(Level, String)> = Vec::new();
    for run in &report.runs {
        let tool = &run.tool.driver;
        if run.invocations.iter().any(|i| !i.execution_successful) {
            return Err(format!(
                "the scanner {} did not finish its work; run it again",
                shown(tool.name.as_bytes(), 64)
            ));
        }
        // Absent results mean that the scanner did not look, an empty list that it found nothing.
        let Some(results) = &run.results else {
            return Err(format!(
                "the scanner {} reports no results, not even an empty list",
                shown(tool.name.as_bytes(), 64)
            ));
        };
        let name = tool.version.as_ref().map_or(tool.name.clone(), |v| format!("{} {v}", tool.name));
        findings.tools.push(shown(name.as_bytes(), 80));
        for result in results.iter().filter(|r| r.counts()) {
            let level = result.level(&run.tool);
            match level {
                Level::Error => findings.errors += 1,
                Level::Warning => findings.warnings += 1,
                Level::Note => findings.notes += 1,
                Level::None => continue,
            }
            // Keep only as many as will be shown, the gravest.
            if examples.len() < MAX_EXAMPLES || examples.last().is_some_and(|(l, _)| *l < level) {
                examples.truncate(MAX_EXAMPLES - 1);
                let place = examples.iter().position(|(l, _)| *l < level).unwrap_or(examples.len());
                examples.insert(place, (level, result.example()));
            }
        }
    }
    findings.examples = examples.into_iter().map(|(_, text)| text).collect();
    Ok(findings)
}

impl Finding {
    /// A result counts unless the scanner says that it found no fault (`kind`), that it is gone (`baselineState`), or
    /// that a person accepted it. An `inSource` suppression is a comment by the skill's author, who does not judge himself.
    fn counts(&self) -> bool {
        let no_fault =
            self.kind.as_deref().is_some_and(|k| matches!(k, "pass" | "notApplicable" | "informational"));
        let gone = self.baseline_state.as_deref() == Some("absent");
        let accepted = !self.suppressions.is_empty()
            && self
                .suppressions
                .iter()
                .all(|s| s.kind == "external" && matches!(s.status.as_deref(), None | Some("accepted")));
        !(no_fault || gone || accepted)
    }

    /// Its own level, else its rule's, else what SARIF says for want of both: a warning.
    fn level(&self, tool: &Tool) -> Level {
        let of_rule = || {
            let part = self.rule.as_ref().and_then(|r| r.tool_component.as_ref()).and_then(|c| c.index);
            let part = match part {
                Some(n) => tool.extensions.get(usize::try_from(n).ok()?)?,
                None => &tool.driver,
            };
            let index = self.rule.as_ref().and_then(|r| r.index).or(self.rule_index);
            let by_index = index.and_then(|n| part.rules.get(usize::try_from(n).ok()?));
            let id = self.rule.as_ref().and_then(|r| r.id.as_ref()).or(self.rule_id.as_ref());
            let by_id = || id.and_then(|id| part.rules.iter().find(|r| r.id == *id));
            by_index.or_else(by_id)?.default_configuration.as_ref()?.level
        };
        self.level.or_else(of_rule).unwrap_or(Level::Warning)
    }

    fn example(&self) -> String {
        let rule = self
            .rule_id
            .as_deref()
            .or(self.rule.as_ref().and_then(|r| r.id.as_deref()))
            .unwrap_or("(no rule)");
        let place = self
            .locations
            .iter()
            .find_map(|l| l.physical_location.as_ref()?.artifact_location.as_ref()?.uri.as_deref());
        let text = self.message.text.as_deref().or(self.message.id.as_deref()).unwrap_or("");
        let whole = match place {
            Some(place) => format!("{rule} in {place}: {text}"),
            None => format!("{rule}: {text}"),
        };
        shown(whole.as_bytes(), 200)
    }
}

#[cfg(test)]
mod tests;
