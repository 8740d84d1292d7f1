//! Uids: blocks of 256 under a lock that all instances share (`[10.3]`); `link` hands leases out of them, first in first
//! out. A block that nobody has locked belongs to nobody alive, so whatever is left of it is swept when it is taken.
//! It knows nothing of sandboxes.

use crate::ceiling::{BLOCK, Ceiling};
use crate::{log, socket, step, sys};
use cyberos_proto::message::Refusal;
use nix::libc::{O_NOFOLLOW, SIGKILL};
use nix::{errno::Errno, unistd::Pid};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};
use std::{fs, ops::RangeInclusive};

/// How long the processes of a swept block may take to die.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);

/// All uids of the block whose first is `first`; that one serves the block's inits, the others are leases.
pub(crate) fn block(first: u32) -> RangeInclusive<u32> {
    first..=first + (BLOCK - 1)
}

/// The uid of the inits of the block that `uid` belongs to.
pub(crate) fn init_uid(ceiling: &Ceiling, uid: u32) -> u32 {
    uid - (uid - ceiling.uids.0) % BLOCK
}

/// Takes a block that nobody has: its first uid, and its lock.
pub(crate) fn take_block(ceiling: &Ceiling) -> Result<(u32, OwnedFd), Refusal> {
    let mut all = (ceiling.uids.0..=ceiling.uids.1).step_by(BLOCK as usize);
    step("no free block of uids", all.find_map(|f| Some((f, lock_block(ceiling, f)?))).ok_or(Errno::EAGAIN))
}

/// Locks and sweeps a block, unless somebody has it or something of it cannot be killed.
fn lock_block(ceiling: &Ceiling, first: u32) -> Option<OwnedFd> {
    let lock = lock(ceiling, &first.to_string())?;
    clear(&block(first)).then_some(lock)
}

/// The lock of that name, if nobody has it. It is held as long as the descriptor or a copy of it is open.
pub(crate) fn lock(ceiling: &Ceiling, name: &str) -> Option<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(O_NOFOLLOW);
    let file = options.open(ceiling.locks.join(name)).ok()?;
    file.try_lock().ok()?;
    Some(file.into())
}

/// Sweeps every block that has been used once and that nobody has locked now.
pub(crate) fn sweep(ceiling: &Ceiling) {
    for entry in fs::read_dir(&ceiling.locks).into_iter().flatten().flatten() {
        let first = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok());
        if let Some(f) = first.filter(|f| (ceiling.uids.0..=ceiling.uids.1).contains(f)) {
            drop(lock_block(ceiling, init_uid(ceiling, f)));
        }
    }
}

/// Kills every process (this one is in /proc) with a uid in `uids`, waits for their end, removes their sockets. Whether nothing is left.
fn clear(uids: &RangeInclusive<u32>) -> bool {
    let until = Instant::now() + SWEEP_LIMIT;
    loop {
        let found = fs::read_dir(".").into_iter().flatten().flatten();
        let found = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let found: Vec<i32> = found.filter(|pid| runs_as(*pid, uids)).collect();
        if found.is_empty() {
            socket::sweep(uids.clone());
            return true;
        }
        log(&format!("sweeping processes {found:?} of uids {uids:?}"));
        if Instant::now() > until {
            return false;
        }
        for pid in found {
            // The number may be another process's by now: what is behind the pidfd is looked at again.
            if let Ok(pidfd) = sys::pidfd_open(Pid::from_raw(pid))
                && runs_as(pid, uids)
            {
                let _ = sys::pidfd_signal(pidfd.as_fd(), SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process that is not a zombie has a uid in `uids`.
fn runs_as(pid: i32, uids: &RangeInclusive<u32>) -> bool {
    let status = fs::read_to_string(format!("{pid}/status")).unwrap_or_default();
    let field = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).map_or("", str::trim);
    let mut found = field("Uid:").split_whitespace().filter_map(|u| u.parse::<u32>().ok());
    !field("State:").starts_with(['Z', 'X']) && found.any(|u| uids.contains(&u))
}
