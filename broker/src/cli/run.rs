//! `cyberos skill run`, `logs` and `wait`: a conversation with the broker in which a program's output passes.

use super::client::{lost, open, parse};
use super::output::Relay;
use super::{Context, output};
use crate::diagnosis::{Death, told};
use crate::exit::{Exit, OperatorError};
use crate::operator::{Ask, FrameKind, Tell, read_frame, write_frame};
use clap::Args;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

/// Run a skill as SkillFS shows it
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The skill's name in the view
    skill: String,
    /// Whose memory it works on [default: the configured tenant]
    #[arg(long, value_name = "UUID")]
    tenant: Option<String>,
    /// A lower deadline than the skill's own
    #[arg(long, value_name = "N")]
    effort_minutes: Option<u32>,
    /// Hand standard input on to the skill
    #[arg(long)]
    stdin: bool,
    /// Print the invocation's id and don't wait
    #[arg(long, conflicts_with = "stdin")]
    detach: bool,
    /// Show control characters escaped, as on a terminal, also when the output is a file or a pipe
    #[arg(long)]
    escape: bool,
    /// Arguments for the skill
    #[arg(last = true, value_name = "ARG")]
    args: Vec<OsString>,
}

impl Run {
    /// Runs it; the exit status is the skill's.
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let ask = Ask::Run {
            skill: self.skill,
            tenant: self.tenant,
            effort_minutes: self.effort_minutes,
            stdin: self.stdin,
            detach: self.detach,
            args: self.args.into_iter().map(OsString::into_vec).collect(),
        };
        Conversation {
            json: context.json,
            escape: self.escape,
            stdin: self.stdin && !self.detach,
            announce: self.detach,
        }
        .hold(&context.socket, ask)
        .await
    }
}

/// What differs between the commands that show a program's output.
pub(super) struct Conversation {
    pub(super) json: bool,
    pub(super) escape: bool,
    pub(super) stdin: bool,
    /// Whether the invocation's id is the answer.
    pub(super) announce: bool,
}

impl Conversation {
    /// Asks, relays output both ways, and returns the exit status. An interrupt stops a run that we wait for: the
    /// broker sees that we have gone.
    pub(super) async fn hold(self, socket: &Path, ask: Ask) -> Result<Exit, OperatorError> {
        let stream = Arc::new(open(socket, ask).await?);
        let mut from = &*stream;
        let (took, mut taken) = mpsc::channel(2);
        let feeding = self.stdin.then(|| {
            let stream = Arc::clone(&stream);
            tokio::spawn(async move {
                let mut to = &*stream;
                let mut stdin = tokio::io::stdin();
                let mut buffer = vec![0u8; 64 * 1024];
                loop {
                    let n = stdin.read(&mut buffer).await.unwrap_or(0);
                    if write_frame(&mut to, FrameKind::Stdin, &buffer[..n]).await.is_err() || n == 0 {
                        // Kept open: a closed direction would look like an operator who has gone.
                        std::future::pending::<()>().await;
                    }
                    let _ = taken.recv().await;
                }
            })
        });
        let mut out = Relay::stdout(self.escape);
        let mut err = Relay::stderr(self.escape);
        let mut last_words = Vec::new();
        let mut started = Value::Null;
        let mut invocation: Option<String> = None;
        // With --json standard output is the answer's alone, and the skill's goes to standard error.
        let result = loop {
            let frame = match (read_frame(&mut from).await, &invocation) {
                (Ok(Some(frame)), _) => frame,
                (Ok(None) | Err(_), Some(id)) => break Err(gone(id)),
                (Ok(None), None) => {
                    break Err(OperatorError::new(Exit::NOT_PERMITTED, "the broker went away"));
                }
                (Err(e), None) => break Err(lost(e)),
            };
            // Java says on standard output that it has no memory.
            if let (FrameKind::Stdout | FrameKind::Stderr, bytes) = &frame {
                keep_last(&mut last_words, bytes);
            }
            match &frame {
                (FrameKind::Stderr, bytes) => output::relayed_to_stderr(bytes),
                (FrameKind::Stdout, bytes) if self.json => output::relayed_to_stderr(bytes),
                _ => {}
            }
            let written = match &frame {
                (FrameKind::Stdout, bytes) if !self.json => out.write(&mut std::io::stdout(), bytes),
                (FrameKind::Stdout | FrameKind::Stderr, bytes) => err.write(&mut std::io::stderr(), bytes),
                _ => Ok(()),
            };
            if let Err(e) = written {
                // Leaving stops the run: nobody reads what it prints any more.
                return Ok(output::unwritten(&e));
            }
            match frame {
                (FrameKind::Stdout | FrameKind::Stderr, _) => {}
                (FrameKind::Stdin, _) => drop(took.try_send(())),
                (FrameKind::Json, bytes) => match parse(&bytes)? {
                    Tell::Started { invocation: id, started: about } => {
                        self.begun(&id, &about);
                        started = about;
                        invocation = Some(id);
                    }
                    Tell::Item { item } => {
                        if let Some(why) = item["hidden"].as_str().filter(|_| !self.json) {
                            output::note!("cyberos: {}", crate::terminal::escape_line(why));
                        }
                    }
                    Tell::Done { exit, answer } => break Ok((exit, answer)),
                    Tell::Failed(error) => break Err(error),
                },
            }
        };
        if let Some(task) = feeding {
            task.abort();
        }
        if let Err(e) = out.finish(&mut std::io::stdout()).and_then(|()| err.finish(&mut std::io::stderr())) {
            return Ok(output::unwritten(&e));
        }
        let (exit, answer) = result?;
        if self.json {
            output::json(&match (started.is_null(), self.announce) {
                // Only what was kept is told.
                (true, _) => answer,
                // Nothing has ended.
                (false, true) => serde_json::json!({ "started": started }),
                (false, false) => serde_json::json!({ "started": started, "ended": answer }),
            });
        } else {
            if !self.announce {
                explain(exit, &answer, &String::from_utf8_lossy(&last_words));
            }
            tell_cuts(&answer);
        }
        Ok(exit)
    }

