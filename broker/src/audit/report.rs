//! What `verify` finds out of the rows that [`super::reader`] has checked one by one (`[6.5]`): which belong together, which
//! are open, and where the clock stepped. It reads no bytes.

use super::drops::RowsDropped;
use super::reader::{Fault, Unfinished};
use super::row::Row;
use super::rows::{
    CALL_COMPLETED, CALL_STARTED, CLOCK_STEPPED, DENIED, DURATION, INVOKED_COMPLETED, INVOKED_STARTED,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What `verify` found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Rows that are as they should be, from the first one on.
    pub rows: u64,
    /// HEAD, before the walk.
    pub head: u64,
    /// Time of the last good row.
    pub last_ts_ns: u64,
    /// Chain of the last good row; empty without one. Whoever noted it elsewhere can compare.
    pub chain: String,
    /// The first thing that is wrong. `first_bad_seq` is its `seq`.
    pub broken: Option<Fault>,
    /// A frame above HEAD that is being written or was torn by a crash.
    pub unfinished: Option<Unfinished>,
    /// Calls that started and did not complete (they run, or the broker died under them).
    pub open_calls: Vec<OpenCallEntry>,
    /// Runs that began and did not end.
    pub open_invocations: Vec<OpenRunEntry>,
    /// Where the wall clock was set forward or back: rows are dated by it, their order is that of their numbers.
    pub clock_steps: Vec<ClockStep>,
    /// Rows that are missing because the operator said that calls go on without (`audit.on_failure: continue`).
    pub dropped: Vec<RowsDropped>,
}

/// A step of the wall clock, as rows tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockStep {
    /// Seq of the row that says so, or of the first row after it if none does.
    pub seq: u64,
    /// Its length, in ms; negative for a clock that was set back.
    pub step_ms: i64,
    /// Whether a row says so. Otherwise only the time of that row is more than a minute before the one before it.
    pub told: bool,
}

impl ClockStep {
    pub(super) fn of(row: &Row, before_ns: Option<u64>) -> Option<ClockStep> {
        if row.op == CLOCK_STEPPED {
            let step_ms = row.extra.get("step_ms").and_then(Value::as_i64).unwrap_or(0);
            return Some(ClockStep { seq: row.seq, step_ms, told: true });
        }
        let back_ms = before_ns?.saturating_sub(row.ts_ns) / 1_000_000;
        let step_ms = -i64::try_from(back_ms).unwrap_or(i64::MAX);
        (back_ms > 60_000).then_some(ClockStep { seq: row.seq, step_ms, told: false })
    }
}

impl Report {
    /// Seq of the first row that is wrong or missing.
    pub fn first_bad_seq(&self) -> Option<u64> {
        self.broken.as_ref().map(|fault| fault.seq)
    }
}

/// A call that started and did not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenCallEntry {
    /// Seq of its started row.
    pub seq: u64,
    /// Its run.
    pub invocation_id: String,
    /// Its number.
    pub call: u64,
    /// Its tool.
    pub tool_name: String,
}

/// A run that began and did not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenRunEntry {
    /// Seq of its first row.
    pub seq: u64,
    /// Its id.
    pub invocation_id: String,
    /// Its skill.
    pub skill_id: String,
}

#[derive(Default)]
pub(super) struct Pairs {
    pub(super) calls: BTreeMap<(String, u64), OpenCallEntry>,
    pub(super) runs: BTreeMap<String, OpenRunEntry>,
    /// Calls that a denied row closed which does not say so itself: earlier versions wrote a completed row after it.
    closed_twice: BTreeSet<(String, u64)>,
}

impl Pairs {
    /// What is wrong with the place of `row` among the others. Rows that name no run (another writer's may not) pair
    /// with nothing.
    pub(super) fn see(&mut self, row: &Row) -> Option<String> {
        let id = row.text("invocation_id")?.to_owned();
        let call = row.number("call");
        match (row.op.as_str(), call) {
            (CALL_STARTED, Some(call)) => {
                let tool_name = row.text("tool_name").unwrap_or_default().to_owned();
                let open = OpenCallEntry { seq: row.seq, invocation_id: id.clone(), call, tool_name };
                let twice = self.calls.insert((id, call), open)?;
                Some(format!("call {call} of {} starts a second time", twice.invocation_id))
            }
            (CALL_COMPLETED, Some(call)) => {
                let key = (id, call);
                let known = self.calls.remove(&key).is_some() || self.closed_twice.remove(&key);
                (!known).then(|| format!("call {call} of {} is completed but had not started", key.0))
            }
            // A call is refused before it starts, or, for a quota, once it runs: then this row closes it.
            (DENIED, Some(call)) => {
                let (key, closes) = ((id, call), row.extra.contains_key(DURATION));
                match (self.calls.remove(&key).is_some(), closes) {
                    (true, false) => drop(self.closed_twice.insert(key)),
                    (false, true) => {
                        return Some(format!("call {call} of {} ends refused but had not started", key.0));
                    }
                    _ => {}
                }
                None
            }
            (INVOKED_STARTED, _) => {
                let open =
                    OpenRunEntry { seq: row.seq, invocation_id: id.clone(), skill_id: row.actor.clone() };
                self.runs
                    .insert(id, open)
                    .map(|twice| format!("run {} begins a second time", twice.invocation_id))
            }
            (INVOKED_COMPLETED, _) => match self.runs.remove(&id) {
                Some(_) => None,
                None => Some(format!("run {id} is completed but had not begun")),
            },
            _ => None,
        }
    }
}
