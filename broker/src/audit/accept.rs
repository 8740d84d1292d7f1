//! `cyberos audit accept-loss` (`[6.4]`): the operator's way on when a start refuses, because rows that were durable are
//! gone or damaged. It keeps every row up to the first bad place, moves what lies behind it to `store/lost/` for whoever
//! investigates, and says so in the ledger itself. It is never called by a start.
//!
//! Checkpoints (`[6.6]`) will not follow by themselves: root's file begins anew.

use super::frame::{self, FILE_MODE};
use super::ledger::Ledger;
use super::options::{Class, LedgerOptions};
use super::reader::{Fault, ReadError, Reader};
use super::recovery::{self, LedgerError, io_error};
use super::row::Draft;
use super::{clock, rows};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The row that says so.
pub const LOSS_ACCEPTED: &str = "audit.loss_accepted";

/// A loss that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The first thing that was wrong.
    pub fault: Fault,
    /// The seq that HEAD had promised.
    pub head: u64,
    /// Where the bytes from there on are now.
    pub kept_in: PathBuf,
}

/// Makes the ledger of `store` (STATE/store) one that opens, if it does not; `by` names the operator in the row. None if
/// there is nothing to accept. No broker may run on it.
pub fn accept_loss(store: &Path, by: &str) -> Result<Option<Loss>, LedgerError> {
    let lock = recovery::lock(store)?;
    let mut rows = Reader::open(store).map_err(io_error("read", store))?.rows();
    let head = frame::read_head(store).ok().flatten().unwrap_or(0);
    let fault = loop {
        match rows.next() {
            None => return Ok(None),
            Some(Ok(_)) => {}
            Some(Err(ReadError::Io(e))) => return Err(io_error("read", store)(e)),
            Some(Err(ReadError::Broken(fault))) => break fault,
        }
    };
    let kept_in = store.join("lost").join(clock::now_ns().to_string());
    DirBuilder::new().recursive(true).mode(0o750).create(&kept_in).map_err(io_error("make", &kept_in))?;
    set_aside(store, &fault, &kept_in).map_err(io_error("set aside the damaged rows in", &kept_in))?;
    let good = fault.seq.saturating_sub(1);
    frame::write_head(store, good).map_err(io_error("replace", &store.join("HEAD")))?;
    lock.unlock().map_err(io_error("unlock", store))?;

    let (ledger, _) = Ledger::open(store, LedgerOptions::default(), &mut |_| {})?;
    let extra = json!({
        "by": rows::capped(by), "from_seq": fault.seq, "head": head, "segment": fault.segment.display().to_string(),
        "offset": fault.offset, "what": rows::capped(&fault.what), "kept_in": kept_in.display().to_string(),
    });
    let extra = if let Value::Object(map) = extra { map } else { serde_json::Map::new() };
    let draft = Draft {
        actor: String::new(),
        op: LOSS_ACCEPTED,
        path: String::new(),
        content_sha256: String::new(),
        extra,
    };
    let written = ledger.append(&draft, Class::Asks { owes: 0 }).and_then(|_| ledger.close());
    written.map_err(|e| io_error("record the loss in", store)(io::Error::other(e)))?;
    Ok(Some(Loss { fault, head, kept_in }))
}

/// Moves everything from the fault on out of the ledger; each step is on the disk before the next one destroys anything.
fn set_aside(store: &Path, fault: &Fault, kept_in: &Path) -> io::Result<()> {
    let mut behind = false;
    for segment in frame::segments(store)? {
        let name = segment.file_name().unwrap_or_default();
        if behind {
            fs::rename(&segment, kept_in.join(name))?;
        }
        if segment != fault.segment {
            continue;
        }
        behind = true;
        let mut from = File::options().read(true).write(true).open(&segment)?;
        let mut to = File::options().write(true).create_new(true).mode(FILE_MODE).open(kept_in.join(name))?;
        // The whole file: where it was good is evidence too.
        io::copy(&mut from, &mut to)?;
        to.sync_all()?;
        frame::sync_dir(kept_in)?;
        from.set_len(fault.offset)?;
        from.sync_all()?;
    }
    if let Ok(head) = fs::read(store.join("HEAD")) {
        fs::write(kept_in.join("HEAD"), head)?;
    }
    frame::sync_dir(kept_in)?;
    frame::sync_dir(&store.join("lost"))?;
    frame::sync_dir(store)?;
    frame::sync_dir(&store.join("audit"))
}
