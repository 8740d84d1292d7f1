//! The protocol's answer: what was found out about a skill, put into the words and the table of the decision protocol. It
//! looks at nothing itself; [`super::resolve`] does.

use super::debris::is_debris;
use super::findings::Findings;
use super::manifest::{FileRow, Manifest, Verified, Version, VersionRef};
use super::words::shown;
use cyberos_proto::tree::Entry;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

const MAX_REASON: usize = 600;

/// A skill's state, as the protocol spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's words; module resolve says when each is given")]
pub enum Status {
    None,
    Pass,
    Warn,
    Deny,
    Drifted,
    Tampered,
    Error,
}

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The live folder.
    Current,
    /// The trusted version's snapshot.
    Fallback,
    /// Nothing.
    Hidden,
}

impl Status {
    /// The protocol's word.
    pub fn word(self) -> &'static str {
        match self {
            Status::None => "none",
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Deny => "deny",
            Status::Drifted => "drifted",
            Status::Tampered => "tampered",
            Status::Error => "error",
        }
    }
}

impl Decision {
    /// The protocol's word.
    pub fn word(self) -> &'static str {
        match self {
            Decision::Current => "current",
            Decision::Fallback => "fallback",
            Decision::Hidden => "hidden",
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

/// How the live folder differs from the newest version.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Entries that only the live folder has.
    pub added: usize,
    /// Entries that only the version has.
    pub removed: usize,
    /// Entries of both that differ.
    pub changed: usize,
    /// The first of them by path, debris last.
    pub first: Option<String>,
    /// How many of them are debris: what programs and operating systems leave in folders.
    #[serde(skip_serializing_if = "is_zero")]
    pub debris: usize,
    /// One of those, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_debris: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The protocol's answer, in the order of its fields; what follows `targetKind` is private to this provider.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resolution {
    schema_version: u32,
    /// Name of the skill's folder.
    pub skill_name: String,
    /// The name that SKILL.md declares.
    pub declared_name: Option<String>,
    /// The skill's state.
    pub status: Status,
    /// What to show.
    pub decision: Decision,
    /// Why, for people.
    pub reason: Option<String>,
    /// The version that the live folder equals, else the newest.
    pub current_version: Option<String>,
    /// The newest version that may be shown.
    pub trusted_version: Option<String>,
    /// The trusted snapshot below the skill, for a fallback.
    pub target: Option<String>,
    target_kind: Option<&'static str>,
    /// Digest of what is to be shown (`[0.1]`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    /// What the scanner found in the current version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub findings_summary: Option<Findings>,
    /// How the live folder differs from the newest version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff_summary: Option<Difference>,
}

impl Difference {
    pub(super) fn between(certified: &Manifest, live: &[Entry]) -> Self {
        let mut then: BTreeMap<&str, &FileRow> =
            certified.files.iter().map(|row| (row.path.as_str(), row)).collect();
        let mut difference = Difference::default();
        // The first by path, edits before debris; and of debris files before folders.
        let mut first: Option<(bool, String)> = None;
        let mut debris: Option<(bool, String, &str)> = None;
        let mut note = |row: &FileRow, what: &'static str, count: &mut usize| {
            *count += 1;
            let stray = is_debris(&row.path);
            let place = (stray, row.path.clone());
            if first.as_ref().is_none_or(|first| place < *first) {
                first = Some(place);
            }
            if stray {
                difference.debris += 1;
                let place = (row.kind == 'd', row.path.clone(), what);
                if debris.as_ref().is_none_or(|debris| place < *debris) {
                    debris = Some(place);
                }
            }
        };
        for now in live.iter().map(FileRow::new) {
            match then.remove(now.path.as_str()) {
                None => note(&now, "added", &mut difference.added),
                Some(row) if *row != now => note(&now, "changed", &mut difference.changed),
                Some(_) => {}
            }
        }
        for row in then.values() {
            note(row, "removed", &mut difference.removed);
        }
        difference.first = first.map(|(_, f)| shown(f.as_bytes(), 200));
        difference.first_debris = debris.map(|(_, d, what)| format!("{} {what}", shown(d.as_bytes(), 200)));
        difference
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { added, removed, changed, first, debris, first_debris } = self;
        write!(f, "{changed} changed, {added} added, {removed} removed")?;
        first.as_ref().map_or(Ok(()), |first| write!(f, ", first {first}"))?;
        let Some(example) = first_debris else { return Ok(()) };
        let only = if *debris == changed + added + removed { "nothing but " } else { "" };
        write!(f, "; {only}debris {example} (no edit: a program left it; remove it, or certify again)")
    }
}

/// Why nothing can be said; becomes status error.
pub(super) struct Trouble(pub(super) String);

/// What was found out, before it is put into the protocol's words.
pub(super) struct Finding {
    pub(super) status: Status,
    pub(super) reason: Option<String>,
    pub(super) current: Option<Version>,
    pub(super) trusted: Option<VersionRef>,
    pub(super) findings: Option<Findings>,
    pub(super) difference: Option<Difference>,
    pub(super) live: Option<String>,
}

impl Finding {
    pub(super) fn new(status: Status, reason: impl Into<Option<String>>) -> Self {
        Finding {
            status,
            reason: reason.into(),
            current: None,
            trusted: None,
            findings: None,
            difference: None,
            live: None,
        }
    }

    pub(super) fn tampered(why: String, newest: Option<Verified>) -> Self {
        Finding { current: newest.map(|n| n.manifest.version), ..Finding::new(Status::Tampered, why) }
    }
}

/// The recommended table of the protocol.
pub(super) fn resolution(
    skill_name: String,
    declared_name: Option<String>,
    found: Result<Finding, Trouble>,
) -> Resolution {
    let found = found.unwrap_or_else(|Trouble(why)| Finding::new(Status::Error, why));
    let status = found.status;
    let decision = match (status, &found.trusted) {
        (Status::Pass, _) => Decision::Current,
        (Status::Warn | Status::Deny | Status::Drifted | Status::Tampered, Some(_)) => Decision::Fallback,
        _ => Decision::Hidden,
    };
    let snapshot = found.trusted.as_ref().filter(|_| decision == Decision::Fallback);
    Resolution {
        schema_version: 1,
        skill_name,
        declared_name,
        status,
        decision,
        reason: found.reason.map(|r| shown(r.as_bytes(), MAX_REASON)),
        current_version: found.current.map(|v| v.to_string()),
        trusted_version: found.trusted.as_ref().map(|t| t.version.to_string()),
        target: snapshot.map(|s| s.version.target()),
        target_kind: snapshot.map(|_| "relative_to_skill_dir"),
        content_digest: match decision {
            Decision::Current => found.live,
            Decision::Fallback => snapshot.map(|s| s.tree_digest.clone()),
            Decision::Hidden => None,
        },
        findings_summary: found.findings,
        diff_summary: found.difference,
    }
}
