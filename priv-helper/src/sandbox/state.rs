//! One sandbox: its lease, where it stands, and what each of its processes' words makes of that. It makes nothing and
//! waits for nothing.

use super::modes::Modes;
use super::process::KILL_LIMIT;
use super::template::{Host, Which};
use crate::hold::Holdings;
use crate::inner::{Inner, Note, Resource};
use crate::policy::gate::Phase;
use crate::sys;
use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::link::{LinkError, Wait};
use cyberos_proto::message::{Event, PHASE_LIMIT, Refusal};
use cyberos_proto::plan::Limits;
use nix::errno::Errno;
use nix::libc;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// A lease, and what it is used for.
pub(super) struct Sandbox {
    pub(super) uid: u32,
    /// Whose socket it has, with the inode.
    pub(super) socket: Option<(InvocationId, u64)>,
    /// What its control group is set to.
    pub(super) limits: Option<Limits>,
    /// How many processes its group had lost for want of memory when its last program ended.
    pub(super) kills: u64,
    /// It goes when its last process has ended.
    pub(super) released: bool,
    /// Its lease came with its plan, and no program of it has run: it goes too if that fails.
    pub(super) fresh: bool,
    pub(super) state: State,
}

/// Where a sandbox stands. The pidfd of its init is among the holdings while it has processes.
pub(super) enum State {
    /// Without processes.
    Leased,
    /// Its init builds it.
    Preparing(Build),
    /// It is built, and its program's process waits for the word.
    Prepared(Build),
    /// The word was said.
    Starting(Build),
    /// Its program was executed.
    Running(Running),
    /// It was killed. The peer is told why when its last process has ended, or at that time.
    Dying(Option<(Refusal, Instant)>),
}

/// A sandbox whose program has not been executed.
pub(super) struct Build {
    pub(super) boot: Inner,
    pub(super) network: Option<OwnedFd>,
    /// The host's ends of stdin, stdout and stderr, until the peer gets them.
    pub(super) pipes: Vec<OwnedFd>,
    /// Who asks about modes.
    pub(super) asks: Option<OwnedFd>,
    /// Of what its init builds a template, if it has to.
    pub(super) template: Option<(Host, Which)>,
    /// When it counts as stuck.
    pub(super) until: Instant,
}

/// A sandbox whose program has been executed.
pub(super) struct Running {
    /// pidfd of the program.
    pub(super) program: OwnedFd,
    pub(super) modes: Modes,
    pub(super) network: Option<OwnedFd>,
    pub(super) boot: Inner,
}

/// What a word of a sandbox's processes comes to.
pub(super) enum Heard {
    /// It has built a template, for others too.
    Template(Host, Which, OwnedFd),
    /// The peer is to be told that it is prepared, with these descriptors.
    Prepared(Vec<OwnedFd>),
    /// The peer is to be told this.
    Tell(Event),
    /// Nothing that others need to know.
    Nothing,
}

