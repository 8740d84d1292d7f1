//! The only unsafe code of this crate: system calls that `nix` lacks or leaves unsafe, each behind a safe function
//! that takes owned or borrowed descriptors and checked strings. It knows nothing of sandboxes or requests.

pub(crate) use crate::policy::identity::Identity;
pub(crate) use cyberos_proto::wait::{hung_up, readable, wait_any};
use nix::fcntl::OFlag;
use nix::libc::{self, c_int, c_long};
use nix::{errno::Errno, sched, sys::stat::Mode, unistd::Pid};
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicU64;

pub(crate) type Sys<T> = Result<T, Errno>;
/// A process's pid and pidfd.
pub(crate) type Child = (Pid, OwnedFd);

/// Of every mount that a sandbox or a view is made of, as mount_setattr and fsmount take them.
pub(crate) const WRITABLE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
pub(crate) const READ_ONLY: u64 = WRITABLE | libc::MOUNT_ATTR_RDONLY;
pub(crate) const DEVICE: u64 = (READ_ONLY ^ libc::MOUNT_ATTR_NODEV) | libc::MOUNT_ATTR_NOEXEC;

/// An argument of a system call. Addresses come only from what is borrowed.
enum Arg<'a> {
    /// A flag, size or id, or 0 for no address.
    N(u64),
    Fd(BorrowedFd<'a>),
    Text(&'a CStr),
    /// The address of a structure: see [`structure`].
    At(u64, PhantomData<&'a mut ()>),
}
use Arg::{At, Fd, N, Text};

/// A structure that the kernel reads, and may write an answer into.
fn structure<T>(of: &mut T) -> Arg<'_> {
    At(std::ptr::from_mut(of).expose_provenance() as u64, PhantomData)
}

fn call<const COUNT: usize>(number: c_long, args: [Arg<'_>; COUNT]) -> Sys<c_long> {
    let mut raw = [0u64; 6];
    for (raw, arg) in raw.iter_mut().zip(args) {
        *raw = match arg {
            N(n) => n,
            // The kernel takes 32 bits of it.
            Fd(fd) => u64::from(fd.as_raw_fd().cast_unsigned()),
            Text(text) => text.as_ptr().expose_provenance() as u64,
            At(address, _) => address,
        };
    }
    // JUSTIFICATION: nix has none of the calls below, or leaves them unsafe.
    // SAFETY: only this file calls it. Every address is that of a C string or of a structure as long as the call wants,
    // borrowed until it is over, here or by `fork` and `set_filter`; the rest are numbers and open descriptors. No call
    // here changes memory otherwise.
    Errno::result(unsafe { libc::syscall(number, raw[0], raw[1], raw[2], raw[3], raw[4], raw[5]) })
}

fn own(r: c_long) -> Sys<OwnedFd> {
    let fd = c_int::try_from(r).map_err(|_| Errno::EBADF)?;
    // JUSTIFICATION: raw system calls answer bare numbers, and someone must begin to own them.
    // SAFETY: `fd` is open and nobody else knows its number: a call that has just returned made it, or it is the
    // activated socket.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The listening socket that systemd leaves as descriptor 3. Called once, before anything else is opened.
pub(crate) fn activated_socket() -> Sys<OwnedFd> {
    call(libc::SYS_fcntl, [N(3), N(libc::F_SETFD as u64), N(libc::FD_CLOEXEC as u64)])?;
    own(3)
}

pub(crate) fn clear_environment() {
    // JUSTIFICATION: nothing that the environment says may reach libc or a child.
    // SAFETY: the process has one thread, and no reference into the environment lives.
    let _ = unsafe { libc::clearenv() };
}

/// Default disposition for signals, where it can be changed: ignored ones are inherited through exec, those too for which
/// libc's own call refuses it.
pub(crate) fn default_signals(signals: impl IntoIterator<Item = c_int>) {
    signals.into_iter().for_each(|n| _ = handle(n, libc::SIG_DFL));
}

/// Signals that are to do nothing. A program that is executed inherits it, and is to get the default back.
pub(crate) fn ignore_signals(signals: impl IntoIterator<Item = c_int>) {
    signals.into_iter().for_each(|n| _ = handle(n, libc::SIG_IGN));
}

/// Memory that this process and all that it makes have in common, until they execute something.
pub(crate) fn shared() -> Sys<&'static [AtomicU64; 6]> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // JUSTIFICATION: what several processes count together has to be in memory that they share.
    // SAFETY: a new mapping of the kernel's choice, zeroed, aligned to a page, longer than six words, and never unmapped.
    // Every access to it is atomic.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, protection, kind, -1, 0);
        if at == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(&*at.cast()) }
    }
}

