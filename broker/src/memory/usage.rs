//! What memory takes of the disk (`[2.8]`): whole blocks, for files and for the directories that have to be made, so
//! that neither empty notes nor deep paths are free. A tenant's sum is counted once from the files and then kept up to
//! date by the writes; an invocation's only grows. Only [`super::store`] counts.

use super::open::beneath;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, fstat, fstatat};
use nix::sys::statvfs::fstatvfs;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least unit of account: file systems with smaller blocks, or none, still keep an inode for each entry.
const BLOCK: u64 = 4096;
/// Unit of `st_blocks`.
const SECTOR: u64 = 512;

/// The unit in which a file system gives space away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u64);

impl Block {
    /// That of the file system of `dir`.
    pub(super) fn of(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Block(fstatvfs(dir)?.fragment_size().max(BLOCK)))
    }

    /// What a file of `size` bytes takes at least; a directory takes as much as a file of none.
    pub(super) fn cost(self, size: u64) -> u64 {
        size.max(1).next_multiple_of(self.0)
    }

    /// What a file takes that is there. A directory's size says nothing.
    pub(super) fn taken(self, stat: &FileStat) -> u64 {
        let directory = stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR;
        let size = if directory { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) };
        self.cost(size).max(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(SECTOR))
    }
}

/// Bytes that are counted.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// Bytes counted so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts what has been taken already.
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Forgets the sum for this one.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Counts `needed` more bytes, if `quota` allows them. The error is what is counted.
    pub(super) fn hold(&self, needed: u64, quota: u64) -> Result<Held<'_>, u64> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(needed).filter(|after| *after <= quota)
            })
            .map(|_| Held { meter: self, bytes: needed })
    }

    pub(super) fn give_back(&self, bytes: u64) {
        // The update always gives a value.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

/// Bytes that are counted for a write, and given back as far as it does not take them.
pub(super) struct Held<'a> {
    meter: &'a Meter,
    bytes: u64,
}

impl Held<'_> {
    /// `bytes` of the disk are taken: of what is held, and beyond it if they are more.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.meter.add(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.meter.give_back(self.bytes);
    }
}

/// What is taken below `dir`. What is no file and no directory, or lies in another mount, takes its entry.
pub(super) fn count(dir: BorrowedFd<'_>, block: Block) -> Result<u64, Errno> {
    let mut sum = 0;
    let mut open = vec![(dir.try_clone_to_owned().map_err(|_| Errno::EMFILE)?, entries(dir)?)];
    while let Some((parent, left)) = open.last_mut() {
        let Some((name, kind)) = left.pop() else {
            open.pop();
            continue;
        };
        let stat = fstatat(&*parent, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        sum += stat.map_or(block.cost(0), |stat| block.taken(&stat));
        // A name that is not UTF-8 is not one of ours.
        let Some(name) = name.into_string().ok().filter(|_| kind == Some(Type::Directory)) else { continue };
        match beneath(parent.as_fd(), &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(next) => {
                let inside = entries(next.as_fd())?;
                open.push((next, inside));
            }
            Err(Errno::EXDEV | Errno::ELOOP | Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(sum)
}

/// What an open directory takes now: it grows with its entries.
pub(super) fn size_of(dir: BorrowedFd<'_>, block: Block) -> u64 {
    fstat(dir).map_or(block.cost(0), |stat| block.taken(&stat))
}

/// The names in a directory but `.` and `..`.
pub(super) fn names(dir: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    Ok(entries(dir)?.into_iter().map(|(name, _)| OsString::from_vec(name.into_bytes())).collect())
}

fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(CString, Option<Type>)>, Errno> {
    // A descriptor of its own, since listing moves its offset.
    let own = beneath(dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let mut found = Vec::new();
    for entry in Dir::from_fd(own)?.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}
