//! The end of the ledger under the writer's lock: the file that is written, the place of the next row in the chain, and
//! the rows that wait because a write failed. A frame is written whole or not at all, and months rotate here. It knows no
//! kind of row; [`super::ledger`] and [`super::sync`] hold the lock.

use super::clock::{Month, Step, Steps, Time};
use super::drops::RowsDropped;
use super::frame::{self, CURRENT};
use super::ledger::Shared;
use super::options::{Appended, AuditUnavailable, OnFailure};
use super::recovery::End;
use super::reserve::Reserve;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<File>,
    /// Where the next frame goes: everything below is whole.
    pub(super) end: u64,
    /// Below here the current file is durable.
    pub(super) synced_end: u64,
    /// What is kept behind its end.
    pub(super) reserve: Reserve,
    /// On which the last row falls that is in the file.
    month: Option<Month>,
    /// That of the newest segment which has one for a name.
    named: Option<Month>,
    pub(super) steps: Steps,
    /// Last row that has a place, written or queued.
    pub(super) seq: u64,
    pub(super) chain: [u8; 32],
    /// Last row in the file.
    pub(super) written: u64,
    pub(super) written_chain: [u8; 32],
    /// Last row that is on the disk.
    pub(super) synced: u64,
    /// Last row that HEAD vouches for.
    pub(super) head: u64,
    pub(super) queue: VecDeque<Waiting>,
    /// Places in the queue that are kept for rows to come.
    pub(super) owed: usize,
    pub(super) write_failure: Option<String>,
    pub(super) sync_failure: Option<String>,
    /// What somebody else did to the file; it stays, whatever succeeds later.
    pub(super) tampered: Option<String>,
    pub(super) errors: u64,
    pub(super) dropped: u64,
    /// Those of them that no row tells of yet.
    pub(super) untold: Option<RowsDropped>,
    pub(super) refused: u64,
    pub(super) closing: bool,
}

/// A row that has its place.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Vec<u8>,
    pub(super) ts_ns: u64,
    pub(super) chain: [u8; 32],
}

impl Tail {
    /// From where a start found the end; the lock that it took goes on being held by the caller, who also tells of the
    /// step that the clock has made since.
    pub(super) fn new(end: End, now: Time) -> (Tail, File, Option<Step>) {
        let (steps, step) = Steps::begin(now, (end.seq > 0).then_some(end.ts_ns));
        let tail = Tail {
            end: end.offset,
            synced_end: end.offset,
            reserve: Reserve::of(&end.file),
            file: Arc::new(end.file),
            month: (end.offset > 0).then(|| Month::of(end.ts_ns)),
            named: end.named,
            steps,
            seq: end.seq,
            chain: end.chain,
            written: end.seq,
            written_chain: end.chain,
            synced: end.seq,
            head: end.seq,
            queue: VecDeque::new(),
            owed: 0,
            write_failure: None,
            sync_failure: None,
            tampered: None,
            errors: 0,
            dropped: 0,
            untold: None,
            refused: 0,
            closing: false,
        };
        (tail, end.lock, step)
    }

    /// What is wrong now.
    pub(super) fn failing(&self) -> Option<String> {
        let all = [&self.write_failure, &self.sync_failure, &self.tampered];
        all.into_iter().flatten().next().cloned()
    }

    /// Whether everything is in the file, on the disk, and vouched for.
    pub(super) fn idle(&self) -> bool {
        self.queue.is_empty() && self.written == self.head && self.untold.is_none()
    }

    /// The time of the oldest row that waits in memory.
    pub(super) fn waiting_since(&self) -> Option<u64> {
        self.queue.front().map(|row| row.ts_ns)
    }

    /// Counts a row that is not kept.
    pub(super) fn drop_row(&mut self, ts_ns: u64, why: &str) {
        self.dropped += 1;
        RowsDropped::add(&mut self.untold, ts_ns, why);
    }

    /// Why a row that asks can't be taken now.
    pub(super) fn refuses(&self, on_failure: OnFailure, owes: usize, limit: usize) -> Option<String> {
        let failing = self.failing();
        let why = failing.as_deref().unwrap_or("rows are written too slowly");
        match on_failure {
            // What is written now is not kept: the file has lost its name, or what was before it.
            OnFailure::Queue | OnFailure::Refuse if self.tampered.is_some() => self.tampered.clone(),
            // Without waiting rows the write itself is the question: see `append`.
            OnFailure::Refuse if !self.queue.is_empty() || self.sync_failure.is_some() => {
                Some(why.to_owned())
            }
            _ if self.queue.is_empty() => None,
            _ => (self.queue.len() + self.owed + owes >= limit)
                .then(|| format!("{} rows wait in memory ({why})", self.queue.len())),
        }
    }

    pub(super) fn turn_away(
        &mut self,
        on_failure: OnFailure,
        ts_ns: u64,
        reason: String,
    ) -> Result<Appended, AuditUnavailable> {
        if on_failure == OnFailure::Continue {
            self.drop_row(ts_ns, &reason);
            return Ok(Appended::Dropped);
        }
        self.refused += 1;
        Err(AuditUnavailable { reason })
    }

