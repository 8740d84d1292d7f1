//! Who answers a sandbox's questions about modes with set-id bits: the bits are left out, the rest is set, as in a file
//! system that has no such bits. A filter can only refuse a mode; success without the rest would leave rights that the
//! caller believes it has taken away. So the filter asks, and a process that has no right that the sandbox lacks makes
//! the call: its uid, in its mount namespace, without capabilities. What the caller changes meanwhile, memory or names, it
//! could have passed by itself. It is there from the first question on, in no pid namespace of the sandbox's, so that a
//! skill neither sees nor signals it, and ends with the sandbox.

use super::process::{KILL_LIMIT, reap};
use super::rights::{become_uid, filter};
use crate::ceiling::Ceiling;
use crate::log::{Often, log_often};
use crate::sys::{self, Sys};
use cyberos_proto::message::{Refusal, never_skipped, step};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::sys::uio::pread;
use nix::unistd::{self, Pid};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What a path may be long, its end included.
const PATH_MAX: usize = 4096;
/// The bits of a mode that are stored.
const STORED: u64 = 0o1777;

/// A sandbox's view and what is asked in it.
pub(crate) struct Modes {
    view: OwnedFd,
    /// None where the kernel lacks it, when nobody is left who could ask, or who answered has died.
    listener: Option<OwnedFd>,
    /// pidfd of who answers.
    answering: Option<OwnedFd>,
}

impl Modes {
    pub(crate) fn new(view: OwnedFd, listener: Option<OwnedFd>) -> Modes {
        Modes { view, listener, answering: None }
    }

    /// What to wait for: the first question, then the end of who answers.
    pub(crate) fn news(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.listener.as_ref()?;
        Some(self.answering.as_ref().unwrap_or(listener).as_fd())
    }

    /// Begins to answer if there is a first question. Begun once: that a caller waits for nobody is worse than an error,
    /// and the kernel answers ENOSYS when the last listener is closed.
    pub(crate) fn look(&mut self, ceiling: &Ceiling, uid: u32) {
        let Some(listener) = &self.listener else { return };
        if !self.news().is_some_and(|news| sys::readable(news, Duration::ZERO)) {
            return;
        }
        if self.answering.is_none() && !sys::hung_up(listener.as_fd()) {
            // In the sandbox's own control group, unless that is full: it needs next to nothing.
            let group = ceiling.groups.birthplace(uid).ok().flatten();
            let start = |group: Option<&OwnedFd>| {
                let link = unistd::getpid();
                sys::fork(0, group.map(AsFd::as_fd), || {
                    let served = serve(ceiling, uid, (&self.view, listener), link);
                    let failed = |why| log_often(Often::Refusal, &format!("modes of {uid}: {why}"));
                    i32::from(served.map_err(failed).is_err())
                })
            };
            match start(group.as_ref()).or_else(|_| start(None)) {
                Ok((_, pidfd)) => return self.answering = Some(pidfd),
                Err(e) => log_often(Often::Refusal, &format!("modes of {uid}: {e}")),
            }
        }
        self.end();
    }