impl Sandbox {
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Leased => Phase::Leased,
            State::Preparing(_) | State::Starting(_) | State::Dying(_) => Phase::Busy,
            State::Prepared(_) => Phase::Prepared,
            State::Running(_) => Phase::Running,
        }
    }

    /// What to wait for, beside the end of its init.
    pub(super) fn news(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Preparing(build) | State::Prepared(build) | State::Starting(build) => {
                Some(build.boot.as_fd())
            }
            State::Running(running) => running.modes.news(),
            State::Leased | State::Dying(_) => None,
        }
    }

    /// When it counts as stuck.
    pub(super) fn until(&self) -> Option<Instant> {
        match &self.state {
            State::Preparing(build) | State::Prepared(build) | State::Starting(build) => Some(build.until),
            State::Dying(told) => told.as_ref().map(|(_, until)| *until),
            State::Leased | State::Running(_) => None,
        }
    }

    /// The next word of its processes, as long as its program has not been executed: what they say then is their last, and
    /// waits for their end.
    pub(super) fn hear(&mut self, id: SandboxId, holdings: &Holdings) -> Option<Heard> {
        let (State::Preparing(build) | State::Prepared(build) | State::Starting(build)) = &self.state else {
            return None;
        };
        let (note, mut fds) = match build.boot.receive(Wait::No) {
            Ok(heard) => heard,
            Err(LinkError::WouldBlock) => return None,
            Err(_) => {
                self.fail(id, holdings, ended_early());
                return None;
            }
        };
        let state = mem::replace(&mut self.state, State::Leased);
        let (state, heard) = match (state, note) {
            (State::Preparing(mut build), Note::Template) => match (build.template.take(), fds.pop()) {
                (Some((host, which)), Some(template)) => {
                    (State::Preparing(build), Heard::Template(host, which, template))
                }
                _ => (State::Preparing(build), Heard::Nothing),
            },
            (State::Preparing(build), Note::Network) => {
                (State::Preparing(Build { network: fds.pop(), ..build }), Heard::Nothing)
            }
            (State::Preparing(mut build), Note::Prepared { .. }) => {
                let pipes = mem::take(&mut build.pipes);
                let until = Instant::now() + PHASE_LIMIT;
                (State::Prepared(Build { asks: fds.pop(), until, ..build }), Heard::Prepared(pipes))
            }
            (State::Starting(build), Note::Started) => match <[OwnedFd; 2]>::try_from(fds) {
                Ok([program, view]) => {
                    let Build { boot, network, asks, .. } = build;
                    let modes = Modes::new(view, asks);
                    let running = Running { program, modes, network, boot };
                    self.fresh = false;
                    (State::Running(running), Heard::Tell(Event::Started { sandbox: id }))
                }
                Err(_) => (dying(id, holdings, Refusal::Malformed), Heard::Nothing),
            },
            (_, Note::Failed(refusal)) => (dying(id, holdings, refusal), Heard::Nothing),
            // It would have to be told for something else than its program's end.
            _ => (dying(id, holdings, ended_early()), Heard::Nothing),
        };
        self.state = state;
        Some(heard)
    }

    /// Kills it, since it cannot go on.
    pub(super) fn fail(&mut self, id: SandboxId, holdings: &Holdings, refusal: Refusal) {
        self.state = dying(id, holdings, refusal);
    }

    /// What is to be told of it if it has been left alone for too long.
    pub(super) fn stuck(&mut self, id: SandboxId, holdings: &Holdings) -> Option<Event> {
        if self.until().is_none_or(|until| until > Instant::now()) {
            return None;
        }
        let late = |step: &str| Refusal::System { step: step.to_owned(), errno: Errno::ETIMEDOUT as i32 };
        match &mut self.state {
            State::Preparing(_) => self.fail(id, holdings, late("set up the sandbox in 10 s")),
            State::Prepared(_) => {
                self.fail(id, holdings, late("start the sandbox within 10 s of its making"))
            }
            State::Starting(_) => self.fail(id, holdings, late("execute the program in 10 s")),
            State::Dying(told) => {
                return told.take().map(|(refusal, _)| Event::Failed { sandbox: id, refusal });
            }
            State::Leased | State::Running(_) => {}
        }
        None
    }
}

fn dying(id: SandboxId, holdings: &Holdings, refusal: Refusal) -> State {
    kill(id, holdings);
    State::Dying(Some((refusal, Instant::now() + KILL_LIMIT)))
}

/// Kills every process of a sandbox.
pub(super) fn kill(id: SandboxId, holdings: &Holdings) {
    let init = holdings.fd(Resource::Sandbox(id));
    let _ = init.map(|init| sys::pidfd_signal(init, libc::SIGKILL));
}

/// Why a sandbox failed whose processes said nothing.
pub(super) fn ended_early() -> Refusal {
    Refusal::System {
        step: "the sandbox ended before its program ran".to_owned(),
        errno: Errno::ECHILD as i32,
    }
}
