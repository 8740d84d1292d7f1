//! The words of one tool call, shared by everyone on its line: who calls ([`Invocation`]), what was asked
//! ([`Call`]), what it would do ([`Plan`]), why not ([`Refusal`]), and how it failed ([`ToolError`]). It knows no rule
//! and no tool.

use cyberos_proto::ids::{InvocationId, TenantId};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

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

/// One `tool.call`, as asked.
#[derive(Clone, Debug)]
pub struct Call {
    /// 1, 2, … within the invocation.
    pub number: u64,
    /// Name as given, known or not.
    pub tool: String,
    /// Arguments as given; its plan takes them.
    pub args: Map<String, Value>,
    /// SHA-256 of the canonical JSON of the arguments (`[6.2]`), 64 hex digits.
    pub args_hash: String,
    /// `traceparent` as given, not yet checked.
    pub traceparent: Option<Value>,
    /// What is wrong with the request itself, whatever it asks for.
    pub wrong: Option<Wrong>,
}

/// What may be wrong with a request as such.
#[derive(Clone, Debug)]
pub enum Wrong {
    /// Its parameters cannot be read: the message of −32602.
    Params(String),
    /// It is too large, or too heavy, to be read at all: why.
    Unread(String),
}

impl Call {
    /// A call of which nothing is known yet.
    pub fn unread() -> Self {
        Call {
            number: 0,
            tool: String::new(),
            args: Map::new(),
            args_hash: String::new(),
            traceparent: None,
            wrong: None,
        }
    }
}

/// What a call would do, read once from the arguments that were hashed. A tool makes it; only a permit lets it be done.
#[derive(Debug)]
pub struct Plan<W> {
    /// What it would touch. The permit has a handle for each, in this order.
    pub accesses: Vec<Access>,
    /// Bytes that it would write at least: a call that the invocation's quota has no room for is refused before it starts
    /// (`[2.8]`). What it takes in the end is counted where it writes.
    pub writes: u64,
    /// Rows of its own that the call may owe, beside those that every call has.
    pub rows_owed: usize,
    /// The parsed arguments, ready to be run.
    pub work: W,
}

impl<W> Plan<W> {
    /// One that writes nothing and owes no rows.
    pub fn new(accesses: Vec<Access>, work: W) -> Self {
        Plan { accesses, writes: 0, rows_owed: 0, work }
    }
}

/// One thing that a call would touch, as asked for: its name is not yet canonical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// A memory file.
    Memory(String),
    /// A memory file whose name the tool has made up, to be used once.
    NewMemory {
        /// The file.
        path: String,
        /// What all that the tool would make up for such a call matches.
        pattern: String,
    },
    /// A file of the host, to read.
    File(String),
    /// A sandbox with the granted directories.
    Sandbox,
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

/// What a tool answers, or why it failed (−32000).
pub type ToolResult = Result<Map<String, Value>, ToolError>;

/// A tool ran and failed. Some reasons mean more than that: [`TIMED_OUT`], and those of quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// A word that programs can compare (`not_found`, `timeout`, …).
    pub reason: &'static str,
    /// A sentence for the skill's author.
    pub message: String,
}

impl ToolError {
    /// What a skill learns of a fault of ours.
    pub(crate) fn internal() -> Self {
        ToolError { reason: "internal", message: "the tool failed; the operator's log says how".to_owned() }
    }
}

/// The reason of a call that ran out of its own time; its row says `timeout`.
pub const TIMED_OUT: &str = "timeout";
/// Reasons of a call that found a quota used up once it ran: it is answered and recorded as a refusal of class
/// `quota_exceeded` (`[3.4]`).
pub const WRITE_QUOTA: &str = "write_quota";
/// The same, the tenant's.
pub const MEMORY_QUOTA: &str = "memory_quota";
/// The same, for want of space.
pub const DISK_LOW: &str = "disk_low";

/// Whole milliseconds, as rows and answers have them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
