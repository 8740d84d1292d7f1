//! A link process: one peer, receive → gate → act → reply, and the news of its sandboxes. Each runs in a process of its
//! own, so that a peer that makes it wait hangs only itself. When peer or parent goes, all that it made goes.

use crate::ceiling::Ceiling;
use crate::hold::Holdings;
use crate::inner::Inner;
use crate::log::{Often, log_often};
use crate::policy::ceiling::Role;
use crate::policy::gate::{self, Phase};
use crate::policy::outcome::{must, named};
use crate::sandbox::{Sandboxes, Within};
use crate::sys;
use crate::views::Views;
use cyberos_proto::link::{Link, LinkError, Peer, Wait};
use cyberos_proto::message::{Event, FromHelper, Refusal, Reply, Request, Subject};
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A peer that takes nothing for so long is gone.
pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(5);

/// One peer's link.
pub(crate) struct Session<'a> {
    within: Within<'a>,
    role: Role,
    link: &'a Link<FromHelper, Request>,
    /// What is held outside this process too.
    holdings: Holdings,
    sandboxes: Sandboxes,
    views: Views,
}

type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// Serves a peer until it or the parent goes, or does what ends a link; then ends all that was made. What is held is told
/// to the parent by `notes`.
pub(crate) fn serve(
    ceiling: &Ceiling,
    role: Role,
    peer: Peer,
    link: &Link<FromHelper, Request>,
    notes: &Inner,
) -> i32 {
    let mut session = Session {
        within: Within { ceiling, peer, notes },
        role,
        link,
        holdings: Holdings::default(),
        sandboxes: Sandboxes::default(),
        views: Views::default(),
    };
    let Err(why) = session.turns();
    let Session { mut holdings, sandboxes, views, .. } = session;
    drop(views);
    holdings.end();
    sandboxes.close(&holdings, ceiling);
    log_often(Often::Coming, &format!("link of {role:?}, pid {}, ended: {why}", peer.pid));
    0
}

impl Session<'_> {
    fn turns(&mut self) -> Result<Infallible, String> {
        let mut quiet = false;
        loop {
            self.sandboxes.keep_spare(self.within.ceiling, quiet);
            let mut watched = vec![self.link.as_fd(), self.within.notes.as_fd()];
            watched.extend(self.holdings.sandboxes().map(|(_, init)| init));
            watched.extend(self.sandboxes.watched());
            let patience = self.sandboxes.patience(self.within.ceiling);
            quiet = !named("poll", sys::wait_any(&watched, &[], patience))?;
            must(!sys::readable(self.within.notes.as_fd(), Duration::ZERO), "the parent has gone")?;
            let news = self.sandboxes.look_at_all(self.within, &mut self.holdings)?;
            self.tell_all(news)?;
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
            Subject::Sandbox(id) => self.sandboxes.phase(id),
            Subject::Mount(mount) if self.views.is_mounted(mount) => Phase::Mounted,
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

    fn act(&mut self, request: Request, fds: &[OwnedFd]) -> Result<Answer, String> {
        let Session { within, holdings, sandboxes, views, .. } = self;
        let Within { ceiling, peer, notes } = *within;
        let done = Ok((Reply::Done, Vec::new()));
        Ok(match request {
            Request::Describe => Ok((Reply::Described { uids: ceiling.text.uids }, Vec::new())),
            Request::CreateSocket { sandbox, invocation } => {
                sandboxes.create_socket(sandbox, invocation, *within, holdings)
            }
            Request::Prepare { sandbox, plan } => {
                sandboxes.prepare(sandbox, plan, fds, *within, holdings).and(done)
            }
            Request::Go { sandbox } => {
                sandboxes.go(sandbox, holdings);
                done
            }
            Request::Signal { sandbox, signal } => {
                sandboxes.signal(sandbox, signal, holdings);
                done
            }
            Request::Release { sandbox } => {
                let news = sandboxes.release(sandbox, *within, holdings)?;
                self.tell_all(news)?;
                done
            }
            Request::Mount { mount } => views.mount(mount, (ceiling, peer, notes), holdings),
            Request::RegisterBacking { mount } => views.register(mount, fds, ceiling),
            Request::Unmount { mount } => {
                views.take_off(mount, notes, holdings);
                done
            }
            Request::CloseBacking { mount, id } => {
                views.forget(mount, id);
                done
            }
        })
    }

    fn reply(&self, answer: Answer) -> Result<(), String> {
        let (reply, fds) = answer.unwrap_or_else(|refusal| {
            log_often(Often::Refusal, &format!("refused to pid {}: {refusal}", self.within.peer.pid));
            (Reply::Refused(refusal), Vec::new())
        });
        self.tell(&FromHelper::Reply(reply), &fds)
    }

    fn tell_all(&self, news: crate::sandbox::News) -> Result<(), String> {
        for (event, fds) in news {
            if let Event::Failed { sandbox, refusal } = &event {
                let pid = self.within.peer.pid;
                log_often(Often::Refusal, &format!("sandbox {sandbox} of pid {pid}: {refusal}"));
            }
            self.tell(&FromHelper::Event(event), &fds)?;
        }
        Ok(())
    }

    fn tell(&self, message: &FromHelper, fds: &[OwnedFd]) -> Result<(), String> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        named("the peer does not read", self.link.send(message, &fds, Wait::Block))
    }
}
