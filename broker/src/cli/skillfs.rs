//! `cyberos skillfs`: what the view shows and why. Asks SkillFS through the broker, which operators may talk to.

use super::client::{Failure, ask};
use super::{Context, output};
use crate::operator::Ask;
use clap::Subcommand;

/// What the view shows, and why
#[derive(Debug, Subcommand)]
pub(super) enum Skillfs {
    /// All skills with their verdicts
    Status,
    /// One skill: verdict, version, status, reason, epoch
    Explain {
        /// Its name
        skill: String,
    },
    /// Let the provider decide again
    Refresh {
        /// Only this skill
        skill: Option<String>,
    },
}

impl Skillfs {
    pub(super) async fn run(self, context: &Context) -> Result<u8, Failure> {
        match self {
            Skillfs::Status => super::skill::list(context).await,
            Skillfs::Explain { skill } => {
                let (_, answer) = ask(&context.socket, Ask::Explain { skill }).await?;
                if context.json {
                    output::json(&answer);
                } else {
                    super::skill::print_fields(&answer);
                }
                Ok(0)
            }
            Skillfs::Refresh { skill } => {
                let (_, answer) = ask(&context.socket, Ask::Refresh { skill }).await?;
                if context.json {
                    output::json(&answer);
                } else {
                    output::line!("decided: {}", output::text(&answer, "decided"));
                }
                Ok(0)
            }
        }
    }
}
