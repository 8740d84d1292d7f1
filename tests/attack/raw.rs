//! A hostile peer: any user's connections to a helper, as many as wanted, and packets of any bytes with any descriptors.
//! Nothing that it sends goes through the project's own encoder unless the test asks for a good packet to spoil.

use crate::support::helper::{Asks, Helper, SOON};
use crate::support::machine::{children, descriptors, with_descendants};
use crate::support::up::eventually;
use cyberos_proto::PROTOCOL_VERSION;
use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::link::{self, Link, LinkError, Wait};
use cyberos_proto::message::{Event, FromHelper, Message, Refusal, Reply, Request, Signal};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the other link may take to answer while one is attacked.
pub(crate) const OTHER_LINK: Duration = Duration::from_secs(1);

/// A process of some user that connects as often as it is asked to, and gives each connection away at once.
pub(crate) struct Dialler {
    process: Child,
    order: ChildStdin,
    given: Link<Given, Given>,
}

const DIAL: &str = "import socket,sys,os
c=socket.socket(fileno=int(sys.argv[3]))
while os.read(0,1):
  s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
  socket.send_fds(c,[bytes([int(sys.argv[2])])],[s.fileno()]); s.close()";

impl Dialler {
    pub(crate) fn new(socket: &Path, uid: u32) -> Dialler {
        let (ours, theirs) = link::pair::<Given, Given>().unwrap();
        // A duplicate without close-on-exec, for the child alone.
        let handed = nix::unistd::dup(&theirs).unwrap();
        let mut process = Command::new("/usr/bin/python3")
            .args(["-I", "-c", DIAL])
            .arg(socket)
            .arg(PROTOCOL_VERSION.to_string())
            .arg(handed.as_raw_fd().to_string())
            .stdin(Stdio::piped())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        let order = process.stdin.take().unwrap();
        Dialler { process, order, given: ours }
    }

    /// A new connection, of which nobody else holds a copy.
    pub(crate) fn dial(&mut self) -> Raw {
        self.order.write_all(b"x").unwrap();
        let (_, mut fds) = self.given.receive(Wait::Block).expect("it connects");
        let link = Link::<Request, FromHelper>::new(fds.pop().unwrap());
        link.set_receive_timeout(Duration::from_secs(20)).unwrap();
        link.set_send_timeout(Duration::from_secs(20)).unwrap();
        Raw { link }
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What comes back of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Said(Reply),
    Closed,
}

/// One connection.
pub(crate) struct Raw {
    pub(crate) link: Link<Request, FromHelper>,
}

impl Raw {
    pub(crate) fn send(&self, bytes: &[u8], fds: &[RawFd]) -> Result<(), Errno> {
        self.send_with(bytes, fds, MsgFlags::MSG_NOSIGNAL)
    }

    pub(crate) fn send_with(&self, bytes: &[u8], fds: &[RawFd], flags: MsgFlags) -> Result<(), Errno> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
        let parts = [IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(self.link.as_fd().as_raw_fd(), &parts, control, flags, None).map(drop)
    }

    /// The next answer; events are passed over.
    pub(crate) fn answer(&self) -> Answer {
        loop {
            match self.link.receive(Wait::Block) {
                Ok((FromHelper::Reply(reply), _)) => return Answer::Said(reply),
                Ok((FromHelper::Event(_), _)) => {}
                // A close with something unread is told first, what was said before it only then.
                Err(LinkError::Closed) => match self.link.receive(Wait::No) {
                    Ok((FromHelper::Reply(reply), _)) => return Answer::Said(reply),
                    _ => return Answer::Closed,
                },
                Err(e) => panic!("neither answered nor closed: {e}"),
            }
        }
    }

    /// Has a sandbox built and started by a [`Request::Prepare`]: its pipes, or why not.
    pub(crate) fn spawn(&self, request: &Request, fds: &[RawFd]) -> Result<Vec<OwnedFd>, Refusal> {
        let Request::Prepare { sandbox, .. } = request else { panic!("{request:?} prepares nothing") };
        let go = Request::Go { sandbox: *sandbox };
        let mut pipes = Vec::new();
        for (request, fds) in [(request, fds), (&go, &[])] {
            match self.ask(&good(request), fds) {
                Answer::Said(Reply::Done) => {}
                Answer::Said(Reply::Refused(refusal)) => return Err(refusal),
                other => panic!("{other:?}"),
            }
            match self.link.receive(Wait::Block) {
                Ok((FromHelper::Event(Event::Prepared { .. }), fds)) => pipes = fds,
                Ok((FromHelper::Event(Event::Started { .. }), _)) => {}
                Ok((FromHelper::Event(Event::Failed { refusal, .. }), _)) => return Err(refusal),
                other => panic!("{other:?}"),
            }
        }
        Ok(pipes)
    }

