//! PID 1 of a sandbox: builds it, starts the program, gives up everything, reports the program's end and ends the
//! sandbox with it. It has a uid of its own, so that the skill can neither signal nor see it.

use crate::child::{self, Boot};
use crate::hold::{Inner, Note, ready};
use crate::{step, sys};
use cyberos_proto::link::Wait;
use cyberos_proto::message::{Exit, Refusal};
use nix::sys::wait::{WaitStatus, wait};
use nix::sys::{prctl, signal::Signal};
use nix::unistd::{Pid, pipe2, write};
use nix::{errno::Errno, fcntl::OFlag, poll::PollFlags};
use std::{os::fd::AsFd, time::Duration};

static FILTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init.bpf"));

/// Runs in the new process, in its new namespaces. Its exit ends them.
pub(crate) fn run(boot: &Boot<'_>) -> i32 {
    let last = match start(boot) {
        Ok(program) => Note::Ended(until_end(program)),
        Err(refusal) => Note::Failed(refusal),
    };
    let _ = boot.link.send(&last, &[], Wait::Block);
    0
}

fn start(boot: &Boot<'_>) -> Result<Pid, Refusal> {
    die_with_parent(&boot.link)?;
    let mut keep = vec![boot.link.as_fd(), boot.until_exec.as_fd()];
    keep.extend(boot.attach.iter().map(|a| a.tree.as_fd()));
    keep.extend(boot.stdio.iter().map(AsFd::as_fd));
    sys::close_all_but(&mut keep);
    // Where memory runs out, the skill goes first, however the helper is protected.
    let _ = std::fs::write("/proc/self/oom_score_adj", "200");
    child::build_root(boot)?;
    child::give_up_privileges()?;

    let (go, release) = step("pipe", pipe2(OFlag::O_CLOEXEC))?;
    let (pid, program) = step("fork", sys::fork(0, || child::program(boot, &go)))?;
    let told = boot.link.send(&Note::Started, &[program.as_fd()], Wait::Block);
    step("name the program", told.map_err(|_| Errno::EPIPE))?;
    sys::close_all_but(&mut [boot.link.as_fd(), release.as_fd()]);
    child::become_uid(boot.init_uid)?;
    die_with_parent(&boot.link)?;
    child::never_skipped("seccomp", sys::load_filter(FILTER))?;
    step("release the program", write(&release, &[1]))?;
    Ok(pid)
}

/// The kernel kills this process when the link process ends; if that has happened before it was asked, the link says.
fn die_with_parent(link: &Inner) -> Result<(), Refusal> {
    step("parent's death signal", prctl::set_pdeathsig(Signal::SIGKILL))?;
    let gone = ready(link.as_fd(), PollFlags::empty(), Duration::ZERO);
    step("the link process has gone", if gone { Err(Errno::EPIPE) } else { Ok(()) })
}

/// Reaps whatever ends here, until it is the program.
fn until_end(program: Pid) -> Exit {
    let byte = |n: i32| u8::try_from(n & 0xff).unwrap_or(u8::MAX);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return Exit::Code(byte(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                return Exit::Signal(byte(signal as i32));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Exit::Signal(9),
        }
    }
}
