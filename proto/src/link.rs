//! One SEQPACKET socket as a typed link: one packet is one message with its descriptors.
//!
//! `Link<Send, Recv>` sends one direction's messages and receives the other's, so that a message sent the wrong way
//! does not compile. The module holds one of the project's three pieces of unsafe code: descriptors that arrive
//! with a packet are owned from the moment the kernel made them.

use crate::PROTOCOL_VERSION;
use crate::message::Message;
use core::fmt;
use core::marker::PhantomData;
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

/// Longest packet, version byte included: room for a plan whose words and binds are as long as they may be, and within what
/// the kernel takes of one packet by default.
pub const MAX_PACKET: usize = 200 * 1024;
/// Most descriptors that one packet can carry; the largest message needs [`crate::plan::MAX_BINDS`] and six.
pub const MAX_DESCRIPTORS: usize = 70;
/// The most that the kernel passes in one packet, wanted or not.
const SCM_MAX_FD: usize = 253;

/// What went wrong on a link.
#[derive(Debug)]
pub enum LinkError {
    /// The other side closed it.
    Closed,
    /// Nothing to receive, or no room to send, and the caller did not want to wait.
    WouldBlock,
    /// The packet is not a message of this version: empty, too long, leftovers, a value out of bounds.
    Malformed,
    /// The packet carries another number of descriptors than its message.
    Descriptors,
    /// The message is too long to be sent.
    TooLong,
    /// A system call failed.
    Os(Errno),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Closed => f.write_str("the link was closed by the other side"),
            LinkError::WouldBlock => f.write_str("the link is not ready"),
            LinkError::Malformed => f.write_str("the packet is not a message of this version"),
            LinkError::Descriptors => f.write_str("the packet has a wrong number of descriptors"),
            LinkError::TooLong => write!(f, "the message is longer than {MAX_PACKET} bytes"),
            LinkError::Os(e) => write!(f, "link: {e}"),
        }
    }
}

impl core::error::Error for LinkError {}

impl From<Errno> for LinkError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::EAGAIN => LinkError::WouldBlock,
            Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => LinkError::Closed,
            e => LinkError::Os(e),
        }
    }
}

impl From<LinkError> for std::io::Error {
    fn from(e: LinkError) -> Self {
        std::io::Error::from(match e {
            LinkError::Closed => Errno::EPIPE,
            LinkError::WouldBlock => Errno::EAGAIN,
            LinkError::Malformed => Errno::EBADMSG,
            LinkError::Descriptors => Errno::EBADF,
            LinkError::TooLong => Errno::EMSGSIZE,
            LinkError::Os(e) => e,
        })
    }
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is done (or the socket's timeout is over, which answers [`LinkError::WouldBlock`]).
    Block,
    /// Not at all.
    No,
}

impl Wait {
    fn flags(self) -> MsgFlags {
        match self {
            Wait::Block => MsgFlags::empty(),
            Wait::No => MsgFlags::MSG_DONTWAIT,
        }
    }
}

/// Who is on the other side, from SO_PEERCRED: as they were when the socket was connected or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id, in the asker's pid namespace; 0 if it is not visible there.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// One end of a link that sends `S` and receives `R`.
pub struct Link<S, R> {
    fd: OwnedFd,
    direction: PhantomData<fn(S) -> R>,
}

impl<S, R> fmt::Debug for Link<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.fd.as_raw_fd())
    }
}

impl<S, R> AsFd for Link<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S, R> AsRawFd for Link<S, R> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A link and its mirror.
pub type Pair<S, R> = (Link<S, R>, Link<R, S>);

/// Makes a link and its mirror of a socket pair: what one sends, the other receives.
pub fn pair<S: Message, R: Message>() -> Result<Pair<S, R>, LinkError> {
    let (a, b) = socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((Link::new(a), Link::new(b)))
}

/// Binds and listens on a SEQPACKET socket at `path` (non-blocking, close-on-exec). The caller sets mode and owner.
pub fn listen(path: &Path) -> Result<OwnedFd, LinkError> {
    let fd = socket::socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    socket::bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&fd, Backlog::new(64)?)?;
    Ok(fd)
}

/// Whether it is a SEQPACKET socket that listens.
pub fn is_listener(fd: &OwnedFd) -> Result<bool, LinkError> {
    let kind = socket::getsockopt(fd, sockopt::SockType)?;
    Ok(kind == SockType::SeqPacket && socket::getsockopt(fd, sockopt::AcceptConn)?)
}

/// Accepts one connection from a listening SEQPACKET socket, close-on-exec and blocking.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, LinkError> {
    let raw = socket::accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    Ok(own(raw))
}

impl<S: Message, R: Message> Link<S, R> {
    /// Takes a connected SEQPACKET socket.
    pub fn new(fd: OwnedFd) -> Self {
        Link { fd, direction: PhantomData }
    }

