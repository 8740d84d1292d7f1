//! A running invocation, from its start to its last row: deadlines by the monotonic clock (`[2.4]`), the limit for the
//! first connection (`[2.5]`), the operator's stop, and what the end is called (`[2.7]`). Made by `run`, followed by
//! `control`. It decides no call and opens nothing.

use crate::audit::{self, Audit, Outcome};
use crate::call::{Invocation, millis};
use crate::capture::Capture;
use crate::config::OnHidden;
use crate::exit::Exit as ExitStatus;
use crate::helper::HelperError;
use crate::locks;
use crate::sandbox::{End, Ends, Sandbox};
use crate::session::Session;
use crate::skillfs_client::SkillfsClient;
use cyberos_proto::control::Verdict;
use cyberos_proto::ids::SkillName;
use cyberos_proto::message::{Exit, Refusal, Signal};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A skill that has not connected by then never will (`[2.5]`).
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// Between an operator's SIGTERM and the SIGKILL.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// After the last process has gone nobody can write to the pipes; this bounds what is left in them.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How often a running skill's verdict is looked at.
const VERDICT_EVERY: Duration = Duration::from_secs(1);
/// How long a killed sandbox may take to be gone before the helper's link is given up on.
const REAP_LIMIT: Duration = Duration::from_secs(20);

/// How an invocation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it is called.
    pub outcome: Outcome,
    /// How the program ended; none when nobody saw it.
    pub exit: Option<Exit>,
    /// Whether the kernel ended a process of it because its memory had run out.
    pub out_of_memory: bool,
    /// From start to end.
    pub duration: Duration,
    /// Number and tool of the last call that it asked for.
    pub last_call: Option<(u64, String)>,
}

impl Ended {
    /// An end that nobody saw.
    pub fn aborted() -> Self {
        Ended {
            outcome: Outcome::Aborted,
            exit: None,
            out_of_memory: false,
            duration: Duration::ZERO,
            last_call: None,
        }
    }

    /// The end of what was recorded and then could not be started; `exit` is the exit status that says so (`[2.1]`).
    pub(crate) fn not_started(why: &HelperError, exit: ExitStatus) -> Self {
        match why {
            HelperError::Refused(Refusal::Exec { .. }) => {
                Ended { outcome: Outcome::Error, exit: Some(Exit::Code(exit.code())), ..Ended::aborted() }
            }
            HelperError::Refused(_) | HelperError::Gone { .. } => Ended::aborted(),
        }
    }

    /// The same for the ledger.
    pub(crate) fn row(&self) -> audit::Ended {
        let (exit_code, signal) = match self.exit {
            Some(Exit::Code(code)) => (Some(code.into()), None),
            Some(Exit::Signal(signal)) => (None, Some(signal.into())),
            None => (None, None),
        };
        audit::Ended { outcome: self.outcome, exit_code, signal, duration_ms: millis(self.duration) }
    }

    /// The exit status of `skill run` (`[2.1]`).
    pub fn status(&self) -> ExitStatus {
        match (self.outcome, self.exit) {
            (Outcome::Timeout | Outcome::NoConnect, _) => ExitStatus::TIMEOUT,
            (Outcome::Stopped, _) => ExitStatus::STOPPED,
            (Outcome::Aborted, _) | (_, None) => ExitStatus::FAILED,
            (_, Some(Exit::Code(code))) => ExitStatus::of_program(code),
            (_, Some(Exit::Signal(signal))) => ExitStatus::by_signal(signal),
        }
    }
}

/// The exit status that a `skill.invoked_completed` row means.
pub fn status_of_row(row: &Value) -> ExitStatus {
    let number = |field: &str| row[field].as_u64().and_then(|n| u8::try_from(n).ok());
    match (row["outcome"].as_str(), number("exit_code"), number("signal")) {
        (Some("timeout" | "no_connect"), _, _) => ExitStatus::TIMEOUT,
        (Some("stopped"), _, _) => ExitStatus::STOPPED,
        (Some("aborted") | None, _, _) => ExitStatus::FAILED,
        (_, Some(code), _) => ExitStatus::of_program(code),
        (_, None, Some(signal)) => ExitStatus::by_signal(signal),
        (_, None, None) => ExitStatus::FAILED,
    }
}

/// Why our own hand was raised against it.
#[derive(Clone, Copy, Debug, Default)]
struct Ours {
    timeout: bool,
    no_connect: bool,
    stopped: bool,
}

impl Ours {
    fn outcome(self, exit: Option<Exit>) -> Outcome {
        match exit {
            _ if self.timeout => Outcome::Timeout,
            _ if self.no_connect => Outcome::NoConnect,
            _ if self.stopped => Outcome::Stopped,
            None => Outcome::Aborted,
            Some(Exit::Signal(9)) => Outcome::Killed,
            Some(Exit::Signal(_)) => Outcome::Panic,
            Some(Exit::Code(0)) => Outcome::Success,
            Some(Exit::Code(_)) => Outcome::Error,
        }
    }
}

