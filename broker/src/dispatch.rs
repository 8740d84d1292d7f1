//! The straight line of one request: method → [`Grants::decide`] → file pinned → `Audit::started` → `Tool::invoke` →
//! completed → reply (`[3.2]`, `[4.1]`). It holds what is counted within one invocation and knows no socket; `session`
//! hands it requests and takes replies away.

mod line;
mod params;

use crate::audit::Audit;
use crate::call::{Call, DenialClass, Invocation};
use crate::grants::Grants;
use crate::memory::Meter;
use crate::rooms::{Held, Rooms};
use crate::rpc::{self, Id, Item, Reply, RpcError};
use crate::tools::Registry;
use crate::workers::Workers;
use cyberos_proto::ids::InvocationId;
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// Sandboxes that the calls of one invocation may have at once, beside its own: the helper gives all invocations
/// together a bounded number. Further calls wait.
const SANDBOXES: usize = 4;

/// What serving one invocation needs.
#[derive(Debug)]
pub struct Serving {
    /// Whose calls.
    pub invocation: Arc<Invocation>,
    /// What it may do.
    pub grants: Arc<Grants>,
    /// The skill's sealed copy, a directory.
    pub copy: Arc<OwnedFd>,
    /// The tools.
    pub registry: Arc<Registry>,
    /// Where it is recorded.
    pub audit: Audit,
    /// The broker's threads; the invocation takes a share.
    pub workers: Workers,
    /// When SIGKILL is due: what `broker.status` counts down to, and what no call outlasts.
    pub deadline: Instant,
    /// Bytes that Write, Edit and MemoryEmit may write (`[2.8]`).
    pub write_quota: u64,
}

/// How far an invocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Calls are served.
    Open,
    /// The grace after SIGTERM is over: calls are refused, those in flight cut (`[2.4]`).
    Refusing,
    /// The run has ended.
    Closed,
}

/// Numbers of one invocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls asked for, refused ones included.
    pub calls: u64,
    /// Of them, refused: each with a `skill.tool_denied` row, as long as the run's rows are within their quota.
    pub denied: u64,
}

/// A reply, and the part of the answers' room that it takes up.
pub(crate) struct Replied {
    pub(crate) id: Id,
    pub(crate) reply: Reply,
    pub(crate) held: Held,
}

/// One invocation's dispatcher.
#[derive(Debug)]
pub(crate) struct Dispatch {
    serving: Arc<Serving>,
    phase: watch::Sender<Phase>,
    /// Whether SIGTERM has been sent: what is cut after that is cut by the deadline.
    grace: AtomicBool,
    calls: AtomicU64,
    denied: AtomicU64,
    /// What its writes have taken of the disk (`[2.8]`).
    written: Arc<Meter>,
    last: Mutex<Option<(u64, String)>>,
    /// Whether the operator has been told that the peer sends no frames.
    told_framing: AtomicBool,
    /// Sandboxes that its calls may have at once.
    sandboxes: Arc<Semaphore>,
    pub(crate) rooms: Rooms,
}

impl Dispatch {
    pub(crate) fn new(mut serving: Serving) -> Self {
        serving.workers = serving.workers.share();
        Dispatch {
            serving: Arc::new(serving),
            phase: watch::Sender::new(Phase::Open),
            grace: false.into(),
            calls: 0.into(),
            denied: 0.into(),
            written: Arc::default(),
            last: Mutex::default(),
            told_framing: false.into(),
            sandboxes: Arc::new(Semaphore::new(SANDBOXES)),
            rooms: Rooms::new(),
        }
    }

