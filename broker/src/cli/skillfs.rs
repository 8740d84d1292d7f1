//! `cyberos skillfs`: what the view shows and why. Asks SkillFS through the broker, which operators may talk to.

use super::client::ask;
use super::{Context, output};
use crate::exit::{Exit, OperatorError};
use crate::operator::Ask;
use clap::Subcommand;

/// What the view shows, and why
#[derive(Debug, Subcommand)]
pub(super) enum Skillfs {
    /// List all skills with what the provider decided
    Status,
    /// Show what is known of one skill, and why it is shown or hidden
    Explain {
        /// Its name
        skill: String,
    },
    /// Have the provider decide again, and wait for it
    Refresh {
        /// Only this skill
        skill: Option<String>,
    },
}

impl Skillfs {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        match self {
            Skillfs::Status => super::skill::list(context).await,
            Skillfs::Explain { skill } => {
                let (_, answer) = ask(&context.socket, Ask::Explain { skill }).await?;
                if context.json {
                    output::json(&answer);
                } else {
                    super::skill::print_fields(&answer);
                }
                Ok(Exit::OK)
            }
            Skillfs::Refresh { skill } => {
                let (_, answer) = ask(&context.socket, Ask::Refresh { skill }).await?;
                if context.json {
                    output::json(&answer);
                } else {
                    output::line!("decided: {}", output::text(&answer, "decided"));
                }
                Ok(Exit::OK)
            }
        }
    }
}