/// One invocation, as others see it.
#[derive(Debug)]
pub struct Running {
    /// Its facts.
    pub invocation: Arc<Invocation>,
    /// What it prints.
    pub capture: Arc<Capture>,
    /// What its start was like: for `run --json` and `status`.
    pub about: Value,
    /// When the deadline kills it.
    pub deadline: Instant,
    stop: watch::Sender<bool>,
    hidden: watch::Sender<Option<String>>,
    ended: watch::Sender<Option<Ended>>,
    /// Which of its limits it was ended for by us, in words.
    because: OnceLock<String>,
}

impl Running {
    /// About to run.
    pub fn new(invocation: Arc<Invocation>, capture: Arc<Capture>, about: Value, deadline: Instant) -> Self {
        Running {
            invocation,
            capture,
            about,
            deadline,
            stop: watch::Sender::new(false),
            hidden: watch::Sender::new(None),
            ended: watch::Sender::new(None),
            because: OnceLock::new(),
        }
    }

    /// An operator's wish that it end.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Why the provider hides the skill now, if it has come to that while it runs (`[9.3]` `on_hidden`).
    pub fn hidden(&self) -> watch::Receiver<Option<String>> {
        self.hidden.subscribe()
    }

    /// Looks every second whether the view still shows the skill, and acts as the operator wants when it does not.
    pub async fn watch_verdict(self: Arc<Self>, view: SkillfsClient, skill: SkillName, on_hidden: OnHidden) {
        let mut ended = self.ended();
        loop {
            tokio::select! {
                _ = ended.wait_for(Option::is_some) => return,
                () = tokio::time::sleep(VERDICT_EVERY) => {}
            }
            // SkillFS that is gone for a moment says nothing about the skill.
            let Ok(state) = view.explain(&skill).await else { continue };
            if state.verdict != Verdict::Hidden || state.pending {
                continue;
            }
            let reason =
                state.reason.map(|r| format!(": {}", crate::terminal::escape_line(&r))).unwrap_or_default();
            let why = format!("the provider hides {skill} now (status {}){reason}", state.status);
            tracing::warn!(invocation = %self.invocation.id, on_hidden = ?on_hidden, "{why}");
            self.hidden.send_replace(Some(why));
            if on_hidden == OnHidden::Terminate {
                self.stop();
            }
            return;
        }
    }

    /// How it ended, once it has.
    pub fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }

    /// The answer to a `run` or `wait`.
    pub fn answer(&self, ended: &Ended) -> Value {
        let (out, err) = (*self.capture.stdout.progress().borrow(), *self.capture.stderr.progress().borrow());
        let row = ended.row();
        json!({
            "invocation_id": self.invocation.id.to_string(),
            "skill_id": self.invocation.skill_id,
            "outcome": ended.outcome.as_str(),
            "because": self.because.get(),
            "exit_code": row.exit_code,
            "signal": row.signal,
            "duration_ms": row.duration_ms,
            "deadline_ms": self.about["deadline_ms"],
            "out_of_memory": ended.out_of_memory,
            "limits": self.about["limits"],
            "last_tool_call": ended.last_call.as_ref().map(|(call, tool)| json!({ "call": call, "tool_name": tool })),
            "stdout_bytes": out.length,
            "stdout_truncated": out.cut.is_some(),
            "stdout_cut": self.capture.stdout.cut(),
            "stderr_bytes": err.length,
            "stderr_truncated": err.cut.is_some(),
            "stderr_cut": self.capture.stderr.cut(),
        })
    }
}

/// What the watch over one invocation needs.
pub struct Watch {
    /// The invocation.
    pub running: Arc<Running>,
    /// Its calls.
    pub session: Session,
    /// To signal and release it.
    pub sandbox: Sandbox,
    /// Its uid.
    pub uid: u32,
    /// To write its rows.
    pub audit: Audit,
    /// How the program ends.
    pub end: Ends,
    /// The task that reads its output.
    pub pump: JoinHandle<()>,
    /// When it was started.
    pub started: Instant,
    /// The whole time it has.
    pub effort: Duration,
}

impl Watch {
    /// Watches until it has ended, been recorded and been cleaned up.
    pub async fn run(mut self) {
        let (ours, end) = self.until_exit().await;
        let (exit, out_of_memory) = (end.map(|end| end.exit), end.is_some_and(|end| end.out_of_memory));
        // Whatever the end was, calls in flight are completed in the ledger before the invocation is.
        self.session.close().await;
        let duration = self.started.elapsed();
        if tokio::time::timeout(DRAIN_LIMIT, &mut self.pump).await.is_err() {
            self.pump.abort();
        }
        self.running.capture.end();
        let last_call = self.session.last_tool_call();
        let ended = Ended { outcome: ours.outcome(exit), exit, out_of_memory, duration, last_call };
        self.audit.invoked_completed(&self.running.invocation, &ended.row());
        self.sandbox.release().await;
        self.running.ended.send_replace(Some(ended));
    }

