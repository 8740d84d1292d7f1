//! One `tool.call`, from its parameters to its reply. What may refuse it is asked in one place, `grants::admit`.

use super::Dispatch;
use super::params::read_call;
use crate::audit::{Asked, CallOutcome, OpenCall, Started};
use crate::call::{Call, Denial, DenialClass, Refusal, TIMED_OUT, ToolError, ToolResult};
use crate::grants::{self, Phase, Refused, admit};
use crate::memory_budget::Held;
use crate::rpc::{self, Reply, RpcError};
use crate::sandbox::Ending;
use crate::tools::{CallResources, InFlight, Work};
use serde_json::{Value, json};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use tokio::sync::watch;

/// Results from this size on are hashed outside the async threads.
const LARGE: usize = 256 * 1024;
/// Longest name of a tool in an answer, in bytes.
const MAX_ECHO: usize = 256;
/// Longest message of −32602, in bytes: it names what was sent.
const MAX_MESSAGE: usize = 512;

/// Why a call was cut.
enum Severed {
    Deadline,
    RunEnded,
    Disconnected,
}

impl Dispatch {
    pub(super) async fn tool_call(
        &self,
        params: Option<Value>,
        gone: Option<watch::Receiver<bool>>,
        held: &mut Held,
    ) -> Reply {
        self.conduct(read_call(params), gone, held).await
    }

    /// The straight line of a call. `gone` turns true when nobody is left to answer.
    pub(super) async fn conduct(
        &self,
        mut call: Call,
        gone: Option<watch::Receiver<bool>>,
        held: &mut Held,
    ) -> Reply {
        let invocation = self.state.invocation();
        // The one place of span skill.broker.tool_call: from here to the reply.
        call.args_hash = self.audit.hash_object(&call.args);
        call.number = self.state.next_call(&call.tool);
        let recordable = self.audit.admits(invocation, call.number);
        let cut = async {
            self.severed(gone.clone()).await;
        };
        let permit = match admit(&self.state, &self.catalogue, call, recordable, cut).await {
            Ok(permit) => permit,
            Err(refused) => return self.refuse(refused).await,
        };
        let call = permit.call().clone();
        let (started, open) = match self.audit.started(invocation, permit).await {
            Ok(both) => both,
            Err(unavailable) => {
                let (unavailable, call) = *unavailable;
                return self.denied(&call, &grants::unavailable(unavailable.to_string()));
            }
        };
        let result = self.run(&call.tool, started, gone, held).await;
        self.complete(&call, open, result, held.bytes() >= LARGE).await
    }

