//! The words of one tool call, shared by everyone on its line: who calls ([`Invocation`]), what was asked
//! ([`Call`]), what it would touch ([`Subject`]), what it may touch ([`Target`]), and why not ([`Refusal`]).
//! It knows no rule and no tool.

use cyberos_proto::ids::{InvocationId, TenantId};
use serde_json::{Map, Value};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// A W3C trace id: 16 bytes, not all zero, written as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// None for the all-zero id, which W3C reserves.
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(TraceId(bytes))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The facts of one invocation that rows and answers name. Fixed from start to end (`[4.1]`).
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Its id, in every row.
    pub id: InvocationId,
    /// The skill's `id`.
    pub skill_id: String,
    /// The skill's `version`.
    pub version: String,
    /// Whose memory it works on.
    pub tenant: TenantId,
    /// The trace that calls without a `traceparent` join (`[5.2]`).
    pub trace: TraceId,
    /// `sync_class: private`: MemoryEmit may only narrow (`[1.3]`).
    pub sync_private: bool,
}

/// One `tool.call`, as asked; its parameters had the right JSON types.
#[derive(Clone, Debug)]
pub struct Call {
    /// 1, 2, … within the invocation.
    pub number: u64,
    /// Name as given, known or not.
    pub tool: String,
    /// Arguments as given.
    pub args: Map<String, Value>,
    /// SHA-256 of the canonical JSON of the arguments (`[6.2]`), 64 hex digits.
    pub args_hash: String,
    /// `traceparent` as given, not yet checked.
    pub traceparent: Option<Value>,
}

/// What a call would touch, as its tool reads it from the arguments. Paths are as asked, not yet canonical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Nothing that needs a rule beyond the tool's name.
    Nothing,
    /// A memory file.
    Memory(String),
    /// A memory file whose name the tool has made up, to be used once.
    NewMemory {
        /// The file.
        path: String,
        /// What all that the tool would make up for such a call matches.
        pattern: String,
    },
    /// A file of the host.
    File(String),
}

/// What a permitted call may touch. It holds what the rule held, so that no name is looked up twice.
#[derive(Clone, Debug)]
pub enum Target {
    /// Nothing.
    Nothing,
    /// The canonical memory path (`memories/…`).
    Memory(String),
    /// A file, to be opened by `beneath` and by nobody else.
    File(FileTarget),
}

/// A file that matched a rule by name (`[4.4]`). It must still match after it has been opened.
#[derive(Clone, Debug)]
pub struct FileTarget {
    /// The lexically normalised absolute path.
    pub path: PathBuf,
    /// The rule's literal root, as a path.
    pub root: PathBuf,
    /// The root, held open since the grants were compiled; none if it was absent then (then nothing is given).
    pub root_fd: Option<Arc<OwnedFd>>,
    /// The path below the root; empty for the root itself.
    pub below: PathBuf,
}

/// The class of a refusal: `error.message` of −32603 (`[3.4]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialClass {
    ToolNotAllowed,
    UnknownTool,
    ScopeViolation,
    FileViolation,
    DomainViolation,
    RequestTooLarge,
    RateLimited,
    DeadlineExceeded,
    QuotaExceeded,
    AuditUnavailable,
}

impl DenialClass {
    /// The word on the wire and in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            DenialClass::ToolNotAllowed => "tool_not_allowed",
            DenialClass::UnknownTool => "unknown_tool",
            DenialClass::ScopeViolation => "scope_violation",
            DenialClass::FileViolation => "file_violation",
            DenialClass::DomainViolation => "domain_violation",
            DenialClass::RequestTooLarge => "request_too_large",
            DenialClass::RateLimited => "rate_limited",
            DenialClass::DeadlineExceeded => "deadline_exceeded",
            DenialClass::QuotaExceeded => "quota_exceeded",
            DenialClass::AuditUnavailable => "audit_unavailable",
        }
    }
}

/// A refusal by a rule. The skill sees class, reason, tool, and what it asked for; the rest is for ledger and operator.
#[derive(Clone, Debug)]
pub struct Denial {
    /// `error.message`.
    pub class: DenialClass,
    /// `error.data.reason`.
    pub reason: &'static str,
    /// Path or host as asked for; goes back to the skill.
    pub asked: Option<String>,
    /// Canonical path, or host alone; for the ledger (`subject`). Empty when there is none.
    pub subject: String,
    /// Which rule: a field of SKILL.md with its line, or whose grants; for ledger and operator.
    pub rule: String,
    /// A full sentence for the operator: what was refused, the nearest grant, the one line that would allow it (`[7.6]`).
    pub sentence: String,
}

/// Why a call does not go on.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// A rule refuses: −32603.
    Denied(Box<Denial>),
    /// The parameters are wrong: −32602, with this message.
    BadParams(String),
}

impl From<Denial> for Refusal {
    fn from(d: Denial) -> Self {
        Refusal::Denied(Box::new(d))
    }
}
