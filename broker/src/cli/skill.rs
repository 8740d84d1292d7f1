//! `cyberos skill …` and `cyberos status`.

use super::client::{ask, ask_items};
use super::run::{Conversation, Run};
use super::{Context, output};
use crate::exit::{Exit, OperatorError};
use crate::operator::Ask;
use clap::Subcommand;
use serde_json::Value;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Run, inspect, approve and write skills
#[derive(Debug, Subcommand)]
pub(super) enum Skill {
    Run(Run),
    #[command(subcommand)]
    Broker(super::broker::Broker),
    /// List the skills, and what is shown of each
    List,
    /// One skill: what it asks for, what it gets, what the provider says
    Show {
        /// The skill's name in the view
        skill: String,
    },
    /// Consent to what a skill asks for
    Approve {
        /// The skill's name in the view
        skill: String,
        /// Don't ask
        #[arg(long)]
        yes: bool,
        /// Tenant to which a skill with 'tenant_scope: pinned' is bound
        #[arg(long, value_name = "UUID")]
        tenant: Option<String>,
    },
    /// Check a skill's SKILL.md; lists every fault
    Validate {
        /// The skill's folder
        dir: PathBuf,
    },
    /// Write a starter skill that validates and runs
    Scaffold {
        /// The skill's id: lower-case letters, digits and dashes
        id: String,
        /// Where the skill's folder is made
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
    /// End an invocation
    Stop {
        /// The invocation's id
        invocation: String,
    },
    /// Show what a run printed
    Logs {
        /// The invocation's id
        invocation: String,
        /// Go on until it ends
        #[arg(long, short)]
        follow: bool,
        /// Show control characters escaped, as on a terminal, also when the output is a file or a pipe
        #[arg(long)]
        escape: bool,
    },
    /// Wait for an invocation's end; the exit status is the skill's
    Wait {
        /// The invocation's id
        invocation: String,
    },
}

impl Skill {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        match self {
            Skill::Run(run) => run.run(context).await,
            Skill::Broker(command) => command.run(context).await,
            Skill::List => list(context).await,
            Skill::Show { skill } => show(context, skill).await,
            Skill::Approve { skill, yes, tenant } => approve(context, skill, yes, tenant).await,
            Skill::Validate { dir } => validate(context, &dir),
            Skill::Scaffold { id, dir } => scaffold(context, &id, &dir),
            Skill::Stop { invocation } => {
                let (exit, answer) = ask(&context.socket, Ask::Stop { invocation }).await?;
                if context.json {
                    output::json(&answer);
                }
                Ok(exit)
            }
            Skill::Logs { invocation, follow, escape } => {
                let talk = Conversation { json: context.json, escape, stdin: false, announce: true };
                talk.hold(&context.socket, Ask::Logs { invocation, follow }).await
            }
            Skill::Wait { invocation } => {
                let (exit, answer) = ask(&context.socket, Ask::Wait { invocation }).await?;
                if context.json {
                    output::json(&answer);
                } else {
                    // Whoever did not watch it is told as much as who did; its last words are in the logs.
                    super::run::explain(exit, &answer, "");
                }
                Ok(exit)
            }
        }
    }
}

pub(super) async fn list(context: &Context) -> Result<Exit, OperatorError> {
    let mut items = Vec::new();
    ask_items(&context.socket, Ask::List {}, |item| items.push(item)).await?;
    if context.json {
        output::json(&Value::Array(items));
        return Ok(Exit::OK);
    }
    if items.is_empty() {
        output::line!("no skills in the source");
        return Ok(Exit::OK);
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|i| {
            let verdict = match i["pending"] == Value::Bool(true) {
                true => format!("{} (pending)", output::text(i, "verdict")),
                false => output::text(i, "verdict"),
            };
            vec![
                output::text(i, "skill"),
                verdict,
                output::text(i, "status"),
                output::text(i, "version"),
                output::text(i, "reason"),
            ]
        })
        .collect();
    output::table(&["SKILL", "SHOWN", "STATUS", "VERSION", "REASON"], &rows);
    Ok(Exit::OK)
}

