//! The `skillfs` program: parses the command line and calls the library.

use clap::Parser;
use cyberos_proto::terminal::{Events, escape_for_terminal};
use skillfs::cli::{Cli, Command, Mount};
use skillfs::client::{self, ClientError};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let answered = match &cli.command {
        Command::Mount(mount) => return mount_command(mount),
        Command::Watchdog { mount_point } => return ended(skillfs::watchdog::run(mount_point)),
        Command::Status(c) => client::status(c),
        Command::Explain { skill, client: c } => client::explain(c, skill),
        Command::Refresh { skill, client: c } => client::refresh(c, skill.as_ref()),
    };
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(ClientError::Print(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("skillfs: {e}");
            ExitCode::from(e.exit_status())
        }
    }
}

fn mount_command(mount: &Mount) -> ExitCode {
    if let Err(e) = mount.check() {
        eprintln!("skillfs: {e}");
        return ExitCode::from(2);
    }
    if !mount.foreground {
        return background();
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,fuser=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Events(std::io::stderr()))
        .with_ansi(false)
        .init();
    ended(skillfs::daemon::run(mount))
}

fn ended(how: anyhow::Result<()>) -> ExitCode {
    match how {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("skillfs: {}", escape_for_terminal(&format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Starts the same command in the foreground of nobody, and returns when it has mounted or failed.
fn background() -> ExitCode {
    let started = std::env::current_exe().and_then(|program| {
        std::process::Command::new(program)
            .args(std::env::args_os().skip(1))
            .arg("--foreground")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
    });
    let mut child = match started {
        Ok(child) => child,
        Err(e) => {
            eprintln!("skillfs: cannot start in the background: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut line = String::new();
    let got = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    if matches!(got, Some(Ok(n)) if n > 0) {
        return ExitCode::SUCCESS;
    }
    // It has said why on standard error.
    let _ = child.wait();
    ExitCode::FAILURE
}
