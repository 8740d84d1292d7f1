//! PID 1 of a sandbox: completes it, starts the program, gives up everything, reports the program's end and ends the
//! sandbox with it. It has a uid of its own, so that the skill can neither signal nor see it.

use crate::child::{self, Attach, Boot, filter};
use crate::{prelude::*, socket};
use cyberos_proto::message::Exit;
use nix::sys::wait::{WaitStatus, wait};
use std::convert::Infallible;

/// Runs in the new process, in its new namespaces. Its exit ends them.
pub(crate) fn run(ceiling: &Ceiling, link: &Inner) -> i32 {
    let last = match start(ceiling, link) {
        Ok(program) => Note::Ended(until_end(program)),
        Err(refusal) => Note::Failed(refusal),
    };
    let _ = link.send(&last, &[], Wait::Block);
    0
}

fn start(ceiling: &Ceiling, link: &Inner) -> Step<Pid> {
    die_with_parent(link)?;
    sys::close_all_but(&mut [link.as_fd()]);
    // A memory file that does not ask to be executable is none then; the filter refuses who asks. Needs Linux 6.3.
    let _ = fs::write("sys/vm/memfd_noexec", "1");
    // Where memory runs out, the skill goes first, however the helper is protected.
    let _ = fs::write("self/oom_score_adj", "200");
    step("host name", unistd::sethostname("sandbox"))?;
    let (note, mut fds) = step("what it is to become", link.receive(Wait::Block))?;
    let Note::Become { plan, invocation, uid } = note else { return Err(Refusal::Malformed) };
    let trees = fds.split_off(5);
    let [template, network, stdin, stdout, stderr] = fds.try_into().map_err(|_| Refusal::Malformed)?;
    let places = plan.places(&socket::path(invocation)).into_iter().zip(trees);
    let attach = places.map(|((target, nested), tree)| Attach { target, tree, nested }).collect();
    let boot = Boot { ceiling, plan: &plan, uid, template, network, attach, stdio: [stdin, stdout, stderr] };
    child::enter_view(&boot)?;

    // What it is if the program's process ends before it can say more.
    let mut failed = step("the program's process", Err::<Infallible, _>(Errno::ECHILD)).err();
    let (pid, program) =
        step("fork", sys::vfork(|| failed = child::execute(&boot, link, &mut failed).err()))?;
    // It runs now, but cannot reach this process: it is another user's, and sees and signals only its own.
    if let Some(refusal) = failed {
        return Err(refusal);
    }
    // Its end costs more than a program's, so it is left to the link, after the news.
    let view = step("its view", sys::open("/proc/self/ns/mnt", OFlag::O_RDONLY))?;
    sys::close_all_but(&mut [link.as_fd(), program.as_fd(), view.as_fd()]);
    child::become_uid(ceiling.text.init_uid(uid))?;
    die_with_parent(link)?;
    never_skipped("seccomp", sys::load_filter(filter!("init")))?;
    let told = link.send(&Note::Started, &[program.as_fd(), view.as_fd()], Wait::Block);
    step("name the program", told).map(|()| pid)
}

/// The kernel kills this process when the link process ends; if that has happened before it was asked, the link says.
fn die_with_parent(link: &Inner) -> Step<()> {
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
