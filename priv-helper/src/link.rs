//! A link process: one peer, receive → gate → act → reply, and the news of what has ended. Each runs in a process of
//! its own, so that a peer that makes it wait hangs only itself. When peer or parent goes, all that it made goes.

use crate::ceiling::Role;
use crate::hold::Holdings;
use crate::lease::Leases;
use crate::network::Networks;
use crate::policy::ceiling::RootKind;
use crate::policy::gate::{self, Phase};
use crate::prelude::*;
use crate::spawn::{self, KILL_LIMIT, Sandbox};
use crate::table::Table;
use crate::template::Templates;
use crate::{fuse, lease, socket};
use cyberos_proto::message::{Event, Exit, FromHelper, MAX_BACKING, Reply, Request, Signal, Subject};
use cyberos_proto::plan::{Cgroup, Limits, SpawnPlan};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// A peer that takes nothing for so long is gone.
pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(5);

/// What a link has made.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) holdings: Holdings,
    leases: Leases,
    pub(crate) invocations: BTreeMap<InvocationId, Invocation>,
    pub(crate) templates: Templates,
    /// What was mounted when it was last looked at.
    pub(crate) mounts: Option<Table>,
    /// Limits of the last sandbox.
    pub(crate) usual: Option<Limits>,
    pub(crate) networks: Networks,
    /// An init that waits for the next sandbox: half of what starting one costs, done before it is asked for.
    pub(crate) spare: Option<(OwnedFd, Inner)>,
    views: BTreeMap<MountId, View>,
}

/// A lease.
#[derive(Default)]
pub(crate) struct Invocation {
    pub(crate) uid: u32,
    /// The inode of its socket, if it has one.
    pub(crate) socket: Option<u64>,
    pub(crate) sandbox: Option<Sandbox>,
    /// What its control group is set to.
    pub(crate) limits: Option<Limits>,
    /// How many processes its group had lost for want of memory when its last sandbox ended.
    kills: u64,
    /// Something in its sandbox waits in the kernel: it goes when that has ended.
    released: bool,
}

/// A view that is mounted.
struct View {
    /// A copy of the server's end, only where the ceiling has backing files: while it is open, a mount whose server has
    /// gone hangs who looks at it. So it goes first when the link ends.
    server: Option<OwnedFd>,
    /// Numbers of its backing files.
    backing: BTreeSet<u32>,
}

/// One peer's link.
pub(crate) struct Session<'a> {
    pub(crate) ceiling: &'a Ceiling,
    pub(crate) role: Role,
    pub(crate) peer: Peer,
    pub(crate) link: Link<FromHelper, Request>,
    pub(crate) notes: Inner,
    pub(crate) made: Made,
}

pub(crate) type Answer = Step<(Reply, Vec<OwnedFd>)>;

