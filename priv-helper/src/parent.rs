//! The parent: accepts, tells roles, forks a link process for each, and holds what they hold. It never reads a byte
//! that a peer has sent, and makes no call that a peer's file system could stop, so nothing that a peer does hangs it.

use crate::ceiling::Ceiling;
use crate::hold::Holdings;
use crate::inner::{Inner, Note};
use crate::link::{self, SEND_LIMIT};
use crate::log::{Often, log_often};
use crate::policy::ceiling::Role;
use crate::sys::{self, Sys};
use caps::{CapSet, Capability};
use cyberos_proto::link::{Link, LinkError, Wait, accept, pair};
use cyberos_proto::message::{FromHelper, Refusal, Reply, Request};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a link process may take to end after its peer has gone; then it is killed and its things are ended here.
const CLOSE_LIMIT: Duration = Duration::from_millis(900);
/// Most link processes of one role that cannot even be killed, since a peer's file system holds them.
const MOST_STUCK: usize = 4;

type Connection = Link<FromHelper, Request>;

/// A link process, and what it holds.
struct Served {
    role: Role,
    pidfd: OwnedFd,
    /// What it says. None when it is to end.
    notes: Option<Inner>,
    /// A copy of the peer's link, only to see it hang up.
    connection: Option<Connection>,
    /// Since when it should be ending.
    ending: Option<Instant>,
    /// Whether its things have been ended here. Its process may still be there.
    ended: bool,
    holdings: Holdings,
}

/// Serves until SIGTERM or SIGINT; then ends everything.
pub(crate) fn run(ceiling: &Ceiling, listener: &OwnedFd) -> Sys<()> {
    let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    mask.thread_set_mask()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut served = Vec::new();
    while signals.read_signal()?.is_none() {
        let mut news = vec![signals.as_fd()];
        // Who comes again while the predecessor is just ending waits in the queue until that has ended.
        if ending(&served).is_none() {
            news.push(listener.as_fd());
        }
        wait(ceiling, &mut served, &news, None)?;
        if sys::readable(listener.as_fd(), Duration::ZERO) {
            // Only now that somebody waits: a link that the same peer closed before it came is seen to have ended.
            served.iter_mut().for_each(Served::look);
            if ending(&served).is_none() {
                accept_one(ceiling, listener, &mut served);
            }
        }
    }
    for link in &mut served {
        // The link process sees it, and ends what it owns and itself.
        link.notes = None;
        link.ending.get_or_insert_with(Instant::now);
    }
    let until = Instant::now() + 2 * CLOSE_LIMIT;
    while !served.is_empty() && Instant::now() < until {
        wait(ceiling, &mut served, &[], Some(until))?;
    }
    Ok(())
}

/// Since when a link has been ending that has not ended.
fn ending(served: &[Served]) -> Option<Instant> {
    served.iter().filter(|link| !link.ended).filter_map(|link| link.ending).min()
}