    fn begun(&self, invocation: &str, about: &Value) {
        if self.announce && !self.json {
            output::line!("{invocation}");
        }
        if self.json {
            return;
        }
        if let Some(told) = not_the_folder(about) {
            output::note!("cyberos: {told}");
        }
        for wish in about["not_granted"].as_array().into_iter().flatten() {
            output::note!(
                "cyberos: not granted: {}",
                crate::terminal::escape_line(wish.as_str().unwrap_or_default())
            );
        }
    }
}

/// That what runs is a snapshot and not the folder as it is now: whoever has just edited it must not wonder.
fn not_the_folder(about: &Value) -> Option<String> {
    let text = |key: &str| about[key].as_str().map(crate::terminal::escape_line);
    if about["verdict"] != "fallback" {
        return None;
    }
    let skill = text("skill_id").unwrap_or_default();
    let version = text("shown_version").unwrap_or_else(|| "the trusted version".into());
    let why = [text("status"), text("reason")].into_iter().flatten().collect::<Vec<_>>().join(": ");
    Some(format!(
        "{skill}: {version} runs, the last version that was certified; the folder differs from it ({why}). \
         What you changed runs once it is certified"
    ))
}

/// The broker went away during a run, which counts as aborted (`[2.1]`): nobody else could tell its end here.
fn gone(invocation: &str) -> OperatorError {
    OperatorError {
        exit: Exit::FAILED,
        message: format!(
            "the broker went away during run {invocation}, which is being ended: when the broker is back, \
             `cyberos skill wait {invocation}` tells how it ended"
        ),
        detail: serde_json::json!({ "invocation_id": invocation }),
    }
}

/// What became of a skill at its deadline, and what to do. SIGTERM comes at 90 % of the time (`[2.4]`).
fn deadline(answer: &Value) -> String {
    let seconds = |ms: u64| {
        let tenths = (ms + 50) / 100;
        match tenths % 10 {
            0 => format!("{} s", tenths / 10),
            rest => format!("{}.{rest} s", tenths / 10),
        }
    };
    let at = answer["duration_ms"].as_u64().map_or_else(|| "an unknown time".to_owned(), seconds);
    let (limit, term) = match answer["deadline_ms"].as_u64() {
        Some(ms) => {
            (format!("deadline of {} reached", seconds(ms)), format!("SIGTERM at {}", seconds(ms / 10 * 9)))
        }
        // The ledger alone is left to tell of it.
        None => ("deadline reached".to_owned(), "SIGTERM".to_owned()),
    };
    let end = match (answer["signal"].as_u64(), answer["exit_code"].as_u64()) {
        (Some(15), _) => format!("ended by {term}"),
        (Some(9), _) => format!("{term}, killed by SIGKILL at {at}"),
        (Some(other), _) => format!("{term}, ended by signal {other} at {at}"),
        (None, Some(status)) => format!("{term}, ended by itself with status {status} at {at}"),
        (None, None) => format!("{term}, its end was not seen"),
    };
    let call = &answer["last_tool_call"];
    let call = match call["call"].as_u64() {
        Some(n) => format!("; its last call was {n}, {}", output::text(call, "tool_name")),
        None => String::new(),
    };
    format!(
        "{}: {limit}: {end}{call}; raise effort_minutes in its SKILL.md, or --effort-minutes if that \
         lowered it",
        output::text(answer, "skill_id")
    )
}

/// Keeps the last [`LAST_WORDS`] bytes of a stream.
fn keep_last(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    let surplus = kept.len().saturating_sub(LAST_WORDS);
    kept.drain(..surplus);
}

/// How much of what it printed is looked at for a limit that a program met.
const LAST_WORDS: usize = 4096;

