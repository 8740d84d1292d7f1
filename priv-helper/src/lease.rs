//! Uids: blocks of 256 under a lock that all instances share (`[10.3]`), and the leases in them, first in first out. A
//! block that nobody has locked is nobody's: what is left of it is swept when it is taken. It knows no sandboxes.

use crate::log::log;
use crate::policy::ceiling::{CeilingText, block};
use crate::policy::lease::{remembered, runs_as, with_keys};
use crate::{socket, sys};
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// How long the processes of swept blocks may take to die, all together, and how often it is looked.
const SWEEP_LIMIT: Duration = Duration::from_secs(1);
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

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

    /// The next one, unless a block is needed.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.clean == 0 {
            self.put_used_aside();
        }
        self.clean = self.clean.checked_sub(1)?;
        self.free.pop_front()
    }

    pub(crate) fn give(&mut self, uid: u32) {
        self.free.push_back(uid);
    }

    /// When all have had a sandbox it is looked for what still uses any of them: that all of a sandbox ends with its init
    /// is an argument, and looking is a proof.
    fn put_used_aside(&mut self) {
        let (Some(first), Some(last)) = (self.free.iter().min(), self.free.iter().max()) else { return };
        let used = used(&(*first..=*last));
        for uid in self.free.iter().filter(|uid| used.contains(uid)) {
            log(&format!("uid {uid} is put aside: a process or a key of it is left"));
        }
        self.free.retain(|uid| !used.contains(uid));
        self.clean = self.free.len();
    }
}

/// The uids of `range` that a process or a key has. We are in /proc.
fn used(range: &RangeInclusive<u32>) -> BTreeSet<u32> {
    let with_keys = with_keys(&fs::read_to_string("key-users").unwrap_or_default(), range);
    let with_processes = processes().flat_map(|pid| runs_as(&status(pid), range));
    with_processes.chain(with_keys).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(".").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn status(pid: i32) -> String {
    fs::read_to_string(format!("{pid}/status")).unwrap_or_default()
}

/// Takes a block that nobody has: its first uid, and its lock.
pub(crate) fn take_block(ceiling: &CeilingText) -> Result<(u32, OwnedFd), Refusal> {
    let mut free = ceiling.blocks().filter_map(|first| clear(vec![Block::locked(ceiling, first)?]).pop());
    step("no free block of uids", free.next().ok_or(Errno::EAGAIN))
        .map(|block| (block.first, block.lock.into()))
}

/// The lock of that name, if nobody has it. It is held as long as the descriptor or a copy of it is open.
pub(crate) fn lock(ceiling: &CeilingText, name: &str) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(ceiling.locks.join(name))
        .ok()?;
    file.try_lock().ok().map(|()| file)
}

/// Sweeps every block that has been used once and that nobody has locked now.
pub(crate) fn sweep(ceiling: &CeilingText) {
    let entries = fs::read_dir(&ceiling.locks).into_iter().flatten().flatten();
    let firsts = entries.filter_map(|entry| ceiling.block_named(entry.file_name().to_str()?));
    clear(firsts.filter_map(|first| Block::locked(ceiling, first)).collect());
}

/// A block whose lock we have.
struct Block {
    first: u32,
    lock: File,
    /// Processes that could not be ended before. They are in the lock's file, for whoever comes after us.
    known: Vec<i32>,
    /// Those that it had when it was looked at last.
    left: Vec<i32>,
}

impl Block {
    fn locked(ceiling: &CeilingText, first: u32) -> Option<Block> {
        let mut lock = lock(ceiling, &first.to_string())?;
        let mut known = String::new();
        let _ = lock.read_to_string(&mut known);
        Some(Block { first, lock, known: remembered(&known), left: Vec::new() })
    }

    fn uids(&self) -> RangeInclusive<u32> {
        block(self.first)
    }

    /// Whether it has a process that was not among those which could not be ended before.
    fn has_new(&self) -> bool {
        self.left.iter().any(|pid| !self.known.contains(pid))
    }

    /// Notes what is left, and names it when there is something new.
    fn note_left(&mut self) {
        if self.has_new() {
            log(&format!(
                "WARN: processes {:?} go on after SIGKILL: the kernel waits for something in them, as for a FUSE \
                 server; uids {}-{} are used by nobody until they end",
                self.left,
                self.first,
                self.uids().end()
            ));
        }
        if self.left != self.known {
            let _ = self.write_left();
        }
    }

    fn write_left(&mut self) -> io::Result<()> {
        let text: String = self.left.iter().map(|pid| format!("{pid}\n")).collect();
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(text.as_bytes())
    }
}

/// Removes the sockets of `blocks`, kills all their processes, and waits for their end, but not for those that did not end
/// the last time; answers the blocks of which none is left.
fn clear(mut blocks: Vec<Block>) -> Vec<Block> {
    let until = Instant::now() + SWEEP_LIMIT;
    for block in &blocks {
        socket::sweep(block.uids());
    }
    loop {
        kill_all(&mut blocks);
        if !blocks.iter().any(Block::has_new) || Instant::now() > until {
            break;
        }
        std::thread::sleep(SWEEP_PAUSE);
    }
    blocks.iter_mut().for_each(Block::note_left);
    blocks.retain(|block| block.left.is_empty());
    blocks
}

/// Kills all processes of `blocks`, and notes which those of each were.
fn kill_all(blocks: &mut [Block]) {
    for block in &mut *blocks {
        block.left.clear();
    }
    if blocks.is_empty() {
        return;
    }
    for pid in processes() {
        // Before it is looked at, so that if the number is another process's by then, the signal hits nobody.
        let pidfd = sys::pidfd_open(Pid::from_raw(pid));
        let status = status(pid);
        if let Some(block) = blocks.iter_mut().find(|block| !runs_as(&status, &block.uids()).is_empty()) {
            let _ = pidfd.and_then(|pidfd| sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL));
            block.left.push(pid);
        }
    }
}