    async fn until_exit(&mut self) -> (Ours, Option<End>) {
        let term_at = self.started + self.effort.mul_f64(0.9);
        let kill_at = self.started + self.effort;
        let id = self.running.invocation.id;
        let mut stop = self.running.stop.subscribe();
        let mut connected = std::pin::pin!(self.session.first_connection());
        let mut too_many_locks = std::pin::pin!(locks::too_many(self.uid));
        let mut ours = Ours::default();
        let (mut seen, mut killed) = (false, false);
        // When the next steps are due; none: not at all, or done.
        let mut term = Some(term_at);
        let (mut connect, mut stop_kill, mut give_up) = (Some(self.started + CONNECT_LIMIT), None, None);
        loop {
            tokio::select! {
                // In this order: the end itself, then the deadline, which wins over what falls together with it.
                biased;
                end = self.end.wait() => return (ours, end),
                () = at(term) => {
                    term = None;
                    ours.timeout = true;
                    self.session.enter_grace();
                    tracing::warn!(invocation = %id, "90 % of its time is over: SIGTERM");
                    self.sandbox.signal(Signal::Term).await;
                }
                () = at((!killed).then_some(kill_at)) => {
                    killed = true;
                    ours.timeout = true;
                    let last = self.session.last_tool_call();
                    self.audit.skill_timeout(&self.running.invocation, millis(self.started.elapsed()), last.as_ref());
                    self.sandbox.signal(Signal::Kill).await;
                    give_up = Some(Instant::now() + REAP_LIMIT);
                }
                () = at(connect) => {
                    connect = None;
                    ours.no_connect = true;
                    killed = true;
                    self.audit.no_connect(&self.running.invocation, millis(self.started.elapsed()));
                    self.sandbox.signal(Signal::Kill).await;
                    give_up = Some(Instant::now() + REAP_LIMIT);
                }
                () = &mut connected, if !seen => {
                    seen = true;
                    connect = None;
                }
                locks = &mut too_many_locks, if self.running.because.get().is_none() => {
                    let why = locks::told(locks);
                    tracing::warn!(invocation = %id, "SIGKILL: {why}");
                    let _ = self.running.because.set(why);
                    killed = true;
                    self.sandbox.signal(Signal::Kill).await;
                    give_up = Some(Instant::now() + REAP_LIMIT);
                }
                () = wanted(&mut stop), if !ours.stopped => {
                    ours.stopped = true;
                    self.sandbox.signal(Signal::Term).await;
                    stop_kill = Some(Instant::now() + STOP_PATIENCE);
                }
                () = at(stop_kill) => {
                    stop_kill = None;
                    killed = true;
                    self.sandbox.signal(Signal::Kill).await;
                    give_up = Some(Instant::now() + REAP_LIMIT);
                }
                () = at(give_up) => {
                    tracing::error!(invocation = %id, "it was killed and is not gone");
                    return (ours, None);
                }
            }
        }
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn wanted(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|s| *s).await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_tells_the_outcome() {
        let ended = |outcome, exit| Ended { outcome, exit, ..Ended::aborted() }.status().code();
        assert_eq!(ended(Outcome::Error, Some(Exit::Code(3))), 3);
        assert_eq!(ended(Outcome::Panic, Some(Exit::Signal(11))), 139);
        assert_eq!(ended(Outcome::Killed, Some(Exit::Signal(9))), 137);
        assert_eq!(ended(Outcome::Timeout, Some(Exit::Code(0))), 124);
        assert_eq!(ended(Outcome::NoConnect, Some(Exit::Signal(9))), 124);
        assert_eq!(ended(Outcome::Stopped, Some(Exit::Signal(15))), 130);
        assert_eq!(ended(Outcome::Aborted, None), 1);
    }

    #[test]
    fn an_end_is_named_by_who_caused_it() {
        let none = Ours::default();
        assert_eq!(none.outcome(Some(Exit::Code(0))), Outcome::Success);
        assert_eq!(none.outcome(Some(Exit::Code(3))), Outcome::Error);
        assert_eq!(none.outcome(Some(Exit::Signal(11))), Outcome::Panic);
        assert_eq!(none.outcome(Some(Exit::Signal(9))), Outcome::Killed);
        assert_eq!(none.outcome(None), Outcome::Aborted);
        let timeout = Ours { timeout: true, stopped: true, ..none };
        assert_eq!(timeout.outcome(Some(Exit::Code(0))), Outcome::Timeout);
        assert_eq!(Ours { stopped: true, ..none }.outcome(Some(Exit::Signal(9))), Outcome::Stopped);
    }
}
