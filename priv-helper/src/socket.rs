//! An invocation's socket in /tmp (`[2.2]`): made so that nobody but the lease can ever have connected, and removed
//! only while it is still the one that was made. It knows nothing of who will serve it.

use crate::policy::lease::is_socket;
pub(crate) use crate::policy::lease::socket as path;
use crate::prelude::*;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use std::ops::RangeInclusive;

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
pub(crate) fn create(invocation: InvocationId, uid: u32) -> Step<(OwnedFd, u64)> {
    let path = path(invocation);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = step("socket", socket(AddressFamily::Unix, SockType::Stream, flags, None))?;
    let address = step("socket address", UnixAddr::new(&path))?;
    match as_lease(uid, || bind(fd.as_raw_fd(), &address)) {
        Err(Errno::EADDRINUSE | Errno::EEXIST) => return Err(Refusal::Exists),
        other => step("bind the socket", other)?,
    }
    let made = step("look at the socket", sys::identity_at(&path))?;
    let inode = made.key.2;
    if !made.is_socket(inode, uid) || made.mode & 0o7777 != 0o600 {
        // Not what was just bound, so not ours to remove either.
        return step("the socket was replaced", Err(Errno::ESTALE));
    }
    let listens = Backlog::new(64).and_then(|b| listen(&fd, b));
    step("listen", listens).inspect_err(|_| remove(invocation, inode, uid))?;
    Ok((fd, inode))
}

/// Removes the socket if it is still the one of that inode and owner. /tmp is sticky, and no process of the owner can
/// reach it, so nothing can come between look and removal.
pub(crate) fn remove(invocation: InvocationId, inode: u64, uid: u32) {
    let path = path(invocation);
    if sys::identity_at(&path).is_ok_and(|i| i.is_socket(inode, uid)) {
        let _ = fs::remove_file(path);
    }
}

/// Removes every socket with exactly such a name that belongs to a uid of `uids`.
pub(crate) fn sweep(uids: RangeInclusive<u32>) {
    let of_ours = |i: sys::Identity| i.is(libc::S_IFSOCK) && uids.contains(&i.uid);
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(is_socket);
        if named && sys::identity_at(&entry.path()).is_ok_and(of_ours) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
