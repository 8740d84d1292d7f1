//! A link process: one peer, receive → gate → act → reply, and the news of what has ended. Each runs in a process of
//! its own, so that a peer that makes it wait hangs only itself. When the peer or the parent goes, everything that
//! the link made goes.

use crate::ceiling::{Ceiling, Role};
use crate::gate::{self, Phase};
use crate::hold::{Holdings, Inner, Note, Thing, ready};
use crate::spawn::{self, Invocation, KILL_LIMIT};
use crate::{fuse, lease, log, socket, step, sys};
use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::link::{Link, LinkError, Peer, Wait};
use cyberos_proto::message::{Event, Exit, FromHelper, Refusal, Reply, Request, Signal};
use cyberos_proto::plan::{SandboxReport, SpawnPlan};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::{errno::Errno, libc::SIGTERM};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{convert::Infallible, time::Duration};

/// A peer that takes nothing for so long is gone.
pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(5);

/// What a link has made.
#[derive(Default)]
pub(crate) struct Made {
    holdings: Holdings,
    /// Free uids; the one that has been free for longest is first.
    free: VecDeque<u32>,
    invocations: BTreeMap<InvocationId, Invocation>,
    /// Views, with what ends when their server has gone or hangs.
    views: BTreeMap<MountId, OwnedFd>,
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

type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// Why a link ends.
fn end(e: LinkError) -> String {
    if matches!(e, LinkError::WouldBlock) { "the peer does not read".into() } else { e.to_string() }
}

impl Session<'_> {
    /// Serves until the peer or the parent goes, or does what ends a link; then ends all that was made.
    pub(crate) fn serve(mut self) -> i32 {
        let Err(why) = self.turns();
        self.made.holdings.end(Some(&self.notes));
        log(&format!("link of {:?}, pid {}, ended: {why}", self.role, self.peer.pid));
        0
    }

