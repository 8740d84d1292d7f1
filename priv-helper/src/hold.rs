//! What a link process owns outside itself: sandboxes, mounts, blocks of uids with their sockets. The list is kept
//! twice, there and through notes in the parent, so that whoever is left can end all of it. It decides nothing.

use crate::prelude::*;
use crate::{fuse, lease, socket};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Holdings {
    things: BTreeMap<Thing, Vec<OwnedFd>>,
}

impl Holdings {
    /// Keeps `thing` here and in the parent. If the parent cannot be told, it is ended at once.
    pub(crate) fn hold(&mut self, notes: &Inner, thing: Thing, mut fds: Vec<OwnedFd>) -> Step<()> {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let told = step("tell the parent", notes.send(&Note::Hold(thing), &borrowed, Wait::Block));
        if told.is_ok() {
            // The parent alone keeps locks: a link that is stuck in a close would do so for ever.
            fds.truncate(usize::from(!matches!(thing, Thing::Block(_))));
            self.things.insert(thing, fds);
        } else {
            let _ = end(thing, &fds);
        }
        told
    }

    pub(crate) fn drop(&mut self, notes: &Inner, thing: Thing) {
        if self.things.remove(&thing).is_some() {
            let _ = notes.send(&Note::Drop(thing), &[], Wait::Block);
        }
    }

    /// The first descriptor of `thing`.
    pub(crate) fn fd(&self, thing: Thing) -> Option<BorrowedFd<'_>> {
        self.things.get(&thing)?.first().map(AsFd::as_fd)
    }

    /// Each sandbox with the pidfd of its init.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = (SandboxId, BorrowedFd<'_>)> {
        self.things.iter().filter_map(|(thing, fds)| match thing {
            Thing::Sandbox(id) => Some((*id, fds.first()?.as_fd())),
            _ => None,
        })
    }

    /// The pidfds of sandboxes that still have a process.
    pub(crate) fn alive(&self) -> Vec<BorrowedFd<'_>> {
        let inits = self.sandboxes().map(|(_, init)| init);
        inits.filter(|init| !sys::readable(*init, Duration::ZERO)).collect()
    }

    /// Parent: lets go of sandboxes whose last process has ended.
    pub(crate) fn shed(&mut self) {
        let ended =
            |fds: &[OwnedFd]| fds.first().is_some_and(|init| sys::readable(init.as_fd(), Duration::ZERO));
        self.things.retain(|thing, fds| !(matches!(thing, Thing::Sandbox(_)) && ended(fds)));
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
            match end(*thing, fds) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(Errno::EINVAL) if matches!(thing, Thing::Mount(_)) => {} // taken off before
                Err(e) => log(&format!("{thing:?} cannot be ended: {e}")),
            }
        }
        self.things.retain(|thing, _| !matches!(thing, Thing::Mount(_)));
    }

    /// When all processes have gone: removes the control groups that are left, before the blocks are free.
    pub(crate) fn forget(self, ceiling: &Ceiling) {
        for thing in self.things.keys() {
            if let Thing::Block(first) = thing {
                ceiling.groups.sweep(lease::block(*first));
            }
        }
    }
}

fn end(thing: Thing, fds: &[OwnedFd]) -> Sys<()> {
    match (thing, fds.first()) {
        (Thing::Sandbox(_), Some(init)) => sys::pidfd_signal(init.as_fd(), libc::SIGKILL),
        (Thing::Mount(_), Some(mount)) => fuse::unmount(mount.as_fd()),
        (Thing::Block(first), _) => {
            socket::sweep(lease::block(first));
            Ok(())
        }
        (_, None) => Ok(()),
    }
}
