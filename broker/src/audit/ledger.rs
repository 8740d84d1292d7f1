//! The one writer of the ledger (`[6.3]`, `[6.4]`). It gives rows their seq, time and chain, writes them in that order,
//! and makes them durable in the background. It knows no kind of row but that of its own clock, and decides no call: it
//! says whether a row is in the file, in the queue, or not taken. [`super::Audit`] calls it, and nobody else.
//!
//! ```text
//! append ──(lock: seq, ts, chain, write)──► file ──┐            a call waits for this much
//!    │ write error                                 ├─ one fdatasync for all ─► HEAD     background thread
//!    └──► queue (bounded) ──(retried in order)─────┘
//! ```
//!
//! The caller's own thread writes: into the page cache that costs a few µs, a hand-over to another thread costs more.
//! Nothing waits for the disk but the background thread, and whoever asks for [`Ledger::durable`].
//!
//! *No row is ever dropped*: a row that may be refused ([`Class::Asks`]) brings room in the queue for all the rows that
//! will have to follow it ([`Class::Owed`]), so those always find a place. Only [`OnFailure::Continue`] drops, and counts.
//!
//! Checkpoints (`[6.6]`) belong here: (seq, chain) to the helper at close, at rotation, and every few minutes.

use super::clock::{Step, Time};
use super::frame::{self, Frame, MAX_PAYLOAD};
use super::options::{
    Appended, AuditUnavailable, Class, Durability, LedgerOptions, LedgerStatus, NotClosed, OnFailure,
};
use super::recovery::{self, End, LedgerError, Recovery};
use super::row::{Draft, Prepared, Row};
use super::rows;
use super::sync;
use super::tail::{Tail, Waiting};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tokio::sync::{broadcast, watch};

/// The writer. Closed by [`Ledger::close`] or when dropped.
#[derive(Debug)]
pub struct Ledger {
    pub(super) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: PathBuf,
    pub(super) options: LedgerOptions,
    pub(super) tail: Mutex<Tail>,
    /// There is something to write or to sync.
    pub(super) work: Condvar,
    /// The ledger closes.
    pub(super) stop: Condvar,
    pub(super) durable: watch::Sender<Durable>,
    rows: broadcast::Sender<Arc<Row>>,
    lock_file: File,
}

/// How far the disk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Durable {
    pub(super) seq: u64,
    /// Waiting is pointless for now.
    pub(super) failing: bool,
}

impl Ledger {
    /// Opens or makes the ledger of `store` (STATE/store). `see` is given the frames that a start reads anyway: the
    /// newest two segments.
    pub fn open(
        store: &Path,
        options: LedgerOptions,
        see: &mut dyn FnMut(&Frame),
    ) -> Result<(Ledger, Recovery), LedgerError> {
        Ledger::begin(store, options, recovery::open(store, see)?)
    }

    /// The same for who holds the store's lock already, and has accepted whatever is missing.
    pub(super) fn open_locked(
        store: &Path,
        lock: File,
        options: LedgerOptions,
        see: &mut dyn FnMut(&Frame),
    ) -> Result<(Ledger, Recovery), LedgerError> {
        Ledger::begin(store, options, recovery::open_locked(store, lock, see)?)
    }

    fn begin(
        store: &Path,
        options: LedgerOptions,
        (end, recovery): (End, Recovery),
    ) -> Result<(Ledger, Recovery), LedgerError> {
        let end_seq = end.seq;
        let (tail, lock, stepped) = Tail::new(end, options.clock.now());
        let shared = Arc::new(Shared {
            store: store.to_owned(),
            options,
            tail: Mutex::new(tail),
            work: Condvar::new(),
            stop: Condvar::new(),
            durable: watch::Sender::new(Durable { seq: end_seq, failing: false }),
            rows: broadcast::Sender::new(4096),
            lock_file: lock,
        });
        shared.reserve();
        if let (Some(step), Ok(mut tail)) = (stepped, shared.lock()) {
            shared.tell_step(&mut tail, &step);
        }
        let background = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("audit-sync".into())
            .spawn(move || sync::run(&background))
            .map_err(recovery::io_error("start a thread for", store))?;
        Ok((Ledger { shared, thread: Mutex::new(Some(thread)) }, recovery))
    }