/// What its end tells of its limits, if it does.
fn limits(answer: &Value, last_words: &str) -> String {
    let number = |field: &str| answer[field].as_i64().and_then(|n| i32::try_from(n).ok());
    let out_of_memory = answer["out_of_memory"].as_bool().unwrap_or(false);
    let death = Death { signal: number("signal"), status: number("exit_code"), out_of_memory, last_words };
    let bounds = serde_json::from_value(answer["limits"].clone()).ok();
    told(&death, bounds.as_ref()).map_or(String::new(), |told| format!("the skill: {told}"))
}

/// What a skill has to do that was ended because it made no call (`[2.5]`).
const NO_CONNECT: &str = "the skill did not connect to the broker within 60 s: a skill must make its first call within \
                          a minute, e.g. `/opt/cyberos/bin/cyberos-call --list` at its beginning";

/// A line for an end that the exit status alone does not tell.
pub(super) fn explain(exit: Exit, answer: &Value, last_words: &str) {
    let outcome = answer["outcome"].as_str().unwrap_or_default();
    let say = match outcome {
        "killed" if answer["because"].is_string() => {
            format!("the skill was ended: {}", output::text(answer, "because"))
        }
        "" => String::new(),
        "success" | "error" | "panic" | "killed" => limits(answer, last_words),
        "timeout" => deadline(answer),
        "no_connect" => NO_CONNECT.into(),
        "stopped" => "the skill was stopped".into(),
        "aborted" => "the run was aborted: a program of CyberOS died".into(),
        other => format!("the skill ended: {other}"),
    };
    if !say.is_empty() {
        output::note!("cyberos: {say} (exit {exit}, invocation {})", output::text(answer, "invocation_id"));
    }
}

/// Says of each stream that is not all there where it was cut, and what that is owed to.
fn tell_cuts(answer: &Value) {
    for stream in ["stdout", "stderr"] {
        if let Some(cut) = answer[format!("{stream}_cut")].as_str() {
            output::note!("cyberos: {stream} was truncated {}", crate::terminal::escape_line(cut));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_of_a_snapshot_says_which_version_and_that_the_folder_differs() {
        let about = |verdict: &str| {
            not_the_folder(&json!({
                "skill_id": "s", "verdict": verdict, "shown_version": "v000002", "status": "drifted",
                "reason": "main\nchanged",
            }))
        };
        assert_eq!(about("current"), None);
        let told = about("fallback").unwrap();
        assert!(told.starts_with("s: v000002 runs, "), "{told}");
        assert!(told.contains("the folder differs from it (drifted: main\\nchanged)"), "{told}");
    }

    #[test]
    fn the_limits_of_an_answer_are_named_and_the_ledgers_row_alone_has_none() {
        let bounds = json!({
            "memory_mb": 100, "address_space": false, "file_mb": 300, "tmp_mb": 64, "processes": 8,
            "open_files": 256, "cpu_s": 60,
        });
        let said = limits(&json!({"signal": 9, "out_of_memory": true, "limits": bounds}), "");
        assert!(said.contains("limit of 100 MiB"), "{said}");
        assert!(limits(&json!({"exit_code": 1, "limits": bounds}), "OSError: ENOSPC").contains("x-tmp-mb"));
        assert!(limits(&json!({"signal": 25}), "").contains("SIGXFSZ (signal 25)"));
        assert_eq!(limits(&json!({"exit_code": 3, "limits": bounds}), "no"), "");
    }

    #[test]
    fn of_a_stream_the_last_bytes_are_kept() {
        let mut kept = Vec::new();
        keep_last(&mut kept, &[b'a'; LAST_WORDS]);
        keep_last(&mut kept, b"end");
        assert!(kept.len() == LAST_WORDS && kept.ends_with(b"aend"));
    }

    #[test]
    fn the_end_by_a_deadline_is_told_with_its_limit_signals_and_what_to_do() {
        let told = |signal: Value, exit_code: Value, duration_ms: u64| {
            deadline(&json!({
                "skill_id": "s", "signal": signal, "exit_code": exit_code, "duration_ms": duration_ms,
                "deadline_ms": 60_000, "last_tool_call": {"call": 3, "tool_name": "Bash"},
            }))
        };
        assert_eq!(
            told(json!(9), Value::Null, 60_012),
            "s: deadline of 60 s reached: SIGTERM at 54 s, killed by SIGKILL at 60 s; its last call was 3, Bash; \
             raise effort_minutes in its SKILL.md, or --effort-minutes if that lowered it"
        );
        assert!(told(json!(15), Value::Null, 54_010).contains("reached: ended by SIGTERM at 54 s; "));
        let itself = told(Value::Null, json!(3), 55_260);
        assert!(itself.contains("SIGTERM at 54 s, ended by itself with status 3 at 55.3 s; "), "{itself}");
        // From the ledger's row alone.
        let row =
            deadline(&json!({"skill_id": "s", "outcome": "timeout", "signal": 9, "duration_ms": 60_012}));
        assert!(row.starts_with("s: deadline reached: SIGTERM, killed by SIGKILL at 60 s; raise"), "{row}");
    }
}
