//! Conducts one request: method → for `tool.call`, [`grants::admit`](crate::grants::admit) → `Audit::started` → the plan's
//! work → completed → reply (`[3.2]`, `[4.1]`). It judges nothing and knows no socket; `session` hands it requests and takes
//! replies away.

mod params;
mod tool_call;

use crate::audit::Audit;
use crate::blocking_pool::BlockingPool;
use crate::call::{Call, Invocation, Wrong};
use crate::grants::{Grants, Phase, State, Totals};
use crate::memory_budget::{Held, MemoryBudget};
use crate::rpc::{self, Id, Item, Reply, RpcError};
use crate::tools::Catalogue;
use cyberos_proto::ids::InvocationId;
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    pub catalogue: Arc<Catalogue>,
    /// Where it is recorded.
    pub audit: Audit,
    /// The broker's threads; the invocation takes a share.
    pub pool: BlockingPool,
    /// When SIGKILL is due: what `broker.status` counts down to, and what no call outlasts.
    pub deadline: Instant,
    /// Bytes that Write, Edit and MemoryEmit may write (`[2.8]`).
    pub write_quota: u64,
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
    state: State,
    /// The skill's sealed copy, a directory.
    copy: Arc<OwnedFd>,
    catalogue: Arc<Catalogue>,
    audit: Audit,
    pool: BlockingPool,
    deadline: Instant,
    /// Whether the operator has been told that the peer sends no frames.
    told_framing: AtomicBool,
    /// Sandboxes that its calls may have at once.
    sandboxes: Arc<Semaphore>,
    pub(crate) budget: MemoryBudget,
}

impl Dispatch {
    pub(crate) fn new(serving: Serving) -> Self {
        let Serving { invocation, grants, copy, catalogue, audit, pool, deadline, write_quota } = serving;
        let pool = pool.share();
        Dispatch {
            state: State::new(invocation, grants, pool.clone(), write_quota),
            copy,
            catalogue,
            audit,
            pool,
            deadline,
            told_framing: false.into(),
            sandboxes: Arc::new(Semaphore::new(SANDBOXES)),
            budget: MemoryBudget::new(),
        }
    }

    pub(crate) fn id(&self) -> InvocationId {
        self.state.invocation().id
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
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
        if self.state.phase_now() == Phase::Closed || gone.as_ref().is_some_and(|gone| *gone.borrow()) {
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
        let allowed = self.state.grants().tools();
        let tools = self.catalogue.listing().filter(|(name, _)| allowed.contains(name));
        Reply::Result(tools.map(|(_, listed)| listed.clone()).collect())
    }

    fn status(&self) -> Reply {
        let Totals { calls, denied } = self.state.totals();
        let left = self.deadline.saturating_duration_since(Instant::now());
        Reply::Result(json!({
            "invocation_id": self.id().to_string(),
            "skill_id": self.state.invocation().skill_id,
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
            "a request of {length} bytes holds so many values that {} MiB are needed to read it; {} MiB are \
             there (a long list is lighter as text, in one string)",
            weight.div_ceil(1 << 20),
            self.budget.requests.bytes() >> 20
        )
    }

    /// The answer to a peer that sends no frames. The operator is told once a run.
    pub(crate) fn not_frames(&self, seen: &str) -> Reply {
        const EXPECTED: &str = "a frame is a 4-byte big-endian length and that many bytes of JSON";
        if !self.told_framing.swap(true, Ordering::Relaxed) {
            tracing::warn!(invocation = %self.id(), skill = self.state.invocation().skill_id, seen, "the skill does not speak the broker's framing: {EXPECTED}");
        }
        Reply::Error(RpcError::new(rpc::PARSE_ERROR, format!("this looks like {seen}; {EXPECTED}")))
    }

    /// A request that nobody has read: refused and recorded, like a call.
    pub(crate) async fn unread(&self, sentence: String) -> Reply {
        let call = Call { wrong: Some(Wrong::Unread(sentence)), ..Call::unread() };
        self.conduct(call, None, &mut Held::default()).await
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
