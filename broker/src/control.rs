//! The operator's socket: who may connect, one question a connection, and the answers. Each question is a few lines
//! that call the library; a run's connection stays for its output, and an operator who leaves a run that he waits
//! for stops it. It decides nothing about calls.

mod listen;
mod relay;

pub use self::listen::listen;
use self::relay::relay;
use crate::approvals::{Approval, Wishes};
use crate::audit::Span;
use crate::exit::{Exit, OperatorError};
use crate::invocation::Running;
use crate::operator::{Ask, FrameKind, Question, Tell, VERSION, read_frame, skill_json, write_json};
use crate::overview;
use crate::run::Wanted;
use crate::service::Broker;
use anyhow::Result;
use cyberos_proto::ids::{InvocationId, SkillName};
use interprocess::local_socket::tokio::{Listener, Stream as Connection};
use interprocess::local_socket::traits::StreamCommon as _;
use interprocess::local_socket::traits::tokio::Listener as _;
use nix::unistd::User;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// How long a question may take to arrive.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);

/// Serves until the task is dropped.
pub async fn serve(broker: Arc<Broker>, listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                let broker = Arc::clone(&broker);
                tokio::spawn(async move {
                    if let Err(e) = converse(&broker, connection).await {
                        tracing::debug!(error = %e, "an operator's connection ended early");
                    }
                });
            }
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept an operator's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(broker: &Arc<Broker>, connection: Connection) -> std::io::Result<()> {
    let uid = connection.peer_creds()?.euid();
    // Both directions at once: reading and writing go through shared references.
    let (mut from, mut to) = (&connection, &connection);
    let failed = |exit, message: String| Tell::Failed(OperatorError::new(exit, message));
    let question = match tokio::time::timeout(QUESTION_LIMIT, read_frame(&mut from)).await {
        Ok(Ok(Some((FrameKind::Json, bytes)))) => serde_json::from_slice::<Question>(&bytes),
        _ => return Ok(()),
    };
    // Only now, so that whoever is refused has sent all and reads why.
    let Some(uid) = uid.filter(|uid| !broker.helper.leases(*uid)) else {
        return write_json(&mut to, &failed(Exit::NOT_PERMITTED, "a sandbox is not an operator".into()))
            .await;
    };
    let ask = match question {
        Ok(q) if q.version == VERSION => q.ask,
        Ok(q) => {
            let message = format!(
                "this broker speaks version {VERSION} of the operator's exchange, not {}: use the CLI of the \
                 same install",
                q.version
            );
            return write_json(&mut to, &failed(Exit::NOT_PERMITTED, message)).await;
        }
        Err(e) => {
            return write_json(
                &mut to,
                &failed(Exit::USAGE, format!("the broker does not understand the question: {e}")),
            )
            .await;
        }
    };
    let last = match answer(broker, uid, ask, from, &mut to).await {
        Ok(Some(last)) => last,
        Ok(None) => return Ok(()),
        Err(error) => Tell::Failed(error),
    };
    write_json(&mut to, &last).await
}

fn done(answer: Value) -> Option<Tell> {
    Some(Tell::Done { exit: Exit::OK, answer })
}

fn lost(e: std::io::Error) -> OperatorError {
    OperatorError::new(Exit::NOT_PERMITTED, format!("the operator went away: {e}"))
}

fn skill_name(text: &str) -> Result<SkillName, OperatorError> {
    SkillName::new(text).map_err(|e| OperatorError::new(Exit::USAGE, format!("'{text}' is {e}")))
}