    fn end(&mut self) {
        self.listener = None;
        if let Some(process) = self.answering.take() {
            let _ = sys::pidfd_signal(process.as_fd(), libc::SIGKILL);
            // One that hangs keeps the uid from being leased again, as any process of it does.
            reap(process.as_fd(), KILL_LIMIT);
        }
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers until nobody is left who could ask.
fn serve(
    ceiling: &Ceiling,
    uid: u32,
    (view, listener): (&OwnedFd, &OwnedFd),
    link: Pid,
) -> Result<(), Refusal> {
    // The helper's own, in which this process and the askers are.
    let proc = step("/proc", sys::open(".", OFlag::O_PATH | OFlag::O_DIRECTORY))?;
    sys::close_all_but(&mut [view.as_fd(), listener.as_fd(), proc.as_fd()]);
    step("enter the control group", ceiling.groups.enter(uid))?;
    never_skipped("mount namespace", setns(view, CloneFlags::CLONE_NEWNS))?;
    become_uid(uid)?;
    // Both are lost with the change of uid.
    never_skipped("non-dumpable", prctl::set_dumpable(false))?;
    step("parent's death signal", prctl::set_pdeathsig(Signal::SIGKILL))?;
    step("the link process has gone", if unistd::getppid() == link { Ok(()) } else { Err(Errno::EPIPE) })?;
    sys::close_all_but(&mut [listener.as_fd(), proc.as_fd()]);
    never_skipped("seccomp", sys::load_filter(filter!("modes")))?;
    loop {
        match sys::asked(listener.as_fd()) {
            Ok(ask) => sys::answer(listener.as_fd(), &ask, set(&proc, listener, &ask)),
            Err(Errno::EINTR) => {}
            Err(Errno::ENOENT) if sys::hung_up(listener.as_fd()) => return Ok(()),
            // The asker has died.
            Err(Errno::ENOENT) => {}
            Err(e) => return step("what is asked", Err(e)),
        }
    }
}

/// Makes the call without the bits.
fn set(proc: &OwnedFd, listener: &OwnedFd, ask: &sys::Ask) -> Sys<()> {
    let [first, second, third, ..] = ask.args;
    #[cfg(target_arch = "x86_64")]
    let by_name = ask.call == libc::SYS_chmod;
    #[cfg(not(target_arch = "x86_64"))]
    let by_name = false;
    let (at, mode) = match ask.call {
        libc::SYS_fchmod => (descriptor(proc, ask, number(first), false)?, second),
        _ if by_name => (named_at(proc, ask, libc::AT_FDCWD, first)?, second),
        libc::SYS_fchmodat => (named_at(proc, ask, number(first), second)?, third),
        _ => return Err(Errno::EPERM),
    };
    let at = CString::new(at).map_err(|_| Errno::EINVAL)?;
    // What was read so far was the asker's if it still waits. Else nobody is told.
    if !sys::waits(listener.as_fd(), ask) {
        return Err(Errno::ESRCH);
    }
    sys::chmod(proc.as_fd(), &at, u32::try_from(mode & STORED).unwrap_or(0))
}

/// The kernel takes 32 bits of a descriptor.
fn number(arg: u64) -> i32 {
    u32::try_from(arg & 0xffff_ffff).unwrap_or(0).cast_signed()
}

/// Where in /proc the asker's descriptor is; with `path`, it may be one that is only a place.
fn descriptor(proc: &OwnedFd, ask: &sys::Ask, fd: i32, path: bool) -> Sys<Vec<u8>> {
    let info = open_in(proc, &format!("{}/fdinfo/{fd}", ask.thread)).map_err(|e| match e {
        Errno::ENOENT => Errno::EBADF,
        _ => Errno::EPERM,
    })?;
    let mut text = [0; 256];
    let length = unistd::read(&info, &mut text)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).ok_or(Errno::EBADF)?;
    if flags & libc::O_PATH != 0 && !path {
        return Err(Errno::EBADF);
    }
    Ok(format!("{}/fd/{fd}", ask.thread).into_bytes())
}

/// Where the path at `address` is, from `dir` of the asker's: from /proc, or from the root, which is the same for all of
/// the sandbox.
fn named_at(proc: &OwnedFd, ask: &sys::Ask, dir: i32, address: u64) -> Sys<Vec<u8>> {
    let path = path(proc, ask, address)?;
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    // Of the sandbox's /proc this process is none, so there is no /proc/self for it. These are what libc makes of
    // descriptors and of AT_SYMLINK_NOFOLLOW.
    let own = [&b"/proc/self/fd/"[..], b"/proc/thread-self/fd/", b"/dev/fd/"];
    let fd = own.iter().find_map(|own| path.strip_prefix(*own)).and_then(|n| str::from_utf8(n).ok());
    if let Some(fd) = fd.and_then(|n| n.parse::<u16>().ok()) {
        return descriptor(proc, ask, fd.into(), true);
    }
    if path[0] == b'/' {
        return Ok(path);
    }
    let mut at = match dir {
        libc::AT_FDCWD => format!("{}/cwd", ask.thread).into_bytes(),
        fd => descriptor(proc, ask, fd, true)?,
    };
    at.push(b'/');
    at.extend(path);
    Ok(at)
}

/// The asker's path. Who may not be looked into, since it is not dumpable or a rule of the machine says so, is refused.
fn path(proc: &OwnedFd, ask: &sys::Ask, address: u64) -> Sys<Vec<u8>> {
    let memory = open_in(proc, &format!("{}/mem", ask.thread)).map_err(|_| Errno::EPERM)?;
    let mut path = vec![0; PATH_MAX];
    let at = i64::try_from(address).map_err(|_| Errno::EFAULT)?;
    let length = pread(&memory, &mut path, at).map_err(|_| Errno::EFAULT)?;
    let end = path[..length].iter().position(|byte| *byte == 0);
    path.truncate(end.ok_or(if length == PATH_MAX { Errno::ENAMETOOLONG } else { Errno::EFAULT })?);
    Ok(path)
}

fn open_in(proc: &OwnedFd, name: &str) -> Sys<OwnedFd> {
    nix::fcntl::openat(proc, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}
