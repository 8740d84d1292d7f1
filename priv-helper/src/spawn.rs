//! One sandbox, from a plan to a running program: checks against the ceiling, everything that must be taken from the
//! host's own mount namespace, and the wait until the program has been executed. What the sandbox is, is in `child`.

use crate::ceiling::Ceiling;
use crate::child::{self, Attach, Boot, READ_ONLY};
use crate::hold::{Holdings, Inner, Note, Thing, ready};
use crate::sys::{self, flag};
use crate::{init, lease, socket, step};
use cyberos_proto::ids::InvocationId;
use cyberos_proto::link::{Wait, pair};
use cyberos_proto::message::{Exit, Refusal};
use cyberos_proto::plan::Feature::{self, *};
use cyberos_proto::plan::{BindKind, PlanFault, SpawnPlan};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::{errno::Errno, fcntl::OFlag, libc, poll::PollFlags, unistd::pipe2};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{path::Path, time::Duration};

/// Longest time from clone to exec.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// How long a killed sandbox is waited for before the lease is put aside.
pub(crate) const KILL_LIMIT: Duration = Duration::from_millis(800);

#[rustfmt::skip]
const NAMESPACES: i32 = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;

/// What is in force when a sandbox runs: a step of these that fails has refused it.
pub(crate) const ENFORCED: [Feature; 6] = [Namespaces, OwnUid, NoNewPrivs, NoCapabilities, Seccomp, Rlimits];
/// Not in this build: each moves to what is enforced, where the kernel has it, when it is.
pub(crate) const SKIPPED: [Feature; 2] = [Cgroup, Landlock];

/// A lease with its socket.
pub(crate) struct Invocation {
    pub(crate) id: InvocationId,
    pub(crate) uid: u32,
    /// Of its socket.
    pub(crate) inode: u64,
    pub(crate) sandbox: Option<Sandbox>,
    /// Something in its sandbox waits in the kernel: it goes when that has ended.
    pub(crate) released: bool,
}

/// A running sandbox.
pub(crate) struct Sandbox {
    /// pidfd of the program.
    pub(crate) program: OwnedFd,
    /// What its init says.
    pub(crate) boot: Inner,
    /// How the program ended, if that is known already.
    pub(crate) exit: Option<Exit>,
}

/// Builds and starts the sandbox; answers it with the host's ends of its stdin, stdout and stderr.
pub(crate) fn spawn(
    ceiling: &Ceiling,
    (holdings, notes): (&mut Holdings, &Inner),
    owner: &Invocation,
    plan: &SpawnPlan,
    fds: &[OwnedFd],
) -> Result<(Sandbox, Vec<OwnedFd>), Refusal> {
    plan.check().map_err(Refusal::Plan)?;
    ceiling.allows(&plan.limits)?;
    let attach = attachments(ceiling, owner, plan, fds)?;
    let (up, down) = step("boot link", pair::<Note, Note>().map_err(|_| Errno::EMFILE))?;
    // The program's own, or it could not open its /dev/stdout.
    let pipe = || step("pipe", socket::as_lease(owner.uid, || pipe2(OFlag::O_CLOEXEC)));
    let ((stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr)) = (pipe()?, pipe()?, pipe()?);
    let (executed, until_exec) = pipe()?;
    let (uid, init_uid, stdio) = (owner.uid, lease::init_uid(ceiling, owner.uid), [stdin, stdout, stderr]);
    let boot = Boot { plan, uid, init_uid, attach, link: down, stdio, until_exec };
    let init = match sys::fork(NAMESPACES, || init::run(&boot)) {
        Err(e @ (Errno::EAGAIN | Errno::ENOMEM)) => return step("namespaces", Err(e)),
        other => child::never_skipped("namespaces", other)?.1,
    };
    drop(boot);
    let thing = Thing::Sandbox(owner.id);
    holdings.hold(notes, thing, vec![init])?;
    let result = wait_for_exec(&executed, up);
    if result.is_err() {
        let _ = holdings.kill(thing);
        if reap(holdings.fd(thing)?, KILL_LIMIT) {
            holdings.drop(notes, thing);
        }
    }
    Ok((result?, vec![to_stdin, from_stdout, from_stderr]))
}

/// Everything that is bound into the sandbox and must be taken outside it, as detached read-only trees.
fn attachments(
    c: &Ceiling,
    of: &Invocation,
    plan: &SpawnPlan,
    fds: &[OwnedFd],
) -> Result<Vec<Attach>, Refusal> {
    let inside = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    let mut all = Vec::new();
    for (bind, fd) in plan.binds.iter().zip(fds) {
        if bind.kind != BindKind::Sealed {
            return child::never_skipped("granted directories: not in this build", Err(Errno::ENOSYS));
        }
        let target = Path::new(bind.target.as_str());
        if plan.binds.iter().any(|b| b.target != bind.target && target.starts_with(b.target.as_str())) {
            return Err(Refusal::Plan(PlanFault::Binds));
        }
        let tree = sys::clone_tree(c.inside_sealed(fd.as_fd())?.as_fd(), READ_ONLY);
        all.push(Attach { target: inside(target), tree: step("copy a bind", tree)? });
    }
    if let Some(bin) = &c.bin {
        let tree = step("copy bin", sys::clone_tree(bin.as_fd(), READ_ONLY))?;
        all.push(Attach { target: "opt/cyberos/bin".into(), tree });
    }
    if plan.socket {
        let path = socket::path(of.id);
        // Read-only: the skill owns the file, and must not open it to others.
        let tree = sys::open_path(&path).and_then(|s| sys::clone_tree(s.as_fd(), READ_ONLY | flag::NOEXEC));
        let tree = step("copy the socket", tree)?;
        if !step("look at the socket", sys::identity(tree.as_fd()))?.is_socket(of.inode, of.uid) {
            return step("the socket was replaced", Err(Errno::ESTALE));
        }
        all.push(Attach { target: inside(&path), tree });
    }
    Ok(all)
}

/// Waits until the program has been executed, which closes the last writer of `executed`. A peer that goes meanwhile
/// is the parent's business.
fn wait_for_exec(executed: &OwnedFd, boot: Inner) -> Result<Sandbox, Refusal> {
    if !ready(executed.as_fd(), PollFlags::POLLIN, SETUP_LIMIT) {
        return step("set up the sandbox in 10 s", Err(Errno::ETIMEDOUT));
    }
    // The program's descriptor comes first; then a failure before exec, or, from a quick program, its end already.
    let program = match boot.receive(Wait::No) {
        Ok((Note::Started, mut fds)) => fds.pop(),
        Ok((Note::Failed(refusal), _)) => return Err(refusal),
        _ => None,
    };
    let program = step("the sandbox ended while it was set up", program.ok_or(Errno::ECHILD))?;
    match boot.receive(Wait::No) {
        Ok((Note::Failed(refusal), _)) => Err(refusal),
        Ok((Note::Ended(exit), _)) => Ok(Sandbox { program, boot, exit: Some(exit) }),
        _ => Ok(Sandbox { program, boot, exit: None }),
    }
}

/// Reaps the init behind `pidfd`, which ends when the last process of its sandbox has; whether it did in time.
pub(crate) fn reap(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    ready(pidfd, PollFlags::POLLIN, limit) && waitid(Id::PIDFd(pidfd), WaitPidFlag::WEXITED).is_ok()
}
