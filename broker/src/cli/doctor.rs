//! `cyberos doctor` (`[7.1]`, `[10.6]`): what this machine and this installation give CyberOS, what is missing, what that
//! weakens and what to do. It changes nothing and needs no broker; as root it also starts a helper of its own and has a
//! real sandbox made, since only that tells what the kernel does.
//!
//! ```text
//! kernel.rs  what the kernel says of itself
//! trial.rs   what a sandbox made here is really made of
//! site.rs    users, permissions, sources, granted directories
//! ```

mod kernel;
mod site;
mod trial;

use super::client::{NO_BROKER, NOT_AN_OPERATOR, ask};
use super::{Context, output};
use crate::config::{Allow, Config, DEFAULT_PATH, GrantTable, StartedBy};
use crate::exit::{Exit, OperatorError};
use crate::glob::Pattern;
use crate::operator::Ask;
use crate::terminal::escape_line;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Say what this machine and this installation lack, what that weakens, and what to do
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The operator's configuration [default: the packaged one, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// CyberOS runs, with one wall less or one use less.
    Weak,
    /// It does not run, or not as it should.
    Missing,
    /// It was not looked at; that is no fault of the machine's.
    Skipped,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Weak => "weak",
            State::Missing => "missing",
            State::Skipped => "skipped",
        }
    }
}

/// One line of the answer.
#[derive(Clone, Debug)]
struct Finding {
    check: String,
    state: State,
    /// What was found.
    found: String,
    /// What that weakens; empty when nothing.
    weakens: String,
    /// What to do about it; empty when nothing.
    remedy: String,
}

impl Finding {
    fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        let (check, found) = (check.into(), found.into());
        Finding { check, state: State::Ok, found, weakens: String::new(), remedy: String::new() }
    }

    fn weak(
        check: impl Into<String>,
        found: impl Into<String>,
        weakens: &str,
        remedy: impl Into<String>,
    ) -> Self {
        let (weakens, remedy) = (weakens.to_owned(), remedy.into());
        Finding { state: State::Weak, weakens, remedy, ..Finding::ok(check, found) }
    }

    fn missing(
        check: impl Into<String>,
        found: impl Into<String>,
        weakens: &str,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { state: State::Missing, ..Finding::weak(check, found, weakens, remedy) }
    }

    fn skipped(
        check: impl Into<String>,
        found: impl Into<String>,
        weakens: &str,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { state: State::Skipped, ..Finding::weak(check, found, weakens, remedy) }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.check, "state": self.state.as_str(), "found": self.found,
            "weakens": self.weakens, "do": self.remedy,
        })
    }
}

/// What is to be looked at: the running broker's word, else the configuration's.
#[derive(Clone, Debug)]
struct Subject {
    /// STATE of the broker.
    state: PathBuf,
    /// The skills' real directories.
    sources: Vec<PathBuf>,
    /// The directory that the default grants give.
    work: PathBuf,
    /// The directories of the configuration's grants that Bash would get; none when no configuration was looked at.
    grants: Option<Vec<PathBuf>>,
    /// Whether a broker answered.
    running: bool,
}