/// Answers one question; none when the operator has gone.
async fn answer(
    broker: &Arc<Broker>,
    uid: u32,
    ask: Ask,
    from: &Connection,
    to: &mut &Connection,
) -> Result<Option<Tell>, OperatorError> {
    Ok(match ask {
        Ask::Run { skill, tenant, effort_minutes, stdin, detach, args } => {
            let wanted = Wanted { skill, tenant, effort_minutes, args, caller: uid.to_string() };
            return run(broker, wanted, stdin, detach, from, to).await;
        }
        Ask::Stop { invocation } => {
            let running = find(broker, &invocation)?;
            running.stop();
            let ended = end_of(&running).await;
            done(running.answer(&ended))
        }
        Ask::Wait { invocation } => match find(broker, &invocation) {
            Ok(running) => {
                let ended = end_of(&running).await;
                Some(Tell::Done { exit: ended.status(), answer: running.answer(&ended) })
            }
            // It may have ended before it was waited for; then the ledger knows how.
            Err(_) => {
                let read = |store: &Path, id: &str, untold| crate::audit::answer::replay(store, id, untold);
                let told = told(broker, parse_id(&invocation)?, read).await?;
                let row = &told["completed"]["extra"];
                Some(Tell::Done { exit: crate::invocation::status_of_row(row), answer: row.clone() })
            }
        },
        Ask::Logs { invocation, follow } => {
            let id = parse_id(&invocation)?;
            let capture = match broker.running(&id) {
                Some(running) => Arc::clone(&running.capture),
                None => {
                    let id = id.to_string();
                    let kept = broker.logs.reopen(&id);
                    Arc::new(kept.map_err(|_| OperatorError::new(Exit::FAILED, broker.logs.why_not(&id)))?)
                }
            };
            relay(&capture, follow, None, to).await.map_err(lost)?;
            let (stdout, stderr) = (capture.stdout.cut(), capture.stderr.cut());
            done(json!({ "invocation_id": id.to_string(), "stdout_cut": stdout, "stderr_cut": stderr }))
        }
        Ask::Status {} => done(overview::status(broker).await),
        Ask::List {} => {
            for state in broker.view.status().await?.skills {
                write_json(to, &Tell::Item { item: skill_json(&state) }).await.map_err(lost)?;
            }
            done(Value::Null)
        }
        Ask::Show { skill } => done(overview::show(broker, &skill_name(&skill)?).await?),
        Ask::Approve { skill, wishes, tenant } => {
            done(approve(broker, uid, &skill_name(&skill)?, &wishes, tenant.as_deref()).await?)
        }
        Ask::Explain { skill } => done(skill_json(&broker.view.explain(&skill_name(&skill)?).await?)),
        Ask::Refresh { skill } => {
            let name = skill.as_deref().map(skill_name).transpose()?;
            done(json!({ "decided": broker.view.refresh(name.as_ref()).await? }))
        }
        Ask::Tail { invocation } => {
            let id = invocation.as_deref().map(parse_id).transpose()?;
            return tail(broker, id, from, to).await;
        }
        Ask::Replay { invocation } => {
            let read = |store: &Path, id: &str, untold| crate::audit::answer::replay(store, id, untold);
            done(told(broker, parse_id(&invocation)?, read).await?)
        }
        Ask::Why { invocation, call } => {
            let read =
                move |store: &Path, id: &str, untold| crate::audit::answer::why(store, id, call, untold);
            done(told(broker, parse_id(&invocation)?, read).await?)
        }
        Ask::AuditVerify {} => {
            let (store, known) = (broker.audit.store().to_owned(), broker.audit.known());
            let verified =
                tokio::task::spawn_blocking(move || crate::audit::answer::verify(&store, known)).await;
            done(
                verified
                    .map_err(|e| OperatorError::new(Exit::FAILED, e.to_string()))?
                    .map_err(|e| OperatorError::new(Exit::FAILED, e))?,
            )
        }
        Ask::AuditShow { since, skill, invocation, kind, denied } => {
            let filter = crate::audit::answer::filter(since, skill, invocation, kind, denied)
                .map_err(|e| OperatorError::new(Exit::USAGE, e))?;
            let store = broker.audit.store().to_owned();
            let (rows, mut ready) = tokio::sync::mpsc::channel(256);
            let reading = tokio::task::spawn_blocking(move || {
                crate::audit::answer::show(&store, &filter, |row| drop(rows.blocking_send(row)))
            });
            while let Some(item) = ready.recv().await {
                write_json(to, &Tell::Item { item }).await.map_err(lost)?;
            }
            reading
                .await
                .map_err(|e| OperatorError::new(Exit::FAILED, e.to_string()))?
                .map_err(|e| OperatorError::new(Exit::FAILED, e))?;
            done(Value::Null)
        }
    })
}

/// What the ledger tells of an invocation.
async fn told(
    broker: &Broker,
    id: InvocationId,
    read: impl FnOnce(&Path, &str, Option<Span>) -> Result<Option<Value>, String> + Send + 'static,
) -> Result<Value, OperatorError> {
    let (store, untold) = (broker.audit.store().to_owned(), broker.audit.unrecorded(id).untold);
    let reading = tokio::task::spawn_blocking(move || read(&store, &id.to_string(), untold));
    let told = reading
        .await
        .map_err(|e| OperatorError::new(Exit::FAILED, e.to_string()))?
        .map_err(|e| OperatorError::new(Exit::FAILED, e))?;
    told.ok_or_else(|| OperatorError::new(Exit::FAILED, format!("the ledger knows no invocation {id}")))
}

