//! What the rows add up to while the broker runs, rebuilt from the ledger at start: today's numbers for `status`
//! (`[7.1]`), and which runs have begun and not ended. It reads rows, and writes none.

use super::clock;
use super::frame::Frame;
use super::row::{Draft, Row, quick_has, quick_op};
use super::rows::{CALL_STARTED, CALLS_UNRECORDED, DENIED, DURATION, INVOKED_COMPLETED, INVOKED_STARTED};
use std::collections::{HashMap, VecDeque};

/// Days whose numbers are kept. The clock may be set back: then a day goes on that another one has interrupted.
const DAYS: usize = 8;

/// What one row adds to the numbers of its day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Adds {
    calls: u64,
    denied: u64,
    unrecorded: u64,
}

impl Adds {
    /// For the row that `draft` becomes.
    pub(super) fn of(draft: &Draft) -> Adds {
        let count = || draft.extra.get("count").and_then(serde_json::Value::as_u64);
        Adds::by_kind(draft.op, || draft.extra.contains_key(DURATION), count)
    }

    /// The same for a row that the ledger has.
    fn of_payload(op: &str, frame: &Frame) -> Adds {
        let count = || Row::parse(frame).ok().and_then(|row| row.number("count"));
        Adds::by_kind(op, || quick_has(&frame.payload, DURATION), count)
    }

    fn by_kind(op: &str, closes: impl Fn() -> bool, count: impl Fn() -> Option<u64>) -> Adds {
        match op {
            CALL_STARTED => Adds { calls: 1, ..Adds::default() },
            // One that closes a call was counted when the call started.
            DENIED => Adds { calls: u64::from(!closes()), denied: 1, unrecorded: 0 },
            CALLS_UNRECORDED => Adds::unrecorded(count().unwrap_or(0)),
            _ => Adds::default(),
        }
    }

    /// Refused calls that have no rows of their own.
    pub(super) fn unrecorded(count: u64) -> Adds {
        Adds { calls: count, denied: count, unrecorded: count }
    }

    fn and(self, more: Adds) -> Adds {
        Adds {
            calls: self.calls + more.calls,
            denied: self.denied + more.denied,
            unrecorded: self.unrecorded + more.unrecorded,
        }
    }
}

/// Numbers of one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Today {
    /// Calls asked for, refused ones included.
    pub(super) calls: u64,
    /// Of them, refused.
    pub(super) denied: u64,
    /// Of these, without rows of their own.
    pub(super) unrecorded: u64,
}

/// Numbers of the UTC days on which the newest rows fall, by the rows' own time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The day that got a row last is the last one.
    days: VecDeque<(u64, Adds)>,
}

impl Tally {
    pub(super) fn count(&mut self, adds: Adds, ts_ns: u64) {
        if adds == Adds::default() {
            return;
        }
        let day = clock::day(ts_ns);
        let at = self.days.iter().position(|(d, _)| *d == day);
        let before = at.and_then(|at| self.days.remove(at)).map_or(Adds::default(), |(_, adds)| adds);
        if self.days.len() == DAYS {
            self.days.pop_front();
        }
        self.days.push_back((day, before.and(adds)));
    }

    /// The numbers of the day of `now_ns`, with what no row tells of yet.
    pub(super) fn today(&self, now_ns: u64, untold: Adds) -> Today {
        let day = clock::day(now_ns);
        let adds = self.days.iter().find(|(d, _)| *d == day).map_or(Adds::default(), |(_, adds)| *adds);
        let Adds { calls, denied, unrecorded } = adds.and(untold);
        Today { calls, denied, unrecorded }
    }
}

/// A run that began and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenRun {
    pub(super) skill_id: String,
    pub(super) trace_id: String,
    pub(super) started_ns: u64,
    order: u64,
}

/// What passes by when the ledger is opened.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) tally: Tally,
    open: HashMap<String, OpenRun>,
}

impl History {
    pub(super) fn see(&mut self, frame: &Frame) {
        let Some(op) = quick_op(&frame.payload) else { return };
        self.tally.count(Adds::of_payload(op, frame), frame.ts_ns);
        if op != INVOKED_STARTED && op != INVOKED_COMPLETED {
            return;
        }
        // A row that can't be parsed is `verify`'s to report; a run that it began can't be named here.
        let Ok(row) = Row::parse(frame) else { return };
        let Some(id) = row.text("invocation_id") else { return };
        if row.op == INVOKED_COMPLETED {
            self.open.remove(id);
        } else {
            let run = OpenRun {
                skill_id: row.actor.clone(),
                trace_id: row.text("trace_id").unwrap_or_default().to_owned(),
                started_ns: row.ts_ns,
                order: row.seq,
            };
            self.open.insert(id.to_owned(), run);
        }
    }

    /// The open runs by id, in the order in which they began.
    pub(super) fn into_parts(self) -> (Tally, Vec<(String, OpenRun)>) {
        let mut open: Vec<_> = self.open.into_iter().collect();
        open.sort_unstable_by_key(|(_, run)| run.order);
        (self.tally, open)
    }
}
