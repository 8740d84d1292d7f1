//! Processes that the helper makes to do one thing: a namespace that outlives its maker, and the end of any. It knows
//! nothing of what they are for.

use crate::inner::Note;
use crate::sys::{self, Child};
use cyberos_proto::link::{Wait, pair};
use cyberos_proto::message::{Refusal, namespaces, step};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long a process may take to make a namespace.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(10);
/// How long a killed process is waited for.
pub(crate) const KILL_LIMIT: Duration = Duration::from_millis(800);

/// A namespace that outlives the process in which `make` makes something of it. `finish` is given the pid of that
/// process, which has ended or is about to, and is reaped afterwards.
pub(crate) fn namespace(
    flag: libc::c_int,
    kind: &str,
    make: impl FnOnce() -> Result<(), Refusal>,
    finish: impl FnOnce(Pid) -> Result<(), Refusal>,
) -> Result<OwnedFd, Refusal> {
    let (ours, theirs) = step("link to a new namespace", pair::<Note, Note>())?;
    let maker = || {
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        let own = step("own namespace", sys::open(format!("self/ns/{kind}"), OFlag::O_RDONLY));
        let _ = match own.and_then(|own| make().map(|()| own)) {
            Ok(own) => theirs.send(&Note::Namespace, &[own.as_fd()], Wait::Block),
            Err(refusal) => theirs.send(&Note::Failed(refusal), &[], Wait::Block),
        };
        0
    };
    let (pid, pidfd): Child = namespaces(sys::fork(flag, None, maker))?;
    drop(theirs);
    let made = if sys::readable(ours.as_fd(), NAMESPACE_LIMIT) {
        match ours.receive(Wait::No) {
            Ok((Note::Namespace, mut fds)) => fds.pop().ok_or(Refusal::Malformed),
            Ok((Note::Failed(refusal), _)) => Err(refusal),
            _ => step("who makes a namespace has ended", Err(Errno::ECHILD)),
        }
    } else {
        step("make a namespace in 10 s", Err(Errno::ETIMEDOUT))
    };
    let finished = finish(pid);
    let _ = sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    reap(pidfd.as_fd(), KILL_LIMIT);
    finished.and(made)
}

/// Reaps who is behind `pidfd`, an init when the last process of its sandbox has ended; whether it ended in time.
pub(crate) fn reap(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    sys::readable(pidfd, limit) && waitid(Id::PIDFd(pidfd), WaitPidFlag::WEXITED).is_ok()
}

/// Whether the process behind `pidfd` has ended; an init's end is that of all in its sandbox.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    sys::readable(pidfd, Duration::ZERO)
}
