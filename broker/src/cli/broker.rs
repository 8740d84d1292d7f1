//! `cyberos skill broker status|tail|replay` and their short forms (`[7.1]`): what the broker is doing and has done,
//! from the ledger.

use super::client::{ask, ask_items};
use super::{Context, output};
use crate::audit::Span;
use crate::exit::{Exit, OperatorError};
use crate::operator::Ask;
use crate::terminal::escape_line;
use clap::{Args, Subcommand};
use serde_json::Value;

/// The broker's status, live calls, and past runs
#[derive(Debug, Subcommand)]
pub(super) enum Broker {
    /// What the broker is doing, as JSON
    Status,
    Tail(Tail),
    Replay(Replay),
}

/// Show calls as they occur, a line each
#[derive(Debug, Args)]
pub(super) struct Tail {
    /// Only this invocation's, from its beginning to its end
    #[arg(long, value_name = "ID")]
    invocation: Option<String>,
}

/// Show the calls of a run, one after another, from the ledger
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The invocation's id
    #[arg(long, value_name = "ID")]
    invocation: String,
}

impl Broker {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        match self {
            Broker::Status => status(context).await,
            Broker::Tail(tail) => tail.run(context).await,
            Broker::Replay(replay) => replay.run(context).await,
        }
    }
}

/// `cyberos status`.
pub(super) async fn status(context: &Context) -> Result<Exit, OperatorError> {
    let (_, answer) = ask(&context.socket, Ask::Status {}).await?;
    // JSON for a person too, one field a line (`[7.1]` names the shape).
    if context.json {
        output::json(&answer);
    } else {
        output::pretty(&answer);
    }
    Ok(Exit::OK)
}

impl Tail {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let ask = Ask::Tail { invocation: self.invocation };
        ask_items(&context.socket, ask, |row| {
            if context.json {
                output::json(&row);
            } else if let Some(line) = happening(&row) {
                output::line!("{line}");
            }
        })
        .await?;
        Ok(Exit::OK)
    }
}

/// A line for what matters in a row; none for a started row, whose end follows.
fn happening(row: &Value) -> Option<String> {
    let extra = &row["extra"];
    let what = match row["op"].as_str()? {
        "skill.invoked_started" => {
            format!("begins ({} {})", output::text(extra, "verdict"), output::text(extra, "version"))
        }
        "skill.tool_call_completed" => call(
            extra,
            &format!("{} in {} ms", output::text(extra, "outcome"), output::text(extra, "duration_ms")),
        ),
        "skill.tool_denied" => call(extra, &format!("denied: {}", output::text(extra, "reason"))),
        "skill.invoked_completed" => format!("ends: {}", output::text(extra, "outcome")),
        "skill.calls_unrecorded" => format!(
            "{}: refused, without rows of their own (the run's rows have used up their quota)",
            unrecorded(extra, "first_call", "last_call")
        ),
        "skill.timeout" => "was killed at its deadline".into(),
        "skill.no_connect" => "did not connect".into(),
        _ => return None,
    };
    let id = output::text(extra, "invocation_id");
    Some(format!(
        "{}  {}  {}  {what}",
        output::text(row, "time"),
        id.get(..8).unwrap_or(&id),
        output::text(extra, "skill_id")
    ))
}

/// `17 of the calls 4 to 30`, from the fields of a row or of a record.
fn unrecorded(of: &Value, first: &str, last: &str) -> String {
    let number = |field: &str| of[field].as_u64().unwrap_or(0);
    Span { first: number(first), last: number(last), count: number("count") }.to_string()
}

fn call(extra: &Value, what: &str) -> String {
    format!("call {} {} {what}", output::text(extra, "call"), output::word(extra, "tool_name"))
}

impl Replay {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let (_, told) = ask(&context.socket, Ask::Replay { invocation: self.invocation }).await?;
        if context.json {
            output::json(&told);
            return Ok(Exit::OK);
        }
        let began = &told["started"]["extra"];
        output::line!(
            "{} {} as uid {}, tenant {}, shown {}, copy {}",
            output::text(began, "skill_id"),
            output::text(began, "version"),
            output::text(began, "uid"),
            output::text(began, "tenant_id"),
            output::text(began, "verdict"),
            output::text(began, "content_digest")
        );
        for record in told["calls"].as_array().into_iter().flatten() {
            let took = record["duration_ms"].as_u64().map(|ms| format!(" in {ms} ms")).unwrap_or_default();
            let why = record["denial"]["reason"]
                .as_str()
                .map(|r| format!(": {}", escape_line(r)))
                .unwrap_or_default();
            output::line!(
                "{:>5}  {}  {}{took}{why}",
                output::text(record, "call"),
                output::word(record, "tool_name"),
                output::text(record, "outcome")
            );
        }
        for span in told["unrecorded"].as_array().into_iter().flatten() {
            output::line!(
                "       {}: refused, without rows of their own (ledger_quota)",
                unrecorded(span, "first", "last")
            );
        }
        output::line!("ended: {}", output::text(&told["completed"]["extra"], "outcome"));
        Ok(Exit::OK)
    }
}
