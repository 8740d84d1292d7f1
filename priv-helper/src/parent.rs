//! The parent: accepts, tells roles, forks a link process for each, and holds what they hold. It never reads a byte
//! that a peer has sent, and makes no call that a peer's file system could stop, so nothing that a peer does hangs it.

use crate::ceiling::Role;
use crate::hold::Holdings;
use crate::link::{self, SEND_LIMIT};
use crate::prelude::*;
use cyberos_proto::link::accept;
use cyberos_proto::message::{FromHelper, Reply, Request};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// How long a link process may take to end after its peer has gone; then it is killed and its things are ended here.
const CLOSE_LIMIT: Duration = Duration::from_millis(900);

type Connection = Link<FromHelper, Request>;

struct Served {
    role: Role,
    pidfd: OwnedFd,
    notes: Option<Inner>,
    /// A copy of the peer's link, only to see it hang up.
    connection: Option<Connection>,
    /// Since when it should be ending.
    ending: Option<Instant>,
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
        // Who comes again while the predecessor is just ending waits in the queue until that has ended.
        let open = ending(&served).is_none();
        wait(ceiling, &mut served, &[signals.as_fd(), listener.as_fd()][..1 + usize::from(open)], None)?;
        if sys::readable(listener.as_fd(), Duration::ZERO) {
            // Only now that somebody waits: a link that the same peer closed before it came is seen to have ended.
            served.iter_mut().for_each(Served::look);
            if ending(&served).is_none() {
                accept_one(ceiling, listener, &mut served);
            }
        }
    }
    for s in &mut served {
        // The link process sees it, and ends what it owns and itself.
        s.notes = None;
        s.ending.get_or_insert_with(Instant::now);
    }
    let until = Instant::now() + 2 * CLOSE_LIMIT;
    while !served.is_empty() && Instant::now() < until {
        wait(ceiling, &mut served, &[], Some(until))?;
    }
    Ok(())
}

/// Since when a link has been ending that has not ended.
fn ending(served: &[Served]) -> Option<Instant> {
    served.iter().filter(|s| !s.ended).filter_map(|s| s.ending).min()
}

/// Waits until something happens, to a link or to `others`, at most `until`, and looks after the links.
fn wait(c: &Ceiling, served: &mut Vec<Served>, others: &[BorrowedFd<'_>], until: Option<Instant>) -> Sys<()> {
    let (mut news, mut connections) = (others.to_vec(), Vec::new());
    for s in &*served {
        if s.ended {
            news.extend(s.holdings.alive());
            news.extend((!s.gone()).then_some(s.pidfd.as_fd()));
            continue;
        }
        news.push(s.pidfd.as_fd());
        news.extend(s.notes.iter().map(AsFd::as_fd));
        connections.extend(s.connection.iter().map(AsFd::as_fd));
    }
    let until = ending(served).map(|at| at + CLOSE_LIMIT).or(until);
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    sys::wait_any(&news, &connections, left)?;
    served.iter_mut().for_each(Served::look);
    served.iter_mut().filter(|s| s.ended && s.gone()).for_each(|s| s.holdings.shed());
    // Their blocks stay locked until the last process has gone.
    for s in served.extract_if(.., |s| s.ended && s.gone() && s.holdings.alive().is_empty()) {
        s.holdings.forget(c);
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
    // One that cannot even be killed, since a peer's file system holds it, counts too: a few of those are enough. So do
    // sandboxes that outlive their link for such a reason, as sandboxes.
    let all = || served.iter().filter(|s| s.role == role);
    let kept: usize = all().map(|s| s.holdings.alive().len()).sum();
    if all().any(|s| !s.ended)
        || all().filter(|s| !s.gone()).count() >= 4
        || kept >= ceiling.text.max_sandboxes
    {
        return close_elsewhere(connection, Some(Refusal::Busy));
    }
    match start(ceiling, role, connection) {
        Ok(s) => served.push(s),
        Err(e) => log_often(Often::Refusal, &format!("a link of {role:?} cannot be served: {e}")),
    }
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
        let _ = caps::drop(None, caps::CapSet::Permitted, caps::Capability::CAP_DAC_OVERRIDE);
        let _ = SigSet::empty().thread_set_mask();
        link::serve(ceiling, role, peer, &connection, &theirs)
    })?;
    log_often(Often::Coming, &format!("link of {role:?}, pid {}, begins", peer.pid));
    let (notes, connection, holdings) = (Some(ours), Some(Connection::new(copy)), Holdings::default());
    Ok(Served { role, pidfd, notes, connection, ending: None, ended: false, holdings })
}

impl Served {
    fn gone(&self) -> bool {
        sys::readable(self.pidfd.as_fd(), Duration::ZERO)
    }

    /// Takes its notes, and sees whether it is ending, or must.
    fn look(&mut self) {
        if self.ended {
            return;
        }
        let strange = self.notes.as_ref().is_some_and(|n| self.holdings.take(n).is_err());
        self.ended = self.gone() || strange || self.ending.is_some_and(|at| at.elapsed() >= CLOSE_LIMIT);
        if self.ended {
            let _ = sys::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
            self.holdings.end();
        }
        if self.ended || self.connection.as_ref().is_some_and(|c| sys::hung_up(c.as_fd())) {
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
