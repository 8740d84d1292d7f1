//! SkillFS's control socket (`[9.11]`): what the broker and the operator's CLI may ask it. No descriptors.

use crate::ids::SkillName;
use crate::message::Message;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Longest text (reason, version, target, warning) in an answer, in bytes; longer ones are cut at a character.
pub const MAX_TEXT: usize = 1024;
/// Most skills in one page of a status answer.
pub const MAX_PAGE: usize = 32;
/// Longest `Await`, in milliseconds (`[0.1]`).
pub const MAX_AWAIT_MS: u32 = 35_000;

/// A question to SkillFS. Each gets exactly one answer, in order, except that `Await` holds back its own link only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// What is mounted, and a page of skills in the order of their names.
    Status {
        /// The last name of the page before; none for the first page.
        after: Option<SkillName>,
    },
    /// All that is known of one skill.
    Explain {
        /// Which.
        skill: SkillName,
    },
    /// Decide again: one skill, or all of them. Answered when it has been decided.
    Refresh {
        /// Which; none for all.
        skill: Option<SkillName>,
    },
    /// The verdict now, or, while it is pending, when it has been decided or the time is over.
    Await {
        /// Which.
        skill: SkillName,
        /// At most this long, in milliseconds; 0 answers at once, above [`MAX_AWAIT_MS`] counts as that.
        timeout_ms: u32,
    },
    /// How often what has happened since SkillFS started.
    Counters,
}

/// SkillFS's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// To `Status`.
    Status(Status),
    /// To `Explain` and `Await`.
    Skill(SkillState),
    /// To `Refresh`: how many skills were decided.
    Refreshed {
        /// Number of skills.
        decided: u32,
    },
    /// No skill of that name in the source.
    NoSuchSkill,
    /// The request was not understood; the link is closed after it.
    Malformed,
    /// To `Counters`.
    Counters(Counters),
}

/// How often what has happened since SkillFS started. None of them ever falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Names that the kernel looked up, those of a listing that it wanted looked up included.
    pub lookups: u64,
    /// Files that were opened to be read. The kernel opens by itself and keeps what it has read, so it is one for each file
    /// that it knows, when the first of its readers comes.
    pub opens: u64,
    /// Decisions that were installed, by what they show.
    pub decisions: Decisions,
    /// Names, attributes and contents that the kernel was told to forget.
    pub invalidations: u64,
    /// Times that the provider was asked about a skill (scan, and resolve if that ended well).
    pub provider_runs: u64,
    /// Time that these took together, in microseconds.
    pub provider_us: u64,
    /// Times that the kernel dropped events because too many waited.
    pub overflows: u64,
}

/// Decisions by what they show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// The live folder.
    pub current: u64,
    /// The trusted snapshot.
    pub fallback: u64,
    /// Nothing.
    pub hidden: u64,
    /// None was made: the failure policy says what is shown.
    pub failed: u64,
}

/// What is shown of a skill (the decision of SPEC.md's appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The live folder.
    Current,
    /// The trusted snapshot.
    Fallback,
    /// Nothing.
    Hidden,
}

impl Verdict {
    /// The word of the decision protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Current => "current",
            Verdict::Fallback => "fallback",
            Verdict::Hidden => "hidden",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A random number a start of SkillFS, and a counter that every seen mutation, decision and mapping change raises
/// (`[0.1]`). Equal epochs mean: nothing has changed that SkillFS knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Random, a start.
    pub start: u64,
    /// Counter of this skill.
    pub count: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.start, self.count)
    }
}

/// One skill, as SkillFS sees it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillState {
    /// Its name.
    pub skill: SkillName,
    /// What is shown.
    pub verdict: Verdict,
    /// Snapshot shown, relative to the skill's folder; only with `Fallback`.
    pub target: Option<String>,
    /// The provider's version of what is shown, if it named one.
    pub version: Option<String>,
    /// The provider's status word (`pass`, `drifted`, …); `none` before the first decision.
    pub status: String,
    /// Why, in the provider's or SkillFS's words.
    pub reason: Option<String>,
    /// Something the operator should know (a decision that contradicts its status, a rejected answer).
    pub warning: Option<String>,
    /// Epoch.
    pub epoch: Epoch,
    /// Whether a change has been seen that is not yet decided.
    pub pending: bool,
    /// The provider's `contentDigest` (`sha256:` and 64 hex digits), if it gave one.
    pub content_digest: Option<String>,
}

/// What SkillFS is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Mount point as configured.
    pub mount: String,
    /// Sources as configured.
    pub sources: Vec<String>,
    /// Decision command as configured; none with `--unprotected`.
    pub decision_command: Option<String>,
    /// Whether the mount is up.
    pub mounted: bool,
    /// Number of skills in all.
    pub total: u32,
    /// Number of skills not yet decided.
    pub undecided: u32,
    /// At most [`MAX_PAGE`] skills, by name.
    pub skills: Vec<SkillState>,
    /// Whether there are more after the last.
    pub more: bool,
}

impl Message for ControlRequest {
    fn descriptors(&self) -> usize {
        0
    }
}

impl Message for ControlReply {
    fn descriptors(&self) -> usize {
        0
    }
}

/// Cuts `text` to [`MAX_TEXT`] bytes at a character boundary.
pub fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
