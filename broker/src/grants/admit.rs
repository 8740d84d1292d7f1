//! One call against everything that may refuse it, in the order of `[4.1]`. The only room that refuses, and the only way
//! to a [`Permit`].

use super::handles::{FileRead, Handle, Handles, SandboxGrant, Scope};
use super::state::{Phase, State};
use super::trace::trace_of;
use super::{Grants, Permit, refusal};
use crate::beneath::{self, Missed};
use crate::blocking_pool::Stop;
use crate::call::{Access, Call, Denial, Plan, Refusal, ToolError, TraceId, Wrong};
use crate::catalogue::{Asking, Catalogue};
use std::future::Future;
use std::mem;
use std::path::Path;
use std::time::Instant;

/// A call that does not go on, and why.
#[derive(Debug)]
pub struct Refused {
    /// The call, without its arguments if they had been read.
    pub call: Call,
    /// Why.
    pub refusal: Refusal,
    /// Whether it gets a row of its own; one that does not is counted with others (`[2.8]`).
    pub recorded: bool,
}

/// Decides one call. Order: rows left → phase → parameters → `disallowed_tools` → `allowed_tools` and the operator's →
/// registered → rate limit → traceparent → plan → path rules → files held → write quota.
///
/// `recordable` says whether the run's rows leave room for this call's. A file is looked for until `cut`: then its call
/// comes to an end as whoever cuts it says.
pub async fn admit<W>(
    state: &State,
    catalogue: &Catalogue<W>,
    mut call: Call,
    recordable: bool,
    cut: impl Future<Output = ()> + Send,
) -> Result<Permit<W>, Refused> {
    if !recordable {
        return Err(Refused { call, refusal: refusal::ledger_quota().into(), recorded: false });
    }
    match judge(state, catalogue, &mut call, cut).await {
        Ok((trace, handles, plan)) => {
            Ok(Permit { call, trace, handles, rows_owed: plan.rows_owed, work: plan.work })
        }
        Err(refusal) => Err(Refused { call, refusal, recorded: true }),
    }
}

async fn judge<W>(
    state: &State,
    catalogue: &Catalogue<W>,
    call: &mut Call,
    cut: impl Future<Output = ()> + Send,
) -> Result<(TraceId, Handles, Plan<W>), Refusal> {
    if state.phase_now() != Phase::Open {
        return Err(refusal::deadline().into());
    }
    // Every call counts, whatever else is wrong with it; only the reason that is given has its order.
    let within = state.within_rate(Instant::now());
    match call.wrong.take() {
        Some(Wrong::Unread(sentence)) => return Err(refusal::unread(sentence).into()),
        Some(Wrong::Params(why)) => return Err(Refusal::BadParams(why)),
        None => {}
    }
    let grants = &state.grants;
    grants.judge_tool(&call.tool)?;
    let tool = catalogue.get(&call.tool).ok_or_else(|| Grants::unknown_tool(&call.tool))?;
    grants.judge_rate(&call.tool, within)?;
    let trace = match &call.traceparent {
        Some(value) => trace_of(value).map_err(Refusal::BadParams)?,
        None => state.invocation.trace,
    };
    let asking = Asking { invocation: &state.invocation, number: call.number };
    let plan = tool.plan(asking, mem::take(&mut call.args)).map_err(Refusal::BadParams)?;
    let mut handles = Handles::default();
    let mut cut = std::pin::pin!(cut);
    for access in &plan.accesses {
        handles.0.push_back(match access {
            Access::Memory(path) => Handle::Memory(state.scope(grants.judge_memory(path, None)?)),
            Access::NewMemory { path, pattern } => {
                Handle::Memory(state.scope(grants.judge_memory(path, Some(pattern))?))
            }
            Access::File(path) => {
                let pin = pin(state, path);
                tokio::select! {
                    biased;
                    () = &mut cut => Handle::File(FileRead(Err(ToolError::internal()))),
                    file = pin => Handle::File(file?),
                }
            }
            Access::Sandbox => Handle::Sandbox(SandboxGrant(grants.clone())),
        });
    }
    if !state.may_write(plan.writes) {
        return Err(refusal::write_quota(state.write_quota).into());
    }
    Ok((trace, handles, plan))
}

/// Finds the file and holds it, so that the rules which must hold for the file itself have spoken before its call is
/// recorded as started.
async fn pin(state: &State, asked: &str) -> Result<FileRead, Refusal> {
    let target = state.grants.file_target(asked)?;
    let (wanted, grants) = (target.clone(), state.grants.clone());
    let look = move |_: &Stop| beneath::resolve(&wanted, |path| grants.recheck(&wanted, path).is_ok());
    match state.pool.run(look).await {
        Ok(Ok(pinned)) => Ok(FileRead(Ok(pinned))),
        Ok(Err(Missed::Failed(e))) => Ok(FileRead(Err(e))),
        Ok(Err(Missed::Outside(led_to))) => {
            let judge = |path: &Path| state.grants.recheck(&target, path).err();
            let judged: Option<Denial> = led_to.as_deref().and_then(judge);
            Err(refusal::led_outside(&target, led_to.as_deref(), judged).into())
        }
        Err(lost) => {
            tracing::error!(%lost, "looking up a file");
            Ok(FileRead(Err(ToolError::internal())))
        }
    }
}

impl State {
    /// The handle of a memory that the rules grant; `path` is canonical.
    fn scope(&self, path: String) -> Scope {
        let (written, write_quota) = (self.written.clone(), self.write_quota);
        Scope { tenant: self.invocation.tenant, path, written, write_quota }
    }
}

impl Refused {
    /// The trace that its row joins: the one that it names, if it names one, else the invocation's.
    pub fn trace(&self, state: &State) -> TraceId {
        self.call.traceparent.as_ref().and_then(|t| trace_of(t).ok()).unwrap_or(state.invocation.trace)
    }
}
