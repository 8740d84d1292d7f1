//! The audit trail of the broker: typed rows over the ledger (section 6). The only place that writes rows:
//! dispatch calls [`Audit::started`] and [`Audit::refused`], a run its own four,
//! MemoryEmit [`Audit::memory_emit`]. It decides no call; it only says when a row can't be taken.
//!
//! ```text
//! calls.rs      the rows of one call, and who may run it
//! rows.rs       facts → a draft of a row
//! row.rs        draft → payload, payload → row; canonical.rs: canonical JSON and hashes; clock.rs: ledger time
//! ledger.rs     the one writer; tail.rs: its end under the lock; sync.rs: its background half; options.rs: its words
//! reserve.rs    room that is kept on the disk
//! recovery.rs   what a start finds; accept.rs: the operator's way on when a start refuses
//! frame.rs      frames, segments, HEAD
//! drops.rs      rows that were dropped because the operator said so
//! signs.rs      what else in the state tells of rows
//! reader.rs     the one reader: verify; report.rs: what that finds; filter.rs: show; follow.rs: rows as they come
//! replay.rs     a run told from its rows
//! runs.rs       the rows of a run's own life; unrecorded.rs: calls beyond its quota; tally.rs: today's numbers, open runs
//! ```
//!
//! What is to be run takes [`Started`] by value, and only a row that was taken makes one:
//!
//! ```compile_fail,E0451
//! use cyberos_broker::{audit::Started, grants::Handles};
//! fn unrecorded(handles: Handles) -> Started {
//!     Started { handles, ..todo!() } // private fields
//! }
//! ```
//!
//! A permit is not enough:
//!
//! ```compile_fail,E0308
//! use cyberos_broker::{grants::Permit, tools::{CallResources, Work}};
//! fn unrecorded(work: Box<dyn Work>, permit: Permit<()>, resources: CallResources) {
//!     let _ = work.run(permit, resources);
//! }
//! ```
//!
//! nor does it run twice on one decision:
//!
//! ```compile_fail,E0382
//! use cyberos_broker::{audit::Started, tools::{CallResources, Work}};
//! fn twice(work: [Box<dyn Work>; 2], started: Started, resources: [CallResources; 2]) {
//!     let ([one, another], [mine, yours]) = (work, resources);
//!     let _ = one.run(started, mine);
//!     let _ = another.run(started, yours); // used up
//! }
//! ```
//!
//! ```
//! use cyberos_broker::{audit::Started, tools::{CallResources, Work}};
//! fn once(started: Started<Box<dyn Work>>, resources: CallResources) {
//!     let (work, started) = started.into_work();
//!     let _ = work.run(started, resources);
//! }
//! ```

pub mod accept;
pub mod answer;
mod calls;
pub mod canonical;
pub mod clock;
pub mod drops;
pub mod filter;
mod follow;
pub mod frame;
pub mod ledger;
pub mod options;
pub mod reader;
pub mod recovery;
pub mod replay;
pub mod report;
mod reserve;
pub mod row;
pub mod rows;
mod runs;
pub mod signs;
mod sync;
mod tail;
mod tally;
mod unrecorded;

pub use calls::{OpenCall, Started};
pub use canonical::HashKey;
pub use filter::Filter;
pub use follow::Follow;
pub use options::{AuditUnavailable, Durability, LedgerOptions, LedgerStatus, NotClosed, OnFailure};
pub use reader::Reader;
pub use recovery::{Cut, LedgerError, Recovery};
pub use row::Row;
pub use rows::{Asked, CallOutcome, Emitted, Ended, InvokedStarted, Outcome, Span};
pub use unrecorded::Unrecorded;

use cyberos_proto::ids::InvocationId;
use ledger::Ledger;
use options::{Appended, Class};
use row::Draft;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tally::{Adds, History, OpenRun, Tally};
use tokio::sync::broadcast;

/// How the audit trail is kept: the `audit:` part of the configuration.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The ledger's part.
    pub ledger: LedgerOptions,
    /// `audit.hash_key`: makes hashes of arguments and results HMACs.
    pub hash_key: Option<HashKey>,
    /// `quota.invocation_ledger_mb`, in bytes: what the rows of one run's calls may take.
    pub run_quota: u64,
}

impl Default for AuditOptions {
    fn default() -> Self {
        AuditOptions { ledger: LedgerOptions::default(), hash_key: None, run_quota: 256 << 20 }
    }
}

