//! A granted directory as Bash sees it: an idmapped copy of its mounts, in which what belongs to the broker's user belongs
//! to the sandbox's, and what belongs to others belongs to no user there (`[4.6]`). Whether it may be granted is the
//! ceiling's to say.

use super::process::namespace;
use crate::ceiling::Ceiling;
use crate::policy::mounts::refusing;
use crate::sys;
use crate::table::Table;
use cyberos_proto::link::Peer;
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// A copy of all mounts at and below the directory `fd`, never plain: idmapped, or refused with the reason. It is what
/// was looked at if `table` still holds afterwards.
pub(crate) fn tree(
    ceiling: &Ceiling,
    (bind, fd): (u32, &OwnedFd),
    writable: bool,
    map: &OwnedFd,
    table: &Table,
) -> Result<OwnedFd, Refusal> {
    let (dir, name) = ceiling.granted(fd.as_fd(), bind, table)?;
    let tree = step("copy a grant", sys::copy_tree(dir.as_fd()))?;
    let flags = libc::MOUNT_ATTR_IDMAP | if writable { sys::WRITABLE } else { sys::READ_ONLY };
    match sys::set_mount(&tree, flags, Some(map.as_fd()), libc::AT_RECURSIVE) {
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPERM) => {
            let id = step("look at a grant", sys::identity(&dir))?.mount;
            Err(Refusal::GrantUnsupported { bind, fs: refusing(&table.mounts, id, &name) })
        }
        other => step("idmap a grant", other).map(|()| tree),
    }
}

/// A user namespace that holds one uid and one gid: on disk the broker's, in the sandbox the lease's.
pub(crate) fn map(broker: Peer, lease: u32) -> Result<OwnedFd, Refusal> {
    if broker.uid == 0 || broker.gid == 0 {
        return Err(Refusal::Ceiling("files of root or of its group are granted to nobody".into()));
    }
    let write = |pid, file, id| step(file, fs::write(format!("{pid}/{file}"), format!("{id} {lease} 1")));
    let map = |pid: Pid| write(pid, "uid_map", broker.uid).and_then(|()| write(pid, "gid_map", broker.gid));
    namespace(libc::CLONE_NEWUSER, "user", || Ok(()), map)
}
