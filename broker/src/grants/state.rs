//! What the calls of one invocation have used up, and how far it is: everything beside the rules that decides whether one
//! more call may be made. Each number is kept here and nowhere else.

use super::Grants;
use super::rate::RateLimit;
use crate::blocking_pool::BlockingPool;
use crate::call::Invocation;
use crate::memory::Meter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// How far an invocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls are served.
    Open,
    /// The grace after SIGTERM is over: calls are refused, those in flight cut (`[2.4]`).
    Refusing,
    /// The run has ended.
    Closed,
}

/// Numbers of one invocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls asked for, refused ones included.
    pub calls: u64,
    /// Of them, refused: each with a `skill.tool_denied` row, as long as the run's rows are within their quota.
    pub denied: u64,
}

/// One invocation, as [`super::admit`] sees it.
#[derive(Debug)]
pub struct State {
    pub(super) invocation: Arc<Invocation>,
    pub(super) grants: Arc<Grants>,
    /// Where files are looked up.
    pub(super) pool: BlockingPool,
    phase: watch::Sender<Phase>,
    /// Whether SIGTERM has been sent: what is cut after that is cut by the deadline.
    grace: AtomicBool,
    counted: Mutex<Counted>,
    rate: Option<RateLimit>,
    /// What its writes have taken of the disk (`[2.8]`).
    pub(super) written: Arc<Meter>,
    pub(super) write_quota: u64,
}

#[derive(Debug, Default)]
struct Counted {
    totals: Totals,
    last: Option<(u64, String)>,
}

impl State {
    /// Of an invocation that begins, whose writes may take `write_quota` bytes.
    pub fn new(
        invocation: Arc<Invocation>,
        grants: Arc<Grants>,
        pool: BlockingPool,
        write_quota: u64,
    ) -> Self {
        State {
            rate: grants.per_minute.map(RateLimit::new),
            invocation,
            grants,
            pool,
            phase: watch::Sender::new(Phase::Open),
            grace: false.into(),
            counted: Mutex::default(),
            written: Arc::default(),
            write_quota,
        }
    }

    /// Whose calls.
    pub fn invocation(&self) -> &Arc<Invocation> {
        &self.invocation
    }

    /// What it may do.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// How far it is.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// How far it is now.
    pub fn phase_now(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on to `phase`; never back.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let further = *now != Phase::Closed && *now != phase;
            if further {
                *now = phase;
            }
            further
        });
    }

    /// SIGTERM has been sent.
    pub fn enter_grace(&self) {
        self.grace.store(true, Ordering::Relaxed);
    }

    /// Whether SIGTERM has been sent.
    pub fn in_grace(&self) -> bool {
        self.grace.load(Ordering::Relaxed)
    }

    /// The number of a call that is asked for now.
    pub fn next_call(&self, tool: &str) -> u64 {
        let mut counted = self.counted();
        counted.totals.calls += 1;
        let number = counted.totals.calls;
        counted.last = Some((number, tool.to_owned()));
        number
    }

    /// A call has been refused.
    pub fn count_denied(&self) {
        self.counted().totals.denied += 1;
    }

    /// The numbers so far.
    pub fn totals(&self) -> Totals {
        self.counted().totals
    }

    /// Number and tool of the last call that was asked for.
    pub fn last_call(&self) -> Option<(u64, String)> {
        self.counted().last.clone()
    }

    /// Counts a call against the rate limit, also one that gets no further than this; whether it is within.
    pub(super) fn within_rate(&self, now: Instant) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.admit(now))
    }

    /// Whether the write quota leaves room for `bytes`. Nothing is taken of it yet: what a write takes is counted where it
    /// is made.
    pub(super) fn may_write(&self, bytes: u64) -> bool {
        bytes == 0 || self.written.bytes().saturating_add(bytes) <= self.write_quota
    }

    /// Numbers stay right even if whoever held them panicked: each change is one step.
    fn counted(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
