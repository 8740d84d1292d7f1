//! How whatever lies in memory is opened: below a directory that is held, and on its file system.

use cyberos_proto::beneath::{self, Stay};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Opens `path` below `dir`, through directories of the same file system alone.
pub(super) fn beneath(dir: BorrowedFd<'_>, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::from_bits_truncate(0o600) } else { Mode::empty() };
    beneath::open_as(dir, path, flags | OFlag::O_NOFOLLOW, mode, Stay::HERE)
}