/// Whether this process reaps its children itself; else the kernel does, for who watches pidfds and asks no exit status.
pub(crate) fn reap_children(itself: bool) {
    let _ = handle(libc::SIGCHLD, if itself { libc::SIG_DFL } else { libc::SIG_IGN });
}

/// The kernel's own struct sigaction, which is not libc's.
#[repr(C)]
struct Sigaction {
    handler: libc::sighandler_t,
    flags: u64,
    restorer: usize,
    mask: u64,
}

fn handle(signal: c_int, handler: libc::sighandler_t) -> Sys<c_long> {
    let mut action = Sigaction { handler, flags: 0, restorer: 0, mask: 0 };
    let mask = N(size_of::<u64>() as u64);
    call(libc::SYS_rt_sigaction, [N(signal as u64), structure(&mut action), N(0), mask])
}

/// Runs `child` in a new process, in the namespaces of `flags` and, if given, in a control group. A panic ends it.
pub(crate) fn fork(flags: c_int, group: Option<BorrowedFd<'_>>, child: impl FnOnce() -> c_int) -> Sys<Child> {
    // CLONE_INTO_CGROUP; libc cuts it off.
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: c_int = -1;
    // Without CLONE_VM the child has a copy of everything, and since this process has one thread no lock in that copy is
    // held by anyone.
    let mut args = libc::clone_args {
        flags: (flags | libc::CLONE_PIDFD) as u64 | if group.is_some() { INTO_CGROUP } else { 0 },
        pidfd: std::ptr::from_mut(&mut pidfd).expose_provenance() as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: group.map_or(0, |group| group.as_raw_fd() as u64),
    };
    let size = N(size_of_val(&args) as u64);
    let pid = call(libc::SYS_clone3, [structure(&mut args), size])?;
    if pid == 0 {
        let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
        // JUSTIFICATION: a child must run neither destructors nor handlers that its parent has registered.
        // SAFETY: takes a number and does not return.
        unsafe { libc::_exit(code) }
    }
    Ok((Pid::from_raw(pid.try_into().map_err(|_| Errno::ERANGE)?), own(pidfd.into())?))
}

/// Runs `child` in a new process on this one's memory. This one stands still until `child` has executed a program or
/// ended, and there is no copy of memory to make, which is most of what a fork costs.
pub(crate) fn vfork(mut child: impl FnMut()) -> Sys<Child> {
    let mut stack = vec![0; 256 << 10];
    // clone ends the process with this, without destructors or handlers.
    let run = Box::new(|| isize::from(catch_unwind(AssertUnwindSafe(&mut child)).is_err()));
    let flags = sched::CloneFlags::CLONE_VM | sched::CloneFlags::CLONE_VFORK;
    // JUSTIFICATION: only a process on the same memory costs so little.
    // SAFETY: the child has a stack of its own; the parent stands still, so nothing is used by both at once, and this
    // process has one thread. What is borrowed lives through the call.
    let pid = unsafe { sched::clone(run, &mut stack, flags, Some(libc::SIGCHLD)) }?;
    // It has not been reaped, so the number is still its own.
    Ok((pid, pidfd_open(pid)?))
}

/// Closes every descriptor above 2 that is not in `keep`. Called where nothing else has been opened yet, and by children
/// that leave by _exit or exec and so never use or drop the owners of what is closed here.
pub(crate) fn close_all_but(keep: &mut [BorrowedFd<'_>]) {
    keep.sort_by_key(AsRawFd::as_raw_fd);
    let mut from = 3u32;
    for last in keep.iter().map(|k| k.as_raw_fd().cast_unsigned()).chain([u32::MAX]) {
        if last > from {
            let _ = call(libc::SYS_close_range, [N(from.into()), N((last - 1).into()), N(0)]);
        }
        from = from.max(last.saturating_add(1));
    }
}

pub(crate) fn pidfd_open(pid: Pid) -> Sys<OwnedFd> {
    own(call(libc::SYS_pidfd_open, [N(pid.as_raw() as u64), N(0)])?)
}

pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: c_int) -> Sys<()> {
    call(libc::SYS_pidfd_send_signal, [Fd(pidfd), N(signal as u64), N(0), N(0)]).map(drop)
}

/// Installs one compiled filter on this thread. no_new_privs must be set, or CAP_SYS_ADMIN held.
pub(crate) fn load_filter(program: &'static [u8]) -> Sys<()> {
    set_filter(program, 0).map(drop)
}

