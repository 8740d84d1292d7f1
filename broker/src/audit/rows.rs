//! The rows of `[6.1]`, field by field: pure functions from facts to a [`Draft`]. They know no file and no order; the
//! names of kinds and fields are written here and nowhere else.
//!
//! Arguments and results never get here, only their hashes (`[6.2]`). Texts that a skill chose are cut at [`MAX_TEXT`]
//! bytes, with a note of how much is missing, so that a call costs the ledger about the same whatever it says.

use super::clock::Step;
use super::drops::{ROWS_DROPPED, RowsDropped};
use super::row::Draft;
use crate::call::{Denial, Invocation, Refusal, TraceId};
use cyberos_proto::ids::TenantId;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt;

/// A run began.
pub const INVOKED_STARTED: &str = "skill.invoked_started";
/// A run ended.
pub const INVOKED_COMPLETED: &str = "skill.invoked_completed";
/// A permitted call is about to run.
pub const CALL_STARTED: &str = "skill.tool_call_started";
/// It has run.
pub const CALL_COMPLETED: &str = "skill.tool_call_completed";
/// A call was refused.
pub const DENIED: &str = "skill.tool_denied";
/// The deadline's SIGKILL fired.
pub const TIMEOUT: &str = "skill.timeout";
/// The skill did not connect in time.
pub const NO_CONNECT: &str = "skill.no_connect";
/// Calls that came after the rows of their run had used up its quota (`[2.8]`).
pub const CALLS_UNRECORDED: &str = "skill.calls_unrecorded";
/// The wall clock was set forward or back by more than a minute.
pub const CLOCK_STEPPED: &str = "audit.clock_stepped";
/// A memory file was written.
pub const MEMORY_EMIT: &str = "memory.emit";

/// The field of a completed row, and of a denied one that closes a call.
pub(super) const DURATION: &str = "duration_ms";

/// Longest text of a skill's choosing in a row, in bytes.
pub const MAX_TEXT: usize = 512;
/// The same of a sentence of ours, which names a path up to three times.
const MAX_SENTENCE: usize = 1024;

/// What `skill.invoked_started` says beside the [`Invocation`].
#[derive(Clone, Debug)]
pub struct InvokedStarted<'a> {
    /// Who asked for the run (an operator's uid or name).
    pub caller: &'a str,
    /// The leased uid that it runs under.
    pub uid: u32,
    /// Hash of its ARGs, as a JSON array of strings.
    pub args_hash: &'a str,
    /// SkillFS's verdict: `current`, `fallback`.
    pub verdict: &'a str,
    /// SkillFS's epoch, as it prints.
    pub epoch: &'a str,
    /// Tree digest of the sealed copy.
    pub content_digest: &'a str,
    /// What the helper reported of the sandbox (`[10.6]`).
    pub sandbox: Value,
}

/// A call that was asked for, as far as is known before anything is decided.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Its number.
    pub call: u64,
    /// The tool's name as given; empty when it could not be read (`request_too_large`).
    pub tool: &'a str,
    /// Hash of its arguments; empty when they could not be read.
    pub args_hash: &'a str,
    /// Its `traceparent`'s trace if that is valid, else the invocation's.
    pub trace: TraceId,
}

/// How a call ended that had started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// With a result.
    Success {
        /// [`super::Audit::hash`] of the result.
        result_hash: String,
    },
    /// Without.
    Error {
        /// The tool's reason word, or a short sentence of ours; never a skill's or server's text.
        error: String,
    },
    /// Cut by the deadline or its own time limit.
    Timeout,
}

/// Calls without rows of their own: `count` of those from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Number of the first one.
    pub first: u64,
    /// Number of the last one.
    pub last: u64,
    /// How many.
    pub count: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "call {}", self.first),
            n if self.last.checked_sub(self.first) == Some(n - 1) => {
                write!(f, "calls {} to {}", self.first, self.last)
            }
            n => write!(f, "{n} of the calls {} to {}", self.first, self.last),
        }
    }
}

impl Span {
    /// The calls of both.
    pub(super) fn with(self, other: Span) -> Span {
        Span {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            count: self.count + other.count,
        }
    }
}

/// How a run ended (`[2.7]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Error,
    Panic,
    Killed,
    Timeout,
    NoConnect,
    Stopped,
    Aborted,
}

