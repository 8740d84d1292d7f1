//! The start of an invocation, one straight line (`[0.1]`, `[2.1]`): SkillFS's verdict → sealed copy → SKILL.md →
//! grants → socket → sandbox prepared → first row → program started → session. Whatever fails on the way undoes what came
//! before. Called by `control`; `invocation` takes over from there.

mod plan;
mod refused;
mod report;

use self::plan::plan;
use self::refused::{entry_point, not_prepared, refused};
pub use self::report::report_json;
use self::report::warn_of_skipped;
use crate::approvals::{Approval, check_tenant};
use crate::audit::InvokedStarted;
use crate::call::{Invocation, TraceId, millis};
use crate::diagnosis::Bounds;
use crate::exit::{Exit, OperatorError};
use crate::grants::Grants;
use crate::invocation::{Ended, Running, Watch};
use crate::sandbox::{Ending, Sandbox};
use crate::seal::{SealError, Sealed};
use crate::service::Broker;
use crate::session;
use crate::skill::{self, Fault, MAX_FILE, Skill, SyncClass};
use crate::skillfs_client::SkillfsError;
use crate::terminal::escape_line;
use cyberos_proto::control::{SkillState, Verdict};
use cyberos_proto::ids::{InvocationId, SkillName, TenantId};
use cyberos_proto::plan::SpawnPlan;
use serde_json::{Value, json};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// How long a start waits for a verdict that is pending (`[0.1]`).
const VERDICT_LIMIT: Duration = Duration::from_secs(35);

/// What an operator asks to run.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The skill's name in the view.
    pub skill: String,
    /// Whose memory; none: the configured tenant.
    pub tenant: Option<String>,
    /// A lower deadline.
    pub effort_minutes: Option<u32>,
    /// Arguments.
    pub args: Vec<Vec<u8>>,
    /// Who asks: the operator's uid as text.
    pub caller: String,
}

impl From<SkillfsError> for OperatorError {
    fn from(e: SkillfsError) -> Self {
        OperatorError::new(Exit::NOT_SHOWN, e.to_string())
    }
}

impl From<SealError> for OperatorError {
    fn from(e: SealError) -> Self {
        let exit = match e {
            SealError::Unfit { .. } => Exit::INVALID,
            SealError::NotShown(_) | SealError::NotMounted(_) => Exit::NOT_SHOWN,
            SealError::DiskFull { .. } | SealError::Os { .. } => Exit::FAILED,
        };
        OperatorError::new(exit, e.to_string())
    }
}

/// A skill as it is shown now: the verdict, and the copy that it is about.
pub struct Shown {
    /// SkillFS's answer, the same before and after the copy was made.
    pub state: SkillState,
    /// The copy.
    pub sealed: Arc<Sealed>,
}

/// Asks, copies, asks again, until both answers are one and nothing is pending.
pub async fn shown(broker: &Broker, name: &SkillName) -> Result<Shown, OperatorError> {
    let until = Instant::now() + VERDICT_LIMIT;
    let undecided = |why: &str| {
        OperatorError::new(
            Exit::NOT_SHOWN,
            format!("{name} is undecided: {why}; try again, or see 'cyberos skillfs explain {name}'"),
        )
    };
    loop {
        let state = broker.view.await_verdict(name, until.saturating_duration_since(Instant::now())).await?;
        if state.pending {
            return Err(undecided("the provider has not decided a change within 35 s"));
        }
        if state.verdict == Verdict::Hidden {
            return Err(hidden(&state));
        }
        let epoch = state.epoch.to_string();
        if let Some(sealed) = broker.sealer.known(name, &epoch) {
            return Ok(Shown { state, sealed });
        }
        let (sealer, walked) = (Arc::clone(&broker.sealer), name.clone());
        let walk = tokio::task::spawn_blocking(move || sealer.seal(&walked));
        let sealed = match tokio::time::timeout(VERDICT_LIMIT, walk).await {
            Ok(Ok(sealed)) => sealed,
            Ok(Err(e)) => {
                return Err(OperatorError::new(Exit::FAILED, format!("the copy of {name} failed: {e}")));
            }
            Err(_) => {
                return Err(OperatorError::new(
                    Exit::NOT_SHOWN,
                    format!("SkillFS did not let {name} be read within 35 s"),
                ));
            }
        };
        let after = broker.view.await_verdict(name, Duration::ZERO).await?;
        if after == state {
            // Only now is a fault in the copy a fault of this skill, and not of a change under the walk.
            let sealed = sealed?;
            if let Some(want) = state.content_digest.as_deref().filter(|want| *want != sealed.digest()) {
                let got = sealed.digest();
                return Err(OperatorError::new(
                    Exit::NOT_SHOWN,
                    format!(
                        "{name} is not what the provider vouched for: it said {want}, the view shows {got}"
                    ),
                ));
            }
            broker.sealer.remember(name, &epoch, &sealed);
            return Ok(Shown { state, sealed });
        }
        if Instant::now() >= until {
            return Err(undecided("it changed each time while it was copied"));
        }
    }
}