/// The same, and answers the listener of the filter's questions. Who was asked is not interrupted by signals but to die,
/// so that no call is asked about twice; before Linux 5.19 there is no such thing (EINVAL).
pub(crate) fn load_asking_filter(program: &'static [u8]) -> Sys<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    own(set_filter(program, flags)?)
}

fn set_filter(program: &'static [u8], flags: u64) -> Sys<c_long> {
    let length = program.len() / size_of::<libc::sock_filter>();
    let mut filter = libc::sock_fprog {
        len: u16::try_from(length).map_err(|_| Errno::E2BIG)?,
        // The kernel copies the instructions bytewise, and checks them.
        filter: program.as_ptr().cast_mut().cast(),
    };
    let mode = N(libc::SECCOMP_SET_MODE_FILTER.into());
    call(libc::SYS_seccomp, [mode, N(flags), structure(&mut filter)])
}

/// A call about which a filter asks. The thread stands still until it is answered, or dies.
pub(crate) struct Ask {
    id: u64,
    /// The thread, in this process's pid namespace.
    pub(crate) thread: u32,
    pub(crate) call: c_long,
    pub(crate) args: [u64; 6],
}

/// Waits for the next. ENOENT: the thread has died, or nobody is left who could ask.
pub(crate) fn asked(listener: BorrowedFd<'_>) -> Sys<Ask> {
    let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut notif = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
    call(libc::SYS_ioctl, [Fd(listener), N(libc::SECCOMP_IOCTL_NOTIF_RECV), structure(&mut notif)])?;
    Ok(Ask { id: notif.id, thread: notif.pid, call: notif.data.nr.into(), args: notif.data.args })
}

/// Whether the thread still waits: then what has its number is that thread.
pub(crate) fn waits(listener: BorrowedFd<'_>, ask: &Ask) -> bool {
    let mut id = ask.id;
    call(libc::SYS_ioctl, [Fd(listener), N(libc::SECCOMP_IOCTL_NOTIF_ID_VALID), structure(&mut id)]).is_ok()
}

/// The call answers 0 or the errno. That the thread has died meanwhile is nothing.
pub(crate) fn answer(listener: BorrowedFd<'_>, ask: &Ask, result: Sys<()>) {
    let error = result.err().map_or(0, |e| (e as i32).wrapping_neg());
    let mut answer = libc::seccomp_notif_resp { id: ask.id, val: 0, error, flags: 0 };
    let _ = call(libc::SYS_ioctl, [Fd(listener), N(libc::SECCOMP_IOCTL_NOTIF_SEND), structure(&mut answer)]);
}

/// Sets the mode of what is at `path` below `dir`, links followed.
pub(crate) fn chmod(dir: BorrowedFd<'_>, path: &CStr, mode: u32) -> Sys<()> {
    call(libc::SYS_fchmodat, [Fd(dir), Text(path), N(mode.into())]).map(drop)
}

/// `path` opened, close-on-exec.
pub(crate) fn open(path: impl AsRef<Path>, flags: OFlag) -> Sys<OwnedFd> {
    nix::fcntl::open(path.as_ref(), flags | OFlag::O_CLOEXEC, Mode::empty())
}

/// What is at `path`, opened without asking any file system's server and without following a last symlink.
pub(crate) fn open_path(path: &Path) -> Sys<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
}

/// Who is at `path`, without following a last symlink.
pub(crate) fn identity_at(path: &Path) -> Sys<Identity> {
    identity(open_path(path)?)
}

pub(crate) fn identity(fd: impl AsFd) -> Sys<Identity> {
    // JUSTIFICATION: nix has no statx; fstat would ask the server of a FUSE file and could wait for ever.
    // SAFETY: plain integers, for which zero is a value.
    let mut x = unsafe { std::mem::zeroed::<libc::statx>() };
    let how = N((libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC) as u64);
    let mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    call(libc::SYS_statx, [Fd(fd.as_fd()), Text(c""), how, N(mask.into()), structure(&mut x)])?;
    if x.stx_mask & mask != mask {
        return Err(Errno::ENOSYS);
    }
    let (key, device) = ((x.stx_dev_major, x.stx_dev_minor, x.stx_ino), (x.stx_rdev_major, x.stx_rdev_minor));
    let (mode, changed) = (x.stx_mode.into(), (x.stx_ctime.tv_sec, x.stx_ctime.tv_nsec));
    let kept = x.stx_attributes & (libc::STATX_ATTR_APPEND | libc::STATX_ATTR_IMMUTABLE) as u64 != 0;
    Ok(Identity { mode, uid: x.stx_uid, mount: x.stx_mnt_id, key, device, changed, kept })
}