/// The fields of an object, one a line; lists with one item a line.
pub(super) fn print_fields(answer: &Value) {
    for (name, value) in answer.as_object().into_iter().flatten() {
        let key = crate::terminal::escape_line(name);
        match value {
            Value::Array(items) if items.is_empty() => output::line!("{key}: -"),
            Value::Array(items) => {
                output::line!("{key}:");
                for item in items {
                    let text = item.as_str().map_or_else(|| item.to_string(), str::to_owned);
                    output::line!("  {}", crate::terminal::escape_line(&text));
                }
            }
            Value::Object(inner) => {
                output::line!("{key}:");
                for (name, v) in inner {
                    let name = crate::terminal::escape_line(name);
                    let text = v.as_str().map_or_else(|| v.to_string(), str::to_owned);
                    output::line!("  {name}: {}", crate::terminal::escape_line(&text));
                }
            }
            _ => output::line!("{key}: {}", output::text(answer, name)),
        }
    }
}

async fn show(context: &Context, skill: String) -> Result<Exit, OperatorError> {
    let (_, answer) = ask(&context.socket, Ask::Show { skill }).await?;
    if context.json {
        output::json(&answer);
    } else {
        print_fields(&answer);
        print_summary(&answer);
    }
    Ok(Exit::OK)
}

/// What is dangerous of what a skill asks for: always the last that is printed.
fn print_summary(shown: &Value) {
    output::line!("what matters most of what it asks for:");
    for line in super::consent::summary(shown) {
        output::line!("  {line}");
    }
}

async fn approve(
    context: &Context,
    skill: String,
    yes: bool,
    tenant: Option<String>,
) -> Result<Exit, OperatorError> {
    let (_, shown) = ask(&context.socket, Ask::Show { skill: skill.clone() }).await?;
    if !context.json {
        output::line!("{skill} asks for:");
        print_fields(&shown["wishes"]);
        print_summary(&shown);
    }
    if !yes {
        if context.json || !std::io::stdin().is_terminal() {
            return Err(OperatorError::new(Exit::USAGE, "approve asks on a terminal; elsewhere say --yes"));
        }
        let answer = output::asked("Grant exactly this, within the operator's grants.max? [y/N] ")?;
        if !matches!(answer.as_str(), "y" | "Y" | "yes") {
            return Err(OperatorError::new(Exit::FAILED, "nothing was approved"));
        }
    }
    let wishes = shown["wishes_digest"].as_str().unwrap_or_default().to_owned();
    let (_, answer) = ask(&context.socket, Ask::Approve { skill: skill.clone(), wishes, tenant }).await?;
    if context.json {
        output::json(&answer);
        return Ok(Exit::OK);
    }
    output::line!("approved: {skill}");
    for directory in answer["bash_directories"].as_array().into_iter().flatten() {
        let shown = crate::terminal::escape_line(directory.as_str().unwrap_or_default());
        output::line!("  Bash sees {shown}");
    }
    for wish in answer["not_granted"].as_array().into_iter().flatten() {
        output::line!(
            "  still not granted: {}",
            crate::terminal::escape_line(wish.as_str().unwrap_or_default())
        );
    }
    Ok(Exit::OK)
}

fn validate(context: &Context, dir: &std::path::Path) -> Result<Exit, OperatorError> {
    let path = dir.join("SKILL.md");
    if dir.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        let folder = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
        return Err(OperatorError::new(
            Exit::USAGE,
            format!(
                "{} is a file; give the skill's folder: cyberos skill validate {}",
                dir.display(),
                folder.display()
            ),
        ));
    }
    let report = crate::skill::report_dir(dir, &|_| false)
        .map_err(|e| OperatorError::new(Exit::FAILED, format!("cannot read {}: {e}", path.display())))?;
    if context.json {
        output::json(&report.to_json());
    } else {
        let mut faults: Vec<_> = report.errors.iter().map(|fault| ("", fault)).collect();
        faults.extend(report.warnings.iter().map(|fault| ("warning: ", fault)));
        faults.sort_by_key(|(_, fault)| fault.line);
        for (grade, fault) in faults {
            let said = format!("{grade}{fault}");
            output::line!("{}: {}", path.display(), crate::terminal::escape_line(&said));
        }
        if report.is_ok() {
            output::line!("{}: valid", path.display());
        }
    }
    Ok(if report.is_ok() { Exit::OK } else { Exit::INVALID })
}

fn scaffold(context: &Context, id: &str, dir: &std::path::Path) -> Result<Exit, OperatorError> {
    let made =
        crate::scaffold::write(id, dir).map_err(|e| OperatorError::new(Exit::FAILED, e.to_string()))?;
    if context.json {
        output::json(&serde_json::json!({ "dir": made }));
    } else {
        output::line!("{}", made.display());
    }
    Ok(Exit::OK)
}
