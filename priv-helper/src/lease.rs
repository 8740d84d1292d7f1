//! Uids: blocks of 256 under a lock that all instances share (`[10.3]`), and the leases in them, first in first out. A
//! block that nobody has locked is nobody's: what is left of it is swept when it is taken. It knows no sandboxes.

use crate::policy::ceiling::CeilingText;
pub(crate) use crate::policy::ceiling::block;
use crate::policy::lease::{remembered, runs_as, with_keys};
use crate::{prelude::*, socket};
use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Seek, Write};
use std::{ops::RangeInclusive, os::unix::fs::OpenOptionsExt};

/// How long the processes of swept blocks may take to die, all together.
const SWEEP_LIMIT: Duration = Duration::from_secs(1);

/// The uids of one link's blocks that no invocation has; the one that has been free for longest is first.
#[derive(Default)]
pub(crate) struct Leases {
    free: VecDeque<u32>,
    /// How many of the first are known to be used by nothing. The others have had sandboxes.
    clean: usize,
}

impl Leases {
    /// All of a block but its first uid.
    pub(crate) fn add(&mut self, first: u32) {
        self.free.extend(block(first).skip(1));
        self.clean = self.free.len();
    }

    /// The next one, unless a block is needed. When all have had a sandbox it is looked for what still uses any of them:
    /// that all of a sandbox ends with its init is an argument, and looking is a proof.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.clean == 0 && !self.free.is_empty() {
            let used = used(&(*self.free.iter().min()?..=*self.free.iter().max()?));
            self.free.retain(|uid| {
                let free = !used.contains(uid);
                free || {
                    log(&format!("uid {uid} is put aside: a process or a key of it is left"));
                    false
                }
            });
            self.clean = self.free.len();
        }
        self.clean = self.clean.checked_sub(1)?;
        self.free.pop_front()
    }

    pub(crate) fn give(&mut self, uid: u32) {
        self.free.push_back(uid);
    }
}

/// The uids of `range` that a process or a key has. We are in /proc.
fn used(range: &RangeInclusive<u32>) -> BTreeSet<u32> {
    let keys = with_keys(&fs::read_to_string("key-users").unwrap_or_default(), range);
    processes().flat_map(|pid| runs_as(&status(pid), range)).chain(keys).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(".").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn status(pid: i32) -> String {
    fs::read_to_string(format!("{pid}/status")).unwrap_or_default()
}

/// Takes a block that nobody has: its first uid, and its lock.
pub(crate) fn take_block(ceiling: &CeilingText) -> Step<(u32, OwnedFd)> {
    let free = ceiling.blocks().find_map(|first| clear(vec![Locked::of(ceiling, first)?]).pop());
    step("no free block of uids", free.ok_or(Errno::EAGAIN)).map(|block| (block.first, block.lock.into()))
}

/// The lock of that name, if nobody has it. It is held as long as the descriptor or a copy of it is open.
pub(crate) fn lock(ceiling: &CeilingText, name: &str) -> Option<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(ceiling.locks.join(name)).ok()?;
    file.try_lock().ok().map(|()| file)
}

/// Sweeps every block that has been used once and that nobody has locked now.
pub(crate) fn sweep(ceiling: &CeilingText) {
    let entries = fs::read_dir(&ceiling.locks).into_iter().flatten().flatten();
    let blocks = entries.filter_map(|entry| ceiling.block_named(entry.file_name().to_str()?));
    clear(blocks.filter_map(|first| Locked::of(ceiling, first)).collect());
}

/// A block whose lock we have.
struct Locked {
    first: u32,
    lock: fs::File,
    /// Processes that could not be ended before. They are in the lock's file, for whoever comes after us.
    known: Vec<i32>,
}

impl Locked {
    fn of(ceiling: &CeilingText, first: u32) -> Option<Locked> {
        let mut lock = lock(ceiling, &first.to_string())?;
        let mut known = String::new();
        let _ = lock.read_to_string(&mut known);
        Some(Locked { first, lock, known: remembered(&known) })
    }

    /// Whether the block is free, if these of its processes are `left`. Those that are new are named, once.
    fn is_free(&mut self, left: &[i32]) -> bool {
        if left.iter().any(|pid| !self.known.contains(pid)) {
            let (first, last) = (self.first, block(self.first).last().unwrap_or(self.first));
            log(&format!(
                "WARN: processes {left:?} go on after SIGKILL: the kernel waits for something in them, as for a FUSE \
                 server; uids {first}-{last} are used by nobody until they end"
            ));
        }
        if left != self.known {
            let text: String = left.iter().map(|pid| format!("{pid}\n")).collect();
            let written = self.lock.set_len(0).and_then(|()| self.lock.rewind());
            let _ = written.and_then(|()| self.lock.write_all(text.as_bytes()));
        }
        left.is_empty()
    }
}

/// Removes the sockets of `blocks`, kills all their processes, and waits for their end, but not for those that did not end
/// the last time; answers the blocks of which none is left.
fn clear(mut blocks: Vec<Locked>) -> Vec<Locked> {
    let until = Instant::now() + SWEEP_LIMIT;
    blocks.iter().for_each(|b| socket::sweep(block(b.first)));
    let left = loop {
        let left = kill_all(&blocks);
        let new = |b: &Locked, left: &Vec<i32>| left.iter().any(|pid| !b.known.contains(pid));
        if !blocks.iter().zip(&left).any(|(b, left)| new(b, left)) || Instant::now() > until {
            break left;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut left = left.iter();
    blocks.retain_mut(|b| left.next().is_some_and(|left| b.is_free(left)));
    blocks
}

/// Kills all processes of `blocks`: which those of each were.
fn kill_all(blocks: &[Locked]) -> Vec<Vec<i32>> {
    let mut found = vec![Vec::new(); blocks.len()];
    if blocks.is_empty() {
        return found;
    }
    for pid in processes() {
        // Before it is looked at, so that if the number is another process's by then, the signal hits nobody.
        let pidfd = sys::pidfd_open(Pid::from_raw(pid));
        let status = status(pid);
        let of = blocks.iter().position(|b| !runs_as(&status, &block(b.first)).is_empty());
        if let Some(found) = of.and_then(|of| found.get_mut(of)) {
            let _ = pidfd.and_then(|pidfd| sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL));
            found.push(pid);
        }
    }
    found
}