/// Sends rows as they come, until the operator leaves, the broker stops, or the invocation that is followed ends.
async fn tail(
    broker: &Broker,
    id: Option<InvocationId>,
    mut from: &Connection,
    to: &mut &Connection,
) -> Result<Option<Tell>, OperatorError> {
    let id = id.map(|id| id.to_string());
    if let Some(id) = &id
        && !broker.every().iter().any(|r| r.invocation.id.to_string() == *id)
    {
        let known = id.parse().map_err(|_| OperatorError::new(Exit::USAGE, "not an invocation"))?;
        let read = |store: &Path, id: &str, untold| crate::audit::answer::replay(store, id, untold);
        told(broker, known, read).await?;
    }
    // Of one invocation from its beginning, else from now on.
    let mut rows = broker.audit.follow(id.as_ref().map(|_| 1));
    loop {
        let row = tokio::select! {
            row = rows.next() => row.map_err(|e| OperatorError::new(Exit::FAILED, format!("the ledger cannot be followed: {e}")))?,
            _ = read_frame(&mut from) => return Ok(None),
        };
        let Some(row) = row else { return Ok(done(Value::Null)) };
        if id.is_some() && row.text("invocation_id") != id.as_deref() {
            continue;
        }
        write_json(to, &Tell::Item { item: crate::audit::answer::row_json(&row) }).await.map_err(lost)?;
        if id.is_some() && row.op == "skill.invoked_completed" {
            return Ok(done(Value::Null));
        }
    }
}

fn parse_id(text: &str) -> Result<InvocationId, OperatorError> {
    text.parse().map_err(|e| OperatorError::new(Exit::USAGE, format!("'{text}' is {e}")))
}

fn find(broker: &Broker, text: &str) -> Result<Arc<Running>, OperatorError> {
    let id = parse_id(text)?;
    broker
        .running(&id)
        .ok_or_else(|| OperatorError::new(Exit::FAILED, format!("no invocation {id} is running")))
}

async fn end_of(running: &Running) -> crate::invocation::Ended {
    let mut ended = running.ended();
    loop {
        if let Some(ended) = ended.borrow_and_update().clone() {
            return ended;
        }
        if ended.changed().await.is_err() {
            // Unreachable while `running` is held; an end without a name is an abort.
            return crate::invocation::Ended::aborted();
        }
    }
}

async fn approve(
    broker: &Arc<Broker>,
    uid: u32,
    name: &SkillName,
    seen: &str,
    tenant: Option<&str>,
) -> Result<Value, OperatorError> {
    let shown = crate::run::shown(broker, name).await?;
    let skill = crate::run::load(name, &shown.sealed)?;
    if Wishes::of(&skill).digest() != seen {
        return Err(OperatorError::new(
            Exit::FAILED,
            format!(
                "{name} asks for something else now than what was shown: look again with 'cyberos skill show {name}'"
            ),
        ));
    }
    let tenant = crate::run::tenant(broker, tenant)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let by = User::from_uid(uid.into()).ok().flatten().map_or_else(|| uid.to_string(), |u| u.name);
    broker
        .approvals
        .record(&Approval::new(&skill, tenant, &by, now))
        .map_err(|e| OperatorError::new(Exit::FAILED, format!("the approval could not be recorded: {e}")))?;
    overview::show(broker, name).await
}

async fn run(
    broker: &Arc<Broker>,
    wanted: Wanted,
    stdin: bool,
    detach: bool,
    mut from: &Connection,
    to: &mut &Connection,
) -> Result<Option<Tell>, OperatorError> {
    let (running, pipe) = crate::run::start(broker, wanted).await?;
    // Without --stdin the program reads the end of its input at once.
    let mut input = match stdin && !detach {
        true => pipe::Sender::from_owned_fd(pipe).ok(),
        false => {
            drop(pipe);
            None
        }
    };
    let told =
        Tell::Started { invocation: running.invocation.id.to_string(), started: running.about.clone() };
    if detach {
        write_json(to, &told).await.map_err(lost)?;
        return Ok(done(running.about.clone()));
    }
    let mut hidden = running.hidden();
    let (pieces, mut waiting) = mpsc::channel(2);
    let (took, taken) = mpsc::channel(2);
    let output = async {
        write_json(to, &told).await?;
        relay(&running.capture, true, Some(taken), to).await?;
        let why = hidden.borrow_and_update().clone();
        if let Some(why) = why {
            write_json(to, &Tell::Item { item: json!({ "hidden": why }) }).await?;
        }
        Ok::<(), std::io::Error>(())
    };
    // The connection is read all the time, so that an operator who leaves is noticed also while the program does not
    // read: the CLI sends a piece only when the one before has been taken.
    let gone = async {
        loop {
            match read_frame(&mut from).await {
                Ok(Some((FrameKind::Stdin, bytes))) => {
                    if pieces.try_send(bytes).is_err() {
                        return;
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    };
    let feed = async {
        while let Some(bytes) = waiting.recv().await {
            // The end of input, or a program that has closed it.
            let over = bytes.is_empty()
                || match &mut input {
                    Some(pipe) => pipe.write_all(&bytes).await.is_err(),
                    None => true,
                };
            if over {
                input = None;
            }
            let _ = took.send(()).await;
        }
        std::future::pending::<()>().await
    };
    let present = tokio::select! {
        sent = output => sent.is_ok(),
        () = gone => false,
        () = feed => false,
    };
    if !present {
        running.stop();
        return Ok(None);
    }
    let ended = end_of(&running).await;
    Ok(Some(Tell::Done { exit: ended.status(), answer: running.answer(&ended) }))
}
