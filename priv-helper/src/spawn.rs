//! One sandbox, from a plan to a running program: checks against the ceiling, everything that must be taken from the
//! host's own mount namespace, and the wait until the program has been executed. What the sandbox is, is in `child`.

use crate::link::{Answer, Session};
use crate::modes::Modes;
use crate::prelude::*;
use crate::table::Table;
use crate::{grant, init, socket};
use cyberos_proto::message::{Reply, namespaces};
use cyberos_proto::plan::{BindKind, Network, SandboxReport, SpawnPlan};
use nix::sys::wait::{Id, WaitPidFlag, waitid};

/// Longest time from clone to exec, or until a namespace is made.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// How long a killed sandbox is waited for before the lease is put aside.
pub(crate) const KILL_LIMIT: Duration = Duration::from_millis(800);

/// A running sandbox.
pub(crate) struct Sandbox {
    /// pidfd of the program.
    pub(crate) program: OwnedFd,
    /// Its mount namespace, which ends with this, and who answers for modes in it.
    pub(crate) modes: Modes,
    /// Its network namespace, for the next one.
    pub(crate) network: OwnedFd,
    /// What its init says.
    pub(crate) boot: Inner,
}

/// Starts an invocation's sandbox; answers its report and the host's ends of its stdin, stdout and stderr.
pub(crate) fn spawn(of: &mut Session<'_>, id: InvocationId, plan: &SpawnPlan, fds: &[OwnedFd]) -> Answer {
    let ceiling = of.ceiling;
    plan.check().map_err(Refusal::Plan)?;
    ceiling.text.allows(&plan.limits)?;
    let trees = trees(of, id, plan, fds)?;
    let made = &mut of.made;
    let owner = made.invocations.get_mut(&id).ok_or(Refusal::Phase)?;
    let uid = owner.uid;
    let targets = plan.ready(&socket::path(id));
    let template = made.templates.get(ceiling, (ceiling.text.init_uid(uid), targets))?;
    if owner.limits.take().as_ref() != Some(&plan.limits) {
        ceiling.groups.limit(uid, ceiling, &plan.limits)?;
    }
    owner.limits = Some(plan.limits.clone());
    let group = ceiling.groups.birthplace(uid)?;
    // The program's own, or it could not open its /dev/stdout.
    let pipe = || step("pipe", unistd::pipe2(OFlag::O_CLOEXEC));
    let [(stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr)] =
        socket::as_lease(uid, || Ok([pipe()?, pipe()?, pipe()?]))?;
    let network = made.networks.take()?;
    let (init, up) = match made.spare.take().filter(|_| group.is_none()) {
        Some(spare) => spare,
        None => newborn(ceiling, group.as_ref())?,
    };
    let mut given = vec![template, network.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    given.extend(trees.iter().map(AsFd::as_fd));
    let job = Note::Become { plan: Box::new(plan.clone()), invocation: id, uid };
    let told = step("tell the init", up.send(&job, &given, Wait::Block));
    // Until the program runs, the init ends with this process by itself.
    let mut asks = None;
    let result = told.and_then(|()| ready(&up, &mut asks));
    let gone = result.is_err() && {
        let _ = sys::pidfd_signal(init.as_fd(), libc::SIGKILL);
        reap(init.as_fd(), KILL_LIMIT)
    };
    if !gone {
        made.holdings.hold(&of.notes, Thing::Sandbox(id), vec![init])?;
    }
    let [program, view] = result?;
    made.usual.clone_from(&owner.limits);
    owner.sandbox = Some(Sandbox { program, modes: Modes::new(view, asks), network, boot: up });
    let report = SandboxReport::new(uid, ceiling.groups.version, ceiling.landlock, Network::Own);
    Ok((Reply::Spawned { report }, vec![to_stdin, from_stdout, from_stderr]))
}

/// An init in namespaces of its own, born into `group` if there is one, that waits for what it is to become.
pub(crate) fn newborn(ceiling: &Ceiling, group: Option<&OwnedFd>) -> Step<(OwnedFd, Inner)> {
    let (up, down) = step("boot link", pair::<Note, Note>())?;
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let init = sys::fork(flags, group.map(AsFd::as_fd), || init::run(ceiling, &down));
    namespaces(init).map(|(_, init)| (init, up))
}

/// How often what is mounted may change while it is looked at and copied.
const LOOKS: usize = 64;

/// Everything that is bound into the sandbox and must be taken outside it, as detached trees. A mount that came between
/// the look and the copy would be in the copy unseen; so it is done again until none did.
fn trees(of: &mut Session<'_>, id: InvocationId, plan: &SpawnPlan, fds: &[OwnedFd]) -> Step<Vec<OwnedFd>> {
    // That a mount became unbindable is not told, so where that matters, which is not in what is the broker's own, the
    // last look does not do.
    let grants = plan.binds.iter().any(|bind| bind.kind != BindKind::Sealed);
    let lease = of.made.invocations.get(&id).ok_or(Refusal::Phase)?.uid;
    let map = grants.then(|| grant::map(of.peer, lease)).transpose()?;
    for _ in 0..LOOKS {
        let last = of.made.mounts.take().filter(|table| !grants && table.is_current());
        let table = last.map_or_else(|| step("read what is mounted", Table::read()), Ok)?;
        let trees = copies(of, id, plan, fds, map.as_ref(), &table)?;
        let done = table.is_current();
        of.made.mounts = Some(table);
        if done {
            return Ok(trees);
        }
    }
    step("copy what is bound while mounts come and go", Err(Errno::EAGAIN))
}

fn copies(
    of: &Session<'_>,
    id: InvocationId,
    plan: &SpawnPlan,
    fds: &[OwnedFd],
    map: Option<&OwnedFd>,
    table: &Table,
) -> Step<Vec<OwnedFd>> {
    let held = of.made.invocations.get(&id).ok_or(Refusal::Phase)?;
    let mut all = Vec::new();
    for (bind, (number, fd)) in plan.binds.iter().zip((0..).zip(fds)) {
        all.push(match (bind.kind, map) {
            (BindKind::Grant { writable }, Some(map)) => {
                grant::tree(of.ceiling, fd, (number, writable), map, table)?
            }
            (BindKind::Grant { .. }, None) => return Err(Refusal::Phase),
            (BindKind::Sealed, _) => {
                let dir = of.ceiling.sealed(fd.as_fd(), table)?;
                step("copy a bind", sys::clone_tree(dir.as_fd(), sys::READ_ONLY))?
            }
        });
    }
    if plan.socket {
        let inode = held.socket.ok_or(Refusal::Phase)?;
        let flags = sys::READ_ONLY | libc::MOUNT_ATTR_NOEXEC;
        // Read-only: the skill owns the file, and must not open it to others.
        let tree = sys::open_path(&socket::path(id)).and_then(|s| sys::clone_tree(s.as_fd(), flags));
        let tree = step("copy the socket", tree)?;
        if !step("look at the socket", sys::identity(&tree))?.is_socket(inode, held.uid) {
            return step("the socket was replaced", Err(Errno::ESTALE));
        }
        all.push(tree);
    }
    Ok(all)
}

/// What a process that was made here carries when it is ready, and before that the listener of a filter that asks. A
/// peer that goes meanwhile is the parent's business.
pub(crate) fn ready<const COUNT: usize>(
    process: &Inner,
    asks: &mut Option<OwnedFd>,
) -> Step<[OwnedFd; COUNT]> {
    let until = Instant::now() + SETUP_LIMIT;
    let fds = loop {
        if !sys::readable(process.as_fd(), until.saturating_duration_since(Instant::now())) {
            return step("set up the sandbox in 10 s", Err(Errno::ETIMEDOUT));
        }
        match process.receive(Wait::No) {
            Ok((Note::Asks, mut fds)) => *asks = fds.pop(),
            Ok((Note::Namespace | Note::Started, fds)) => break fds.try_into().ok(),
            Ok((Note::Failed(refusal), _)) => return Err(refusal),
            _ => break None,
        }
    };
    step("the sandbox ended while it was set up", fds.ok_or(Errno::ECHILD))
}

/// Reaps who is behind `pidfd`, an init when the last process of its sandbox has ended; whether it ended in time.
pub(crate) fn reap(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    sys::readable(pidfd, limit) && waitid(Id::PIDFd(pidfd), WaitPidFlag::WEXITED).is_ok()
}
