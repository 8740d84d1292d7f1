//! What a tenant's memory costs (`[2.8]`): counted once from the files, then kept up to date by the writes. Every file and
//! directory costs at least a block, so that empty ones can't use up the file system's inodes for nothing. Only
//! [`super::store`] calls it.

use super::store::{MemoryError, beneath};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstatat;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;

/// What a file of `size` bytes costs.
pub(super) fn cost(size: u64) -> u64 {
    size.max(1).next_multiple_of(BLOCK)
}

/// The sum for one tenant.
#[derive(Debug)]
pub(super) struct Usage(AtomicU64);

impl Usage {
    /// Counts what lies below `dir`. What is no file and no directory, or lies in another mount, costs its entry.
    pub(super) fn count(dir: BorrowedFd<'_>) -> Result<Usage, Errno> {
        let mut sum = 0;
        let mut open = vec![(dir.try_clone_to_owned().map_err(|_| Errno::EMFILE)?, entries(dir)?)];
        while let Some((parent, left)) = open.last_mut() {
            let Some((name, kind)) = left.pop() else {
                open.pop();
                continue;
            };
            if kind != Some(Type::Directory) {
                let stat = fstatat(&*parent, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
                sum += cost(stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0)));
                continue;
            }
            sum += cost(0);
            // A name that is not UTF-8 is not one of ours.
            let Ok(name) = name.into_string() else { continue };
            match beneath(parent.as_fd(), &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                Ok(next) => {
                    let inside = entries(next.as_fd())?;
                    open.push((next, inside));
                }
                Err(Errno::EXDEV | Errno::ELOOP | Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Usage(AtomicU64::new(sum)))
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `needed` more bytes, if `quota` allows them.
    pub(super) fn hold(&self, needed: u64, quota: u64) -> Result<Held<'_>, MemoryError> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(needed).filter(|after| *after <= quota)
            })
            .map(|_| Held { usage: self, bytes: needed })
            .map_err(|used| MemoryError::TenantFull { used, quota, needed })
    }

    fn give_back(&self, bytes: u64) {
        // The update always gives a value.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

/// Bytes that are counted for a write, and given back if it fails.
pub(super) struct Held<'a> {
    usage: &'a Usage,
    bytes: u64,
}

impl Held<'_> {
    /// The write succeeded, and freed `freed` bytes.
    pub(super) fn keep(&mut self, freed: u64) {
        self.bytes = freed;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.usage.give_back(self.bytes);
    }
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