impl Doctor {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let mut findings = Vec::new();
        let subject = self.subject(&context.socket, &mut findings).await;
        kernel::look(&mut findings);
        trial::run(&subject, &mut findings).await;
        site::look(&subject, &mut findings);
        let count = |state| findings.iter().filter(|f| f.state == state).count();
        let (weak, missing, skipped) = (count(State::Weak), count(State::Missing), count(State::Skipped));
        if context.json {
            let checks: Vec<Value> = findings.iter().map(Finding::json).collect();
            output::json(&json!({"checks": checks, "weak": weak, "missing": missing, "skipped": skipped}));
        } else {
            print(&findings);
            output::line!("{} checks: {weak} weak, {missing} missing, {skipped} skipped", findings.len());
        }
        Ok(if missing > 0 { Exit::FAILED } else { Exit::OK })
    }

    async fn subject(&self, socket: &Path, findings: &mut Vec<Finding>) -> Subject {
        let there = self.config.is_some() || Path::new(DEFAULT_PATH).exists();
        let (config, grants) = match Config::load(self.config.as_deref(), StartedBy::Service) {
            Ok(config) => {
                let grants = there.then(|| directories(&config.grants));
                (config, grants)
            }
            Err(e) => {
                findings.push(Finding::missing(
                    "configuration",
                    e.to_string(),
                    "the broker does not start with it",
                    "mend it; every key is explained in the file that is shipped",
                ));
                (Config::default(), None)
            }
        };
        let mut subject = Subject {
            state: config.state.clone(),
            sources: config.sources.clone(),
            work: config.work.clone(),
            grants,
            running: false,
        };
        match ask(socket, Ask::Status {}).await {
            Ok((_, status)) => {
                let path = |v: &Value| v.as_str().map(PathBuf::from);
                subject.running = true;
                subject.state = path(&status["state"]).unwrap_or(subject.state);
                subject.work = path(&status["work"]).unwrap_or(subject.work);
                if let Some(sources) = status["skillfs"]["sources"].as_array() {
                    subject.sources = sources.iter().filter_map(path).collect();
                }
                let version = output::text(&status, "version");
                findings.push(Finding::ok(
                    "broker",
                    format!("version {version} answers at {}", socket.display()),
                ));
                findings.extend(audit(&status["audit"]));
                if status["skillfs"]["mounted"] != Value::Bool(true) {
                    findings.push(Finding::missing(
                        "skillfs",
                        format!("not mounted: {}", output::text(&status["skillfs"], "error")),
                        "no skill can be seen or run",
                        "start cyberos-skillfs, and look into its log",
                    ));
                }
            }
            Err(e) => findings.push(no_answer(e)),
        }
        subject
    }
}

/// What is wrong with the audit ledger by the broker's word; none if nothing is.
fn audit(status: &Value) -> Option<Finding> {
    const CHECK: &str = "audit ledger";
    if let Some(what) = status["tampered"].as_str() {
        return Some(Finding::missing(
            CHECK,
            what,
            "rows can no longer be kept, so no run starts and no call is answered (unless audit.on_failure \
             is continue)",
            "stop the broker and keep its store for whoever investigates; 'cyberos audit verify' says what \
             is gone; restore it, or accept the loss with 'cyberos audit accept-loss'",
        ));
    }
    let what = status["failing"].as_str()?;
    Some(Finding::weak(
        CHECK,
        what,
        "rows wait in the broker's memory; when that is full, or at once, audit.on_failure decides about \
         calls",
        "make room on that disk, or mend it",
    ))
}

/// What the file grants of `[4.6]`'s two forms name, in the order in which they are tried. Bash gets nothing of others.
fn directories(grants: &GrantTable) -> Vec<PathBuf> {
    let sets = std::iter::once(&grants.default).chain(grants.skills.values());
    let rules = sets.filter_map(|set| match &set.files.as_ref()?.allow {
        Allow::Only(patterns) => Some(patterns),
        Allow::Requested => None,
    });
    let literal = |pattern: &Pattern| {
        let text = pattern.as_str().strip_suffix("/**").unwrap_or(pattern.as_str());
        Pattern::new(text).is_ok_and(|p| p.is_literal()).then(|| PathBuf::from(text))
    };
    rules.flatten().filter_map(literal).collect()
}

/// What it means that no broker answers, and what to do: that depends on why.
fn no_answer(e: OperatorError) -> Finding {
    const CHECK: &str = "broker";
    match e.detail["reason"].as_str() {
        Some(NOT_AN_OPERATOR) => Finding::skipped(
            CHECK,
            e.message,
            "whether it runs, and how, is not known; the checks below are made without asking it",
            "as the line says (a new group counts from the next login), or run 'cyberos doctor' as root",
        ),
        Some(NO_BROKER) => Finding::weak(
            CHECK,
            e.message,
            "no skill runs; the checks below are made without it",
            "start cyberos-broker, or run 'cyberos up'",
        ),
        _ => Finding::weak(
            CHECK,
            e.message,
            "skills may not run; the checks below are made without it",
            "see what the line says, and the broker's log",
        ),
    }
}

fn print(findings: &[Finding]) {
    let width = findings.iter().map(|f| f.check.chars().count()).max().unwrap_or(0);
    for f in findings {
        let found = escape_line(&f.found);
        output::line!("{:<8} {:<width$}  {found}", f.state.as_str(), f.check);
        for (word, text) in [("weakens", &f.weakens), ("do", &f.remedy)] {
            if !text.is_empty() {
                output::line!("{:9}{word}: {}", "", escape_line(text));
            }
        }
    }
}

/// The text of a small file of the kernel's, trimmed; none if it cannot be read.
fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
