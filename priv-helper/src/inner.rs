//! What the helper's own processes tell each other, and what one of them owns. It never leaves the helper.

use cyberos_proto::ids::{InvocationId, MountId, SandboxId};
use cyberos_proto::link::Link;
use cyberos_proto::message::{Exit, Message, Refusal};
use cyberos_proto::plan::SpawnPlan;
use serde::{Deserialize, Serialize};

/// A link within the helper. It is used in one direction; in the other it only tells that its end has gone.
pub(crate) type Inner = Link<Note, Note>;

/// One thing that a link process owns outside itself; ended in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Resource {
    /// With the pidfd of its init.
    Sandbox(SandboxId),
    /// With the mount and the lock of its mount point.
    Mount(MountId),
    /// A block of uids by its first, with its lock. Sockets are its uids' own, and end with it.
    Block(u32),
}

/// What a process tells the one that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Link process: it has made this.
    Hold(Resource),
    /// Link process: this is no more.
    Drop(Resource),
    /// Who made a namespace: carries it.
    Namespace,
    /// Link process, to an init: what it is to become. Carries the ends of stdin, stdout and stderr, the template and the
    /// network if there are any yet, and a tree for each of [`SpawnPlan::places`].
    Become {
        /// The plan.
        plan: Box<SpawnPlan>,
        /// The lease.
        uid: u32,
        /// Whose socket it gets, if the plan has one.
        invocation: Option<InvocationId>,
        /// Whether a template comes with it. Else the init builds one, and says [`Note::Template`].
        template: bool,
        /// Whether a network namespace comes with it. Else it makes one, and says [`Note::Network`].
        network: bool,
    },
    /// Init: carries the template that it has built, for others too.
    Template,
    /// Init: carries the network namespace that it has made.
    Network,
    /// The program's process: all is built, and it waits for [`Note::Go`]. Carries the listener of its filter, which asks
    /// about modes, where the kernel has such filters.
    Prepared {
        /// Whether it carries one.
        asks: bool,
    },
    /// Link process, to the program's process: execute the program.
    Go,
    /// Init: the program was executed, or [`Note::Failed`] has said why not; carries its pidfd, and the sandbox's mount
    /// namespace.
    Started,
    /// Init or program: a sandbox could not be set up, or its program not executed.
    Failed(Refusal),
    /// Init: the program has ended.
    Ended(Exit),
}

impl Message for Note {
    fn descriptors(&self) -> usize {
        match self {
            Note::Hold(Resource::Sandbox(_) | Resource::Block(_)) => 1,
            Note::Namespace | Note::Template | Note::Network => 1,
            Note::Prepared { asks } => usize::from(*asks),
            Note::Hold(Resource::Mount(_)) | Note::Started => 2,
            Note::Become { plan, template, network, .. } => {
                3 + usize::from(*template)
                    + usize::from(*network)
                    + plan.binds.len()
                    + usize::from(plan.socket)
            }
            Note::Drop(_) | Note::Go | Note::Failed(_) | Note::Ended(_) => 0,
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
        let sandbox = Resource::Sandbox(SandboxId::from_random([7; 16]));
        let failed = Note::Failed(Refusal::Exec { errno: 2 });
        let prepared = [Note::Prepared { asks: true }, Note::Prepared { asks: false }, Note::Go];
        let others =
            [Note::Hold(sandbox), Note::Drop(Resource::Block(5)), Note::Template, Note::Started, failed];
        for note in others.into_iter().chain(prepared) {
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
