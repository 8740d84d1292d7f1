//! Free space (`[2.8]`): below 5 % of the state's file system nothing is written but the ledger, and Bash is ended. The
//! memory store and Bash ask here; it knows neither.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{Statvfs, fstatvfs};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// How much of a file system stays free, in percent.
pub const KEPT_FREE: u64 = 5;

/// Whether a file system is below that, or would be with `more` bytes.
pub fn is_short(fs: &Statvfs, more: u64) -> bool {
    let few =
        |left: u64, all: u64| all > 0 && u128::from(left) * 100 < u128::from(all) * u128::from(KEPT_FREE);
    let left = fs.blocks_available().saturating_sub(more.div_ceil(fs.fragment_size().max(1)));
    // Without a count of files (some file systems make them as they go) there is none to run out of.
    few(left, fs.blocks()) || few(fs.files_available(), fs.files())
}

/// The state's file system, held.
#[derive(Clone, Debug)]
pub struct Space(Arc<OwnedFd>);

impl Space {
    /// Holds the file system of `state`.
    pub fn open(state: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Space(Arc::new(open(state, flags, Mode::empty())?)))
    }

    /// Whether it, or the file system of one of `others`, is nearly full. May wait for a disk.
    pub fn is_short(&self, others: &[Arc<OwnedFd>]) -> io::Result<bool> {
        for fd in std::iter::once(&self.0).chain(others) {
            if is_short(&fstatvfs(fd.as_fd())?, 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
