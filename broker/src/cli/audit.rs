//! `cyberos audit`: verify and read the ledger, through the broker or, where it can be read, straight from its folder.

use super::accept_loss::AcceptLoss;
use super::client::ask_items;
use super::{Context, output};
use crate::exit::{Exit, OperatorError};
use crate::operator::Ask;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Verify and read the audit ledger
#[derive(Debug, Subcommand)]
pub(super) enum Audit {
    /// Check the whole ledger, and compare it with what the broker and its state directory know
    Verify {
        /// Read this store (the folder that holds audit/ and HEAD) instead of asking the broker
        #[arg(long, value_name = "DIR")]
        store: Option<PathBuf>,
    },
    /// Show rows of the ledger
    Show(Show),
    AcceptLoss(AcceptLoss),
}

/// Which rows
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Read this store instead of asking the broker
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Only rows since this time: RFC 3339, or a duration back from now (10m, 2h, 3d)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only this skill's
    #[arg(long, value_name = "ID")]
    skill: Option<String>,
    /// Only this invocation's
    #[arg(long, value_name = "ID")]
    invocation: Option<String>,
    /// Only this kind (skill.tool_denied, …)
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only refusals
    #[arg(long)]
    denied: bool,
}

impl Audit {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        match self {
            Audit::Verify { store } => {
                let report = match store {
                    Some(store) => crate::audit::answer::verify(&store, None)
                        .map_err(|e| OperatorError::new(Exit::FAILED, e))?,
                    None => super::client::ask(&context.socket, Ask::AuditVerify {}).await?.1,
                };
                let broken = report["ok"] != Value::Bool(true);
                if context.json {
                    output::json(&report);
                } else if broken {
                    output::line!(
                        "the ledger is BROKEN at seq {}: {}",
                        output::text(&report, "first_bad_seq"),
                        output::text(&report, "what")
                    );
                } else {
                    output::line!(
                        "the ledger is whole: {} rows, chain {}; open calls {}, open invocations {}",
                        output::text(&report, "rows"),
                        output::text(&report, "chain"),
                        report["open_calls"].as_array().map_or(0, Vec::len),
                        report["open_invocations"].as_array().map_or(0, Vec::len),
                    );
                    for dropped in report["dropped"].as_array().into_iter().flatten() {
                        output::line!("{}", dropped_line(dropped));
                    }
                    for step in report["clock_steps"].as_array().into_iter().flatten() {
                        let seconds = step["step_ms"].as_i64().unwrap_or(0) / 1000;
                        let way = if seconds < 0 { "back" } else { "forward" };
                        output::line!(
                            "the clock was set {way} by {} s (row {})",
                            seconds.unsigned_abs(),
                            output::text(step, "seq")
                        );
                    }
                }
                Ok(if broken { Exit::LEDGER_BROKEN } else { Exit::OK })
            }
            Audit::Show(show) => show.run(context).await,
            Audit::AcceptLoss(accept) => accept.run(context),
        }
    }
}

/// Rows that are missing because the operator said so.
fn dropped_line(dropped: &Value) -> String {
    let at = |key: &str| {
        let ns = dropped[key].as_u64().unwrap_or(0);
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
    };
    format!(
        "{} rows were dropped by audit.on_failure: {}, from {} to {} (row {}): {}",
        output::text(dropped, "count"),
        output::text(dropped, "policy"),
        at("from_ts_ns"),
        at("to_ts_ns"),
        output::text(dropped, "seq"),
        output::text(dropped, "why"),
    )
}

impl Show {
    async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let print = |row: Value| {
            if context.json {
                output::json(&row);
            } else {
                output::line!("{}", line(&row));
            }
        };
        let Show { store, since, skill, invocation, kind, denied } = self;
        let words = (since.clone(), skill.clone(), invocation.clone(), kind.clone());
        // Read here in any case: what is wrong with them is said before anybody is asked.
        let filter = crate::audit::answer::filter(words.0, words.1, words.2, words.3, denied)
            .map_err(|e| OperatorError::new(Exit::USAGE, e))?;
        match store {
            Some(store) => {
                crate::audit::answer::show(&store, &filter, print)
                    .map_err(|e| OperatorError::new(Exit::FAILED, e))?;
            }
            None => {
                let ask = Ask::AuditShow { since, skill, invocation, kind, denied };
                ask_items(&context.socket, ask, print).await?;
            }
        }
        Ok(Exit::OK)
    }
}

/// One row for a person: number, time, kind, and what its payload says.
fn line(row: &Value) -> String {
    let mut out = format!(
        "{:>6}  {}  {}",
        output::text(row, "seq"),
        output::text(row, "time"),
        output::text(row, "op")
    );
    if let Some(extra) = row["extra"].as_object() {
        for (key, value) in extra {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let quoted = crate::terminal::quoted;
            out.push_str(&format!("  {}={}", quoted(key), quoted(&value)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_cannot_drive_the_terminal_with_anything_in_it() {
        let hostile = "\u{1b}[2J\u{202e}\n";
        let row = json!({"seq": 1, "time": hostile, "op": hostile, "extra": {hostile: {hostile: [hostile]}}});
        let shown = line(&row);
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\n']), "{shown:?}");
    }

    #[test]
    fn dropped_rows_are_said_with_their_number_their_time_and_the_policy() {
        let dropped = json!({
            "seq": 9, "count": 4, "policy": "continue", "from_ts_ns": 1_000_000_000, "to_ts_ns": 62_000_000_000u64,
            "why": "5 rows wait in memory (cannot write: No space left on device)"
        });
        let said = dropped_line(&dropped);
        for part in [
            "4 rows",
            "on_failure: continue",
            "1970-01-01T00:00:01Z to 1970-01-01T00:01:02Z",
            "row 9",
            "No space",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_value_cannot_pass_for_another_field() {
        let hostile = "Read  skill_id=trusted  reason=none";
        let row =
            json!({"seq": 1, "time": "t", "op": "o", "extra": {"tool_name": hostile, "skill_id": "evil"}});
        let shown = line(&row);
        assert!(shown.ends_with(&format!("  tool_name=\"{hostile}\"  skill_id=evil")), "{shown}");
    }
}
