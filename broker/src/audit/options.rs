//! The words between the writer and those who give it rows: how the ledger is kept, what becomes of a row, how the ledger
//! is doing. It does nothing.

use super::clock::Clock;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// When a row counts as recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is in the file; the disk follows within milliseconds.
    #[default]
    Background,
    /// When it is on the disk.
    Fsync,
}

/// What happens to calls while rows can't be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Rows wait in memory; when the queue is full calls are refused.
    #[default]
    Queue,
    /// Calls are refused at once.
    Refuse,
    /// Rows wait in memory; when the queue is full calls go on, and their rows are dropped and counted.
    Continue,
}

/// How the ledger is kept.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// `audit.durability`.
    pub durability: Durability,
    /// `audit.on_failure`.
    pub on_failure: OnFailure,
    /// Rows that may wait in memory.
    pub queue: usize,
    /// Bytes reserved on the disk ahead of the end; on a small file system an eighth of it.
    pub preallocate: u64,
    /// How long rows gather before a `fdatasync` that nobody waits for.
    pub group: Duration,
    /// The clocks. Rows have the wall clock's time, also when that is set back; a step has a row of its own.
    pub clock: Clock,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        LedgerOptions {
            durability: Durability::default(),
            on_failure: OnFailure::default(),
            queue: 10_000,
            preallocate: 64 << 20,
            group: Duration::from_millis(10),
            clock: Clock::system(),
        }
    }
}

/// The ledger does not take this row, so what it would have recorded must not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit ledger takes no more rows: {reason}")]
pub struct AuditUnavailable {
    /// For log and operator.
    pub reason: String,
}

/// What is wrong with a ledger when it has been closed. Nothing more comes of it, so each says where things stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotClosed {
    /// Somebody else had their hands in it.
    #[error(
        "somebody else changed the audit ledger while this broker wrote it: {what}. The broker has written \
         rows up to {written}; what of them is left, `cyberos audit verify --store {store}` says. Keep that \
         folder for whoever investigates, then restore it, or accept the loss as root: `cyberos audit \
         accept-loss --store {store}`",
        store = store.display()
    )]
    Changed {
        /// What was done.
        what: String,
        /// Seq of the last row that the broker wrote.
        written: u64,
        /// STATE/store.
        store: PathBuf,
    },
    /// The disk did not come back in time.
    #[error(
        "the audit ledger ends without rows {from} to {to}, which could not be written and are lost: {why}"
    )]
    Lost {
        /// First lost seq.
        from: u64,
        /// Last lost seq.
        to: u64,
        /// What failed.
        why: String,
    },
    /// All is written, but not all is known to be on the disk.
    #[error(
        "the audit ledger is written up to row {written}, but rows after {durable} may not have reached the \
         disk: {why}"
    )]
    NotDurable {
        /// Seq of the last row in the file.
        written: u64,
        /// Seq of the last row that HEAD vouches for.
        durable: u64,
        /// What failed.
        why: String,
    },
    /// A thread of the writer's has panicked.
    #[error("the audit ledger's writer was interrupted; a start looks at what is there")]
    Interrupted,
}

/// Whether a row may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It comes before what it records and may be refused; if it is taken, it owes that many rows more.
    Asks {
        /// Places to keep free in the queue.
        owes: usize,
    },
    /// It uses one place that an earlier row kept.
    Owed,
}

/// What became of a row that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// In the file.
    Written {
        /// Its seq.
        seq: u64,
        /// Its time.
        ts_ns: u64,
        /// Bytes of its frame.
        bytes: u64,
    },
    /// In the queue, with its place in the chain.
    Queued {
        /// Its seq.
        seq: u64,
        /// Its time.
        ts_ns: u64,
        /// Bytes of its frame.
        bytes: u64,
    },
    /// Dropped and counted ([`OnFailure::Continue`]).
    Dropped,
}

/// How the ledger is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LedgerStatus {
    /// Seq of the last row.
    pub seq: u64,
    /// Seq of the last row that is known to be on the disk.
    pub durable_seq: u64,
    /// Rows that wait in memory.
    pub queued: usize,
    /// Rows that were dropped (`audit.on_failure: continue`).
    pub dropped: u64,
    /// Rows that were refused.
    pub refused: u64,
    /// Bytes that rows may yet take without any free space on the disk.
    pub reserved: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// What is wrong now.
    pub failing: Option<String>,
    /// What somebody else has done to the file that is written; it stays until a restart.
    pub tampered: Option<String>,
}