/// A detached recursive copy of the mount tree at `fd`, private, with `flags` on every mount of it.
pub(crate) fn clone_tree(fd: BorrowedFd<'_>, flags: u64) -> Sys<OwnedFd> {
    copy_tree(fd).and_then(|tree| set_mount(&tree, flags, None, libc::AT_RECURSIVE).map(|()| tree))
}

/// The same as it is.
pub(crate) fn copy_tree(fd: BorrowedFd<'_>) -> Sys<OwnedFd> {
    let how = (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE).cast_unsigned();
    let how = how | libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    own(call(libc::SYS_open_tree, [Fd(fd), Text(c""), N(how.into())])?)
}

/// Sets `flags` on the mount of `mount`, or with `AT_RECURSIVE` on the tree, idmapped as `map` says, and makes it private.
pub(crate) fn set_mount(mount: &OwnedFd, flags: u64, map: Option<BorrowedFd<'_>>, how: c_int) -> Sys<()> {
    let mut attr = libc::mount_attr {
        attr_set: flags,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: map.map_or(0, |map| map.as_raw_fd() as u64),
    };
    let how = N((libc::AT_EMPTY_PATH | how) as u64);
    let size = N(size_of_val(&attr) as u64);
    let mount = Fd(mount.as_fd());
    call(libc::SYS_mount_setattr, [mount, Text(c""), how, structure(&mut attr), size]).map(drop)
}

/// Attaches the detached mount `from` on `to`. No path is walked.
pub(crate) fn attach(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Sys<()> {
    let how = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    call(libc::SYS_move_mount, [Fd(from), Text(c""), Fd(to), Text(c""), N(how.into())]).map(drop)
}

/// A new detached mount of file system `kind`; `options` as for mount(8).
pub(crate) fn new_mount(kind: &CStr, options: &str, flags: u64) -> Sys<OwnedFd> {
    // Of enum fsconfig_command.
    const SET_FLAG: u64 = 0;
    const SET_STRING: u64 = 1;
    const CREATE: u64 = 6;
    let fs = own(call(libc::SYS_fsopen, [Text(kind), N(libc::FSOPEN_CLOEXEC.into())])?)?;
    let word = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    for option in options.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let (key, value) = (word(key)?, word(value)?);
        let (how, value) = if value.is_empty() { (SET_FLAG, N(0)) } else { (SET_STRING, Text(&value)) };
        call(libc::SYS_fsconfig, [Fd(fs.as_fd()), N(how), Text(&key), value, N(0)])?;
    }
    call(libc::SYS_fsconfig, [Fd(fs.as_fd()), N(CREATE), N(0), N(0), N(0)])?;
    own(call(libc::SYS_fsmount, [Fd(fs.as_fd()), N(libc::FSMOUNT_CLOEXEC.into()), N(flags)])?)
}

/// Landlock's ABI as far as it is used, or 0 where there is none.
pub(crate) fn landlock_abi() -> u8 {
    let version = call(libc::SYS_landlock_create_ruleset, [N(0), N(0), N(1)]);
    version.ok().and_then(|v| u8::try_from(v.min(6)).ok()).unwrap_or(0)
}

/// Sets a resource limit of this process.
pub(crate) fn set_limit(resource: u32, soft: u64, hard: u64) -> Sys<()> {
    let mut limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    call(libc::SYS_prlimit64, [N(0), N(resource.into()), structure(&mut limit), N(0)]).map(drop)
}

/// What FUSE_DEV_IOC_BACKING_OPEN is given: the kernel's struct fuse_backing_map.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Has the kernel read and write `file` in place of the server of the FUSE connection `fuse`; answers its number there.
pub(crate) fn backing_open(fuse: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Sys<u32> {
    // _IOW(229, 1, struct fuse_backing_map)
    const BACKING_OPEN: u64 = 0x4010_e501;
    let mut map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    let id = call(libc::SYS_ioctl, [Fd(fuse), N(BACKING_OPEN), structure(&mut map)])?;
    u32::try_from(id).map_err(|_| Errno::ERANGE)
}

/// Ends that for the file of that number.
pub(crate) fn backing_close(fuse: BorrowedFd<'_>, mut id: u32) -> Sys<()> {
    // _IOW(229, 2, uint32_t)
    const BACKING_CLOSE: u64 = 0x4004_e502;
    call(libc::SYS_ioctl, [Fd(fuse), N(BACKING_CLOSE), structure(&mut id)]).map(drop)
}