impl Session<'_> {
    /// Serves until the peer or the parent goes, or does what ends a link; then ends all that was made.
    pub(crate) fn serve(mut self) -> i32 {
        let Err(why) = self.turns();
        self.made.views.clear();
        self.made.holdings.end();
        self.made.invocations.values_mut().for_each(|held| held.sandbox = None);
        // The parent may be gone, and nobody else would remove what is empty now.
        for init in self.made.holdings.alive() {
            sys::readable(init, KILL_LIMIT);
        }
        self.made.invocations.values().for_each(|held| self.ceiling.groups.remove(held.uid));
        log_often(Often::Coming, &format!("link of {:?}, pid {}, ended: {why}", self.role, self.peer.pid));
        0
    }

    fn turns(&mut self) -> Result<Infallible, String> {
        let now = |fd: BorrowedFd<'_>| sys::readable(fd, Duration::ZERO);
        loop {
            // Not for SkillFS; and in version 2 of control groups an init must be born where its limits are.
            let spares = self.made.usual.is_some() && self.ceiling.groups.version != Cgroup::V2;
            if spares && self.made.spare.is_none() {
                self.made.spare = spawn::newborn(self.ceiling, None).ok();
            }
            let made = &self.made;
            let mut news = vec![self.link.as_fd(), self.notes.as_fd()];
            news.extend(made.holdings.sandboxes().map(|(_, init)| init));
            let sandboxes = || made.invocations.values().filter_map(|held| held.sandbox.as_ref());
            news.extend(sandboxes().filter_map(|sandbox| sandbox.modes.news()));
            named("poll", sys::wait_any(&news, &[], None))?;
            must(!now(self.notes.as_fd()), "the parent has gone")?;
            let ended = made.holdings.sandboxes().filter(|(_, init)| now(*init)).map(|(id, _)| id);
            for id in ended.collect::<Vec<_>>() {
                self.ended(id, Duration::ZERO)?;
            }
            for held in self.made.invocations.values_mut() {
                if let Some(sandbox) = &mut held.sandbox {
                    sandbox.modes.look(self.ceiling, held.uid);
                }
            }
            self.request()?;
        }
    }

    fn request(&mut self) -> Result<(), String> {
        let (request, fds) = match self.link.receive(Wait::No) {
            Ok(received) => received,
            Err(LinkError::WouldBlock) => return Ok(()),
            Err(e) => {
                if matches!(e, LinkError::Malformed | LinkError::Descriptors) {
                    self.reply(Err(Refusal::Malformed))?;
                }
                return Err(e.to_string());
            }
        };
        let phase = match request.subject() {
            Subject::Invocation(id) => match self.made.invocations.get(&id) {
                None => Phase::Unknown,
                Some(_) if self.made.holdings.fd(Thing::Sandbox(id)).is_some() => Phase::Running,
                Some(_) => Phase::Leased,
            },
            Subject::Mount(mount) if self.made.views.contains_key(&mount) => Phase::Mounted,
            Subject::Mount(_) | Subject::Helper => Phase::Unknown,
        };
        let answer = match gate::admit(self.role, &request, phase) {
            Ok(()) => self.act(request, &fds)?,
            Err(refusal) => Err(refusal),
        };
        // Before the answer, so that a close that waits is over before the peer goes on.
        drop(fds);
        let role = matches!(answer, Err(Refusal::Role));
        self.reply(answer)?;
        must(!role, "a request of another role")
    }

    fn reply(&self, answer: Answer) -> Result<(), String> {
        let (reply, fds) = answer.unwrap_or_else(|refusal| {
            log_often(Often::Refusal, &format!("refused to pid {}: {refusal}", self.peer.pid));
            (Reply::Refused(refusal), Vec::new())
        });
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.tell(&FromHelper::Reply(reply), &fds)
    }

    fn tell(&self, message: &FromHelper, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        named("the peer does not read", self.link.send(message, fds, Wait::Block))
    }

    fn act(&mut self, request: Request, fds: &[OwnedFd]) -> Result<Answer, String> {
        match request {
            Request::Describe => {
                return Ok(Ok((Reply::Described { uids: self.ceiling.text.uids }, Vec::new())));
            }
            Request::CreateSocket { invocation } => return Ok(self.create_socket(invocation)),
            Request::Spawn { invocation, plan } => return Ok(self.spawn(invocation, &plan, fds)),
            Request::Mount { mount } => return Ok(self.mount(mount)),
            Request::RegisterBacking { mount } => return Ok(self.register(mount, fds)),
            Request::Signal { invocation, signal } => self.signal(invocation, signal),
            Request::Release { invocation } => self.release(invocation)?,
            Request::Unmount { mount } => self.take_off(mount),
            Request::CloseBacking { mount, id } => self.forget(mount, id),
        }
        Ok(Ok((Reply::Done, Vec::new())))
    }

    /// Leases a uid to an invocation.
    fn lease(&mut self, id: InvocationId) -> Step<u32> {
        let (ceiling, made) = (self.ceiling, &mut self.made);
        if made.invocations.len() >= ceiling.text.max_sandboxes {
            return Err(Refusal::Ceiling(format!("max_sandboxes is {}", ceiling.text.max_sandboxes)));
        }
        let uid = match made.leases.take() {
            Some(uid) => uid,
            None => {
                let (first, lock) = lease::take_block(&ceiling.text)?;
                made.holdings.hold(&self.notes, Thing::Block(first), vec![lock])?;
                made.leases.add(first);
                step("lease", made.leases.take().ok_or(Errno::EAGAIN))?
            }
        };
        // As the last sandbox was limited, which is likely to be right.
        let limits = made.usual.clone();
        let group = ceiling.groups.make(uid);
        let group = group.and(limits.iter().try_for_each(|l| ceiling.groups.limit(uid, ceiling, l)));
        made.invocations.insert(id, Invocation { uid, limits, ..Invocation::default() });
        group.inspect_err(|_| self.free(id)).map(|()| uid)
    }

    /// Forgets an invocation; its uid is for others again.
    fn free(&mut self, id: InvocationId) {
        let Some(held) = self.made.invocations.remove(&id) else { return };
        self.ceiling.groups.remove(held.uid);
        self.made.leases.give(held.uid);
    }

    fn create_socket(&mut self, id: InvocationId) -> Answer {
        let uid = self.lease(id)?;
        let (fd, inode) = socket::create(id, uid).inspect_err(|_| self.free(id))?;
        self.made.invocations.entry(id).and_modify(|held| held.socket = Some(inode));
        Ok((Reply::SocketCreated { uid }, vec![fd]))
    }

    fn spawn(&mut self, id: InvocationId, plan: &SpawnPlan, fds: &[OwnedFd]) -> Answer {
        // Without a socket it may be the first that is heard of the invocation; then a refusal leaves no lease.
        let fresh = !self.made.invocations.contains_key(&id);
        if fresh {
            self.lease(id)?;
        }
        let spawned = spawn::spawn(self, id, plan, fds);
        if spawned.is_err() {
            self.made.invocations.entry(id).and_modify(|held| held.released = fresh);
            let _ = self.ended(id, Duration::ZERO);
        }
        spawned
    }

    /// What has ended already needs no signal.
    fn signal(&mut self, id: InvocationId, signal: Signal) {
        let Some(Invocation { sandbox: Some(sandbox), .. }) = self.made.invocations.get(&id) else { return };
        match signal {
            Signal::Term => drop(sys::pidfd_signal(sandbox.program.as_fd(), libc::SIGTERM)),
            Signal::Kill => self.kill(id),
        }
    }

    /// Kills every process of a sandbox.
    fn kill(&self, id: InvocationId) {
        let init = self.made.holdings.fd(Thing::Sandbox(id));
        let _ = init.map(|init| sys::pidfd_signal(init, libc::SIGKILL));
    }

    fn release(&mut self, id: InvocationId) -> Result<(), String> {
        let Some(held) = self.made.invocations.get_mut(&id) else { return Ok(()) };
        held.released = true;
        if let Some(inode) = held.socket {
            socket::remove(id, inode, held.uid);
        }
        self.kill(id);
        self.ended(id, KILL_LIMIT)
    }

    /// If the last process of a sandbox ends in time: tells the peer how its program ended, and lets go of the rest.
    fn ended(&mut self, invocation: InvocationId, limit: Duration) -> Result<(), String> {
        let init = self.made.holdings.fd(Thing::Sandbox(invocation));
        if init.is_some_and(|init| !sys::readable(init, limit)) {
            return Ok(());
        }
        let Some(held) = self.made.invocations.get_mut(&invocation) else { return Ok(()) };
        let released = held.released;
        if let Some(sandbox) = held.sandbox.take() {
            let exit = match sandbox.boot.receive(Wait::No) {
                Ok((Note::Ended(exit), _)) => exit,
                // The init was killed, and the program with it.
                _ => Exit::Signal(9),
            };
            let kills = self.ceiling.groups.kills(held.uid);
            let out_of_memory = std::mem::replace(&mut held.kills, kills) < kills;
            self.tell(&FromHelper::Event(Event::Exited { invocation, exit, out_of_memory }), &[])?;
            named("own network namespace", self.made.networks.give(sandbox.network))?;
        }
        self.made.holdings.fd(Thing::Sandbox(invocation)).map(|init| spawn::reap(init, Duration::ZERO));
        self.made.holdings.drop(&self.notes, Thing::Sandbox(invocation));
        if released {
            self.free(invocation);
        }
        Ok(())
    }

    fn mount(&mut self, mount: MountId) -> Answer {
        let point = self.ceiling.mounts.get(&mount);
        let point = point.ok_or_else(|| Refusal::Ceiling(format!("there is no mount {}", mount.get())))?;
        let (server, kept) = fuse::prepare(self.ceiling, point, self.peer)?;
        let copy = self.ceiling.has(RootKind::Backing).then(|| server.try_clone());
        let copy = step("copy the server's end", copy.transpose())?;
        // Held before it is attached: there is no moment in which nobody would take it off.
        self.made.holdings.hold(&self.notes, Thing::Mount(mount), kept.into())?;
        let view = self.made.holdings.fd(Thing::Mount(mount)).ok_or(Refusal::Phase)?;
        let attached = step("attach the view", sys::attach(view, point.dir.as_fd()));
        attached.inspect_err(|_| self.take_off(mount))?;
        self.made.views.insert(mount, View { server: copy, backing: BTreeSet::new() });
        log_often(Often::Coming, &format!("mounted {}", point.name.display()));
        Ok((Reply::Mounted, vec![server]))
    }

    fn take_off(&mut self, mount: MountId) {
        self.made.views.remove(&mount);
        if let Some(Err(e)) = self.made.holdings.fd(Thing::Mount(mount)).map(fuse::unmount) {
            log(&format!("mount {} cannot be taken off: {e}", mount.get()));
        }
        self.made.holdings.drop(&self.notes, Thing::Mount(mount));
    }

    fn register(&mut self, mount: MountId, fds: &[OwnedFd]) -> Answer {
        let (view, point) = (self.made.views.get_mut(&mount), self.ceiling.mounts.get(&mount));
        let (Some(view), Some(point), [file]) = (view, point, fds) else { return Err(Refusal::Phase) };
        if view.backing.len() >= MAX_BACKING {
            return Err(Refusal::Ceiling(format!("at most {MAX_BACKING} backing files")));
        }
        self.ceiling.backs(file.as_fd(), !point.read_only)?;
        let server = view.server.as_ref().ok_or(Errno::EBADF);
        let id = server.and_then(|server| sys::backing_open(server.as_fd(), file.as_fd()));
        let id = step("backing file", id)?;
        view.backing.insert(id);
        Ok((Reply::Backing { id }, Vec::new()))
    }

    fn forget(&mut self, mount: MountId, id: u32) {
        let Some(View { server: Some(server), backing, .. }) = self.made.views.get_mut(&mount) else {
            return;
        };
        if backing.remove(&id) {
            let _ = sys::backing_close(server.as_fd(), id);
        }
    }
}