impl Outcome {
    /// The word in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::Error => "error",
            Outcome::Panic => "panic",
            Outcome::Killed => "killed",
            Outcome::Timeout => "timeout",
            Outcome::NoConnect => "no_connect",
            Outcome::Stopped => "stopped",
            Outcome::Aborted => "aborted",
        }
    }
}

/// What `skill.invoked_completed` says beside the [`Invocation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// Its exit status, if it had one.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// From start to end.
    pub duration_ms: u64,
}

/// What `memory.emit` says beside the call.
#[derive(Clone, Debug)]
pub struct Emitted<'a> {
    /// MemoryEmit's `kind`.
    pub kind: &'a str,
    /// The new row's id.
    pub row_id: &'a str,
    /// `private` or `shareable`.
    pub sync_class: &'a str,
    /// The memory file.
    pub path: &'a str,
    /// SHA-256 of its content, 64 hex digits.
    pub content_sha256: &'a str,
    /// Its size.
    pub bytes: u64,
}

/// `text`, cut at [`MAX_TEXT`] bytes.
pub fn capped(text: &str) -> String {
    cut_at(text, MAX_TEXT)
}

fn cut_at(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let cut = text.floor_char_boundary(most);
    format!("{}… (+{} bytes)", &text[..cut], text.len() - cut)
}

