//! What the rows add up to while the broker runs, rebuilt from the ledger at start: today's numbers for `status`
//! (`[7.1]`), and which runs have begun and not ended. It reads rows, and writes none.

use super::clock;
use super::frame::Frame;
use super::row::{Row, quick_op};
use super::rows::{CALL_STARTED, DENIED, INVOKED_COMPLETED, INVOKED_STARTED};
use std::collections::HashMap;

/// Numbers of one UTC day of ledger time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    day: u64,
    started: u64,
    denied: u64,
}

impl Tally {
    pub(super) fn count(&mut self, op: &str, ts_ns: u64) {
        self.turn(clock::day(ts_ns));
        match op {
            CALL_STARTED => self.started += 1,
            DENIED => self.denied += 1,
            _ => {}
        }
    }

    /// (calls asked for, of them refused) on the day of `now_ns`.
    pub(super) fn today(&mut self, now_ns: u64) -> (u64, u64) {
        self.turn(clock::day(now_ns));
        (self.started + self.denied, self.denied)
    }

    fn turn(&mut self, day: u64) {
        // Ledger time never goes back, the wall clock may: a day that is over does not begin again.
        if day > self.day {
            *self = Tally { day, ..Tally::default() };
        }
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
        self.tally.count(op, frame.ts_ns);
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