    fn turns(&mut self) -> Result<Infallible, String> {
        let now = |fd: BorrowedFd<'_>| ready(fd, PollFlags::POLLIN, Duration::ZERO);
        loop {
            let made = &self.made;
            let sandboxes: Vec<_> = made.invocations.keys().map(|id| (*id, Thing::Sandbox(*id))).collect();
            let inits = sandboxes.iter().filter_map(|(_, thing)| made.holdings.fd(*thing).ok());
            let fds = [self.link.as_fd(), self.notes.as_fd()].into_iter().chain(inits);
            let fds = fds.chain(made.views.values().map(AsFd::as_fd));
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(format!("poll: {e}")),
            }
            if now(self.notes.as_fd()) {
                return Err("the parent has gone".into());
            }
            if let Some((mount, _)) = made.views.iter().find(|(_, watcher)| now(watcher.as_fd())) {
                return Err(format!("the server of mount {} has gone or hangs", mount.get()));
            }
            for (invocation, thing) in sandboxes {
                if self.made.holdings.fd(thing).is_ok_and(now) {
                    self.ended(invocation, Duration::ZERO)?;
                }
            }
            self.request()?;
        }
    }

    fn request(&mut self) -> Result<(), String> {
        let (request, fds) = match self.link.receive(Wait::No) {
            Ok(received) => received,
            Err(LinkError::WouldBlock) => return Ok(()),
            Err(e @ (LinkError::Malformed | LinkError::Descriptors)) => {
                self.reply(Err(Refusal::Malformed))?;
                return Err(end(e));
            }
            Err(e) => return Err(end(e)),
        };
        let phase =
            match &request {
                Request::CreateSocket { invocation: id }
                | Request::Spawn { invocation: id, .. }
                | Request::Signal { invocation: id, .. }
                | Request::Release { invocation: id } => {
                    let running = self.made.invocations.get(id).map(|i| i.sandbox.is_some());
                    running.map_or(Phase::Unknown, |is| if is { Phase::Running } else { Phase::Leased })
                }
                Request::Mount { mount } | Request::Unmount { mount } => {
                    if self.made.views.contains_key(mount) { Phase::Mounted } else { Phase::Unknown }
                }
            };
        let answer = match gate::admit(self.role, &request, phase) {
            Ok(()) => self.act(request, &fds)?,
            Err(refusal) => Err(refusal),
        };
        // Before the answer, so that a close that waits is over before the peer goes on.
        drop(fds);
        let role = matches!(answer, Err(Refusal::Role));
        self.reply(answer)?;
        if role { Err("a request of another role".into()) } else { Ok(()) }
    }

    fn reply(&self, answer: Answer) -> Result<(), String> {
        let (reply, fds) = answer.unwrap_or_else(|refusal| {
            log(&format!("refused to pid {}: {refusal}", self.peer.pid));
            (Reply::Refused(refusal), Vec::new())
        });
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.link.send(&FromHelper::Reply(reply), &fds, Wait::Block).map_err(end)
    }

    fn act(&mut self, request: Request, fds: &[OwnedFd]) -> Result<Answer, String> {
        match request {
            Request::CreateSocket { invocation } => return Ok(self.create_socket(invocation)),
            Request::Spawn { invocation, plan } => return Ok(self.spawn(invocation, &plan, fds)),
            Request::Mount { mount } => return Ok(self.mount(mount)),
            Request::Signal { invocation, signal } => self.signal(invocation, signal),
            Request::Release { invocation } => self.release(invocation)?,
            Request::Unmount { mount } => self.take_off(mount),
        }
        Ok(Ok((Reply::Done, Vec::new())))
    }

    fn create_socket(&mut self, id: InvocationId) -> Answer {
        let most = self.ceiling.max_sandboxes;
        if self.made.invocations.len() >= most {
            return Err(Refusal::Ceiling(format!("max_sandboxes is {most}")));
        }
        let made = &mut self.made;
        if made.free.is_empty() {
            let (first, lock) = lease::take_block(self.ceiling)?;
            made.holdings.hold(&self.notes, Thing::Block(first), vec![lock])?;
            made.free.extend(lease::block(first).skip(1));
        }
        let uid = step("lease", made.free.pop_front().ok_or(Errno::EAGAIN))?;
        let (fd, inode) = socket::create(id, uid).inspect_err(|_| made.free.push_back(uid))?;
        made.invocations.insert(id, Invocation { id, uid, inode, sandbox: None, released: false });
        Ok((Reply::SocketCreated { uid }, vec![fd]))
    }

    fn spawn(&mut self, id: InvocationId, plan: &SpawnPlan, fds: &[OwnedFd]) -> Answer {
        let held = step("invocation", self.made.invocations.get_mut(&id).ok_or(Errno::ENOENT))?;
        let held_by = (&mut self.made.holdings, &self.notes);
        let (sandbox, pipes) = spawn::spawn(self.ceiling, held_by, held, plan, fds)?;
        held.sandbox = Some(sandbox);
        let (uid, enforced, skipped) = (held.uid, spawn::ENFORCED.into(), spawn::SKIPPED.into());
        Ok((Reply::Spawned { report: SandboxReport { uid, enforced, skipped } }, pipes))
    }

    /// What has ended already needs no signal.
    fn signal(&mut self, id: InvocationId, signal: Signal) {
        let Some(Invocation { sandbox: Some(sandbox), .. }) = self.made.invocations.get(&id) else { return };
        let _ = match signal {
            Signal::Term => sys::pidfd_signal(sandbox.program.as_fd(), SIGTERM),
            Signal::Kill => self.made.holdings.kill(Thing::Sandbox(id)),
        };
    }

    fn release(&mut self, invocation: InvocationId) -> Result<(), String> {
        let Some(held) = self.made.invocations.get_mut(&invocation) else { return Ok(()) };
        held.released = true;
        socket::remove(invocation, held.inode, held.uid);
        let _ = self.made.holdings.kill(Thing::Sandbox(invocation));
        self.ended(invocation, KILL_LIMIT)
    }

    /// Deals with a sandbox if its last process ends in time: reaps it, and tells the peer how its program ended.
    fn ended(&mut self, invocation: InvocationId, limit: Duration) -> Result<(), String> {
        let thing = Thing::Sandbox(invocation);
        if let Ok(init) = self.made.holdings.fd(thing) {
            if !spawn::reap(init, limit) {
                return Ok(());
            }
            self.made.holdings.drop(&self.notes, thing);
        }
        let Some(held) = self.made.invocations.get_mut(&invocation) else { return Ok(()) };
        let sandbox = held.sandbox.take();
        if held.released {
            self.made.free.push_back(held.uid);
            self.made.invocations.remove(&invocation);
        }
        let Some(sandbox) = sandbox else { return Ok(()) };
        let exit = sandbox.exit.unwrap_or_else(|| match sandbox.boot.receive(Wait::No) {
            Ok((Note::Ended(exit), _)) => exit,
            // The init was killed, and the program with it.
            _ => Exit::Signal(9),
        });
        self.link.send(&FromHelper::Event(Event::Exited { invocation, exit }), &[], Wait::Block).map_err(end)
    }

    fn mount(&mut self, mount: MountId) -> Answer {
        let point = self.ceiling.mounts.get(&mount);
        let point = point.ok_or_else(|| Refusal::Ceiling(format!("there is no mount {}", mount.get())))?;
        let (server, kept) = fuse::prepare(self.ceiling, point, self.peer)?;
        // Held before it is attached: there is no moment in which nobody would take it off.
        self.made.holdings.hold(&self.notes, Thing::Mount(mount), kept.into())?;
        let attached = fuse::attach(self.made.holdings.fd(Thing::Mount(mount))?, point);
        let watcher = attached.inspect_err(|_| self.take_off(mount))?;
        self.made.views.insert(mount, watcher);
        log(&format!("mounted {}", point.name.display()));
        Ok((Reply::Mounted, vec![server]))
    }

    fn take_off(&mut self, mount: MountId) {
        if let Ok(Err(e)) = self.made.holdings.fd(Thing::Mount(mount)).map(fuse::unmount) {
            log(&format!("mount {} cannot be taken off: {e}", mount.get()));
        }
        self.made.views.remove(&mount);
        self.made.holdings.drop(&self.notes, Thing::Mount(mount));
    }
}
