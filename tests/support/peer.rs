//! Peers of a helper that have the broker's, SkillFS's or a stranger's uid, and the sandboxes that they start.

use super::asks::Asks;
use super::plans::plan;
use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::link::{self, Link, LinkError, Wait};
use cyberos_proto::message::{Event, Exit, FromHelper, Message, Refusal, Reply, Request};
use cyberos_proto::plan::{SandboxReport, SpawnPlan};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// A process that has connected with a uid of its own and given its link to the test. It holds a copy until it is
/// killed, so a peer's death can be a real one.
pub(crate) struct Peer {
    pub(crate) link: Link<Request, FromHelper>,
    process: Child,
    /// While this is open, the process lives.
    _given: Link<Given, Given>,
    events: RefCell<Vec<(Event, Vec<OwnedFd>)>>,
}

const CONNECT: &str = "import socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
c=socket.socket(fileno=0); socket.send_fds(c,[bytes([int(sys.argv[2])])],[s.fileno()])
c.recv(1)";

impl Peer {
    pub(crate) fn connect(socket: &Path, uid: u32) -> Peer {
        let (ours, theirs) = link::pair::<Given, Given>().unwrap();
        let process = Command::new("/usr/bin/python3")
            .args(["-I", "-c", CONNECT])
            .arg(socket)
            .arg(cyberos_proto::PROTOCOL_VERSION.to_string())
            .stdin(theirs.as_fd().try_clone_to_owned().unwrap())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        drop(theirs);
        let (_, mut fds) = ours.receive(Wait::Block).expect("the peer connects");
        let link = Link::new(fds.pop().unwrap());
        link.set_receive_timeout(Duration::from_secs(30)).unwrap();
        Peer { link, process, _given: ours, events: RefCell::default() }
    }