    /// Sends, and says what came of it.
    pub(crate) fn ask(&self, bytes: &[u8], fds: &[RawFd]) -> Answer {
        match self.send(bytes, fds) {
            Ok(()) => self.answer(),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Answer::Closed,
            Err(e) => panic!("cannot send: {e}"),
        }
    }

    /// Asserts that this packet is refused as none and ends the link.
    pub(crate) fn is_ended_by(&self, what: &str, bytes: &[u8], fds: &[RawFd]) {
        assert_eq!(self.ask(bytes, fds), Answer::Said(Reply::Refused(Refusal::Malformed)), "{what}");
        assert_eq!(self.answer(), Answer::Closed, "{what}");
    }

    /// The refusal of this packet; the link goes on.
    pub(crate) fn refusal(&self, what: &str, bytes: &[u8], fds: &[RawFd]) -> Refusal {
        match self.ask(bytes, fds) {
            Answer::Said(Reply::Refused(refusal)) => refusal,
            other => panic!("{what}: expected a refusal, got {other:?}"),
        }
    }
}

/// A fresh invocation's id.
pub(crate) fn new_id() -> InvocationId {
    InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes())
}

pub(crate) fn first_mount() -> MountId {
    MountId::new(0).unwrap()
}

/// A good packet, to be spoilt.
pub(crate) fn good(request: &Request) -> Vec<u8> {
    link::encode(request).unwrap()
}

/// One request of each kind, by the role that may ask it.
pub(crate) fn of_broker(id: InvocationId) -> Vec<Request> {
    vec![
        id.create(),
        id.prepare(crate::support::helper::plan(&["/bin/true"])),
        id.go(),
        id.signal(Signal::Term),
        id.release(),
    ]
}

pub(crate) fn of_skillfs() -> Vec<Request> {
    let mount = first_mount();
    vec![
        Request::Mount { mount },
        Request::Unmount { mount },
        Request::RegisterBacking { mount },
        Request::CloseBacking { mount, id: 1 },
    ]
}

/// Open descriptors of the helper's parent, its links, and everything that those have forked and that lives: there by
/// rank and not by number, since the init that is ready for the next sandbox is another one after each.
pub(crate) fn held(helper: &Helper) -> BTreeMap<i32, usize> {
    let links = helper.children();
    let below = with_descendants(links.iter().flat_map(|link| children(*link)).collect());
    let mut counts: Vec<usize> = below.into_iter().map(descriptors).collect();
    counts.sort_unstable();
    let named = [vec![helper.pid()], links].concat();
    let named = named.iter().map(|p| (p.as_raw(), descriptors(*p)));
    named.chain((1..).map(|rank: i32| -rank).zip(counts)).collect()
}

/// The same, when it has been what it was for a while: whatever has just begun or ended is done.
pub(crate) fn at_rest(helper: &Helper) -> BTreeMap<i32, usize> {
    let mut last = (held(helper), Instant::now());
    let same_again = || {
        let now = held(helper);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(300)
    };
    assert!(eventually(SOON, same_again), "never at rest");
    last.0
}

/// Waits until the helper's processes hold exactly what they held.
pub(crate) fn flat(helper: &Helper, before: &BTreeMap<i32, usize>) {
    if !eventually(SOON, || held(helper) == *before) {
        panic!("not as before: {:?}, before {before:?}", held(helper));
    }
}

/// A helper, SkillFS's link to it, and who connects as the broker, which is the one that attacks.
pub(crate) fn attacked(more: &str) -> (Helper, Other, Dialler) {
    let helper = Helper::start(more);
    let other = Other::skillfs(&helper);
    let dialler = Dialler::new(&helper.socket(), crate::support::helper::BROKER);
    (helper, other, dialler)
}

/// The other role's link, asked again and again while something is attacked.
pub(crate) struct Other {
    raw: Raw,
    _dialler: Dialler,
}

impl Other {
    pub(crate) fn skillfs(helper: &Helper) -> Other {
        let mut dialler = Dialler::new(&helper.socket(), crate::support::helper::SKILLFS);
        let raw = dialler.dial();
        let other = Other { raw, _dialler: dialler };
        other.answers();
        other
    }

    /// Asserts that it is answered in time.
    pub(crate) fn answers(&self) {
        let asked = Instant::now();
        let unmount = good(&Request::Unmount { mount: first_mount() });
        assert_eq!(self.raw.refusal("the other link", &unmount, &[]), Refusal::Phase);
        assert!(asked.elapsed() < OTHER_LINK, "the other link waited {:?}", asked.elapsed());
    }
}

/// What the dialler says with each connection: nothing.
#[derive(Serialize, Deserialize)]
struct Given;

impl Message for Given {
    fn descriptors(&self) -> usize {
        1
    }
}
