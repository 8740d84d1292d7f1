//! What is taken from the host for a sandbox and must be taken outside it: the directories of its plan and its socket, as
//! detached trees, each compared with the ceiling. Nothing here starts a process but for an idmap. It changes nothing of
//! the sandbox's; `mod` does.

use super::grant;
use crate::ceiling::Ceiling;
use crate::socket;
use crate::sys;
use crate::table::Table;
use cyberos_proto::ids::InvocationId;
use cyberos_proto::link::Peer;
use cyberos_proto::message::{Refusal, step};
use cyberos_proto::plan::{BindKind, SpawnPlan};
use nix::errno::Errno;
use nix::libc;
use std::os::fd::{AsFd, OwnedFd};

/// How often what is mounted may change while it is looked at and copied.
const LOOKS: usize = 64;

/// For whom trees are taken, and within what.
pub(super) struct For<'a> {
    pub(super) ceiling: &'a Ceiling,
    pub(super) peer: Peer,
    pub(super) uid: u32,
    /// Its invocation, with the inode of the socket.
    pub(super) socket: Option<(InvocationId, u64)>,
}

/// All trees of `plan`, in the order of [`SpawnPlan::places`]. A mount that came between the look and the copy would be in
/// the copy unseen; so it is done again until none did. `mounts` is the last look, for the next time.
pub(super) fn trees(
    of: &For<'_>,
    plan: &SpawnPlan,
    fds: &[OwnedFd],
    mounts: &mut Option<Table>,
) -> Result<Vec<OwnedFd>, Refusal> {
    // That a mount became unbindable is not told, so where that matters, which is not in what is the broker's own, the
    // last look does not do.
    let grants = plan.binds.iter().any(|bind| bind.kind != BindKind::Sealed);
    let map = grants.then(|| grant::map(of.peer, of.uid)).transpose()?;
    for _ in 0..LOOKS {
        let last = mounts.take().filter(|table| !grants && table.is_current());
        let table = last.map_or_else(|| step("read what is mounted", Table::read()), Ok)?;
        let trees = copies(of, plan, fds, map.as_ref(), &table)?;
        let done = table.is_current();
        *mounts = Some(table);
        if done {
            return Ok(trees);
        }
    }
    step("copy what is bound while mounts come and go", Err(Errno::EAGAIN))
}

fn copies(
    of: &For<'_>,
    plan: &SpawnPlan,
    fds: &[OwnedFd],
    map: Option<&OwnedFd>,
    table: &Table,
) -> Result<Vec<OwnedFd>, Refusal> {
    let mut all = Vec::new();
    for (bind, (number, fd)) in plan.binds.iter().zip((0..).zip(fds)) {
        all.push(match (bind.kind, map) {
            (BindKind::Grant { writable }, Some(map)) => {
                grant::tree(of.ceiling, (number, fd), writable, map, table)?
            }
            (BindKind::Grant { .. }, None) => return Err(Refusal::Phase),
            (BindKind::Sealed, _) => {
                let dir = of.ceiling.sealed(fd.as_fd(), table)?;
                step("copy a bind", sys::clone_tree(dir.as_fd(), sys::READ_ONLY))?
            }
        });
    }
    if plan.socket {
        let (invocation, inode) = of.socket.ok_or(Refusal::Phase)?;
        let flags = sys::READ_ONLY | libc::MOUNT_ATTR_NOEXEC;
        // Read-only: the skill owns the file, and must not open it to others.
        let tree = sys::open_path(&socket::path(invocation)).and_then(|s| sys::clone_tree(s.as_fd(), flags));
        let tree = step("copy the socket", tree)?;
        if !step("look at the socket", sys::identity(&tree))?.is_socket(inode, of.uid) {
            return step("the socket was replaced", Err(Errno::ESTALE));
        }
        all.push(tree);
    }
    Ok(all)
}