    /// Gives `draft` its place and writes it. Never waits for the disk.
    pub fn append(&self, draft: &Draft, class: Class) -> Result<Appended, AuditUnavailable> {
        let prepared = Prepared::new(draft);
        let shared = &self.shared;
        let mut tail = shared.lock()?;
        if tail.closing {
            return Err(AuditUnavailable { reason: "it is closed".into() });
        }
        if prepared.max_len() > MAX_PAYLOAD as usize {
            return Err(AuditUnavailable {
                reason: format!("a row of {} bytes is too long", prepared.max_len()),
            });
        }
        let now = shared.options.clock.now();
        shared.look_at_clock(&mut tail, now);
        let on_failure = shared.options.on_failure;
        match class {
            Class::Owed => tail.owed = tail.owed.saturating_sub(1),
            Class::Asks { owes } => {
                if let Some(reason) = tail.refuses(on_failure, owes, shared.options.queue) {
                    return tail.turn_away(on_failure, now.wall_ns, reason);
                }
            }
        }
        let may_refuse = matches!(class, Class::Asks { .. }) && on_failure == OnFailure::Refuse;
        let appended = match shared.place(&mut tail, &prepared, now.wall_ns, may_refuse) {
            Ok(appended) => appended,
            Err(e) => return tail.turn_away(on_failure, now.wall_ns, e),
        };
        if let Class::Asks { owes } = class {
            tail.owed += owes;
        }
        Ok(appended)
    }

    /// Gives back `places` that a row of [`Class::Asks`] kept and nobody will use.
    pub fn forgo(&self, places: usize) {
        if let Ok(mut tail) = self.shared.lock() {
            tail.owed = tail.owed.saturating_sub(places);
        }
    }

    /// Says of the row that was dropped last that it would have begun `run`.
    pub fn dropped_beginning(&self, run: String) {
        if let Ok(mut tail) = self.shared.lock()
            && let Some(untold) = &mut tail.untold
        {
            untold.began(run);
        }
    }

    /// Counts a row that is not written because the one that it would follow was dropped.
    pub fn drop_too(&self) {
        let now_ns = self.now_ns();
        if let Ok(mut tail) = self.shared.lock() {
            tail.drop_row(now_ns, "the row that it would follow was dropped");
            self.shared.work.notify_one();
        }
    }

    /// With [`Durability::Fsync`]: waits until row `seq` is on the disk. Comes back early when the disk fails (the row
    /// then waits like any other: `audit.on_failure` decides about the next call). Otherwise returns at once.
    pub async fn durable(&self, seq: u64) {
        if self.shared.options.durability == Durability::Fsync {
            let mut durable = self.shared.durable.subscribe();
            // An error means that the sender is gone, which `self` holds.
            let _ = durable.wait_for(|d| d.failing || d.seq >= seq).await;
        }
    }

    /// Every row from now on, in order, as it gets its place (written or queued). A receiver that lags is told so, and
    /// finds what it missed through [`super::reader`].
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Row>> {
        self.shared.rows.subscribe()
    }

    /// How it is doing.
    pub fn status(&self) -> LedgerStatus {
        let durable_seq = self.shared.durable.borrow().seq;
        match self.shared.lock().map(|mut tail| {
            tail.look_at_place(&self.shared.store);
            tail
        }) {
            Ok(tail) => LedgerStatus {
                seq: tail.seq,
                durable_seq,
                queued: tail.queue.len(),
                dropped: tail.dropped,
                refused: tail.refused,
                reserved: tail.reserve.until.saturating_sub(tail.end),
                errors: tail.errors,
                failing: tail.failing(),
                tampered: tail.tampered.clone(),
            },
            Err(e) => LedgerStatus { durable_seq, failing: Some(e.reason), ..LedgerStatus::default() },
        }
    }

    /// Looks now whether the file that is written is still there and as long as it was, and not only once it has been
    /// written to.
    pub fn look_at_place(&self) {
        if let Ok(mut tail) = self.shared.lock() {
            tail.look_at_place(&self.shared.store);
        }
    }

    /// What is in the file by all that the writer has done, whatever has been done to the file.
    pub fn known(&self) -> Option<Known> {
        let tail = self.shared.lock().ok()?;
        Some(Known { seq: tail.written, chain: tail.written_chain, waiting_since_ns: tail.waiting_since() })
    }

    /// The wall clock that rows are dated by.
    pub fn now_ns(&self) -> u64 {
        self.shared.options.clock.now().wall_ns
    }

    /// STATE/store.
    pub fn store(&self) -> &Path {
        &self.shared.store
    }

