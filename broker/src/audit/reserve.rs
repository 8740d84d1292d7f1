//! Room that is kept on the disk for the ledger (`[6.4]`), so that others who fill it don't stop it: blocks behind the end
//! of the current segment, and a small file that can be given back for HEAD. Taken when there is room, and again when
//! there is room again; the background thread calls it.

use super::frame::{FILE_MODE, RESERVE};
use super::ledger::Shared;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that the file takes which is given back for HEAD: some blocks, whatever their size.
const FOR_HEAD: u64 = 64 << 10;
/// At most this part of a small file system is kept.
const PART: u64 = 8;
/// How often it is looked whether there is room again, and whether what was kept is still there.
const LOOK: Duration = Duration::from_secs(10);

/// What is kept behind the end of one segment.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Up to here blocks are reserved.
    pub(super) until: u64,
    /// What should be behind the end; 0 until the file system has been looked at.
    wanted: u64,
    /// When it was looked at last.
    looked: Option<Instant>,
    /// Whether there was no room for all of it.
    short: bool,
    /// Whether the last attempt failed.
    failed: bool,
}

impl Reserve {
    /// Of a segment that has blocks already.
    pub(super) fn of(file: &File) -> Self {
        Reserve { until: allocated(file), wanted: 0, looked: None, short: false, failed: false }
    }

    /// The segment was cut, and what was reserved went with it.
    pub(super) fn cut(&mut self, file: &File) {
        self.until = allocated(file);
    }

    /// Whether it is to be looked at now, with the segment's end at `end`: not for each row anew. Half of it may be used
    /// up first, and while there is no room only the time says when to look.
    fn is_due(&self, end: u64, now: Instant) -> bool {
        let half_left = self.until.max(end) >= end + self.wanted / 2;
        match self.looked {
            None => true,
            Some(looked) => now.duration_since(looked) >= LOOK || !half_left && !self.short,
        }
    }
}

/// Blocks of `file` count as reserved where they lie behind its end.
fn allocated(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.blocks().saturating_mul(512))
}

impl Shared {
    /// Takes what is missing of the reserve, as far as there is room.
    pub(super) fn reserve(&self) {
        if self.options.preallocate == 0 {
            return;
        }
        let Ok(mut tail) = self.lock() else { return };
        let now = Instant::now();
        if !tail.reserve.is_due(tail.end, now) {
            return;
        }
        tail.reserve.looked = Some(now);
        let (file, end, from) = (Arc::clone(&tail.file), tail.end, tail.reserve.until.max(tail.end));
        drop(tail);
        let Ok(fs) = fstatvfs(&*file) else { return };
        let wanted = self.options.preallocate.min(bytes(&fs, fs.blocks()) / PART);
        let kept = keep_for_head(&self.store, &fs);
        let (until, taken) =
            if from < end + wanted { take(&file, &fs, from, end + wanted) } else { (from, Ok(())) };
        let Ok(mut tail) = self.lock() else { return };
        if Arc::ptr_eq(&file, &tail.file) {
            // Also what an attempt got that failed half-way.
            (tail.reserve.until, tail.reserve.wanted) = (until, wanted);
            tail.reserve.short = until < end + wanted / 2;
        }
        let failed = taken.and(kept).err();
        let before = std::mem::replace(&mut tail.reserve.failed, failed.is_some());
        drop(tail);
        if let Some(e) = failed.filter(|_| !before) {
            tracing::warn!(error = %e, bytes = wanted, "cannot reserve disk space for the audit ledger");
        }
    }
}

fn bytes(fs: &Statvfs, blocks: u64) -> u64 {
    blocks.saturating_mul(fs.fragment_size())
}

