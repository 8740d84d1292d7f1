//! What a link process owns outside itself: sandboxes, mounts, blocks of uids with their sockets. The list is kept
//! twice, there and through notes in the parent, so that whoever of the two is left can end all of it. It decides
//! nothing.

use crate::sys::{self, Sys};
use crate::{fuse, lease, log, socket, step};
use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::link::{Link, LinkError, Wait};
use cyberos_proto::message::{Exit, Message, Refusal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::{errno::Errno, libc::SIGKILL};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// One thing owned; ended in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Thing {
    /// With the pidfd of its init.
    Sandbox(InvocationId),
    /// With the mount and the lock of its mount point.
    Mount(MountId),
    /// A block of uids by its first, with its lock. Sockets are its uids' own, and end with it.
    Block(u32),
}

/// What a process of the helper tells the one that made it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Link process: it has made this.
    Hold(Thing),
    /// Link process: this is no more.
    Drop(Thing),
    /// Init: the program has its process; carries its pidfd.
    Started,
    /// Init or program: a sandbox could not be set up, or its program not executed.
    Failed(Refusal),
    /// Init: the program has ended.
    Ended(Exit),
}

impl Message for Note {
    fn descriptors(&self) -> usize {
        match self {
            Note::Hold(Thing::Sandbox(_) | Thing::Block(_)) | Note::Started => 1,
            Note::Hold(Thing::Mount(_)) => 2,
            Note::Drop(_) | Note::Failed(_) | Note::Ended(_) => 0,
        }
    }
}

/// A link within the helper. It is used in one direction; in the other it only tells that its end has gone.
pub(crate) type Inner = Link<Note, Note>;

/// Most things of one link; the ceiling allows 1,000 sandboxes.
const MOST: usize = 1100;

#[derive(Default)]
pub(crate) struct Holdings {
    things: BTreeMap<Thing, Vec<OwnedFd>>,
}

impl Holdings {
    /// Keeps `thing` here and in the parent. If the parent cannot be told, it is ended at once.
    pub(crate) fn hold(&mut self, notes: &Inner, thing: Thing, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if notes.send(&Note::Hold(thing), &borrowed, Wait::Block).is_err() {
            let _ = end(thing, &fds);
            return step("tell the parent", Err(Errno::EPIPE));
        }
        self.things.insert(thing, fds);
        Ok(())
    }

    pub(crate) fn drop(&mut self, notes: &Inner, thing: Thing) {
        if self.things.remove(&thing).is_some() {
            let _ = notes.send(&Note::Drop(thing), &[], Wait::Block);
        }
    }

    /// The first descriptor of `thing`.
    pub(crate) fn fd(&self, thing: Thing) -> Result<BorrowedFd<'_>, Refusal> {
        let fd = self.things.get(&thing).and_then(|fds| fds.first());
        step("not held", fd.map(AsFd::as_fd).ok_or(Errno::ENOENT))
    }

    /// Kills every process of a sandbox.
    pub(crate) fn kill(&self, sandbox: Thing) -> Sys<()> {
        self.fd(sandbox).map_or(Ok(()), |init| sys::pidfd_signal(init, SIGKILL))
    }

    /// Parent: takes all notes that have come. After an error nothing more is to be taken.
    pub(crate) fn take(&mut self, notes: &Inner) -> Result<(), LinkError> {
        loop {
            match notes.receive(Wait::No) {
                Ok((Note::Hold(thing), fds)) if self.things.len() < MOST => self.things.insert(thing, fds),
                Ok((Note::Drop(thing), _)) => self.things.remove(&thing),
                Ok(_) => return Err(LinkError::Malformed),
                Err(LinkError::WouldBlock) => return Ok(()),
                Err(e) => return Err(e),
            };
        }
    }

    /// Ends everything, and tells the parent of what it need not end again. Sandboxes and blocks stay listed, since a
    /// block is free only when its last process is gone.
    pub(crate) fn end(&mut self, notes: Option<&Inner>) {
        for (thing, fds) in &self.things {
            match (end(*thing, fds), thing, notes) {
                (Err(Errno::ESRCH), ..) => {}
                (Err(e), ..) => log(&format!("{thing:?} cannot be ended: {e}")),
                (Ok(()), Thing::Mount(_), Some(n)) => drop(n.send(&Note::Drop(*thing), &[], Wait::Block)),
                (Ok(()), ..) => {}
            }
        }
        self.things.retain(|thing, _| matches!(thing, Thing::Sandbox(_) | Thing::Block(_)));
    }

    /// The pidfds of sandboxes that still have a process.
    pub(crate) fn alive(&self) -> Vec<BorrowedFd<'_>> {
        let sandboxes = self.things.iter().filter(|(thing, _)| matches!(thing, Thing::Sandbox(_)));
        let pidfds = sandboxes.filter_map(|(_, fds)| fds.first()).map(AsFd::as_fd);
        pidfds.filter(|fd| !ready(*fd, PollFlags::POLLIN, Duration::ZERO)).collect()
    }
}

fn end(thing: Thing, fds: &[OwnedFd]) -> Sys<()> {
    match (thing, fds.first()) {
        (Thing::Sandbox(_), Some(pidfd)) => sys::pidfd_signal(pidfd.as_fd(), SIGKILL)?,
        (Thing::Mount(_), Some(mount)) => fuse::unmount(mount.as_fd())?,
        (Thing::Block(first), _) => socket::sweep(lease::block(first)),
        (_, None) => {}
    }
    Ok(())
}

/// Whether `fd` is ready, or becomes so within `limit`; a pidfd is when its process has ended.
pub(crate) fn ready(fd: BorrowedFd<'_>, what: PollFlags, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = PollTimeout::try_from(until.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(fd, what)], left.unwrap_or(PollTimeout::ZERO)) {
            Err(Errno::EINTR) => {}
            answer => return answer != Ok(0),
        }
    }
}
