//! The only unsafe code of this crate: system calls that `nix` lacks or leaves unsafe, each behind a safe function
//! that takes owned or borrowed descriptors and checked strings. It knows nothing of sandboxes or requests.

use nix::fcntl::{OFlag, open};
use nix::libc::{self, c_int, c_long};
use nix::{errno::Errno, sys::stat::Mode, unistd::Pid};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ffi::CStr, path::Path};

pub(crate) type Sys<T> = Result<T, Errno>;

/// The flags of a mount, as mount_setattr and fsmount take them.
pub(crate) mod flag {
    pub(crate) const RDONLY: u64 = 1;
    pub(crate) const NOSUID: u64 = 2;
    pub(crate) const NODEV: u64 = 4;
    pub(crate) const NOEXEC: u64 = 8;
}

/// Who a descriptor is, as statx says without asking any file system's server.
pub(crate) struct Identity(pub(crate) libc::statx);

impl Identity {
    pub(crate) fn is(&self, kind: u32) -> bool {
        u32::from(self.0.stx_mode) & libc::S_IFMT == kind
    }

    /// Whether anybody but root can write it.
    pub(crate) fn is_open(&self) -> bool {
        self.0.stx_uid != 0 || self.0.stx_mode & 0o022 != 0
    }

    pub(crate) fn is_socket(&self, inode: u64, uid: u32) -> bool {
        self.is(libc::S_IFSOCK) && (self.0.stx_ino, self.0.stx_uid) == (inode, uid)
    }

    /// Whether both are one object on one mount.
    pub(crate) fn same(&self, other: &Identity) -> bool {
        let key = |x: &libc::statx| (x.stx_mnt_id, x.stx_dev_major, x.stx_dev_minor, x.stx_ino, x.stx_mode);
        key(&self.0) == key(&other.0)
    }
}

fn own(r: c_long) -> Sys<OwnedFd> {
    let fd = c_int::try_from(Errno::result(r)?).map_err(|_| Errno::EBADF)?;
    // JUSTIFICATION: raw system calls answer bare numbers, and someone must begin to own them.
    // SAFETY: `fd` is open and nobody else knows its number: a call that has just returned made it, or it is the
    // activated socket.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The listening socket that systemd leaves as descriptor 3. Called once, before anything else is opened.
pub(crate) fn activated_socket() -> Sys<OwnedFd> {
    // JUSTIFICATION: socket activation hands a descriptor over by its number, which may not be open.
    // SAFETY: takes numbers; the flag is the one that every descriptor here has.
    Errno::result(unsafe { libc::fcntl(3, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    own(3)
}

/// Empties the environment.
pub(crate) fn clear_environment() {
    // JUSTIFICATION: nothing that the environment says may reach libc or a child.
    // SAFETY: the process has one thread, and no reference into the environment lives.
    let _ = unsafe { libc::clearenv() };
}

/// Default disposition for every signal: ignored ones are inherited through exec, and Rust ignores SIGPIPE.
pub(crate) fn default_signals() {
    let default = [0u64; 4];
    for n in 1..=64 {
        // JUSTIFICATION: libc's own call refuses the signals that it keeps for itself, and those are inherited too.
        // SAFETY: an all-zero kernel sigaction is SIG_DFL; what cannot be changed answers an error, which is right.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, n, default.as_ptr(), 0, 8) };
    }
}

/// Whether this process reaps its children itself; else the kernel does.
pub(crate) fn reap_children(itself: bool) {
    let how = if itself { libc::SIG_DFL } else { libc::SIG_IGN };
    // JUSTIFICATION: the parent watches pidfds and needs no exit status, so no zombie should wait for it.
    // SAFETY: neither value installs a handler.
    unsafe { libc::signal(libc::SIGCHLD, how) };
}

/// Runs `child` in a new process, in the namespaces of `flags`, and answers its pid and pidfd. A panic ends the child.
pub(crate) fn fork(flags: c_int, child: impl FnOnce() -> c_int) -> Sys<(Pid, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let mut args = [0u64; 8];
    args[0] = u64::from((flags | libc::CLONE_PIDFD).cast_unsigned());
    args[1] = std::ptr::from_mut(&mut pidfd).expose_provenance() as u64;
    args[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    // JUSTIFICATION: libc's fork can neither make namespaces nor answer a pidfd without a race.
    // SAFETY: `args` is the first version of clone_args and lives through the call; without CLONE_VM the child has a
    // copy of everything, and since this process has one thread no lock in that copy is held by anyone.
    let r = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    let pid = c_int::try_from(Errno::result(r)?).map_err(|_| Errno::ERANGE)?;
    if pid == 0 {
        let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
        // JUSTIFICATION: a child must run neither destructors nor handlers that its parent has registered.
        // SAFETY: takes a number and does not return.
        unsafe { libc::_exit(code) }
    }
    Ok((Pid::from_raw(pid), own(c_long::from(pidfd))?))
}

/// Closes every descriptor above 2 that is not in `keep`: a child must not hold what its parent has open.
pub(crate) fn close_all_but(keep: &mut [BorrowedFd<'_>]) {
    keep.sort_by_key(AsRawFd::as_raw_fd);
    let mut from = 3u32;
    for last in keep.iter().map(|k| k.as_raw_fd().cast_unsigned()).chain([u32::MAX]) {
        if last > from {
            // JUSTIFICATION: nix has no close_range.
            // SAFETY: called where nothing else has been opened yet, and by children that leave by _exit or exec and
            // so never use or drop the owners of what is closed here.
            unsafe { libc::syscall(libc::SYS_close_range, from, last - 1, 0) };
        }
        from = from.max(last.saturating_add(1));
    }
}

pub(crate) fn pidfd_open(pid: Pid) -> Sys<OwnedFd> {
    // JUSTIFICATION: nix has no pidfd calls.
    // SAFETY: takes numbers.
    own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
}

pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: c_int) -> Sys<()> {
    let none: *const libc::siginfo_t = std::ptr::null();
    // JUSTIFICATION: nix has no pidfd calls.
    // SAFETY: the null siginfo makes the kernel fill one in; the rest are numbers.
    let r = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) };
    Errno::result(r).map(drop)
}

/// Installs one compiled filter on this thread. no_new_privs must be set, or CAP_SYS_ADMIN held.
pub(crate) fn load_filter(program: &'static [u8]) -> Sys<()> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len() / size_of::<libc::sock_filter>()).map_err(|_| Errno::E2BIG)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // JUSTIFICATION: nix has no seccomp call.
    // SAFETY: `fprog` and the bytes it points to live through the call; the kernel copies them bytewise (so alignment
    // does not matter), writes nothing, and checks the program.
    let r = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&fprog))
    };
    Errno::result(r).map(drop)
}