fn draft(actor: &str, op: &'static str, extra: Value) -> Draft {
    let extra = match extra {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    Draft { actor: actor.to_owned(), op, path: String::new(), content_sha256: String::new(), extra }
}

pub(super) fn invoked_started(i: &Invocation, s: &InvokedStarted<'_>) -> Draft {
    let extra = json!({
        "invocation_id": i.id.to_string(), "skill_id": i.skill_id, "version": capped(&i.version),
        "tenant_id": i.tenant.to_string(), "caller": capped(s.caller), "uid": s.uid, "args_hash": s.args_hash,
        "trace_id": i.trace.to_string(), "verdict": s.verdict, "epoch": s.epoch, "content_digest": s.content_digest,
        "sandbox": s.sandbox,
    });
    draft(&i.skill_id, INVOKED_STARTED, extra)
}

pub(super) fn call_started(i: &Invocation, a: &Asked<'_>) -> Draft {
    let extra = json!({
        "invocation_id": i.id.to_string(), "call": a.call, "skill_id": i.skill_id, "tool_name": capped(a.tool),
        "args_hash": a.args_hash, "trace_id": a.trace.to_string(),
    });
    draft(&i.skill_id, CALL_STARTED, extra)
}

/// What a completed row repeats from its started row.
#[derive(Clone, Debug)]
pub(super) struct StartedCall {
    pub(super) invocation_id: String,
    pub(super) call: u64,
    pub(super) skill_id: String,
    pub(super) tool: String,
    pub(super) trace: TraceId,
}

pub(super) fn call_completed(s: &StartedCall, outcome: &CallOutcome, duration_ms: u64) -> Draft {
    let (word, result_hash, error) = match outcome {
        CallOutcome::Success { result_hash } => ("success", result_hash.as_str(), None),
        CallOutcome::Error { error } => ("error", "", Some(error)),
        CallOutcome::Timeout => ("timeout", "", None),
    };
    let mut extra = json!({
        "invocation_id": s.invocation_id, "call": s.call, "skill_id": s.skill_id, "tool_name": capped(&s.tool),
        "outcome": word, DURATION: duration_ms, "result_hash": result_hash, "trace_id": s.trace.to_string(),
    });
    if let Some(error) = error {
        extra["error"] = capped(error).into();
    }
    draft(&s.skill_id, CALL_COMPLETED, extra)
}

pub(super) fn refused(i: &Invocation, a: &Asked<'_>, refusal: &Refusal) -> Draft {
    let mut extra = json!({
        "invocation_id": i.id.to_string(), "call": a.call, "skill_id": i.skill_id, "tool_name": capped(a.tool),
        "reason": "bad_params", "rule": "", "subject": "", "attempted_args_hash": a.args_hash,
        "trace_id": a.trace.to_string(),
    });
    match refusal {
        Refusal::Denied(denial) => {
            let Denial { reason, subject, rule, sentence, .. } = &**denial;
            extra["reason"] = (*reason).into();
            extra["rule"] = capped(rule).into();
            extra["subject"] = capped(subject).into();
            // What `cyberos why` says later must be what was said then (`[7.6]`).
            extra["sentence"] = cut_at(sentence, MAX_SENTENCE).into();
        }
        Refusal::BadParams(message) => extra["sentence"] = cut_at(message, MAX_SENTENCE).into(),
    }
    draft(&i.skill_id, DENIED, extra)
}

/// [`refused`] for a call that had started: its row closes the call, and says how long it took until the refusal.
pub(super) fn refused_late(i: &Invocation, a: &Asked<'_>, refusal: &Refusal, duration_ms: u64) -> Draft {
    let mut draft = refused(i, a, refusal);
    draft.extra.insert(DURATION.into(), duration_ms.into());
    draft
}

pub(super) fn calls_unrecorded(i: &Invocation, span: &Span) -> Draft {
    let extra = json!({
        "invocation_id": i.id.to_string(), "skill_id": i.skill_id, "first_call": span.first, "last_call": span.last,
        "count": span.count, "trace_id": i.trace.to_string(),
    });
    draft(&i.skill_id, CALLS_UNRECORDED, extra)
}

/// The ledger's own row, of no run.
pub(super) fn clock_stepped(step: &Step) -> Draft {
    let noticed = if step.at_start { "start" } else { "running" };
    let extra = json!({
        "from_ts_ns": step.from_ns, "to_ts_ns": step.to_ns, "step_ms": step.ms(), "noticed": noticed,
    });
    draft("", CLOCK_STEPPED, extra)
}

/// The ledger's own row, of no run.
pub(super) fn rows_dropped(dropped: &RowsDropped) -> Draft {
    let RowsDropped { seq: _, count, from_ts_ns, to_ts_ns, policy, why, runs, more_runs } = dropped;
    let extra = json!({
        "count": count, "from_ts_ns": from_ts_ns, "to_ts_ns": to_ts_ns, "policy": policy, "why": capped(why),
        "runs": runs, "more_runs": more_runs,
    });
    draft("", ROWS_DROPPED, extra)
}

pub(super) fn timeout(i: &Invocation, elapsed_ms: u64, last: Option<&(u64, String)>) -> Draft {
    let last = last.map_or(Value::Null, |(call, tool)| json!({"call": call, "tool_name": capped(tool)}));
    let extra = json!({
        "invocation_id": i.id.to_string(), "skill_id": i.skill_id, "elapsed_ms": elapsed_ms, "last_tool_call": last,
        "trace_id": i.trace.to_string(),
    });
    draft(&i.skill_id, TIMEOUT, extra)
}

pub(super) fn no_connect(i: &Invocation, elapsed_ms: u64) -> Draft {
    let extra = json!({
        "invocation_id": i.id.to_string(), "skill_id": i.skill_id, "elapsed_ms": elapsed_ms,
        "trace_id": i.trace.to_string(),
    });
    draft(&i.skill_id, NO_CONNECT, extra)
}

/// Takes texts rather than an [`Invocation`]: an aborted run is known from its started row alone.
pub(super) fn invoked_completed(id: &str, skill_id: &str, trace_id: &str, ended: &Ended) -> Draft {
    let mut extra = json!({
        "invocation_id": id, "skill_id": skill_id, "outcome": ended.outcome.as_str(),
        "duration_ms": ended.duration_ms, "trace_id": trace_id,
    });
    if let Some(code) = ended.exit_code {
        extra["exit_code"] = code.into();
    }
    if let Some(signal) = ended.signal {
        extra["signal"] = signal.into();
    }
    draft(skill_id, INVOKED_COMPLETED, extra)
}

pub(super) fn memory_emit(s: &StartedCall, tenant: TenantId, e: &Emitted<'_>) -> Draft {
    let extra = json!({
        "invocation_id": s.invocation_id, "call": s.call, "skill_id": s.skill_id, "tenant_id": tenant.to_string(),
        "kind": capped(e.kind), "row_id": e.row_id, "sync_class": e.sync_class, "bytes": e.bytes,
        "trace_id": s.trace.to_string(),
    });
    Draft {
        path: e.path.to_owned(),
        content_sha256: e.content_sha256.to_owned(),
        ..draft(&s.skill_id, MEMORY_EMIT, extra)
    }
}