fn hidden(state: &SkillState) -> OperatorError {
    // The provider's words: not a line of their own.
    let reason = state.reason.as_deref().map(|r| format!(": {}", escape_line(r))).unwrap_or_default();
    let message = format!("{} is hidden by the provider (status {}){reason}", state.skill, state.status);
    OperatorError { exit: Exit::NOT_SHOWN, message, detail: crate::operator::skill_json(state) }
}

/// The skill of a copy.
pub fn load(name: &SkillName, sealed: &Sealed) -> Result<Skill, OperatorError> {
    let Some(mut file) = sealed.text() else {
        return Err(OperatorError::new(
            Exit::INVALID,
            format!("{name} has no SKILL.md that is a regular file, and no link"),
        ));
    };
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|e| {
        OperatorError::new(Exit::FAILED, format!("cannot read the copy of {name}/SKILL.md: {e}"))
    })?;
    let invalid = |faults: Vec<Fault>| {
        let mut message = format!("{name}/SKILL.md is not valid:");
        for fault in &faults {
            message.push_str(&format!("\n  {fault}"));
        }
        OperatorError { exit: Exit::INVALID, message, detail: json!({ "errors": faults }) }
    };
    let skill = skill::parse(&bytes, Some(name.as_str()), &|_| false).map_err(invalid)?;
    skill.check_content(sealed.content(), &bytes).map_err(|fault| invalid(vec![fault]))?;
    Ok(skill)
}

/// Starts an invocation and lets it go on by itself; the second is its standard input.
pub async fn start(broker: &Arc<Broker>, wanted: Wanted) -> Result<(Arc<Running>, OwnedFd), OperatorError> {
    let name = SkillName::new(&wanted.skill)
        .map_err(|e| OperatorError::new(Exit::USAGE, format!("'{}' is {e}", wanted.skill)))?;
    let tenant = tenant(broker, wanted.tenant.as_deref())?;
    let Shown { state, sealed } = shown(broker, &name).await?;
    let skill = load(&name, &sealed)?;
    if broker.config.require_signatures {
        skill
            .check_required_signature()
            .map_err(|fault| OperatorError::new(Exit::INVALID, format!("{name}/SKILL.md: {fault}")))?;
    }
    entry_point(&skill, &sealed)?;
    let approval = broker.approval(&skill)?;
    check_tenant(&skill, approval.as_ref(), tenant)
        .map_err(|why| OperatorError::new(Exit::NOT_PERMITTED, why))?;
    let (skill, grants) = compiled(broker, skill, approval).await?;

    let effort = effort(&wanted, grants.limits().effort_minutes)?;
    let invocation = Arc::new(Invocation {
        id: InvocationId::from_random(*Uuid::new_v4().as_bytes()),
        skill_id: skill.id.clone(),
        version: skill.version.clone(),
        tenant,
        trace: TraceId::new(random()?).ok_or_else(|| OperatorError::new(Exit::FAILED, "no randomness"))?,
        sync_private: skill.sync_class == SyncClass::Private,
    });
    let plan = plan(&skill, &invocation, &grants, &wanted.args, effort)?;
    let ending = Ending::default();
    let sandbox = Sandbox::new(&broker.helper, &ending);
    let socket = sandbox.create_socket(invocation.id).await;
    let (uid, listener) = socket.map_err(|e| refused(&e, &skill, &sealed))?;
    let parts = Parts {
        state,
        sealed,
        skill,
        grants,
        invocation: Arc::clone(&invocation),
        sandbox,
        uid,
        listener,
        effort,
    };
    let begun = begin(broker, &wanted, parts, plan).await;
    if begun.is_err() {
        // Whoever asked is told when nothing of it is left.
        ending.over().await;
        broker.forget(invocation.id);
        broker.logs.discard(&invocation.id.to_string());
    }
    begun
}

/// Compiles what the skill may do, on a thread that may wait: roots of rules are opened, and may be on a network.
pub async fn compiled(
    broker: &Arc<Broker>,
    skill: Skill,
    approval: Option<Approval>,
) -> Result<(Skill, Grants), OperatorError> {
    let broker = Arc::clone(broker);
    let work = tokio::task::spawn_blocking(move || {
        let grants = broker.grants(&skill, approval.as_ref());
        (skill, grants)
    });
    match tokio::time::timeout(VERDICT_LIMIT, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(OperatorError::new(Exit::FAILED, format!("the grants could not be compiled: {e}"))),
        Err(_) => Err(OperatorError::new(
            Exit::FAILED,
            "a directory that is to be granted did not answer within 35 s",
        )),
    }
}

struct Parts {
    state: SkillState,
    sealed: Arc<Sealed>,
    skill: Skill,
    grants: Grants,
    invocation: Arc<Invocation>,
    sandbox: Sandbox,
    uid: u32,
    listener: OwnedFd,
    effort: Duration,
}