/// What is at `path`, opened without asking any file system's server and without following a last symlink.
pub(crate) fn open_path(path: &Path) -> Sys<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

pub(crate) fn identity_at(path: &Path) -> Sys<Identity> {
    identity(open_path(path)?.as_fd())
}

pub(crate) fn identity(fd: BorrowedFd<'_>) -> Sys<Identity> {
    let mut x = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let how = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    // JUSTIFICATION: nix has no statx; fstat would ask the server of a FUSE file and could wait for ever.
    // SAFETY: the path is an empty C string and `x` has room for one struct statx.
    let r =
        unsafe { libc::syscall(libc::SYS_statx, fd.as_raw_fd(), c"".as_ptr(), how, mask, x.as_mut_ptr()) };
    Errno::result(r)?;
    // JUSTIFICATION: reads what the call has filled in.
    // SAFETY: zero-initialised, plain integers, and filled in by the kernel.
    let x = unsafe { x.assume_init() };
    if x.stx_mask & mask == mask { Ok(Identity(x)) } else { Err(Errno::ENOSYS) }
}

/// A detached recursive copy of the mount tree at `fd`, private, with `flags` on every mount of it.
pub(crate) fn clone_tree(fd: BorrowedFd<'_>, flags: u64) -> Sys<OwnedFd> {
    let how = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE).cast_unsigned();
    // JUSTIFICATION: nix has no open_tree.
    // SAFETY: the path is an empty C string; the rest are numbers.
    let tree = own(unsafe { libc::syscall(libc::SYS_open_tree, fd.as_raw_fd(), c"".as_ptr(), how) })?;
    set_mount(&tree, flags, libc::AT_RECURSIVE)?;
    Ok(tree)
}

/// Sets `flags` on the mount of `mount`, and makes it private.
pub(crate) fn set_mount(mount: &OwnedFd, flags: u64, recursive: c_int) -> Sys<()> {
    let attr = libc::mount_attr { attr_set: flags, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let how = libc::AT_EMPTY_PATH | recursive;
    // JUSTIFICATION: nix has no mount_setattr.
    // SAFETY: the path is empty, and `attr` lives through the call, which is told its size.
    let r = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            how,
            std::ptr::from_ref(&attr),
            size_of_val(&attr),
        )
    };
    Errno::result(r).map(drop)
}

/// Attaches the detached mount `from` on `to`. No path is walked.
pub(crate) fn attach(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Sys<()> {
    let how = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let empty = c"".as_ptr();
    // JUSTIFICATION: nix has no move_mount.
    // SAFETY: both paths are empty C strings; the rest are numbers.
    let r =
        unsafe { libc::syscall(libc::SYS_move_mount, from.as_raw_fd(), empty, to.as_raw_fd(), empty, how) };
    Errno::result(r).map(drop)
}

/// A new detached mount of file system `kind`; an option without value is a flag.
pub(crate) fn new_mount(kind: &CStr, options: &[(&CStr, Option<&CStr>)], flags: u64) -> Sys<OwnedFd> {
    const SET_FLAG: u32 = 0;
    const SET_STRING: u32 = 1;
    const CREATE: u32 = 6;
    let null: *const libc::c_char = std::ptr::null();
    // JUSTIFICATION: nix has no fsopen; mount(2) would take a path.
    // SAFETY: `kind` is a C string.
    let fs = own(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })?;
    for (key, value) in options {
        let command = if value.is_some() { SET_STRING } else { SET_FLAG };
        let value = value.map_or(null, CStr::as_ptr);
        // JUSTIFICATION: nix has no fsconfig.
        // SAFETY: key and value are C strings, or null where the command wants none.
        let r = unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), command, key.as_ptr(), value, 0) };
        Errno::result(r)?;
    }
    // JUSTIFICATION: nix has no fsconfig.
    // SAFETY: this command takes neither key nor value.
    Errno::result(unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), CREATE, null, null, 0) })?;
    // JUSTIFICATION: nix has no fsmount.
    // SAFETY: takes numbers.
    own(unsafe { libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), 1, flags) })
}