    pub(crate) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.link.send(request, fds, Wait::Block).unwrap();
    }

    /// The reply to `request`; events that come before are kept.
    pub(crate) fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        self.send(request, fds);
        self.reply()
    }

    pub(crate) fn reply(&self) -> (Reply, Vec<OwnedFd>) {
        loop {
            match self.link.receive(Wait::Block).unwrap() {
                (FromHelper::Reply(reply), fds) => return (reply, fds),
                (FromHelper::Event(event), fds) => self.events.borrow_mut().push((event, fds)),
            }
        }
    }

    /// Why `request` is refused; of a sandbox, also why it is not built or not started.
    pub(crate) fn refusal(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Refusal {
        if matches!(request, Request::Prepare { .. }) {
            return self.spawn(request, fds).expect_err("a sandbox that was to be refused runs");
        }
        match self.ask(request, fds) {
            (Reply::Refused(refusal), _) => refusal,
            (other, _) => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// The next event of a sandbox that `is` what is waited for, with its descriptors.
    pub(crate) fn event(&self, is: impl Fn(&Event) -> bool) -> (Event, Vec<OwnedFd>) {
        loop {
            let mut events = self.events.borrow_mut();
            if let Some(at) = events.iter().position(|(event, _)| is(event)) {
                return events.remove(at);
            }
            match self.link.receive(Wait::Block).unwrap() {
                (FromHelper::Event(event), fds) => events.push((event, fds)),
                (FromHelper::Reply(reply), _) => panic!("unexpected reply {reply:?}"),
            }
        }
    }

    /// Has a sandbox built by a [`Request::Prepare`], up to the moment before its program is executed.
    pub(crate) fn prepare(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Pipes, Refusal> {
        let Request::Prepare { sandbox: of, .. } = request else { panic!("{request:?} prepares nothing") };
        match self.ask(request, fds).0 {
            Reply::Done => {}
            Reply::Refused(refusal) => return Err(refusal),
            other => panic!("{other:?}"),
        }
        let about = |event: &Event| match event {
            Event::Prepared { sandbox, .. } | Event::Failed { sandbox, .. } => sandbox == of,
            _ => false,
        };
        match self.event(about) {
            (Event::Prepared { report, .. }, fds) => {
                let [stdin, stdout, stderr] = fds.try_into().unwrap();
                Ok(Pipes { report, stdin, stdout, stderr })
            }
            (Event::Failed { refusal, .. }, _) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    /// Starts the program of a sandbox that was prepared.
    pub(crate) fn go(&self, of: SandboxId) -> Result<(), Refusal> {
        match self.ask(&Request::Go { sandbox: of }, &[]).0 {
            Reply::Done => {}
            Reply::Refused(refusal) => return Err(refusal),
            other => panic!("{other:?}"),
        }
        let about = |event: &Event| match event {
            Event::Started { sandbox } | Event::Failed { sandbox, .. } => *sandbox == of,
            _ => false,
        };
        match self.event(about).0 {
            Event::Failed { refusal, .. } => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Both, one after the other.
    pub(crate) fn spawn(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Pipes, Refusal> {
        let Request::Prepare { sandbox, .. } = request else { panic!("{request:?} prepares nothing") };
        let pipes = self.prepare(request, fds)?;
        self.go(*sandbox).map(|()| pipes)
    }

    /// How the program of `invocation` ended.
    pub(crate) fn exit(&self, invocation: InvocationId) -> Exit {
        let ended =
            |e: &Event| matches!(e, Event::Exited { sandbox, .. } if *sandbox == invocation.sandbox());
        match self.event(ended).0 {
            Event::Exited { exit, .. } => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the helper has closed the link; anything that comes before is thrown away.
    pub(crate) fn closed(&self) -> bool {
        loop {
            match self.link.receive(Wait::Block) {
                Ok(_) => {}
                Err(LinkError::Closed) => return true,
                Err(_) => return false,
            }
        }
    }

    /// A new invocation: its id, its uid, its listening socket.
    pub(crate) fn invocation(&self) -> (InvocationId, u32, OwnedFd) {
        let invocation = InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes());
        match self.ask(&invocation.create(), &[]) {
            (Reply::SocketCreated { uid }, mut fds) => (invocation, uid, fds.pop().unwrap()),
            (other, _) => panic!("expected a socket, got {other:?}"),
        }
    }

    /// Starts `plan` in a new invocation.
    pub(crate) fn start(&self, plan: SpawnPlan, sealed: &[BorrowedFd<'_>]) -> Running<'_> {
        let (invocation, uid, listener) = self.invocation();
        self.start_in(invocation, uid, listener, plan, sealed)
    }

    pub(crate) fn start_in(
        &self,
        invocation: InvocationId,
        uid: u32,
        listener: OwnedFd,
        plan: SpawnPlan,
        sealed: &[BorrowedFd<'_>],
    ) -> Running<'_> {
        let pipes = self.spawn(&invocation.prepare(plan), sealed).expect("a sandbox");
        assert_eq!(pipes.report.uid, uid);
        let Pipes { stdin, stdout, stderr, .. } = pipes;
        Running { peer: self, invocation, uid, listener, stdin: Some(stdin), stdout, stderr }
    }

    /// Runs `sh -c script` to its end.
    pub(crate) fn sh(&self, script: &str) -> Output {
        self.start(plan(&["/bin/sh", "-c", script]), &[]).output()
    }

    /// Ends the process, and with it the last copy of the link.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The link itself is closed after this, so the process's death is what the helper sees, or the close.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What comes with a sandbox that was prepared.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) report: SandboxReport,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// A running sandbox.
pub(crate) struct Running<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) invocation: InvocationId,
    pub(crate) uid: u32,
    pub(crate) listener: OwnedFd,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: Exit,
    pub(crate) uid: u32,
}

impl Running<'_> {
    /// Waits for its end, with its stdin closed, and releases it.
    pub(crate) fn output(mut self) -> Output {
        self.stdin = None;
        let (mut out, mut err) = (File::from(self.stdout), File::from(self.stderr));
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut text = Vec::new();
        out.read_to_end(&mut text).unwrap();
        let exit = self.peer.exit(self.invocation);
        assert_eq!(self.peer.ask(&self.invocation.release(), &[]).0, Reply::Done);
        let stdout = String::from_utf8_lossy(&text).into_owned();
        Output { stdout, stderr: errors.join().unwrap(), exit, uid: self.uid }
    }

    /// Reads its stdout up to `mark`.
    pub(crate) fn said(&self, mark: &str) {
        let mut file = File::from(self.stdout.try_clone().unwrap());
        let (mut text, mut byte) = (Vec::new(), [0u8]);
        while !String::from_utf8_lossy(&text).contains(mark) {
            assert_eq!(file.read(&mut byte).unwrap(), 1, "ended after {:?}", String::from_utf8_lossy(&text));
            text.push(byte[0]);
        }
    }
}

/// What a peer's process says when it gives its link away: nothing but the descriptor.
#[derive(Serialize, Deserialize)]
struct Given;

impl Message for Given {
    fn descriptors(&self) -> usize {
        1
    }
}