/// From the socket on: everything here is undone when the sandbox is dropped.
async fn begin(
    broker: &Arc<Broker>,
    wanted: &Wanted,
    parts: Parts,
    plan: SpawnPlan,
) -> Result<(Arc<Running>, OwnedFd), OperatorError> {
    let Parts { state, sealed, skill, grants, invocation, sandbox, uid, listener, effort } = parts;
    let capture = broker.logs.create(&invocation.id.to_string());
    let capture = Arc::new(
        capture.map_err(|e| OperatorError::new(Exit::FAILED, format!("cannot keep the output: {e}")))?,
    );
    let copy =
        || sealed.root().try_clone_to_owned().map_err(|e| OperatorError::new(Exit::FAILED, e.to_string()));
    let (root, copy) = (copy()?, Arc::new(copy()?));
    let limits = Bounds::from(&plan.limits);
    let prepared = sandbox.prepare(plan, vec![root], &broker.config.require).await;
    let prepared = prepared.map_err(|e| not_prepared(&e, &skill, &sealed))?;
    warn_of_skipped(invocation.id, &prepared.report);
    let report = report_json(&prepared.report);
    let epoch = state.epoch.to_string();
    let row = InvokedStarted {
        caller: &wanted.caller,
        uid,
        args_hash: &broker.audit.hash(&args_json(&wanted.args)),
        verdict: state.verdict.as_str(),
        epoch: &epoch,
        content_digest: sealed.digest(),
        sandbox: report.clone(),
    };
    // Nothing of the skill has run before this row.
    if let Err(e) = broker.audit.invoked_started(&invocation, &row).await {
        return Err(OperatorError::new(Exit::REFUSED, format!("nothing runs unrecorded: {e}")));
    }
    let started = Instant::now();
    let program = match prepared.go().await {
        Ok(program) => program,
        Err(e) => {
            let why = refused(&e, &skill, &sealed);
            broker.audit.invoked_completed(&invocation, &Ended::not_started(&e, why.exit).row());
            return Err(why);
        }
    };
    let not_granted = broker.not_granted(&grants);
    let about = json!({
        "invocation_id": invocation.id.to_string(),
        "skill_id": invocation.skill_id,
        "version": invocation.version,
        "tenant_id": invocation.tenant.to_string(),
        "verdict": state.verdict.as_str(),
        "shown_version": state.version,
        "status": state.status,
        "reason": state.reason,
        "epoch": epoch,
        "content_digest": sealed.digest(),
        "uid": uid,
        "sandbox": report,
        "deadline_ms": millis(effort),
        "limits": limits,
        "not_granted": not_granted,
    });
    let running =
        Arc::new(Running::new(Arc::clone(&invocation), Arc::clone(&capture), about, started + effort));
    broker.remember(&running);
    let serving = broker.serving(&invocation, grants, copy, started + effort);
    let session = match session::serve(listener, uid, serving) {
        Ok(session) => session,
        Err(e) => {
            broker.audit.invoked_completed(&invocation, &Ended::aborted().row());
            return Err(OperatorError::new(Exit::FAILED, format!("cannot serve the socket: {e}")));
        }
    };
    let pump = tokio::spawn(capture.pump(program.stdout, program.stderr));
    let watch = Watch {
        running: Arc::clone(&running),
        session,
        sandbox,
        uid,
        audit: broker.audit.clone(),
        end: program.end,
        pump,
        started,
        effort,
    };
    let (view, on_hidden) = (broker.view.clone(), broker.config.on_hidden);
    tokio::spawn(Arc::clone(&running).watch_verdict(view, state.skill, on_hidden));
    let (broker, id) = (Arc::clone(broker), invocation.id);
    tokio::spawn(async move {
        // The copy is held until the last process that could read it has gone.
        let held = sealed;
        watch.run().await;
        drop(held);
        broker.forget(id);
        let logs = broker.logs.clone();
        tokio::task::spawn_blocking(move || logs.prune());
    });
    Ok((running, program.stdin))
}

fn random() -> Result<[u8; 16], OperatorError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| OperatorError::new(Exit::FAILED, format!("no randomness: {e}")))?;
    Ok(bytes)
}

fn effort(wanted: &Wanted, limit_minutes: u32) -> Result<Duration, OperatorError> {
    let minutes = match wanted.effort_minutes {
        Some(0) => return Err(OperatorError::new(Exit::USAGE, "--effort-minutes 0: at least 1")),
        Some(n) => n.min(limit_minutes),
        None => limit_minutes,
    };
    Ok(Duration::from_secs(u64::from(minutes) * 60))
}

/// The arguments as JSON: text as text, other bytes as their hex, which no text can be mistaken for.
fn args_json(args: &[Vec<u8>]) -> Value {
    args.iter()
        .map(|arg| match std::str::from_utf8(arg) {
            Ok(text) => Value::from(text),
            Err(_) => json!({ "hex": crate::audit::canonical::hex(arg) }),
        })
        .collect()
}

/// The tenant that an operator named or the configuration has.
pub fn tenant(broker: &Broker, given: Option<&str>) -> Result<TenantId, OperatorError> {
    match given {
        Some(text) => {
            text.parse().map_err(|e| OperatorError::new(Exit::USAGE, format!("--tenant {text}: {e}")))
        }
        None => Ok(broker.config.tenant),
    }
}