/// What `status` says of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AuditStatus {
    /// Calls asked for since midnight UTC, refused ones included.
    pub tool_calls_today: u64,
    /// Of them, refused.
    pub denied_today: u64,
    /// Of these, without rows of their own: `quota.invocation_ledger_mb` was used up.
    pub unrecorded_today: u64,
    /// The ledger.
    pub ledger: LedgerStatus,
}

/// The audit trail; a cheap handle that all who write rows share.
#[derive(Clone, Debug)]
pub struct Audit {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    hash_key: Option<HashKey>,
    run_quota: u64,
    recovery: Recovery,
    tally: Mutex<Tally>,
    /// Runs that began under this broker and have not ended.
    live: Mutex<HashMap<InvocationId, runs::Live>>,
    /// Runs that an earlier broker left open.
    left_open: Mutex<Vec<(String, OpenRun)>>,
}

impl Audit {
    /// Opens or makes the ledger of `store` (STATE/store), whose only writer this becomes.
    pub fn open(store: &Path, options: AuditOptions) -> Result<Audit, LedgerError> {
        let mut history = History::default();
        let (ledger, recovery) = Ledger::open(store, options.ledger, &mut |frame| history.see(frame))?;
        let (tally, left_open) = history.into_parts();
        let inner = Inner {
            ledger,
            hash_key: options.hash_key,
            run_quota: options.run_quota,
            recovery,
            tally: Mutex::new(tally),
            live: Mutex::default(),
            left_open: Mutex::new(left_open),
        };
        Ok(Audit { inner: Arc::new(inner) })
    }

    /// What opening found.
    pub fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// The hash that rows have of arguments and results (`[6.2]`): SHA-256 of the canonical JSON, or an HMAC.
    pub fn hash(&self, value: &Value) -> String {
        match &self.inner.hash_key {
            Some(key) => key.hash(value),
            None => canonical::hash(value),
        }
    }

    /// [`Audit::hash`] of an object.
    pub fn hash_object(&self, map: &Map<String, Value>) -> String {
        match &self.inner.hash_key {
            Some(key) => key.hash_object(map),
            None => canonical::hash_object(map),
        }
    }

    /// Every row from now on, as it gets its place.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Row>> {
        self.inner.ledger.subscribe()
    }

    /// The rows from `seq` on, then those to come; from the next one on without `seq`.
    pub fn follow(&self, seq: Option<u64>) -> Follow {
        // In this order: a row between the two would be seen by neither.
        let live = self.subscribe();
        let next = self.inner.ledger.status().seq + 1;
        Follow::new(self.store(), live, seq.unwrap_or(next), next)
    }

    /// Today's numbers and the ledger's state.
    pub fn status(&self) -> AuditStatus {
        let untold = self.untold();
        let today = relock(&self.inner.tally).today(self.now_ns(), untold);
        AuditStatus {
            tool_calls_today: today.calls,
            denied_today: today.denied,
            unrecorded_today: today.unrecorded,
            ledger: self.inner.ledger.status(),
        }
    }

    /// The wall clock that rows are dated by, ns since 1970: what else is dated or named by the time must ask here too.
    pub fn now_ns(&self) -> u64 {
        self.inner.ledger.now_ns()
    }

    /// The last row that is in the file by all that this broker has done.
    pub fn known(&self) -> Option<ledger::Known> {
        self.inner.ledger.known()
    }

    /// STATE/store, for [`reader`].
    pub fn store(&self) -> &Path {
        self.inner.ledger.store()
    }

    /// Flushes all, replaces HEAD, takes no more rows.
    pub fn close(&self) -> Result<(), NotClosed> {
        self.inner.ledger.close()
    }

    fn append(&self, draft: &Draft, class: Class) -> Result<Appended, AuditUnavailable> {
        let appended = self.inner.ledger.append(draft, class)?;
        if let Appended::Written { ts_ns, .. } | Appended::Queued { ts_ns, .. } = appended {
            relock(&self.inner.tally).count(Adds::of(draft), ts_ns);
        }
        Ok(appended)
    }

    async fn wait(&self, appended: Appended) {
        // A queued row waits for nothing: that calls go on is what the queue is for.
        if let Appended::Written { seq, .. } = appended {
            self.inner.ledger.durable(seq).await;
        }
    }
}

/// Numbers stay right even if whoever held them panicked: each change is one step.
fn relock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
