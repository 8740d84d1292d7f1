//! `cyberos audit accept-loss` (`[6.4]`): the operator's way on when a start refuses, because rows that were durable are
//! gone or damaged, or when `verify` misses rows that something else tells of. It keeps every row up to the first bad
//! place, moves what lies behind it to `store/lost/` for whoever investigates, and says so in the ledger itself. It is
//! never called by a start.
//!
//! Checkpoints (`[6.6]`) will not follow by themselves: the notary's file begins anew.

use super::frame;
use super::ledger::Ledger;
use super::options::{Class, LedgerOptions};
use super::reader::{Fault, ReadError, Reader};
use super::recovery::{self, LedgerError, io_error};
use super::row::Draft;
use super::signs::Signs;
use super::{clock, rows};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::{Value, json};
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The row that says so.
pub const LOSS_ACCEPTED: &str = "audit.loss_accepted";

/// What a loss would be, before it is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first thing that is wrong. Rows before its seq stay.
    pub fault: Fault,
    /// The seq that HEAD promises; none if there is no HEAD that can be read.
    pub head: Option<u64>,
    /// Bytes that lie from there on, and are moved out of the ledger.
    pub behind: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { fault, head, behind } = self;
        let head = head.map_or("HEAD cannot be read".to_owned(), |seq| format!("HEAD says {seq}"));
        write!(f, "{fault}; {head}; {behind} bytes lie behind it")
    }
}

/// Why a loss was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum NotAccepted {
    /// The ledger cannot be read, written, or had to itself.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Somebody has agreed to another loss than this one would be.
    #[error(
        "the ledger is not as it was shown, so nothing was accepted and nothing was changed. Shown was: \
         {seen}. Now: {}",
        found.as_ref().map_or("it is whole".to_owned(), |found| found.to_string())
    )]
    Changed {
        /// What was agreed to.
        seen: Box<Damage>,
        /// What there is; none if the ledger is whole.
        found: Option<Box<Damage>>,
    },
}

/// A loss that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What it is.
    pub damage: Damage,
    /// Where the bytes from there on are now.
    pub kept_in: PathBuf,
    /// Seq of the row that says so.
    pub recorded: u64,
}

/// What is wrong with the ledger of `store` (STATE/store); none if it is whole.
pub fn damage(store: &Path) -> Result<Option<Damage>, LedgerError> {
    let head = frame::read_head(store).ok().flatten();
    let unread = |error: io::Error| io_error("read", store)(error);
    if let Err(gone) = recovery::gone(store) {
        let LedgerError::Gone { found, .. } = gone else { return Err(gone) };
        let segment = store.join("audit").join(frame::CURRENT);
        let what = format!("there are no rows, but there must have been some: {found}");
        return Ok(Some(Damage { fault: Fault { seq: 1, segment, offset: 0, what }, head, behind: 0 }));
    }
    let mut signs = recovery::state_of(store).map_or_else(Signs::default, |state| Signs::of(state, None));
    let mut walk = Reader::open(store).map_err(unread)?.rows();
    let fault = loop {
        match walk.next() {
            Some(Ok(row)) => signs.see(&row),
            Some(Err(ReadError::Io(e))) => return Err(unread(e)),
            Some(Err(ReadError::Broken(fault))) => break fault,
            None => match signs.unexplained() {
                Some(found) => break walk.fault_at_end(format!("rows are missing at the end: {found}")),
                None => return Ok(None),
            },
        }
    };
    let mut behind = 0;
    for segment in from_fault(store, &fault).map_err(unread)? {
        let size = segment.metadata().map_err(unread)?.len();
        behind += if segment == fault.segment { size.saturating_sub(fault.offset) } else { size };
    }
    Ok(Some(Damage { fault, head, behind }))
}

