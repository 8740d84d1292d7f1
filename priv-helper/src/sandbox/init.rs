//! PID 1 of a sandbox: completes it, starts the program, gives up everything, reports the program's end and ends the
//! sandbox with it. It has a uid of its own, so that the skill can neither signal nor see it.

use super::attach::Attach;
use super::child::{self, Boot};
use super::network;
use super::rights::{become_uid, filter};
use super::template::{self, Which};
use crate::ceiling::Ceiling;
use crate::inner::{Inner, Note};
use crate::{socket, sys};
use cyberos_proto::link::{Wait, pair};
use cyberos_proto::message::{Exit, Refusal, namespaces, never_skipped, step};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{self, Pid};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// An init in namespaces of its own, and the link to it.
pub(super) struct Newborn {
    pub(super) init: OwnedFd,
    pub(super) boot: Inner,
}

/// One that waits for what it is to become, born into `group` if there is one.
pub(super) fn born(ceiling: &Ceiling, group: Option<&OwnedFd>) -> Result<Newborn, Refusal> {
    let (boot, down) = step("boot link", pair::<Note, Note>())?;
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let init = sys::fork(flags, group.map(AsFd::as_fd), || run(ceiling, &down));
    namespaces(init).map(|(_, init)| Newborn { init, boot })
}

/// Runs in the new process, in its new namespaces. Its exit ends them.
fn run(ceiling: &Ceiling, link: &Inner) -> i32 {
    let last = match start(ceiling, link) {
        Ok(program) => Note::Ended(until_end(program)),
        Err(refusal) => Note::Failed(refusal),
    };
    let _ = link.send(&last, &[], Wait::Block);
    0
}

fn start(ceiling: &Ceiling, link: &Inner) -> Result<Pid, Refusal> {
    die_with_parent(link)?;
    let mut keep = vec![link.as_fd()];
    keep.extend(ceiling.bin.as_ref().map(AsFd::as_fd));
    sys::close_all_but(&mut keep);
    // A memory file that does not ask to be executable is none then; the filter refuses who asks. Needs Linux 6.3.
    let _ = fs::write("sys/vm/memfd_noexec", "1");
    // Where memory runs out, the skill goes first, however the helper is protected.
    let _ = fs::write("self/oom_score_adj", "200");
    step("host name", unistd::sethostname("sandbox"))?;
    let (note, fds) = step("what it is to become", link.receive(Wait::Block))?;
    let Note::Become { plan, uid, invocation, template, network } = note else {
        return Err(Refusal::Malformed);
    };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or(Refusal::Malformed);
    let stdio = [next()?, next()?, next()?];
    let template = if template { Some(next()?) } else { None };
    let network = if network { Some(next()?) } else { None };
    let socket = invocation.map(socket::path);
    // What nobody has built before is built here, so that a link never waits for it.
    let network = given_or_made(network, link, Note::Network, network::make)?;
    let which = Which { init_uid: ceiling.text.init_uid(uid), ready: plan.ready(socket.as_deref()) };
    let template = given_or_made(template, link, Note::Template, || template::build(ceiling, &which))?;
    let places = plan.places(socket.as_deref()).into_iter().zip(fds);
    let attach = places.map(|((target, nested), tree)| Attach { target, tree, nested }).collect();
    let boot = Boot { ceiling, plan: &plan, uid, template, network, attach, stdio };
    child::enter_view(&boot)?;

    // Stands still until the program is executed, which a word of the link's begins, or its process has ended.
    let executed = || {
        let Err(refusal) = child::execute(&boot, link);
        let _ = link.send(&Note::Failed(refusal), &[], Wait::Block);
    };
    let (pid, program) = step("fork", sys::vfork(executed))?;
    // It runs now, but cannot reach this process: it is another user's, and sees and signals only its own.
    // Its end costs more than a program's, so it is left to the link, after the news.
    let view = step("its view", sys::open("/proc/self/ns/mnt", OFlag::O_RDONLY))?;
    sys::close_all_but(&mut [link.as_fd(), program.as_fd(), view.as_fd()]);
    become_uid(ceiling.text.init_uid(uid))?;
    die_with_parent(link)?;
    never_skipped("seccomp", sys::load_filter(filter!("init")))?;
    let told = link.send(&Note::Started, &[program.as_fd(), view.as_fd()], Wait::Block);
    step("name the program", told).map(|()| pid)
}

/// What was given, or else what is made now, of which the link is told.
fn given_or_made(
    given: Option<OwnedFd>,
    link: &Inner,
    note: Note,
    make: impl FnOnce() -> Result<OwnedFd, Refusal>,
) -> Result<OwnedFd, Refusal> {
    match given {
        Some(given) => Ok(given),
        None => {
            let made = make()?;
            step("tell what was made", link.send(&note, &[made.as_fd()], Wait::Block)).map(|()| made)
        }
    }
}

/// The kernel kills this process when the link process ends; if that has happened before it was asked, the link says.
fn die_with_parent(link: &Inner) -> Result<(), Refusal> {
    step("parent's death signal", prctl::set_pdeathsig(Signal::SIGKILL))?;
    step("the link process has gone", if sys::hung_up(link.as_fd()) { Err(Errno::EPIPE) } else { Ok(()) })
}

/// Reaps whatever ends here, until it is the program.
fn until_end(program: Pid) -> Exit {
    let byte = |n: i32| u8::try_from(n & 0xff).unwrap_or(u8::MAX);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return Exit::Code(byte(code)),
            Ok(WaitStatus::Signaled(pid, by, _)) if pid == program => return Exit::Signal(byte(by as i32)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Exit::Signal(9),
        }
    }
}
