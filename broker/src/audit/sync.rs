//! The background half of the writer: retries what waits, makes rows durable in groups, and moves HEAD. It runs on its
//! own thread, which may wait for the disk; [`super::ledger`] starts it and ends it.

use super::frame::{self, FrameReader, Next};
use super::ledger::{Durable, Shared};
use super::options::Durability;
use super::tail::Tail;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// How often a failure that lasts is said again.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// How often clock and reserve are looked at while nothing is written.
const LOOK: Duration = Duration::from_secs(10);
/// Rows that are written under one hold of the lock.
const BATCH: usize = 128;

/// With [`Durability::Fsync`] HEAD may be this much behind the rows while more keep coming.
const HEAD_LAG: Duration = Duration::from_millis(100);

/// Works until the ledger closes. A panic of another thread inside a row ends it too: nothing can be trusted then.
pub(super) fn run(shared: &Shared) {
    let mut retry = FIRST_RETRY;
    let (mut said, mut head_moved) = (Instant::now(), Instant::now());
    loop {
        let Ok(tail) = shared.lock() else { return };
        let idle = |t: &mut Tail| !t.closing && t.idle();
        let Ok((mut tail, quiet)) = shared.work.wait_timeout_while(tail, LOOK, idle) else { return };
        shared.look_at_clock(&mut tail, shared.options.clock.now());
        if quiet.timed_out() {
            tail.look_at_place(&shared.store);
            drop(tail);
            // There may be room again.
            shared.reserve();
            continue;
        }
        drop(tail);
        let Some(good) = round(shared, &mut head_moved) else { return };
        shared.reserve();

        let Ok(tail) = shared.lock() else { return };
        if good {
            retry = FIRST_RETRY;
            if tail.closing && tail.idle() {
                return;
            }
            continue;
        }
        let failing = tail.failing().unwrap_or_default();
        if tail.closing {
            let (from, to) = (tail.written + 1, tail.seq);
            tracing::error!(
                failing,
                queued = tail.queue.len(),
                from,
                to,
                dropped = tail.untold.as_ref().map_or(0, |dropped| dropped.count),
                "the audit ledger ends with rows that could not be written or synced"
            );
            return;
        }
        if said.elapsed() >= SAY_AGAIN {
            said = Instant::now();
            tracing::error!(failing, queued = tail.queue.len(), "the audit ledger still fails");
        }
        if shared.stop.wait_timeout_while(tail, retry, |t| !t.closing).is_err() {
            return;
        }
        retry = (retry * 2).min(LAST_RETRY);
    }
}

/// Once through: write what waits, sync, move HEAD. False when something failed; None when nothing can be trusted any
/// more.
fn round(shared: &Shared, head_moved: &mut Instant) -> Option<bool> {
    let group = shared.options.group;
    if shared.options.durability == Durability::Background {
        // Rows gather for a moment, so that a busy broker does not keep the disk busy too.
        let tail = shared.lock().ok()?;
        drop(shared.stop.wait_timeout_while(tail, group, |t| !t.closing).ok()?);
    }
    let written = drain(shared)?;
    if !make_durable(shared)? {
        return Some(false);
    }
    if shared.options.durability == Durability::Fsync && head_moved.elapsed() < HEAD_LAG {
        // Calls wait for rows, nobody waits for HEAD: rows that come meanwhile go first.
        let tail = shared.lock().ok()?;
        let nothing_new = |t: &mut Tail| !t.closing && t.queue.is_empty() && t.written == t.synced;
        let (tail, quiet) = shared.work.wait_timeout_while(tail, group, nothing_new).ok()?;
        drop(tail);
        if !quiet.timed_out() {
            return Some(written);
        }
    }
    *head_moved = Instant::now();
    Some(move_head(shared)? && written)
}

/// Writes what waits. False when it still can't; None when nothing can be trusted any more.
fn drain(shared: &Shared) -> Option<bool> {
    loop {
        let mut tail = shared.lock().ok()?;
        if tail.queue.is_empty() {
            shared.tell_drops(&mut tail);
            // A row that can't be written waits by now.
            return Some(tail.queue.is_empty());
        }
        if !tail.drain(shared, BATCH) {
            return Some(false);
        }
    }
}

/// One `fdatasync` for all rows that are in the file by now.
fn make_durable(shared: &Shared) -> Option<bool> {
    let tail = shared.lock().ok()?;
    let (file, from, to, seq) = (Arc::clone(&tail.file), tail.synced_end, tail.end, tail.written);
    let nothing_new = seq == tail.synced;
    drop(tail);
    if nothing_new {
        return Some(true);
    }
    let result = file.sync_data();
    let mut tail = shared.lock().ok()?;
    if let Err(e) = result {
        tail.failed("sync", &e);
        drop(tail);
        shared.durable.send_modify(|d| d.failing = true);
        // The kernel reports a failed write-back once and takes the pages for clean: without writing them again, the
        // next sync would succeed without having done anything.
        if let Err(e) = write_again(&file, from, to) {
            tracing::error!(error = %e, from, to, "rows of the audit ledger may not have reached the disk");
        }
        return Some(false);
    }
    if Arc::ptr_eq(&file, &tail.file) {
        tail.synced_end = to;
        tail.look_at_place(&shared.store);
    }
    tail.synced = seq;
    drop(tail);
    shared.durable.send_replace(Durable { seq, failing: false });
    Some(true)
}

/// HEAD follows the last row that is on the disk.
fn move_head(shared: &Shared) -> Option<bool> {
    let tail = shared.lock().ok()?;
    let seq = tail.synced;
    let nothing_new = seq == tail.head;
    drop(tail);
    let result = if nothing_new { Ok(()) } else { frame::write_head(&shared.store, seq) };
    let mut tail = shared.lock().ok()?;
    if let Err(e) = result {
        tail.failed("replace HEAD", &e);
        return Some(false);
    }
    tail.head = seq;
    if tail.sync_failure.take().is_some() {
        tracing::warn!(seq, "the audit ledger reaches the disk again");
    }
    Some(true)
}

/// Writes the bytes from `from` to `to` once more, if they can still be read as they were.
fn write_again(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut frames = FrameReader::new(file.try_clone()?, from)?;
    while frames.offset() < to {
        let at = frames.offset();
        match frames.next_frame()? {
            Next::Frame(f) => file.write_all_at(&frame::encode(f.seq, f.ts_ns, &f.payload), at)?,
            Next::End => return Err(io::Error::other(format!("the file ends at byte {at}"))),
            Next::Bad(fault) => return Err(io::Error::other(format!("at byte {at}: {fault}"))),
        }
    }
    Ok(())
}
