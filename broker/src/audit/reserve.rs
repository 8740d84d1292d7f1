//! Room that is kept on the disk for the ledger (`[6.4]`), so that others who fill it don't stop it: blocks behind the end
//! of the current segment, and a small file that can be given back for HEAD. Taken when there is room, and again when
//! there is room again; the background thread calls it.

use super::frame::{FILE_MODE, RESERVE};
use super::ledger::Shared;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes that the file takes which is given back for HEAD: some blocks, whatever their size.
const FOR_HEAD: u64 = 64 << 10;
/// At most this part of a small file system is kept.
const PART: u64 = 8;

/// Blocks of `file` count as reserved where they lie behind its end.
pub(super) fn reserved(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.blocks().saturating_mul(512))
}

impl Shared {
    /// Takes what is missing of the reserve, as far as there is room.
    pub(super) fn reserve(&self) {
        if self.options.preallocate == 0 {
            return;
        }
        let Ok(tail) = self.lock() else { return };
        let (file, end, reserved) = (Arc::clone(&tail.file), tail.end, tail.reserved.max(tail.end));
        drop(tail);
        let Ok(fs) = fstatvfs(&*file) else { return };
        let wanted = self.options.preallocate.min(bytes(&fs, fs.blocks()) / PART);
        let kept = keep_for_head(&self.store, &fs);
        // Not for each row anew: half of it may be used up first.
        let result =
            if reserved < end + wanted / 2 { take(&file, &fs, reserved, end + wanted) } else { Ok(reserved) };
        let Ok(mut tail) = self.lock() else { return };
        match (result, kept) {
            (Ok(until), Ok(())) => {
                tail.reserve_failed = false;
                if Arc::ptr_eq(&file, &tail.file) {
                    tail.reserved = until;
                }
            }
            (Err(e), _) | (_, Err(e)) => {
                if !std::mem::replace(&mut tail.reserve_failed, true) {
                    tracing::warn!(error = %e, bytes = wanted, "cannot reserve disk space for the audit ledger");
                }
            }
        }
    }
}

fn bytes(fs: &Statvfs, blocks: u64) -> u64 {
    blocks.saturating_mul(fs.fragment_size())
}

/// Reserves from `from` to `to`; up to where it is reserved then.
fn take(file: &File, fs: &Statvfs, from: u64, to: u64) -> io::Result<u64> {
    // A call that fails may keep what it has got, so it must not ask for all there is; and others need room too.
    let room = bytes(fs, fs.blocks_available()) / 2;
    let length = (to - from).min(room) / fs.fragment_size().max(1) * fs.fragment_size();
    let (Ok(offset), Ok(size)) = (i64::try_from(from), i64::try_from(length)) else { return Ok(from) };
    if size > 0 {
        fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, size)?;
    }
    Ok(from + length)
}

/// Makes the file that can be given back, if it is not there.
fn keep_for_head(store: &Path, fs: &Statvfs) -> io::Result<()> {
    let path = store.join(RESERVE);
    if path.symlink_metadata().is_ok() || bytes(fs, fs.blocks_available()) < 16 * FOR_HEAD {
        return Ok(());
    }
    let file = File::options().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
    let size = i64::try_from(FOR_HEAD).unwrap_or(i64::MAX);
    Ok(fallocate(&file, FallocateFlags::empty(), 0, size)?)
}
