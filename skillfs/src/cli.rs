//! The command line: parsed, and checked as far as that goes without touching anything (`[9.1]`).

use crate::exposure::{OnChange, OnFailure};
use crate::provider;
use clap::{Args, Parser, Subcommand};
use cyberos_proto::ids::{MountId, SkillName};
use std::path::PathBuf;
use std::time::Duration;

/// Where the packaged service has its control socket.
pub const CONTROL: &str = "/run/cyberos-skillfs/control.sock";
/// Where the helper listens.
pub const HELPER: &str = "/run/cyberos-helper/helper.sock";

/// A view of a skills folder in which an external provider decides what is shown.
#[derive(Debug, Parser)]
#[command(name = "skillfs", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the skills of SOURCE at MOUNTPOINT; of several SOURCEs, a skill comes from the first that has it.
    #[command(override_usage = "skillfs mount [OPTIONS] <SOURCE>... <MOUNTPOINT>")]
    Mount(Box<Mount>),
    /// Show what is mounted and the state of every skill.
    Status(Client),
    /// Show all that is known of one skill.
    Explain {
        /// Its name.
        skill: SkillName,
        /// Which SkillFS.
        #[command(flatten)]
        client: Client,
    },
    /// Ask the provider again, about one skill or all, and wait for the decision.
    Refresh {
        /// Its name.
        skill: Option<SkillName>,
        /// Which SkillFS.
        #[command(flatten)]
        client: Client,
    },
    /// End the SkillFS that started this when the view at MOUNTPOINT no longer answers.
    #[command(name = crate::watchdog::COMMAND, hide = true)]
    Watchdog {
        /// Where its view is.
        mount_point: PathBuf,
    },
}

/// Which SkillFS to talk to, and how to print.
#[derive(Debug, Args)]
pub struct Client {
    /// Control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// Folders of skills, and last the place where they are shown.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "MOUNTPOINT"])]
    pub paths: Vec<PathBuf>,
    /// Decision provider: a program and fixed arguments, split on white space.
    #[arg(long, value_name = "CMD", required_unless_present = "unprotected")]
    pub decision_command: Option<String>,
    /// Show every skill as it is, without asking a provider.
    #[arg(long, conflicts_with_all = ["decision_command", "strict"])]
    pub unprotected: bool,
    /// The same as --on-failure hide; needs --decision-command.
    #[arg(long)]
    pub ledger_demo_mode: bool,
    /// What happens when the provider fails, or its answer is rejected.
    #[arg(long, value_enum, default_value_t)]
    pub on_failure: OnFailure,
    /// What readers see of a skill that changed and is not decided yet.
    #[arg(long, value_enum, default_value_t)]
    pub on_change: OnChange,
    /// Do not mount when a first decision fails, or when others can change a source.
    #[arg(long)]
    pub strict: bool,
    /// Nothing can be changed through the view (has to be given: other views are not built yet).
    #[arg(long)]
    pub read_only: bool,
    /// Owner and group of everything in the view, instead of the source's.
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub owner: Option<(u32, u32)>,
    /// Seconds for scan and resolve together.
    #[arg(long, value_name = "S", default_value_t = provider::DEFAULT_TIMEOUT.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub provider_timeout: u64,
    /// A variable of SkillFS's environment that the provider gets, beside PATH, HOME and LANG.
    #[arg(long, value_name = "NAME")]
    pub provider_env: Vec<String>,
    /// How many decisions are made at once [default: as many as there are cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Where to make the socket at which the broker and the operator ask.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The root helper's socket.
    #[arg(long, value_name = "PATH", default_value = HELPER)]
    pub helper: PathBuf,
    /// Which of the mount points in the helper's ceiling MOUNTPOINT is.
    #[arg(long, value_name = "N", default_value = "0", value_parser = mount_number)]
    pub mount_number: MountId,
    /// Stay in the foreground; print a line of JSON when mounted.
    #[arg(long)]
    pub foreground: bool,
}

/// Options that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Only read-only mounts can be made.
    #[error("read-write mounts are not available yet; give --read-only")]
    ReadWrite,
    /// Demo mode needs a provider.
    #[error("--ledger-demo-mode needs --decision-command")]
    DemoWithoutCommand,
    /// Demo mode hides what fails, strict refuses to mount.
    #[error("--ledger-demo-mode and --strict contradict each other")]
    DemoStrict,
    /// Demo mode is hide.
    #[error(
        "--ledger-demo-mode is another name for --on-failure hide; it contradicts --on-failure keep-previous"
    )]
    DemoKeeps,
}

impl Mount {
    /// Refuses what contradicts itself.
    pub fn check(&self) -> Result<(), UsageError> {
        if self.ledger_demo_mode {
            if self.decision_command.is_none() {
                return Err(UsageError::DemoWithoutCommand);
            }
            if self.strict {
                return Err(UsageError::DemoStrict);
            }
            if self.on_failure == OnFailure::KeepPrevious {
                return Err(UsageError::DemoKeeps);
            }
        }
        if self.read_only { Ok(()) } else { Err(UsageError::ReadWrite) }
    }

    /// Sources and mount point.
    pub fn sources_and_mount_point(&self) -> (&[PathBuf], &std::path::Path) {
        match self.paths.split_last() {
            Some((mount_point, sources)) => (sources, mount_point),
            None => (&[], std::path::Path::new("")),
        }
    }

    /// Time for scan and resolve together.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.provider_timeout)
    }
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    numbers.ok_or_else(|| "expected two numbers, UID:GID".to_owned())
}

fn mount_number(text: &str) -> Result<MountId, String> {
    let number = text.parse().map_err(|_| "expected a number".to_owned())?;
    MountId::new(number).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(options: &[&str]) -> Result<Mount, String> {
        let base = ["skillfs", "mount", "/src", "/mnt"];
        let cli = Cli::try_parse_from(base.iter().chain(options)).map_err(|e| e.to_string())?;
        let Command::Mount(mount) = cli.command else { return Err("no mount".to_owned()) };
        mount.check().map_err(|e| e.to_string())?;
        Ok(*mount)
    }

    #[test]
    fn what_contradicts_itself_is_a_start_up_error() {
        assert!(mount(&["--read-only", "--decision-command", "x"]).is_ok());
        assert!(mount(&["--read-only", "--unprotected"]).is_ok());
        for bad in [
            &["--read-only"][..],
            &["--decision-command", "x"],
            &["--read-only", "--unprotected", "--decision-command", "x"],
            &["--read-only", "--unprotected", "--ledger-demo-mode"],
            &["--read-only", "--decision-command", "x", "--ledger-demo-mode", "--strict"],
            &[
                "--read-only",
                "--decision-command",
                "x",
                "--ledger-demo-mode",
                "--on-failure",
                "keep-previous",
            ],
            &["--read-only", "--decision-command", "x", "--owner", "me"],
            &["--read-only", "--decision-command", "x", "--mount-number", "16"],
        ] {
            assert!(mount(bad).is_err(), "{bad:?}");
        }
        assert!(Cli::try_parse_from(["skillfs", "mount", "/only-one", "--unprotected"]).is_err());
    }

    #[test]
    fn several_sources_come_before_the_mount_point() {
        let cli = Cli::try_parse_from(["skillfs", "mount", "/a", "/b", "/mnt", "--unprotected"]).unwrap();
        let Command::Mount(m) = cli.command else { panic!() };
        assert_eq!(m.sources_and_mount_point().0, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(m.sources_and_mount_point().1, std::path::Path::new("/mnt"));
    }
}