/// Makes the ledger of `store` one that opens: accepts the loss of `seen`, which [`damage`] found and somebody agreed to,
/// and of nothing else. `by` names the operator in the row. No broker may run on it.
pub fn accept_loss(store: &Path, seen: &Damage, by: &str) -> Result<Loss, NotAccepted> {
    recovery::make_folders(store)?;
    let lock = recovery::lock(store)?;
    // From here on nobody else writes; what was shown may be long ago.
    let damage = match damage(store)? {
        Some(found) if found == *seen => found,
        found => {
            return Err(NotAccepted::Changed { seen: Box::new(seen.clone()), found: found.map(Box::new) });
        }
    };
    let fault = &damage.fault;
    let kept_in = store.join("lost").join(clock::now_ns().to_string());
    make_lost(&store.join("lost"), &kept_in).map_err(io_error("make", &kept_in))?;
    set_aside(store, fault, &kept_in).map_err(io_error("set aside the damaged rows in", &kept_in))?;
    let good = fault.seq.saturating_sub(1);
    frame::write_head(store, good).map_err(io_error("replace", &store.join("HEAD")))?;

    let (ledger, _) = Ledger::open_locked(store, lock, LedgerOptions::default(), &mut |_| {})?;
    let extra = json!({
        "by": rows::capped(by), "from_seq": fault.seq, "head": damage.head,
        "segment": fault.segment.display().to_string(), "offset": fault.offset, "bytes": damage.behind,
        "what": rows::capped(&fault.what), "kept_in": kept_in.display().to_string(),
    });
    let extra = if let Value::Object(map) = extra { map } else { serde_json::Map::new() };
    let draft = Draft {
        actor: String::new(),
        op: LOSS_ACCEPTED,
        path: String::new(),
        content_sha256: String::new(),
        extra,
    };
    let unrecorded = |e: String| io_error("record the loss in", store)(io::Error::other(e));
    ledger.append(&draft, Class::Asks { owes: 0 }).map_err(|e| unrecorded(e.to_string()))?;
    ledger.close().map_err(|e| unrecorded(e.to_string()))?;
    Ok(Loss { kept_in, recorded: ledger.status().seq, damage })
}

/// The folder for what is set aside, new, in a `lost` that leads nowhere else.
fn make_lost(lost: &Path, kept_in: &Path) -> io::Result<()> {
    let mut new = DirBuilder::new();
    new.mode(0o750);
    match new.create(lost) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    if !lost.symlink_metadata()?.is_dir() {
        return Err(io::Error::other(format!("{} is no directory: remove it", lost.display())));
    }
    new.create(kept_in)
}

/// The segment of the fault, if it is there, and those behind it.
fn from_fault(store: &Path, fault: &Fault) -> io::Result<Vec<PathBuf>> {
    let mut segments = frame::segments(store)?;
    let at = segments.iter().position(|segment| *segment == fault.segment).unwrap_or(segments.len());
    Ok(segments.split_off(at))
}

/// Moves everything from the fault on out of the ledger. The damaged files themselves are kept, not copies: the good rows
/// are what is copied, and each step is on the disk before the next.
fn set_aside(store: &Path, fault: &Fault, kept_in: &Path) -> io::Result<()> {
    let audit = store.join("audit");
    for segment in from_fault(store, fault)? {
        let kept = kept_in.join(segment.file_name().unwrap_or_default());
        if segment != fault.segment {
            fs::rename(&segment, kept)?;
            continue;
        }
        let good = audit.join(".good.binlog");
        let mut to = frame::create_anew(&good)?;
        io::copy(&mut frame::open_regular(&segment)?.take(fault.offset), &mut to)?;
        to.sync_all()?;
        // At no moment is the segment missing.
        renameat2(AT_FDCWD, &good, AT_FDCWD, &segment, RenameFlags::RENAME_EXCHANGE)?;
        frame::sync_dir(&audit)?;
        fs::rename(&good, kept)?;
    }
    if let Ok(mut head) = frame::open_regular(&store.join("HEAD")) {
        io::copy(&mut head, &mut File::create_new(kept_in.join("HEAD"))?)?;
    }
    frame::sync_dir(kept_in)?;
    frame::sync_dir(&store.join("lost"))?;
    frame::sync_dir(store)?;
    frame::sync_dir(&audit)
}
