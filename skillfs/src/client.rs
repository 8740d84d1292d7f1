//! The operator's side of the control socket: asks, and prints for a person or as JSON.

use crate::cli::Client;
use cyberos_proto::control::{ControlReply, ControlRequest, SkillState, Status};
use cyberos_proto::ids::SkillName;
use cyberos_proto::link::{Link, LinkError, Wait};
use cyberos_proto::terminal::is_unfit;
use serde_json::{Value, json};
use std::io::Write;

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody there, or not permitted.
    #[error("no SkillFS at {0}: {1} (is it running, and are you in the socket's group?)")]
    Link(String, LinkError),
    /// No skill of that name.
    #[error("no skill {0:?} in the source")]
    NoSuchSkill(String),
    /// An answer to another question.
    #[error("SkillFS gave no fitting answer (another version?)")]
    NoReply,
    /// The output cannot be written.
    #[error("cannot print: {0}")]
    Print(std::io::Error),
}

// By hand: as a `source` it would be printed a second time by whoever prints the chain.
impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        ClientError::Print(error)
    }
}

impl ClientError {
    /// Exit status: 4 for no service, 1 for the rest.
    pub fn exit_status(&self) -> u8 {
        if matches!(self, ClientError::Link(..)) { 4 } else { 1 }
    }
}

struct Asker {
    link: Link<ControlRequest, ControlReply>,
    path: String,
}

impl Asker {
    fn connect(client: &Client) -> Result<Self, ClientError> {
        let path = client.control.display().to_string();
        match Link::connect(&client.control) {
            Ok(link) => Ok(Asker { link, path }),
            Err(e) => Err(ClientError::Link(path, e)),
        }
    }

    fn ask(&self, request: &ControlRequest) -> Result<ControlReply, ClientError> {
        let failed = |e| ClientError::Link(self.path.clone(), e);
        self.link.send(request, &[], Wait::Block).map_err(failed)?;
        Ok(self.link.receive(Wait::Block).map_err(failed)?.0)
    }
}

/// `skillfs status`
pub fn status(client: &Client) -> Result<(), ClientError> {
    let asker = Asker::connect(client)?;
    let mut whole: Option<Status> = None;
    loop {
        let after = whole.as_ref().and_then(|s| s.skills.last()).map(|s| s.skill.clone());
        let ControlReply::Status(page) = asker.ask(&ControlRequest::Status { after })? else {
            return Err(ClientError::NoReply);
        };
        let more = page.more && !page.skills.is_empty();
        match &mut whole {
            None => whole = Some(page),
            Some(whole) => whole.skills.extend(page.skills),
        }
        if !more {
            break;
        }
    }
    let Some(status) = whole else { return Err(ClientError::NoReply) };
    let mut out = std::io::stdout().lock();
    if client.json {
        return print_json(&mut out, &json_status(&status));
    }
    writeln!(out, "mount     {} ({})", plain(&status.mount), if status.mounted { "up" } else { "down" })?;
    for source in &status.sources {
        writeln!(out, "source    {}", plain(source))?;
    }
    let command = status.decision_command.as_deref().unwrap_or("none: everything is shown (--unprotected)");
    writeln!(out, "provider  {}", plain(command))?;
    writeln!(out, "skills    {}, {} not decided", status.total, status.undecided)?;
    for s in &status.skills {
        let pending = if s.pending { ", pending" } else { "" };
        let why: Vec<String> = [&s.reason, &s.warning].into_iter().flatten().map(|r| plain(r)).collect();
        let why = why.join("; ");
        writeln!(out, "{:9} {} ({}{pending}) {why}", s.verdict, plain(s.skill.as_str()), plain(&s.status))?;
    }
    Ok(())
}

/// `skillfs explain SKILL`
pub fn explain(client: &Client, skill: &SkillName) -> Result<(), ClientError> {
    let request = ControlRequest::Explain { skill: skill.clone() };
    match Asker::connect(client)?.ask(&request)? {
        ControlReply::Skill(state) => print_skill(client, &state),
        ControlReply::NoSuchSkill => Err(ClientError::NoSuchSkill(skill.to_string())),
        _ => Err(ClientError::NoReply),
    }
}

/// `skillfs refresh [SKILL]`
pub fn refresh(client: &Client, skill: Option<&SkillName>) -> Result<(), ClientError> {
    let asker = Asker::connect(client)?;
    let decided = match asker.ask(&ControlRequest::Refresh { skill: skill.cloned() })? {
        ControlReply::Refreshed { decided } => decided,
        ControlReply::NoSuchSkill => {
            return Err(ClientError::NoSuchSkill(skill.map(ToString::to_string).unwrap_or_default()));
        }
        _ => return Err(ClientError::NoReply),
    };
    if let Some(skill) = skill {
        return match asker.ask(&ControlRequest::Explain { skill: skill.clone() })? {
            ControlReply::Skill(state) => print_skill(client, &state),
            _ => Err(ClientError::NoReply),
        };
    }
    let mut out = std::io::stdout().lock();
    if client.json {
        return print_json(&mut out, &json!({ "decided": decided }));
    }
    Ok(writeln!(out, "{decided} decided")?)
}

fn print_skill(client: &Client, s: &SkillState) -> Result<(), ClientError> {
    let mut out = std::io::stdout().lock();
    if client.json {
        return print_json(&mut out, &json_skill(s));
    }
    let pending = if s.pending { " (a change is not decided yet)" } else { "" };
    writeln!(out, "skill     {}", plain(s.skill.as_str()))?;
    writeln!(out, "verdict   {}{pending}", s.verdict)?;
    writeln!(out, "status    {}", plain(&s.status))?;
    let rows = [
        ("reason", &s.reason),
        ("warning", &s.warning),
        ("version", &s.version),
        ("target", &s.target),
        ("digest", &s.content_digest),
    ];
    for (name, text) in rows.into_iter().filter_map(|(n, t)| Some((n, t.as_ref()?))) {
        writeln!(out, "{name:9} {}", plain(text))?;
    }
    Ok(writeln!(out, "epoch     {}", s.epoch)?)
}

fn print_json(out: &mut impl Write, value: &Value) -> Result<(), ClientError> {
    Ok(writeln!(out, "{value}")?)
}

/// What a provider says must not move the reader's terminal.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() || is_unfit(c) { c.escape_unicode().collect() } else { vec![c] })
        .collect()
}

fn json_skill(s: &SkillState) -> Value {
    json!({
        "skill": s.skill.as_str(),
        "verdict": s.verdict.as_str(),
        "target": s.target,
        "version": s.version,
        "status": s.status,
        "reason": s.reason,
        "warning": s.warning,
        "epoch": s.epoch.to_string(),
        "pending": s.pending,
        "content_digest": s.content_digest,
    })
}

fn json_status(s: &Status) -> Value {
    json!({
        "mount": s.mount,
        "mounted": s.mounted,
        "sources": s.sources,
        "decision_command": s.decision_command,
        "total": s.total,
        "undecided": s.undecided,
        "skills": s.skills.iter().map(json_skill).collect::<Vec<_>>(),
    })
}