/// Reserves from `from` to `to`, or as much of it as there is; up to where it is reserved then.
fn take(file: &File, fs: &Statvfs, from: u64, to: u64) -> (u64, io::Result<()>) {
    // The last of a disk is left to others: the file for HEAD is among them.
    let left_alone = (16 * FOR_HEAD).min(bytes(fs, fs.blocks()) / PART);
    let room = bytes(fs, fs.blocks_available()).saturating_sub(left_alone);
    let length = (to - from).min(room) / fs.fragment_size().max(1) * fs.fragment_size();
    let (Ok(offset), Ok(size)) = (i64::try_from(from), i64::try_from(length)) else { return (from, Ok(())) };
    if size == 0 {
        return (from, Ok(()));
    }
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, size) {
        Ok(()) => (from + length, Ok(())),
        // It may have got a part of it, and then keeps that.
        Err(e) => (allocated(file).clamp(from, from + length), Err(e.into())),
    }
}

/// Makes the file that can be given back, if it is not there, or not whole.
fn keep_for_head(store: &Path, fs: &Statvfs) -> io::Result<()> {
    let path = store.join(RESERVE);
    match path.symlink_metadata() {
        Ok(meta) if meta.is_file() && meta.blocks().saturating_mul(512) >= FOR_HEAD => return Ok(()),
        // Only the name is removed, whatever it leads to.
        Ok(_) => fs::remove_file(&path)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if bytes(fs, fs.blocks_available()) < 16 * FOR_HEAD {
        return Ok(());
    }
    let file = File::options().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
    let size = i64::try_from(FOR_HEAD).unwrap_or(i64::MAX);
    let made = fallocate(&file, FallocateFlags::empty(), 0, size);
    if made.is_err() {
        // Half of it would be taken for the whole of it.
        let _ = fs::remove_file(&path);
    }
    Ok(made?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_at_when_half_is_used_up_or_after_a_while_and_not_for_each_row() {
        let now = Instant::now();
        let of = |until, wanted, short| Reserve { until, wanted, looked: Some(now), short, failed: false };
        assert!(Reserve { looked: None, ..of(100, 100, false) }.is_due(0, now), "never looked at");
        assert!(!of(100, 100, false).is_due(50, now));
        assert!(of(100, 100, false).is_due(51, now));
        assert!(!of(100, 100, true).is_due(51, now), "there was no room a moment ago");
        assert!(of(100, 100, true).is_due(51, now + LOOK));
        assert!(of(100, 100, false).is_due(0, now + LOOK), "somebody may have given the file for HEAD back");
    }

    #[test]
    fn a_file_for_head_that_is_not_whole_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RESERVE);
        let fs = fstatvfs(File::open(dir.path()).unwrap()).unwrap();
        let blocks = || path.metadata().unwrap().blocks() * 512;
        for left in [&b""[..], b"a few bytes"] {
            fs::write(&path, left).unwrap();
            keep_for_head(dir.path(), &fs).unwrap();
            assert!(blocks() >= FOR_HEAD, "{}", blocks());
        }
        // A whole one is left as it is.
        let made = path.metadata().unwrap().ino();
        keep_for_head(dir.path(), &fs).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), made);
    }

    #[test]
    fn a_disk_without_room_leaves_no_piece_of_that_file_and_what_was_got_behind_the_end_counts() {
        let dir = tempfile::tempdir().unwrap();
        let tmpfs = Some("tmpfs");
        let none = nix::mount::MsFlags::empty();
        nix::mount::mount(tmpfs, dir.path(), tmpfs, none, Some("size=2m")).expect("this test needs root");
        let file = File::create_new(dir.path().join("segment")).unwrap();
        let before = fstatvfs(&file).unwrap();
        // As if others had taken it since it was looked at.
        let filler = File::create_new(dir.path().join("filler")).unwrap();
        fallocate(&filler, FallocateFlags::empty(), 0, (2 << 20) - (32 << 10)).unwrap();
        let made = keep_for_head(dir.path(), &before);
        let (until, taken) = take(&file, &before, 0, 1 << 20);
        let (there, blocks) = (dir.path().join(RESERVE).exists(), allocated(&file));
        drop((file, filler));
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert!(made.is_err() && !there);
        assert!(taken.is_err() && until == blocks, "{until} {blocks}");
    }
}
