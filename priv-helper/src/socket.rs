//! An invocation's socket in /tmp (`[2.2]`): made so that nobody but the lease can ever have connected, and removed
//! only while it is still the one that was made. It knows nothing of who will serve it.

use crate::policy::lease::is_socket;
pub(crate) use crate::policy::lease::socket as path;
use crate::sys;
use cyberos_proto::ids::InvocationId;
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::libc::S_IFSOCK;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use std::fs;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

/// How many may wait to be accepted.
const BACKLOG: i32 = 64;

/// Makes something that is the lease's from its birth: with its file system ids, under umask 0177.
pub(crate) fn as_lease<T>(uid: u32, make: impl FnOnce() -> T) -> T {
    let before = umask(Mode::from_bits_truncate(0o177));
    setfsgid(Gid::from_raw(uid));
    setfsuid(Uid::from_raw(uid));
    let made = make();
    setfsuid(Uid::from_raw(0));
    setfsgid(Gid::from_raw(0));
    umask(before);
    made
}

/// Makes the socket and answers it with its inode. Nobody can connect before it listens.
pub(crate) fn create(invocation: InvocationId, uid: u32) -> Result<(OwnedFd, u64), Refusal> {
    let path = path(invocation);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = step("socket", socket(AddressFamily::Unix, SockType::Stream, flags, None))?;
    let address = step("socket address", UnixAddr::new(&path))?;
    match as_lease(uid, || bind(fd.as_raw_fd(), &address)) {
        Err(Errno::EADDRINUSE | Errno::EEXIST) => return Err(Refusal::Exists),
        other => step("bind the socket", other)?,
    }
    let made = step("look at the socket", sys::identity_at(&path))?;
    let inode = made.inode();
    if !made.is_socket(inode, uid) || made.permissions() != 0o600 {
        // Not what was just bound, so not ours to remove either.
        return step("the socket was replaced", Err(Errno::ESTALE));
    }
    let listens = Backlog::new(BACKLOG).and_then(|backlog| listen(&fd, backlog));
    step("listen", listens).inspect_err(|_| remove(invocation, inode, uid))?;
    Ok((fd, inode))
}

/// Removes the socket if it is still the one of that inode and owner. /tmp is sticky, and no process of the owner can
/// reach it, so nothing can come between look and removal.
pub(crate) fn remove(invocation: InvocationId, inode: u64, uid: u32) {
    let path = path(invocation);
    if sys::identity_at(&path).is_ok_and(|found| found.is_socket(inode, uid)) {
        let _ = fs::remove_file(path);
    }
}

/// Removes every socket with exactly such a name that belongs to a uid of `uids`.
pub(crate) fn sweep(uids: RangeInclusive<u32>) {
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_socket) {
            continue;
        }
        let path = entry.path();
        if sys::identity_at(&path).is_ok_and(|found| found.is(S_IFSOCK) && uids.contains(&found.uid)) {
            let _ = fs::remove_file(path);
        }
    }
}