    /// Writes what waits, makes all durable, replaces HEAD, and takes no more rows. The error says what is not as it
    /// should be then.
    pub fn close(&self) -> Result<(), NotClosed> {
        let interrupted = |_: AuditUnavailable| NotClosed::Interrupted;
        let thread = {
            let mut tail = self.shared.lock().map_err(interrupted)?;
            tail.closing = true;
            self.shared.work.notify_all();
            self.shared.stop.notify_all();
            drop(tail);
            match self.thread.lock() {
                Ok(mut thread) => thread.take(),
                Err(_) => None,
            }
        };
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            return Err(NotClosed::Interrupted);
        }
        // Said, not left to the descriptor's end: a process that is just being forked holds a copy of it.
        let _ = self.shared.lock_file.unlock();
        let mut tail = self.shared.lock().map_err(interrupted)?;
        tail.look_at_place(&self.shared.store);
        let (written, durable) = (tail.written, tail.head);
        if let Some(what) = tail.tampered.clone() {
            return Err(NotClosed::Changed { what, written, store: self.shared.store.clone() });
        }
        match (tail.queue.is_empty(), tail.failing()) {
            (true, None) => Ok(()),
            (true, Some(why)) => Err(NotClosed::NotDurable { written, durable, why }),
            (false, why) => {
                Err(NotClosed::Lost { from: written + 1, to: tail.seq, why: why.unwrap_or_default() })
            }
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::error!(error = %e, "the audit ledger was closed with a fault");
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Tail>, AuditUnavailable> {
        // After a panic in the middle of a row nobody knows what is in the file: a restart finds out.
        self.tail
            .lock()
            .map_err(|_| AuditUnavailable { reason: "a row was interrupted; restart the broker".into() })
    }

    /// Gives a row its place, and writes it if none waits. The error, which nothing has come of, is for a row that may be
    /// refused.
    fn place(
        &self,
        tail: &mut Tail,
        prepared: &Prepared,
        ts_ns: u64,
        may_refuse: bool,
    ) -> Result<Appended, String> {
        let seq = tail.seq + 1;
        let (payload, chain) = prepared.seal(&tail.chain, ts_ns);
        let row = Waiting { frame: frame::encode(seq, ts_ns, &payload), ts_ns, chain };
        let bytes = row.frame.len() as u64;
        let written = if tail.queue.is_empty() { tail.write(self, &row) } else { Ok(false) };
        let written = match written {
            Ok(written) => written,
            Err(e) if may_refuse => return Err(e),
            Err(_) => false,
        };
        if !written {
            tail.queue.push_back(row);
        }
        (tail.seq, tail.chain) = (seq, chain);
        self.work.notify_one();
        if self.rows.receiver_count() > 0 {
            let parsed = Row::parse(&Frame { seq, ts_ns, payload });
            match parsed {
                // A send fails only when the last receiver has just gone.
                Ok(row) => drop(self.rows.send(Arc::new(row))),
                Err(e) => tracing::error!(seq, error = %e, "the audit ledger wrote a row that it can't read"),
            }
        }
        Ok(if written {
            Appended::Written { seq, ts_ns, bytes }
        } else {
            Appended::Queued { seq, ts_ns, bytes }
        })
    }

    /// Tells of a step of the wall clock, before any row that is dated by the new time.
    pub(super) fn look_at_clock(&self, tail: &mut Tail, now: Time) {
        if let Some(step) = tail.steps.look(now) {
            self.tell_step(tail, &step);
        }
    }

    /// Tells of the rows that were dropped, once those that waited before them are in the file.
    pub(super) fn tell_drops(&self, tail: &mut Tail) {
        if !tail.queue.is_empty() {
            return;
        }
        if let Some(dropped) = tail.untold.take() {
            tracing::warn!(
                rows = dropped.count,
                after_row = tail.seq,
                "rows were dropped (audit.on_failure: continue): a row of the ledger says how many and when"
            );
            let now_ns = self.options.clock.now().wall_ns;
            // Not refused, so there is no error.
            let _ = self.place(tail, &Prepared::new(&rows::rows_dropped(&dropped)), now_ns, false);
        }
    }

    /// It asks for no place in the queue: it is rare, and nobody can do without it.
    fn tell_step(&self, tail: &mut Tail, step: &Step) {
        let (seconds, at_start) = (step.ms() / 1000, step.at_start);
        tracing::warn!(
            seconds,
            at_start,
            after_row = tail.seq,
            "the wall clock was set forward or back: rows are dated by it, their order is that of their numbers"
        );
        // Not refused, so there is no error.
        let _ = self.place(tail, &Prepared::new(&rows::clock_stepped(step)), step.to_ns, false);
    }
}

/// The last row that the writer has put into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its seq; 0 without rows.
    pub seq: u64,
    /// Its chain.
    pub chain: [u8; 32],
    /// Rows from this time on wait in memory, and are no more in the file than those that were dropped since.
    pub waiting_since_ns: Option<u64>,
}
