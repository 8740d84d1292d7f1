//! Free space (`[2.8]`): below 5 % of the state's file system nothing is written but the ledger, and Bash is ended. The
//! memory store and Bash ask here; it knows neither.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{Statvfs, fstatvfs};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How much of a file system stays free, in percent.
pub const KEPT_FREE: u64 = 5;

/// The longest time between two looks at a file system that is being written to, and the shortest.
const LOOK: Duration = Duration::from_millis(250);
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
/// No disk is thought to be filled faster, in bytes a second.
const FASTEST: u64 = 8 << 30;

/// How long it takes at least to use up what is more than is kept free.
fn before_full(fs: &Statvfs) -> Duration {
    let kept = u128::from(fs.blocks()) * u128::from(KEPT_FREE) / 100;
    let left = u128::from(fs.blocks_available()).saturating_sub(kept) * u128::from(fs.fragment_size());
    let micros = left * 1_000_000 / u128::from(FASTEST);
    Duration::from_micros(micros.try_into().unwrap_or(u64::MAX)).clamp(SHORTEST_LOOK, LOOK)
}

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

    /// When it, and the file systems of `others`, are to be looked at again; none if one of them is nearly full now. May
    /// wait for a disk.
    pub fn look_again(&self, others: &[Arc<OwnedFd>]) -> io::Result<Option<Duration>> {
        let mut soonest = LOOK;
        for fd in std::iter::once(&self.0).chain(others) {
            let fs = fstatvfs(fd.as_fd())?;
            if is_short(&fs, 0) {
                return Ok(None);
            }
            soonest = soonest.min(before_full(&fs));
        }
        Ok(Some(soonest))
    }
}