    /// Runs the tool until it ends, panics, or is cut, and what it has made has ended.
    async fn run(
        &self,
        tool: &str,
        started: Started<Box<dyn Work>>,
        gone: Option<watch::Receiver<bool>>,
        held: &mut Held,
    ) -> Result<ToolResult, Severed> {
        let taken = Arc::new(Mutex::new(Held::default()));
        let ending = Ending::default();
        let resources = CallResources {
            invocation: self.state.invocation().clone(),
            copy: self.copy.clone(),
            deadline: self.deadline,
            pool: self.pool.clone(),
            sandboxes: self.sandboxes.clone(),
            answers: self.budget.answers.clone(),
            held: taken.clone(),
            ending: ending.clone(),
        };
        let result = tokio::select! {
            biased;
            why = self.severed(gone) => Err(why),
            result = caught(tool, started, resources) => Ok(result),
        };
        ending.over().await;
        *held = std::mem::take(&mut *taken.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }

    /// Waits until a call has to be cut.
    async fn severed(&self, gone: Option<watch::Receiver<bool>>) -> Severed {
        let mut phase = self.state.phase();
        let over = async {
            match phase.wait_for(|p| *p != Phase::Open).await.as_deref() {
                Ok(Phase::Closed) if !self.state.in_grace() => Severed::RunEnded,
                _ => Severed::Deadline,
            }
        };
        tokio::select! {
            biased;
            why = over => why,
            () = nobody_left(gone) => Severed::Disconnected,
        }
    }

    async fn complete(
        &self,
        call: &Call,
        open: OpenCall,
        result: Result<ToolResult, Severed>,
        large: bool,
    ) -> Reply {
        let tool = &call.tool;
        let (outcome, reply) = match result {
            Ok(Ok(result)) => {
                let audit = self.audit.clone();
                let hash = move || (CallOutcome::Success { result_hash: audit.hash_object(&result) }, result);
                let hashed = if large { tokio::task::spawn_blocking(hash).await } else { Ok(hash()) };
                match hashed {
                    Ok((outcome, result)) => (outcome, Reply::Result(Value::Object(result))),
                    Err(_) => cut(tool, "internal", "the broker is stopping"),
                }
            }
            Ok(Err(e)) if e.reason == TIMED_OUT => (CallOutcome::Timeout, failed(tool, e)),
            Ok(Err(e)) => match grants::late(&e) {
                Some(denial) => return self.refuse_late(call, open, denial).await,
                None => (CallOutcome::Error { error: e.reason.to_owned() }, failed(tool, e)),
            },
            Err(Severed::Deadline) => {
                let message = "cut by the invocation's deadline".to_owned();
                (CallOutcome::Timeout, failed(tool, ToolError { reason: TIMED_OUT, message }))
            }
            Err(Severed::RunEnded) => cut(tool, "run_ended", "the run has ended"),
            Err(Severed::Disconnected) => cut(tool, "disconnected", "nobody is left to answer"),
        };
        open.completed(outcome).await;
        reply
    }

    /// Records a refusal and words its answer. A refusal that can't be recorded is not told apart from a call that
    /// can't be: else the rules could be probed unseen.
    async fn refuse(&self, refused: Refused) -> Reply {
        if refused.recorded {
            let (call, trace) = (&refused.call, refused.trace(&self.state));
            let asked = Asked { call: call.number, tool: &call.tool, args_hash: &call.args_hash, trace };
            let row = self.audit.refused(self.state.invocation(), &asked, &refused.refusal);
            if let Err(unavailable) = row.await {
                return self.denied(call, &grants::unavailable(unavailable.to_string()));
            }
        }
        self.state.count_denied();
        match refused.refusal {
            Refusal::Denied(denial) => self.denied(&refused.call, &denial),
            Refusal::BadParams(why) => {
                Reply::Error(RpcError::new(rpc::INVALID_PARAMS, echoed(&why, MAX_MESSAGE)))
            }
        }
    }

    /// The same for a refusal that was found out once the call had started: its row closes the call.
    async fn refuse_late(&self, call: &Call, open: OpenCall, denial: Denial) -> Reply {
        self.state.count_denied();
        let reply = self.denied(call, &denial);
        open.refused(self.state.invocation(), &call.args_hash, &denial.into()).await;
        reply
    }

    /// The error object of `[3.4]`.
    fn denied(&self, call: &Call, denial: &Denial) -> Reply {
        let mut data = json!({
            "reason": denial.reason, "tool": echoed(&call.tool, MAX_ECHO), "skill_id": self.state.invocation().skill_id,
        });
        if let Some(asked) = &denial.asked {
            let key = if denial.class == DenialClass::DomainViolation { "host" } else { "path" };
            data[key] = asked.as_str().into();
        }
        Reply::Error(RpcError {
            code: rpc::REFUSED,
            message: denial.class.as_str().to_owned(),
            data: Some(data),
        })
    }
}

/// What the peer sent, for an answer: cut, so that no answer is much longer than what the broker has to say.
fn echoed(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

/// Waits until nobody is left to answer; for ever if there never was anybody.
async fn nobody_left(gone: Option<watch::Receiver<bool>>) {
    if let Some(mut gone) = gone
        && gone.wait_for(|gone| *gone).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// The call's future with its panics turned into errors.
fn caught(
    tool: &str,
    started: Started<Box<dyn Work>>,
    resources: CallResources,
) -> impl Future<Output = ToolResult> + Send {
    let mut running: Option<InFlight> = None;
    let mut taken = Some((started, resources));
    std::future::poll_fn(move |cx| {
        // Nothing of a future that panicked is used again.
        let step = catch_unwind(AssertUnwindSafe(|| {
            if let Some((started, resources)) = taken.take() {
                let (work, started) = started.into_work();
                running = Some(work.run(started, resources));
            }
            running.as_mut().map(|future| future.as_mut().poll(cx))
        }));
        match step {
            Ok(Some(poll)) => poll,
            Ok(None) | Err(_) => {
                tracing::error!(tool, "the tool panicked");
                Poll::Ready(Err(ToolError::internal()))
            }
        }
    })
}

fn cut(tool: &str, reason: &'static str, why: &str) -> (CallOutcome, Reply) {
    let error = ToolError { reason, message: format!("cut: {why}") };
    (CallOutcome::Error { error: reason.to_owned() }, failed(tool, error))
}

/// The error object of a tool that ran and failed.
fn failed(tool: &str, e: ToolError) -> Reply {
    Reply::Error(RpcError {
        code: rpc::TOOL_ERROR,
        message: "tool_error".to_owned(),
        data: Some(json!({"tool": tool, "reason": e.reason, "message": e.message})),
    })
}
