//! A run told from its rows alone (`replay`, `why`, a line of `tail`): what began, each call with what became of it, how
//! it ended. Nothing is run again, and nothing is looked up outside the ledger.

use super::filter::{Filter, show};
use super::reader::ReadError;
use super::row::Row;
use super::rows::{
    CALL_COMPLETED, CALL_STARTED, CALLS_UNRECORDED, DENIED, DURATION, INVOKED_COMPLETED, INVOKED_STARTED,
    NO_CONNECT, Span, TIMEOUT,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Its `skill.invoked_started` row.
    pub started: Option<Row>,
    /// Its calls, in the order in which they were asked for.
    pub calls: Vec<CallRecord>,
    /// Refused calls without rows of their own (`[2.8]`): `count` of those from `first` to `last`.
    pub unrecorded: Vec<Span>,
    /// `skill.no_connect` or `skill.timeout`, if it came to that.
    pub incident: Option<Row>,
    /// Its `skill.invoked_completed` row; none while it runs, or when its broker died and none has started since.
    pub completed: Option<Row>,
}

/// A call, as its rows tell it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallRecord {
    /// Seq of its first row.
    pub seq: u64,
    /// Time of its first row.
    pub ts_ns: u64,
    /// Its number within the run.
    pub call: u64,
    /// The tool.
    pub tool_name: String,
    /// `success`, `error`, `timeout`, `denied`, or `open` (it runs, or the broker died under it).
    pub outcome: String,
    /// Hash of its arguments.
    pub args_hash: String,
    /// Its trace.
    pub trace_id: String,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Hash of its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_hash: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denial: Option<DenialRecord>,
}

/// Why a call was refused, as the operator was told then (`[7.6]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DenialRecord {
    /// The reason's word.
    pub reason: String,
    /// The rule: a field of SKILL.md with its line, or whose grants.
    pub rule: String,
    /// Canonical path, or host alone.
    pub subject: String,
    /// The full sentence.
    pub sentence: String,
}

impl CallRecord {
    /// What a call's first row tells; None for other rows.
    pub fn begin(row: &Row) -> Option<CallRecord> {
        let text = |field| row.text(field).unwrap_or_default().to_owned();
        let mut record = CallRecord {
            seq: row.seq,
            ts_ns: row.ts_ns,
            call: row.number("call").unwrap_or(0),
            tool_name: text("tool_name"),
            trace_id: text("trace_id"),
            ..CallRecord::default()
        };
        match row.op.as_str() {
            CALL_STARTED => {
                record.outcome = "open".to_owned();
                record.args_hash = text("args_hash");
            }
            DENIED => {
                record.args_hash = text("attempted_args_hash");
                record.refuse(row);
            }
            _ => return None,
        }
        Some(record)
    }

    /// Adds what its denied row tells, be it the only one or the one that closes it.
    fn refuse(&mut self, row: &Row) {
        let text = |field| row.text(field).unwrap_or_default().to_owned();
        self.outcome = "denied".to_owned();
        self.duration_ms = row.number(DURATION);
        self.denial = Some(DenialRecord {
            reason: text("reason"),
            rule: text("rule"),
            subject: text("subject"),
            sentence: text("sentence"),
        });
    }

    /// What is known of calls without rows of their own, in the form of one: the first of them stands for all.
    pub fn of_unrecorded(span: &Span) -> CallRecord {
        CallRecord {
            call: span.first,
            tool_name: "-".to_owned(),
            outcome: "unrecorded".to_owned(),
            denial: Some(DenialRecord {
                reason: "ledger_quota".to_owned(),
                rule: "ledger_quota".to_owned(),
                subject: String::new(),
                sentence: format!(
                    "{span} had been refused without rows of their own: the rows of this run had used up \
                     quota.invocation_ledger_mb. A larger one in cyberos.yaml records more."
                ),
            }),
            ..CallRecord::default()
        }
    }

    /// Adds what its completed row tells.
    pub fn complete(&mut self, row: &Row) {
        self.outcome = row.text("outcome").unwrap_or_default().to_owned();
        self.duration_ms = row.number("duration_ms");
        self.result_hash = row.text("result_hash").filter(|hash| !hash.is_empty()).map(str::to_owned);
        self.error = row.extra.get("error").and_then(Value::as_str).map(str::to_owned);
    }
}

/// The run `invocation` (its id as written) of `store`; None if the ledger has no row of it.
pub fn replay(store: &Path, invocation: &str) -> Result<Option<Replay>, ReadError> {
    let filter = Filter { invocation: Some(invocation.to_owned()), ..Filter::default() };
    let mut told = Replay::default();
    let mut place = HashMap::new();
    let mut any = false;
    for row in show(store, filter)? {
        let row = row?;
        any = true;
        if let Some(record) = CallRecord::begin(&row) {
            let closes = || row.number("call").and_then(|call| place.get(&call)).copied();
            if row.op == CALL_STARTED {
                place.insert(record.call, told.calls.len());
            } else if let Some(begun) = closes().and_then(|at| told.calls.get_mut(at)) {
                begun.refuse(&row);
                continue;
            }
            told.calls.push(record);
            continue;
        }
        match row.op.as_str() {
            INVOKED_STARTED => told.started = Some(row),
            INVOKED_COMPLETED => told.completed = Some(row),
            NO_CONNECT | TIMEOUT => told.incident = Some(row),
            CALLS_UNRECORDED => {
                let number = |field| row.number(field).unwrap_or(0);
                let (first, last, count) = (number("first_call"), number("last_call"), number("count"));
                told.unrecorded.push(Span { first, last, count });
            }
            CALL_COMPLETED => {
                let record = row.number("call").and_then(|call| place.get(&call)).copied();
                if let Some(record) = record.and_then(|at| told.calls.get_mut(at)) {
                    record.complete(&row);
                }
            }
            _ => {}
        }
    }
    Ok(any.then_some(told))
}

/// The refused calls of a run, or its call `call` whatever became of it: what `why` explains. `untold` are calls that no
/// row tells of yet.
pub fn why(
    store: &Path,
    invocation: &str,
    call: Option<u64>,
    untold: Option<Span>,
) -> Result<Option<Vec<CallRecord>>, ReadError> {
    let Some(told) = replay(store, invocation)? else { return Ok(None) };
    let asked = |record: &CallRecord| match call {
        Some(call) => record.call == call,
        None => record.denial.is_some(),
    };
    let mut records: Vec<CallRecord> = told.calls.into_iter().filter(asked).collect();
    if call.is_none() || records.is_empty() {
        let spans = told.unrecorded.iter().chain(&untold);
        let spans = spans.filter(|span| call.is_none_or(|call| (span.first..=span.last).contains(&call)));
        records.extend(spans.map(CallRecord::of_unrecorded));
    }
    Ok(Some(records))
}