    /// Connects to a listening socket at `path`.
    pub fn connect(path: &Path) -> Result<Self, LinkError> {
        let fd = socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Link::new(fd))
    }

    /// The peer's credentials.
    pub fn peer(&self) -> Result<Peer, LinkError> {
        let c = socket::getsockopt(&self.fd, sockopt::PeerCredentials)?;
        Ok(Peer { pid: c.pid(), uid: c.uid(), gid: c.gid() })
    }

    /// After this, a send that cannot go on for `limit` answers [`LinkError::WouldBlock`].
    pub fn set_send_timeout(&self, limit: Duration) -> Result<(), LinkError> {
        let tv = nix::sys::time::TimeVal::new(
            i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            i64::from(limit.subsec_micros()),
        );
        Ok(socket::setsockopt(&self.fd, sockopt::SendTimeout, &tv)?)
    }

    /// The same for receiving.
    pub fn set_receive_timeout(&self, limit: Duration) -> Result<(), LinkError> {
        let tv = nix::sys::time::TimeVal::new(
            i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            i64::from(limit.subsec_micros()),
        );
        Ok(socket::setsockopt(&self.fd, sockopt::ReceiveTimeout, &tv)?)
    }

    /// Sends one message with its descriptors, as many as [`Message::descriptors`] says.
    pub fn send(&self, message: &S, descriptors: &[BorrowedFd<'_>], wait: Wait) -> Result<(), LinkError> {
        if descriptors.len() != message.descriptors() || descriptors.len() > MAX_DESCRIPTORS {
            return Err(LinkError::Descriptors);
        }
        let packet = encode(message)?;
        let raw: Vec<RawFd> = descriptors.iter().map(|d| d.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        let flags = MsgFlags::MSG_NOSIGNAL | wait.flags();
        loop {
            match socket::sendmsg::<UnixAddr>(
                self.fd.as_raw_fd(),
                &[IoSlice::new(&packet)],
                control,
                flags,
                None,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives one message with its descriptors. Whatever is wrong with a packet, its descriptors are closed.
    pub fn receive(&self, wait: Wait) -> Result<(R, Vec<OwnedFd>), LinkError> {
        // Asked first how long it is: most are short, and clearing room for the longest would cost more than the rest.
        let length = loop {
            let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | wait.flags();
            match socket::recv(self.fd.as_raw_fd(), &mut [], peek) {
                Ok(length) => break length,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        let mut buffer = vec![0u8; length.min(MAX_PACKET)];
        let mut control = nix::cmsg_space!([RawFd; SCM_MAX_FD]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | wait.flags();
        let (length, descriptors, cut) = {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let got = loop {
                match socket::recvmsg::<UnixAddr>(self.fd.as_raw_fd(), &mut parts, Some(&mut control), flags)
                {
                    Ok(got) => break got,
                    Err(Errno::EINTR) => {}
                    Err(e) => return Err(e.into()),
                }
            };
            let mut descriptors = Vec::new();
            let mut strange = false;
            // A cut control message would leave descriptors here that nobody owns, so the buffer fits the most that
            // the kernel lets anyone send; no other kind of control message was asked for.
            match got.cmsgs() {
                Ok(messages) => {
                    for m in messages {
                        match m {
                            ControlMessageOwned::ScmRights(raw) => {
                                descriptors.extend(raw.into_iter().map(own))
                            }
                            _ => strange = true,
                        }
                    }
                }
                Err(_) => strange = true,
            }
            let cut = strange || got.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
            (got.bytes, descriptors, cut)
        };
        if cut {
            return Err(LinkError::Malformed);
        }
        if length == 0 {
            // A zero-length packet and a closed link look alike; nobody here sends the former.
            return Err(LinkError::Closed);
        }
        let message: R = decode(&buffer[..length])?;
        if message.descriptors() != descriptors.len() {
            return Err(LinkError::Descriptors);
        }
        Ok((message, descriptors))
    }
}

fn own(raw: RawFd) -> OwnedFd {
    // JUSTIFICATION: accept and SCM_RIGHTS give bare numbers, and someone must begin to own them.
    // SAFETY: `raw` was made by the kernel for this process in the call that has just returned, and nobody else
    // knows its number.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// The packet of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, LinkError> {
    let packet = postcard::to_extend(message, vec![PROTOCOL_VERSION]).map_err(|_| LinkError::TooLong)?;
    if packet.len() > MAX_PACKET { Err(LinkError::TooLong) } else { Ok(packet) }
}

/// The message of a packet: version, message, and nothing after it.
pub fn decode<M: Message>(packet: &[u8]) -> Result<M, LinkError> {
    let (version, body) = packet.split_first().ok_or(LinkError::Malformed)?;
    if *version != PROTOCOL_VERSION || packet.len() > MAX_PACKET {
        return Err(LinkError::Malformed);
    }
    match postcard::take_from_bytes::<M>(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(LinkError::Malformed),
    }
}
