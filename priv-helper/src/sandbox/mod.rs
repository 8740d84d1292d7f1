//! The sandboxes of one link: each is a lease, and while it has processes, those. One life, in this order (`[10.2]`):
//!
//! ```text
//! Leased → Preparing: its init builds it (init, child) from what was taken for it here (prepare)
//!        → Prepared: its program's process stands before execve, and waits for the word
//!        → Starting: the word was said → Running: the program was executed
//!        → Dying: it was killed, and its last process has not ended → Leased
//! ```
//!
//! Nothing here waits for a sandbox's processes, so that a link that prepares one kills another at once: what they say and
//! their end are news, and `link` brings them. This decides nothing: it asks the ceiling, and tells.

mod attach;
mod child;
mod grant;
mod init;
mod modes;
mod network;
mod prepare;
pub(crate) mod process;
pub(crate) mod rights;
mod spare;
mod state;
mod template;

use self::init::Newborn;
use self::network::Networks;
use self::prepare::{For, trees};
use self::process::{KILL_LIMIT, has_ended, reap};
use self::spare::Spare;
use self::state::{Build, Heard, Sandbox, State, ended_early, kill};
use self::template::{Templates, Which};
use crate::ceiling::Ceiling;
use crate::hold::Holdings;
use crate::inner::{Inner, Note, Resource};
use crate::lease::{self, Leases};
use crate::policy::gate::Phase;
use crate::policy::outcome::named;
use crate::table::Table;
use crate::{socket, sys};
pub(crate) use child::IGNORED;
use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::link::{Peer, Wait};
use cyberos_proto::message::{Event, Exit, PHASE_LIMIT, Refusal, Reply, Signal, step};
use cyberos_proto::plan::{Network, SandboxReport, SpawnPlan};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::unistd;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Without news for so long, a link has nothing that is in a hurry.
const QUIET: Duration = Duration::from_millis(5);

/// What a link's sandboxes are made within: root's limits, the peer, and who is told of what is held.
#[derive(Clone, Copy)]
pub(crate) struct Within<'a> {
    pub(crate) ceiling: &'a Ceiling,
    pub(crate) peer: Peer,
    pub(crate) notes: &'a Inner,
}

/// All sandboxes of one link, and what is kept for the next one.
#[derive(Default)]
pub(crate) struct Sandboxes {
    leases: Leases,
    all: BTreeMap<SandboxId, Sandbox>,
    templates: Templates,
    networks: Networks,
    /// What was mounted when it was last looked at.
    mounts: Option<Table>,
    spare: Spare,
}

/// What the peer is to be told, with its descriptors.
pub(crate) type News = Vec<(Event, Vec<OwnedFd>)>;

