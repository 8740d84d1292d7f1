//! What the helper's own processes tell each other, and what one of them owns. It never leaves the helper.

use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::link::Link;
use cyberos_proto::message::{Exit, Message, Refusal};
use cyberos_proto::plan::SpawnPlan;
use serde::{Deserialize, Serialize};

/// A link within the helper. It is used in one direction; in the other it only tells that its end has gone.
pub(crate) type Inner = Link<Note, Note>;

/// One thing that a link process owns outside itself; ended in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Thing {
    /// With the pidfd of its init.
    Sandbox(InvocationId),
    /// With the mount and the lock of its mount point.
    Mount(MountId),
    /// A block of uids by its first, with its lock. Sockets are its uids' own, and end with it.
    Block(u32),
}

/// What a process tells the one that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Link process: it has made this.
    Hold(Thing),
    /// Link process: this is no more.
    Drop(Thing),
    /// Who made a namespace: carries it.
    Namespace,
    /// Link process, to an init: what it is to become. Carries the template, the network, the ends of stdin, stdout and
    /// stderr, and a tree for each of [`SpawnPlan::places`].
    Become {
        /// The plan.
        plan: Box<SpawnPlan>,
        /// Whose it is.
        invocation: InvocationId,
        /// The lease.
        uid: u32,
    },
    /// The program's process, before it executes the program: carries the listener of its filter, which asks about modes.
    Asks,
    /// Init: the program runs; carries its pidfd, and the sandbox's mount namespace.
    Started,
    /// Init or program: a sandbox could not be set up, or its program not executed.
    Failed(Refusal),
    /// Init: the program has ended.
    Ended(Exit),
}

impl Message for Note {
    fn descriptors(&self) -> usize {
        match self {
            Note::Hold(Thing::Sandbox(_) | Thing::Block(_)) | Note::Namespace | Note::Asks => 1,
            Note::Hold(Thing::Mount(_)) | Note::Started => 2,
            Note::Become { plan, .. } => 5 + plan.binds.len() + usize::from(plan.socket),
            Note::Drop(_) | Note::Failed(_) | Note::Ended(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cyberos_proto::link::{Wait, decode, encode, pair};
    use std::os::fd::AsFd;

    #[test]
    fn a_note_comes_as_it_was_sent_with_its_descriptors_or_not_at_all() {
        let sandbox = Thing::Sandbox(InvocationId::from_random([7; 16]));
        let failed = Note::Failed(Refusal::Exec { errno: 2 });
        for note in [Note::Hold(sandbox), Note::Drop(Thing::Block(5)), Note::Asks, Note::Started, failed] {
            assert_eq!(decode::<Note>(&encode(&note).unwrap()).unwrap(), note);
            let (ours, theirs) = pair::<Note, Note>().unwrap();
            let fds = vec![ours.as_fd(); note.descriptors()];
            ours.send(&note, &fds, Wait::No).unwrap();
            let (come, owned) = theirs.receive(Wait::No).unwrap();
            assert_eq!((come, owned.len()), (note.clone(), note.descriptors()));
            assert!(ours.send(&note, &vec![ours.as_fd(); note.descriptors() + 1], Wait::No).is_err());
        }
    }
}