    /// Writes a whole frame or nothing. The error is for people; it has been logged and counted.
    pub(super) fn write(&mut self, shared: &Shared, row: &Waiting) -> Result<bool, String> {
        let month = Month::of(row.ts_ns);
        // Forwards only: a clock that is set back begins no segment, and the month that it comes to again goes on.
        if self.month.is_some_and(|last| month > last) {
            self.rotate(shared);
        }
        self.month = Some(month);
        // A write behind the end would make a file that was cut long again.
        if let Ok(meta) = self.file.metadata()
            && meta.is_file()
            && meta.len() < self.end
        {
            self.tampered(format!(
                "the current segment was cut: it has {} bytes of {}",
                meta.len(),
                self.end
            ));
        }
        if let Err(e) = self.file.write_all_at(&row.frame, self.end) {
            // The next write would overwrite the piece anyway; cut, it can't be mistaken for anything. With it goes what
            // was reserved behind the end, so a file that holds no piece is left alone.
            if self.file.metadata().map_or(true, |m| m.len() > self.end) {
                let _ = self.file.set_len(self.end);
                self.reserve.cut(&self.file);
            }
            return Err(self.failed("write", &e));
        }
        self.end += row.frame.len() as u64;
        self.written += 1;
        self.written_chain = row.chain;
        if self.write_failure.take().is_some() {
            tracing::warn!(queued = self.queue.len(), "the audit ledger can be written again");
        }
        Ok(true)
    }

    /// Writes up to `most` waiting rows; false when a write failed.
    pub(super) fn drain(&mut self, shared: &Shared, most: usize) -> bool {
        for _ in 0..most {
            let Some(next) = self.queue.pop_front() else { break };
            if self.write(shared, &next).is_err() {
                self.queue.push_front(next);
                return false;
            }
        }
        true
    }

    pub(super) fn failed(&mut self, doing: &'static str, e: &io::Error) -> String {
        self.errors += 1;
        let reason = format!("cannot {doing}: {e}");
        let slot = if doing == "write" { &mut self.write_failure } else { &mut self.sync_failure };
        // Loud when it begins; a failure that lasts is repeated by the background thread, not at every row.
        if slot.as_ref() != Some(&reason) {
            tracing::error!(doing, error = %e, queued = self.queue.len(), "the audit ledger fails");
            *slot = Some(reason.clone());
        }
        reason
    }

    /// Somebody else has changed the file that is written. Rows that are owed still go into it: what is in it then is for
    /// `verify`.
    pub(super) fn tampered(&mut self, what: String) {
        if self.tampered.is_none() {
            tracing::error!(
                what,
                after_row = self.written,
                "somebody else has changed the audit ledger while it was written: keep its folder for \
                 whoever investigates"
            );
            self.tampered = Some(what);
        }
    }

    /// Looks whether the file that is written still has its name.
    pub(super) fn look_at_place(&mut self, store: &Path) {
        let path = store.join("audit").join(CURRENT);
        let Some(held) = self.file.metadata().ok().filter(fs::Metadata::is_file) else { return };
        match path.symlink_metadata() {
            Ok(named) if (named.dev(), named.ino()) != (held.dev(), held.ino()) => {
                self.tampered(format!("{} is another file than the one that is written", path.display()));
            }
            Ok(_) if held.len() < self.end => {
                self.tampered(format!(
                    "{} was cut: it has {} bytes of {}",
                    path.display(),
                    held.len(),
                    self.end
                ));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.tampered(format!("{} was removed", path.display()));
            }
            _ => {}
        }
    }

    /// Gives the current segment its month's name and begins a new one. When that fails, the current one goes on: where
    /// a row lies is a convenience, that it is written is not.
    ///
    /// The order of names is the order of rows. So a month whose name a segment has already, from before the clock was set
    /// back, goes on until the next one begins; and when the clock once was far ahead, names go on from there.
    fn rotate(&mut self, shared: &Shared) {
        let Some(last) = self.month.filter(|_| self.end > 0) else { return };
        let month = match self.named {
            Some(named) if named == last => return,
            Some(named) if named > last => named.next(),
            _ => last,
        };
        match self.try_rotate(shared, month) {
            Ok(file) => {
                // What was reserved behind its end is needed behind the new one's.
                let _ = self.file.set_len(self.end);
                self.reserve = Reserve::of(&file);
                (self.file, self.end, self.synced_end) = (Arc::new(file), 0, 0);
                self.named = Some(month);
            }
            Err(e) => tracing::error!(error = %e, %month, "cannot begin a new segment of the audit ledger"),
        }
    }

    fn try_rotate(&mut self, shared: &Shared, month: Month) -> io::Result<File> {
        let audit = shared.store.join("audit");
        let (current, next) = (audit.join(CURRENT), audit.join(".next.binlog"));
        let old = audit.join(format!("{month}.binlog"));
        // The background thread looks at the new file alone, so the old one is finished here: once a month.
        self.file.sync_all()?;
        let file = frame::create_anew(&next)?;
        file.sync_all()?;
        renameat2(AT_FDCWD, &current, AT_FDCWD, &old, RenameFlags::RENAME_NOREPLACE)?;
        if let Err(e) = fs::rename(&next, &current) {
            fs::rename(&old, &current)?;
            return Err(e);
        }
        frame::sync_dir(&audit)?;
        Ok(file)
    }
}