/// Waits until something happens, to a link or to `others`, at most `until`, and looks after the links.
fn wait(
    ceiling: &Ceiling,
    served: &mut Vec<Served>,
    others: &[BorrowedFd<'_>],
    until: Option<Instant>,
) -> Sys<()> {
    let mut news = others.to_vec();
    let mut connections = Vec::new();
    for link in &*served {
        if link.ended {
            news.extend(link.holdings.alive());
            news.extend((!link.is_gone()).then_some(link.pidfd.as_fd()));
        } else {
            news.push(link.pidfd.as_fd());
            news.extend(link.notes.iter().map(AsFd::as_fd));
            connections.extend(link.connection.iter().map(AsFd::as_fd));
        }
    }
    let until = ending(served).map(|at| at + CLOSE_LIMIT).or(until);
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    sys::wait_any(&news, &connections, left)?;

    for link in &mut *served {
        link.look();
        if link.ended && link.is_gone() {
            link.holdings.shed();
        }
    }
    // Their blocks stay locked until the last process has gone.
    let is_over = |link: &mut Served| link.ended && link.is_gone() && link.holdings.alive().is_empty();
    for link in served.extract_if(.., is_over) {
        link.holdings.forget(&ceiling.groups);
    }
    Ok(())
}

fn accept_one(ceiling: &Ceiling, listener: &OwnedFd, served: &mut Vec<Served>) {
    let Ok(connection) = accept(listener.as_fd()).map(Connection::new) else { return };
    let uid = connection.peer().map_or(0, |peer| peer.uid);
    let Some(role) = ceiling.text.role(uid) else {
        log_often(Often::Refusal, &format!("refused: uid {uid} has no role"));
        return close_elsewhere(connection, Some(Refusal::Role));
    };
    if is_busy(ceiling, role, served) {
        return close_elsewhere(connection, Some(Refusal::Busy));
    }
    match start(ceiling, role, connection) {
        Ok(link) => served.push(link),
        Err(e) => log_often(Often::Refusal, &format!("a link of {role:?} cannot be served: {e}")),
    }
}

/// Whether no other link of that role is taken: one lives, or what dead ones have left is too much. A few processes that
/// cannot be killed are enough; and sandboxes that outlive their link for such a reason count as sandboxes.
fn is_busy(ceiling: &Ceiling, role: Role, served: &[Served]) -> bool {
    let of_role = || served.iter().filter(|link| link.role == role);
    let stuck = of_role().filter(|link| !link.is_gone()).count();
    let sandboxes: usize = of_role().map(|link| link.holdings.alive().len()).sum();
    of_role().any(|link| !link.ended) || stuck >= MOST_STUCK || sandboxes >= ceiling.text.max_sandboxes
}

/// Forks the link process, which owns `connection` from then on.
fn start(ceiling: &Ceiling, role: Role, connection: Connection) -> Result<Served, LinkError> {
    let peer = connection.peer()?;
    let (ours, theirs) = pair::<Note, Note>()?;
    theirs.set_send_timeout(SEND_LIMIT)?;
    connection.set_send_timeout(SEND_LIMIT)?;
    let copy = connection.as_fd().try_clone_to_owned().map_err(|_| LinkError::Os(Errno::EMFILE))?;
    let (_, pidfd) = sys::fork(0, None, move || {
        let mut keep = ceiling.descriptors();
        keep.extend([connection.as_fd(), theirs.as_fd()]);
        sys::close_all_but(&mut keep);
        sys::reap_children(true);
        let _ = caps::drop(None, CapSet::Permitted, Capability::CAP_DAC_OVERRIDE);
        let _ = SigSet::empty().thread_set_mask();
        link::serve(ceiling, role, peer, &connection, &theirs)
    })?;
    log_often(Often::Coming, &format!("link of {role:?}, pid {}, begins", peer.pid));
    Ok(Served {
        role,
        pidfd,
        notes: Some(ours),
        connection: Some(Connection::new(copy)),
        ending: None,
        ended: false,
        holdings: Holdings::default(),
    })
}

impl Served {
    /// Whether its process has ended.
    fn is_gone(&self) -> bool {
        sys::readable(self.pidfd.as_fd(), Duration::ZERO)
    }

    /// Takes its notes, and sees whether it is ending, or must.
    fn look(&mut self) {
        if self.ended {
            return;
        }
        // Before its notes are taken, so that none is missed of a process that has gone.
        let gone = self.is_gone();
        let strange = self.notes.as_ref().is_some_and(|notes| self.holdings.take(notes).is_err());
        let late = self.ending.is_some_and(|at| at.elapsed() >= CLOSE_LIMIT);
        self.ended = gone || strange || late;
        if self.ended {
            let _ = sys::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
            self.holdings.end();
        }
        if self.ended || self.connection.as_ref().is_some_and(|link| sys::hung_up(link.as_fd())) {
            self.ending.get_or_insert_with(Instant::now);
            if let Some(connection) = self.connection.take() {
                close_elsewhere(connection, None);
            }
        }
    }
}

/// Says `refusal` and closes, in a process of its own. The last close of a socket closes descriptors that are still in
/// it unread, and those may be files of a file system that waits: not here.
fn close_elsewhere(connection: Connection, refusal: Option<Refusal>) {
    let Ok((until, closed)) = unistd::pipe2(OFlag::O_CLOEXEC) else { return };
    let _ = sys::fork(0, None, || {
        sys::close_all_but(&mut [connection.as_fd(), until.as_fd()]);
        if let Some(refusal) = refusal {
            let _ = connection.send(&FromHelper::Reply(Reply::Refused(refusal)), &[], Wait::No);
        }
        // The parent closes its copy first, and then its end of the pipe.
        let _ = unistd::read(&until, &mut [0u8]);
        0
    });
    drop(connection);
    drop(closed);
}
