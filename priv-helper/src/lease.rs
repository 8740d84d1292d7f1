//! Uids: blocks of 256 under a lock that all instances share (`[10.3]`); `link` hands leases out of them, first in first
//! out. A block that nobody has locked is nobody's: what is left of it is swept when it is taken. It knows no sandboxes.

use crate::{prelude::*, socket};
use cyberos_proto::ceiling::CeilingText;
pub(crate) use cyberos_proto::ceiling::block;
use cyberos_proto::lease::runs_as;
use std::{ops::RangeInclusive, os::unix::fs::OpenOptionsExt};

/// How long the processes of a swept block may take to die.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);

/// Takes a block that nobody has: its first uid, and its lock.
pub(crate) fn take_block(ceiling: &CeilingText) -> Step<(u32, OwnedFd)> {
    let free = ceiling.blocks().find_map(|first| Some((first, lock_block(ceiling, first)?)));
    step("no free block of uids", free.ok_or(Errno::EAGAIN))
}

/// Locks and sweeps a block, unless somebody has it or something of it cannot be killed.
fn lock_block(ceiling: &CeilingText, first: u32) -> Option<OwnedFd> {
    let lock = lock(ceiling, &first.to_string())?;
    clear(&block(first)).then_some(lock)
}

/// The lock of that name, if nobody has it. It is held as long as the descriptor or a copy of it is open.
pub(crate) fn lock(ceiling: &CeilingText, name: &str) -> Option<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(ceiling.locks.join(name)).ok()?;
    file.try_lock().ok().map(|()| file.into())
}

/// Sweeps every block that has been used once and that nobody has locked now.
pub(crate) fn sweep(ceiling: &CeilingText) {
    for entry in fs::read_dir(&ceiling.locks).into_iter().flatten().flatten() {
        let first = entry.file_name().to_str().and_then(|name| ceiling.block_named(name));
        drop(first.and_then(|first| lock_block(ceiling, first)));
    }
}

/// Kills all processes of `uids`, waits for their end, removes their sockets; whether none is left. We are in /proc.
fn clear(uids: &RangeInclusive<u32>) -> bool {
    let until = Instant::now() + SWEEP_LIMIT;
    loop {
        let mut left = Vec::new();
        for entry in fs::read_dir(".").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Before it is looked at, so that if the number is another process's by then, the signal hits nobody.
            let pidfd = sys::pidfd_open(Pid::from_raw(pid));
            if runs_as(&fs::read_to_string(entry.path().join("status")).unwrap_or_default(), uids) {
                let _ = pidfd.and_then(|pidfd| sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL));
                left.push(pid);
            }
        }
        if left.is_empty() {
            socket::sweep(uids.clone());
            return true;
        }
        log(&format!("sweeping processes {left:?} of uids {uids:?}"));
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
