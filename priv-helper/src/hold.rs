//! What a link process owns outside itself: sandboxes, mounts, blocks of uids with their sockets. The list is kept
//! twice, there and through notes in the parent, so that whoever is left can end all of it. It decides nothing.

use crate::cgroup::Groups;
use crate::inner::{Inner, Note, Resource};
use crate::log::log;
use crate::policy::ceiling::block;
use crate::sys::{self, Sys};
use crate::{fuse, socket};
use cyberos_proto::ids::SandboxId;
use cyberos_proto::link::{LinkError, Wait};
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::libc;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The list, each thing with the descriptors that [`Resource`] names.
#[derive(Default)]
pub(crate) struct Holdings {
    things: BTreeMap<Resource, Vec<OwnedFd>>,
}

impl Holdings {
    /// Keeps `thing` here and in the parent. If the parent cannot be told, it is ended at once.
    pub(crate) fn hold(
        &mut self,
        notes: &Inner,
        thing: Resource,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let told = step("tell the parent", notes.send(&Note::Hold(thing), &borrowed, Wait::Block));
        if told.is_err() {
            let _ = end(thing, &fds);
            return told;
        }
        // The parent alone keeps locks: a link that is stuck in a close would do so for ever.
        fds.truncate(match thing {
            Resource::Sandbox(_) | Resource::Mount(_) => 1,
            Resource::Block(_) => 0,
        });
        self.things.insert(thing, fds);
        Ok(())
    }

    pub(crate) fn drop(&mut self, notes: &Inner, thing: Resource) {
        if self.things.remove(&thing).is_some() {
            let _ = notes.send(&Note::Drop(thing), &[], Wait::Block);
        }
    }

    /// The first descriptor of `thing`.
    pub(crate) fn fd(&self, thing: Resource) -> Option<BorrowedFd<'_>> {
        self.things.get(&thing)?.first().map(AsFd::as_fd)
    }

    /// Each sandbox with the pidfd of its init.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = (SandboxId, BorrowedFd<'_>)> {
        self.things.iter().filter_map(|(thing, fds)| match thing {
            Resource::Sandbox(id) => Some((*id, fds.first()?.as_fd())),
            Resource::Mount(_) | Resource::Block(_) => None,
        })
    }

    /// The pidfds of sandboxes that still have a process.
    pub(crate) fn alive(&self) -> Vec<BorrowedFd<'_>> {
        self.sandboxes().map(|(_, init)| init).filter(|init| !has_ended(*init)).collect()
    }

    /// Parent: lets go of sandboxes whose last process has ended.
    pub(crate) fn shed(&mut self) {
        self.things.retain(|thing, fds| match thing {
            Resource::Sandbox(_) => fds.first().is_none_or(|init| !has_ended(init.as_fd())),
            Resource::Mount(_) | Resource::Block(_) => true,
        });
    }

    /// Parent: takes all notes that have come. After an error nothing more is to be taken.
    pub(crate) fn take(&mut self, notes: &Inner) -> Result<(), LinkError> {
        loop {
            match notes.receive(Wait::No) {
                Ok((Note::Hold(thing), fds)) => self.things.insert(thing, fds),
                Ok((Note::Drop(thing), _)) => self.things.remove(&thing),
                Ok(_) => return Err(LinkError::Malformed),
                Err(LinkError::WouldBlock) => return Ok(()),
                Err(e) => return Err(e),
            };
        }
    }

    /// Ends everything, also what has ended before. Sandboxes and blocks stay listed, since a block is free only when its
    /// last process is gone.
    pub(crate) fn end(&mut self) {
        for (thing, fds) in &self.things {
            match (thing, end(*thing, fds)) {
                // It had ended, or was taken off, before.
                (_, Ok(()) | Err(Errno::ESRCH)) | (Resource::Mount(_), Err(Errno::EINVAL)) => {}
                (_, Err(e)) => log(&format!("{thing:?} cannot be ended: {e}")),
            }
        }
        self.things.retain(|thing, _| !matches!(thing, Resource::Mount(_)));
    }

    /// When all processes have gone: removes the control groups that are left, before the blocks are free.
    pub(crate) fn forget(self, groups: &Groups) {
        for thing in self.things.keys() {
            if let Resource::Block(first) = thing {
                groups.sweep(block(*first));
            }
        }
    }
}

/// Whether the process behind a pidfd has ended; that of an init: whether the last one of its sandbox has.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    sys::readable(process, Duration::ZERO)
}

fn end(thing: Resource, fds: &[OwnedFd]) -> Sys<()> {
    match (thing, fds.first()) {
        (Resource::Sandbox(_), Some(init)) => sys::pidfd_signal(init.as_fd(), libc::SIGKILL),
        (Resource::Mount(_), Some(mount)) => fuse::unmount(mount.as_fd()),
        (Resource::Block(first), _) => {
            socket::sweep(block(first));
            Ok(())
        }
        (Resource::Sandbox(_) | Resource::Mount(_), None) => Ok(()),
    }
}
