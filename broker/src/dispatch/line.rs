//! One `tool.call`, from its parameters to its reply: the order of `[4.1]` is the order of [`Dispatch::tool_call`].

use super::params::read_call;
use super::{Dispatch, Phase};
use crate::audit::{Asked, CallOutcome, OpenCall, Started};
use crate::beneath::{self, Missed, Pinned};
use crate::call::{Call, Denial, DenialClass, FileTarget, Refusal, Target};
use crate::grants::{Permit, trace_of};
use crate::rooms::Held;
use crate::rpc::{self, Reply, RpcError};
use crate::tools::{
    Context, Ending, Means, TIMED_OUT, Tool, ToolError, ToolResult, WRITE_QUOTA, internal, is_quota,
};
use crate::workers::Stop;
use serde_json::{Value, json};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;
use tokio::sync::watch;

/// Results from this size on are hashed outside the async threads.
const LARGE: usize = 256 * 1024;
/// Longest name of a tool in an answer, in bytes.
const MAX_ECHO: usize = 256;
/// Longest message of −32602, in bytes: it names what was sent.
const MAX_MESSAGE: usize = 512;

/// `data.reason` of a call that the run's rows leave no room for (`[3.4]`).
const LEDGER_QUOTA: &str = "ledger_quota";

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
        let serving = &self.serving;
        // The one place of span skill.broker.tool_call: from here to the reply.
        let (mut call, wrong) = read_call(params);
        call.args_hash = serving.audit.hash_object(&call.args);
        call.number = self.next_call(&call.tool);
        if !serving.audit.admits(&serving.invocation, call.number) {
            return self.unrecorded(&call);
        }
        if *self.phase.borrow() != Phase::Open {
            let sentence = "the deadline has passed; no call is served any more".to_owned();
            return self
                .refuse(&call, self.plain_denial(DenialClass::DeadlineExceeded, sentence).into())
                .await;
        }
        if let Some(why) = wrong {
            serving.grants.count(Instant::now());
            return self.refuse(&call, Refusal::BadParams(why)).await;
        }
        let permit = match serving.grants.decide(&serving.registry, &serving.invocation, call) {
            Ok(permit) => permit,
            Err((call, refusal)) => return self.refuse(&call, refusal).await,
        };
        let Some(tool) = serving.registry.get(&permit.call().tool) else {
            let sentence = "it was decided, but is not registered".to_owned();
            return self
                .refuse(permit.call(), self.plain_denial(DenialClass::UnknownTool, sentence).into())
                .await;
        };
        let mut severed = None;
        let file = tokio::select! {
            biased;
            why = self.severed(gone.clone()) => {
                severed = Some(why);
                None
            }
            found = self.find(&permit) => match found {
                Ok(file) => file,
                Err(denial) => return self.refuse(permit.call(), denial.into()).await,
            },
        };
        if !self.may_write(tool.writes(permit.call())) {
            let sentence =
                format!("an invocation may write {} bytes (quota.invocation_write_mb)", serving.write_quota);
            return self.refuse(permit.call(), self.quota_denial(WRITE_QUOTA, sentence).into()).await;
        }
        let brief = permit.call().without_args();
        let (started, open) = match serving.audit.started(&serving.invocation, permit).await {
            Ok(both) => both,
            Err(unavailable) => {
                let (unavailable, call) = *unavailable;
                let sentence = unavailable.to_string();
                return self.denied(&call, &self.plain_denial(DenialClass::AuditUnavailable, sentence));
            }
        };
        let result = match severed {
            None => self.run(tool, file, started, gone, held).await,
            Some(why) => Err(why),
        };
        self.complete(&brief, open, result, held.bytes() >= LARGE).await
    }

    /// Pins the file that the permit names, so that the rules which must hold for the file itself have spoken before
    /// the call is recorded as started.
    async fn find(&self, permit: &Permit) -> Result<Option<Result<Pinned, ToolError>>, Denial> {
        let Target::File(target) = permit.target() else { return Ok(None) };
        let (wanted, grants) = (target.clone(), self.serving.grants.clone());
        let look = move |_: &Stop| beneath::resolve(&wanted, |path| grants.recheck(&wanted, path).is_ok());
        match self.serving.workers.run(look).await {
            Ok(Ok(pinned)) => Ok(Some(Ok(pinned))),
            Ok(Err(Missed::Failed(e))) => Ok(Some(Err(e))),
            Ok(Err(Missed::Outside(led_to))) => Err(self.led_outside(target, led_to.as_deref())),
            Err(lost) => {
                tracing::error!(%lost, "looking up a file");
                Ok(Some(Err(internal())))
            }
        }
    }

    /// The refusal of a granted name that leads to something else. To the skill all of them look the same, else a link
    /// would tell what there is outside.
    fn led_outside(&self, target: &FileTarget, led_to: Option<&Path>) -> Denial {
        let judged = led_to.and_then(|path| self.serving.grants.recheck(target, path).err());
        let denial = judged.unwrap_or_else(|| Denial {
            asked: Some(target.path.to_string_lossy().into_owned()),
            subject: led_to.unwrap_or(&target.path).to_string_lossy().into_owned(),
            rule: format!("beneath {}", target.root.display()),
            ..self.plain_denial(
                DenialClass::FileViolation,
                format!(
                    "{:?} is granted by its name, but leads out of {:?} (a symlink, or kernel state mounted there). Name \
                     the file by its real path and grant that.",
                    target.path, target.root
                ),
            )
        });
        Denial { reason: DenialClass::FileViolation.as_str(), ..denial }
    }

    /// Runs the tool until it ends, panics, or is cut, and what it has made has ended.
    async fn run(
        &self,
        tool: &dyn Tool,
        file: Option<Result<Pinned, ToolError>>,
        started: Started,
        gone: Option<watch::Receiver<bool>>,
        held: &mut Held,
    ) -> Result<ToolResult, Severed> {
        let taken = Arc::new(Mutex::new(Held::default()));
        let ending = Ending::default();
        let means = Means {
            serving: self.serving.clone(),
            sandboxes: self.sandboxes.clone(),
            answers: self.rooms.answers.clone(),
            written: self.written.clone(),
            held: taken.clone(),
            ending: ending.clone(),
        };
        let context = Context::new(means, file);
        let result = tokio::select! {
            biased;
            why = self.severed(gone) => Err(why),
            result = caught(tool, context, started) => Ok(result),
        };
        ending.over().await;
        *held = std::mem::take(&mut *taken.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }

    /// Waits until a call has to be cut.
    async fn severed(&self, gone: Option<watch::Receiver<bool>>) -> Severed {
        let mut phase = self.phase();
        let over = async {
            match phase.wait_for(|p| *p != Phase::Open).await.as_deref() {
                Ok(Phase::Closed) if !self.grace.load(Ordering::Relaxed) => Severed::RunEnded,
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
                let audit = self.serving.audit.clone();
                let hash = move || (CallOutcome::Success { result_hash: audit.hash_object(&result) }, result);
                let hashed = if large { tokio::task::spawn_blocking(hash).await } else { Ok(hash()) };
                match hashed {
                    Ok((outcome, result)) => (outcome, Reply::Result(Value::Object(result))),
                    Err(_) => cut(tool, "internal", "the broker is stopping"),
                }
            }
            Ok(Err(e)) if e.reason == TIMED_OUT => (CallOutcome::Timeout, failed(tool, e)),
            Ok(Err(e)) if is_quota(e.reason) => {
                return self.refuse_late(call, open, self.quota_denial(e.reason, e.message)).await;
            }
            Ok(Err(e)) => (CallOutcome::Error { error: e.reason.to_owned() }, failed(tool, e)),
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
    pub(super) async fn refuse(&self, call: &Call, refusal: Refusal) -> Reply {
        let serving = &self.serving;
        let trace =
            call.traceparent.as_ref().and_then(|t| trace_of(t).ok()).unwrap_or(serving.invocation.trace);
        let asked = Asked { call: call.number, tool: &call.tool, args_hash: &call.args_hash, trace };
        if let Err(unavailable) = serving.audit.refused(&serving.invocation, &asked, &refusal).await {
            let sentence = unavailable.to_string();
            return self.denied(call, &self.plain_denial(DenialClass::AuditUnavailable, sentence));
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        match refusal {
            Refusal::Denied(denial) => self.denied(call, &denial),
            Refusal::BadParams(why) => {
                Reply::Error(RpcError::new(rpc::INVALID_PARAMS, echoed(&why, MAX_MESSAGE)))
            }
        }
    }

    /// The same for a refusal that was found out once the call had started: its row closes the call.
    async fn refuse_late(&self, call: &Call, open: OpenCall, denial: Denial) -> Reply {
        self.denied.fetch_add(1, Ordering::Relaxed);
        let reply = self.denied(call, &denial);
        open.refused(&self.serving.invocation, &call.args_hash, &denial.into()).await;
        reply
    }

    /// The answer to a call that comes after the rows of its run have used up their quota: it does not run, and a row
    /// counts it with others (`[2.8]`).
    pub(super) fn unrecorded(&self, call: &Call) -> Reply {
        self.denied.fetch_add(1, Ordering::Relaxed);
        let sentence = "the rows of its calls have used up quota.invocation_ledger_mb".to_owned();
        self.denied(call, &self.quota_denial(LEDGER_QUOTA, sentence))
    }

    /// The error object of `[3.4]`.
    fn denied(&self, call: &Call, denial: &Denial) -> Reply {
        let mut data = json!({
            "reason": denial.reason, "tool": echoed(&call.tool, MAX_ECHO), "skill_id": self.serving.invocation.skill_id,
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

    /// A refusal for a quota; the reason says which.
    fn quota_denial(&self, reason: &'static str, sentence: String) -> Denial {
        Denial { reason, rule: reason.to_owned(), ..self.plain_denial(DenialClass::QuotaExceeded, sentence) }
    }

    /// A refusal that no grant is behind: its reason is its class.
    pub(super) fn plain_denial(&self, class: DenialClass, sentence: String) -> Denial {
        Denial {
            class,
            reason: class.as_str(),
            asked: None,
            subject: String::new(),
            rule: class.as_str().to_owned(),
            sentence,
        }
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

/// The tool's future with its panics turned into errors.
fn caught<'a>(
    tool: &'a dyn Tool,
    context: Context,
    started: Started,
) -> impl Future<Output = ToolResult> + Send + 'a {
    let mut running: Option<Pin<Box<dyn Future<Output = ToolResult> + Send + 'a>>> = None;
    let mut taken = Some((context, started));
    std::future::poll_fn(move |cx| {
        // Nothing of a future that panicked is used again.
        let step = catch_unwind(AssertUnwindSafe(|| {
            if let Some((context, started)) = taken.take() {
                running = Some(tool.invoke(context, started));
            }
            running.as_mut().map(|future| future.as_mut().poll(cx))
        }));
        match step {
            Ok(Some(poll)) => poll,
            Ok(None) | Err(_) => {
                tracing::error!(tool = tool.name(), "the tool panicked");
                Poll::Ready(Err(internal()))
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