impl Sandboxes {
    /// How many there may be more of is the ceiling's to say.
    fn lease(
        &mut self,
        id: SandboxId,
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<&mut Sandbox, Refusal> {
        let most = w.ceiling.text.max_sandboxes;
        if self.all.len() >= most {
            return Err(Refusal::Ceiling(format!("max_sandboxes is {most}")));
        }
        let uid = match self.leases.take() {
            Some(uid) => uid,
            None => {
                let (first, lock) = lease::take_block(&w.ceiling.text)?;
                holdings.hold(w.notes, Resource::Block(first), vec![lock])?;
                self.leases.add(first);
                step("lease", self.leases.take().ok_or(Errno::EAGAIN))?
            }
        };
        let limits = self.spare.usual();
        let group = w.ceiling.groups.make(uid);
        let group = group.and(limits.iter().try_for_each(|l| w.ceiling.groups.limit(uid, l)));
        if let Err(refusal) = group {
            w.ceiling.groups.remove(uid);
            self.leases.give(uid);
            return Err(refusal);
        }
        let sandbox = Sandbox {
            uid,
            socket: None,
            limits,
            kills: 0,
            released: false,
            fresh: false,
            state: State::Leased,
        };
        Ok(self.all.entry(id).or_insert(sandbox))
    }

    /// Forgets a sandbox without processes; its uid is for others again.
    fn free(&mut self, id: SandboxId, ceiling: &Ceiling) {
        let Some(sandbox) = self.all.remove(&id) else { return };
        ceiling.groups.remove(sandbox.uid);
        self.leases.give(sandbox.uid);
    }

    /// Leases a uid, and makes a socket for it.
    pub(crate) fn create_socket(
        &mut self,
        id: SandboxId,
        invocation: InvocationId,
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let sandbox = self.lease(id, w, holdings)?;
        let uid = sandbox.uid;
        match socket::create(invocation, uid) {
            Ok((fd, inode)) => {
                sandbox.socket = Some((invocation, inode));
                Ok((Reply::SocketCreated { uid }, vec![fd]))
            }
            Err(refusal) => {
                self.free(id, w.ceiling);
                Err(refusal)
            }
        }
    }

    /// Where a sandbox stands, for the gate.
    pub(crate) fn phase(&self, id: SandboxId) -> Phase {
        self.all.get(&id).map_or(Phase::Unknown, Sandbox::phase)
    }

    /// Checks a plan, takes what it needs of the host, and has an init begin to build the sandbox.
    pub(crate) fn prepare(
        &mut self,
        id: SandboxId,
        plan: Box<SpawnPlan>,
        fds: &[OwnedFd],
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<(), Refusal> {
        plan.check().map_err(Refusal::Plan)?;
        w.ceiling.text.allows(&plan.limits)?;
        // Without a socket it may be the first that is heard of the sandbox; then a refusal leaves no lease.
        let fresh = !self.all.contains_key(&id);
        if fresh {
            self.lease(id, w, holdings)?;
        }
        let begun = self.begin(id, plan, fds, w, holdings);
        match self.all.get_mut(&id) {
            Some(_) if fresh && begun.is_err() => self.free(id, w.ceiling),
            Some(sandbox) => sandbox.fresh = fresh,
            None => {}
        }
        begun
    }

    fn begin(
        &mut self,
        id: SandboxId,
        plan: Box<SpawnPlan>,
        fds: &[OwnedFd],
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<(), Refusal> {
        let Within { ceiling, peer, notes } = w;
        let sandbox = self.all.get_mut(&id).ok_or(Refusal::Phase)?;
        let (uid, socket) = (sandbox.uid, sandbox.socket);
        let trees = trees(&For { ceiling, peer, uid, socket }, &plan, fds, &mut self.mounts)?;
        if sandbox.limits.take().as_ref() != Some(&plan.limits) {
            ceiling.groups.limit(uid, &plan.limits)?;
        }
        sandbox.limits = Some(plan.limits.clone());
        let group = ceiling.groups.birthplace(uid)?;
        // The program's own, or it could not open its /dev/stdout.
        let pipe = || step("pipe", unistd::pipe2(OFlag::O_CLOEXEC));
        let [(stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr)] =
            socket::as_lease(uid, || Ok::<_, Refusal>([pipe()?, pipe()?, pipe()?]))?;

        let path = socket.map(|(invocation, _)| socket::path(invocation));
        let which = Which { init_uid: ceiling.text.init_uid(uid), ready: plan.ready(path.as_deref()) };
        let host = template::host();
        let template = self.templates.get(&host, &which);
        let network = self.networks.take();
        let Newborn { init, boot } = self.spare.take(ceiling, group.as_ref())?;
        let job = Note::Become {
            plan,
            uid,
            invocation: socket.map(|(invocation, _)| invocation),
            template: template.is_some(),
            network: network.is_some(),
        };
        let mut given = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        given.extend(template);
        given.extend(network.as_ref().map(AsFd::as_fd));
        given.extend(trees.iter().map(AsFd::as_fd));
        let built_here = template.is_none().then_some((host, which));
        // Until it is held, it ends with this process by itself.
        if let Err(refusal) = step("tell the init", boot.send(&job, &given, Wait::Block)) {
            let _ = sys::pidfd_signal(init.as_fd(), libc::SIGKILL);
            reap(init.as_fd(), KILL_LIMIT);
            return Err(refusal);
        }
        holdings.hold(notes, Resource::Sandbox(id), vec![init])?;
        sandbox.state = State::Preparing(Build {
            boot,
            network,
            pipes: vec![to_stdin, from_stdout, from_stderr],
            asks: None,
            template: built_here,
            until: Instant::now() + PHASE_LIMIT,
        });
        Ok(())
    }

    /// Says the word to a sandbox that is prepared.
    pub(crate) fn go(&mut self, id: SandboxId, holdings: &Holdings) {
        let Some(sandbox) = self.all.get_mut(&id) else { return };
        match mem::replace(&mut sandbox.state, State::Leased) {
            State::Prepared(mut build) => {
                let told = step("start the program", build.boot.send(&Note::Go, &[], Wait::Block));
                build.until = Instant::now() + PHASE_LIMIT;
                sandbox.state = State::Starting(build);
                if let Err(refusal) = told {
                    sandbox.fail(id, holdings, refusal);
                }
            }
            // The gate lets no other through.
            other => sandbox.state = other,
        }
    }

    /// What has ended already needs no signal.
    pub(crate) fn signal(&self, id: SandboxId, signal: Signal, holdings: &Holdings) {
        match (signal, self.all.get(&id).map(|sandbox| &sandbox.state)) {
            (Signal::Term, Some(State::Running(running))) => {
                let _ = sys::pidfd_signal(running.program.as_fd(), libc::SIGTERM);
            }
            (Signal::Term, _) => {}
            (Signal::Kill, _) => kill(id, holdings),
        }
    }

    /// Ends a sandbox and gives its lease back, now if its last process ends soon. As [`Sandboxes::look`] otherwise.
    pub(crate) fn release(
        &mut self,
        id: SandboxId,
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<News, String> {
        let Some(sandbox) = self.all.get_mut(&id) else { return Ok(News::new()) };
        sandbox.released = true;
        if let Some((invocation, inode)) = sandbox.socket {
            socket::remove(invocation, inode, sandbox.uid);
        }
        kill(id, holdings);
        if let Some(init) = holdings.fd(Resource::Sandbox(id)) {
            sys::readable(init, KILL_LIMIT);
        }
        self.look(id, w, holdings)
    }

    /// Keeps an init for the next sandbox; not while one is built or just begins, which that would hold up, so when all
    /// have ended or it has been `quiet`.
    pub(crate) fn keep_spare(&mut self, ceiling: &Ceiling, quiet: bool) {
        if quiet || self.all.values().all(|sandbox| matches!(sandbox.state, State::Leased)) {
            self.spare.keep(ceiling);
        }
    }

    /// What to wait for, beside the ends of the inits.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.values().filter_map(Sandbox::news)
    }

    /// How long to wait for news: until the next sandbox counts as stuck, or until it has been quiet for long enough to
    /// have an init wait; none if for neither.
    pub(crate) fn patience(&self, ceiling: &Ceiling) -> Option<Duration> {
        let stuck = self.all.values().filter_map(Sandbox::until).min();
        let stuck = stuck.map(|until| until.saturating_duration_since(Instant::now()));
        let quiet = self.spare.lacks(ceiling).then_some(QUIET);
        stuck.into_iter().chain(quiet).min()
    }

    /// Looks at all sandboxes.
    pub(crate) fn look_at_all(&mut self, w: Within<'_>, holdings: &mut Holdings) -> Result<News, String> {
        let mut news = News::new();
        for id in self.all.keys().copied().collect::<Vec<_>>() {
            news.extend(self.look(id, w, holdings)?);
        }
        Ok(news)
    }

    /// Looks at a sandbox: what its processes say, whether the last has ended, whether it is stuck. After an error this
    /// process may not be where it was.
    fn look(&mut self, id: SandboxId, w: Within<'_>, holdings: &mut Holdings) -> Result<News, String> {
        let mut news = News::new();
        let Some(sandbox) = self.all.get_mut(&id) else { return Ok(news) };
        // Looked at before what it says is read, which it said before it ended.
        let ended = holdings.fd(Resource::Sandbox(id)).is_none_or(has_ended);
        while let Some(heard) = sandbox.hear(id, holdings) {
            match heard {
                Heard::Template(host, which, template) => self.templates.put(host, which, template),
                Heard::Prepared(pipes) => {
                    self.spare.made(sandbox.limits.as_ref());
                    let groups = w.ceiling.groups.version;
                    let report = SandboxReport::new(sandbox.uid, groups, w.ceiling.landlock, Network::Own);
                    news.push((Event::Prepared { sandbox: id, report }, pipes));
                }
                Heard::Tell(event) => news.push((event, Vec::new())),
                Heard::Nothing => {}
            }
        }
        if let State::Running(running) = &mut sandbox.state {
            running.modes.look(w.ceiling, sandbox.uid);
        }
        if ended {
            news.extend(self.end(id, w, holdings)?.map(|event| (event, Vec::new())));
        } else {
            news.extend(sandbox.stuck(id, holdings).map(|event| (event, Vec::new())));
        }
        Ok(news)
    }

    /// The last process of a sandbox has ended: lets go of all that was its own but the lease; what is to be told.
    fn end(
        &mut self,
        id: SandboxId,
        w: Within<'_>,
        holdings: &mut Holdings,
    ) -> Result<Option<Event>, String> {
        let Some(sandbox) = self.all.get_mut(&id) else { return Ok(None) };
        let failed = |refusal| Event::Failed { sandbox: id, refusal };
        let (event, network) = match mem::replace(&mut sandbox.state, State::Leased) {
            State::Leased => (None, None),
            State::Preparing(build) | State::Prepared(build) | State::Starting(build) => {
                (Some(failed(ended_early())), build.network)
            }
            State::Running(running) => {
                let exit = match running.boot.receive(Wait::No) {
                    Ok((Note::Ended(exit), _)) => exit,
                    // The init was killed, and the program with it.
                    _ => Exit::Signal(9),
                };
                let kills = w.ceiling.groups.kills(sandbox.uid);
                let out_of_memory = mem::replace(&mut sandbox.kills, kills) < kills;
                (Some(Event::Exited { sandbox: id, exit, out_of_memory }), running.network)
            }
            State::Dying(told) => (told.map(|(refusal, _)| failed(refusal)), None),
        };
        if let Some(init) = holdings.fd(Resource::Sandbox(id)) {
            reap(init, Duration::ZERO);
        }
        holdings.drop(w.notes, Resource::Sandbox(id));
        let over = sandbox.released || sandbox.fresh;
        if let Some(network) = network {
            named("own network namespace", self.networks.give(network))?;
        }
        if over {
            self.free(id, w.ceiling);
        }
        Ok(event)
    }

    /// Lets go of all, when everything has been killed: who answers for modes ends, and groups are removed.
    pub(crate) fn close(self, holdings: &Holdings, ceiling: &Ceiling) {
        let groups: Vec<_> = self.all.values().map(|sandbox| sandbox.uid).collect();
        drop(self);
        // The parent may be gone, and nobody else would remove what is empty now.
        for init in holdings.alive() {
            sys::readable(init, KILL_LIMIT);
        }
        groups.into_iter().for_each(|uid| ceiling.groups.remove(uid));
    }
}