    pub(crate) fn id(&self) -> InvocationId {
        self.serving.invocation.id
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// SIGTERM has been sent.
    pub(crate) fn in_grace(&self) {
        self.grace.store(true, Ordering::Relaxed);
    }

    /// Goes on to `phase`; never back.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let further = *now != Phase::Closed && *now != phase;
            if further {
                *now = phase;
            }
            further
        });
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals { calls: self.calls.load(Ordering::Relaxed), denied: self.denied.load(Ordering::Relaxed) }
    }

    pub(crate) fn last_tool_call(&self) -> Option<(u64, String)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does what one item of a frame asks; None for a notification. `gone` turns true when nobody is left to answer.
    pub(crate) async fn answer(&self, item: Item, gone: &watch::Receiver<bool>) -> Option<Replied> {
        let request = match item {
            Ok(request) => request,
            Err(f) => {
                let reply = Reply::Error(RpcError::new(f.code, f.message));
                return Some(Replied { id: f.id, reply, held: Held::default() });
            }
        };
        // A notification has nobody to answer in any case: it is not cut because nobody listens.
        let gone = request.id.is_some().then(|| gone.clone());
        if *self.phase.borrow() == Phase::Closed || gone.as_ref().is_some_and(|gone| *gone.borrow()) {
            // As if it had not been read.
            return None;
        }
        let mut held = Held::default();
        let reply = match request.method.as_str() {
            "tool.call" => self.tool_call(request.params, gone, &mut held).await,
            "tool.list" => bare(request.params.as_ref()).map_or_else(Reply::Error, |()| self.tool_list()),
            "broker.status" => bare(request.params.as_ref()).map_or_else(Reply::Error, |()| self.status()),
            _ => Reply::Error(RpcError::new(
                rpc::METHOD_NOT_FOUND,
                "no such method; there are tool.call, tool.list and broker.status",
            )),
        };
        Some(Replied { id: request.id?, reply, held })
    }

    fn tool_list(&self) -> Reply {
        let allowed = self.serving.grants.tools();
        let tools = self.serving.registry.listing().filter(|(name, _)| allowed.contains(name));
        Reply::Result(tools.map(|(_, listed)| listed.clone()).collect())
    }

    fn status(&self) -> Reply {
        let Totals { calls, denied } = self.totals();
        let left = self.serving.deadline.saturating_duration_since(Instant::now());
        Reply::Result(json!({
            "invocation_id": self.serving.invocation.id.to_string(),
            "skill_id": self.serving.invocation.skill_id,
            "remaining_ms": u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            "calls": calls,
            "denied": denied,
        }))
    }

    /// Why a request is refused that is longer than any may be.
    pub(crate) fn too_large(&self) -> String {
        format!("a request may have {} bytes", rpc::MAX_REQUEST)
    }

    /// Why a request of `length` bytes is refused that weighs too much to be read.
    pub(crate) fn too_heavy(&self, length: usize, weight: usize) -> String {
        format!(
            "a request of {length} bytes holds so many values that {} MiB are needed to read it; {} MiB are there (a \
             long list is lighter as text, in one string)",
            weight.div_ceil(1 << 20),
            self.rooms.requests.bytes() >> 20
        )
    }

    /// The answer to a peer that sends no frames. The operator is told once a run.
    pub(crate) fn not_frames(&self, seen: &str) -> Reply {
        const EXPECTED: &str = "a frame is a 4-byte big-endian length and that many bytes of JSON";
        if !self.told_framing.swap(true, Ordering::Relaxed) {
            tracing::warn!(invocation = %self.id(), skill = self.serving.invocation.skill_id, seen, "the skill does not speak the broker's framing: {EXPECTED}");
        }
        Reply::Error(RpcError::new(rpc::PARSE_ERROR, format!("this looks like {seen}; {EXPECTED}")))
    }

    /// A request that nobody has read: refused and recorded, like a call.
    pub(crate) async fn unread(&self, sentence: String) -> Reply {
        let call = Call { number: self.next_call(""), ..Call::unread() };
        self.serving.grants.count(Instant::now());
        if !self.serving.audit.admits(&self.serving.invocation, call.number) {
            return self.unrecorded(&call);
        }
        self.refuse(&call, self.plain_denial(DenialClass::RequestTooLarge, sentence).into()).await
    }

    fn next_call(&self, tool: &str) -> u64 {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(n, _)| *n < number) {
            *last = Some((number, tool.to_owned()));
        }
        number
    }

    /// Whether the write quota leaves room for `bytes`. Nothing is taken of it yet: what a write takes is counted where
    /// it is made.
    fn may_write(&self, bytes: u64) -> bool {
        bytes == 0 || self.written.bytes().saturating_add(bytes) <= self.serving.write_quota
    }
}

/// For methods without parameters.
fn bare(params: Option<&Value>) -> Result<(), RpcError> {
    match params {
        None => Ok(()),
        Some(Value::Object(members)) if members.is_empty() => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => Err(RpcError::new(rpc::INVALID_PARAMS, "this method takes no parameters")),
    }
}
