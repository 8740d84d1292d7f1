//! The operator's command line (`[7.1]`, `[7.3]`): one file a command group; a command is a few lines that call the
//! library or ask the broker. Exit statuses are those of `[2.1]`.

mod accept_loss;
mod audit;
mod broker;
pub mod client;
mod consent;
mod demo;
mod doctor;
mod output;
mod run;
mod skill;
mod skillfs;
mod store_owner;
mod up;
mod why;

use crate::exit::{Exit, OperatorError};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run AI agents' skills without trusting them
#[derive(Debug, Parser)]
#[command(name = "cyberos", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    /// The broker's socket [default: $CYBEROS_OPERATOR_SOCKET, else /run/cyberos/broker.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    /// See how it works: a guided run with three example skills
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    /// Run, inspect, approve and write skills
    #[command(subcommand)]
    Skill(skill::Skill),
    /// What the broker is doing (short for: skill broker status)
    Status,
    Tail(broker::Tail),
    Replay(broker::Replay),
    Why(why::Why),
    /// Verify and read the audit ledger
    #[command(subcommand)]
    Audit(audit::Audit),
    /// What the view shows, and why
    #[command(subcommand)]
    Skillfs(skillfs::Skillfs),
}

/// What a command needs of the rest of the line.
struct Context {
    socket: PathBuf,
    json: bool,
}

/// Parses the command line, runs the command, and says how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // They have an option of that name of their own, so that their help does not list the common one.
    let own = match &cli.command {
        Command::Up(up) => Some(&up.socket),
        Command::Demo(demo) => Some(&demo.socket),
        _ => None,
    };
    if own.is_some_and(|own| own.is_some() || cli.socket.is_some()) {
        let why = "--socket names a broker that runs; 'up' and 'demo' make one of their own, in STATE/run or \
                   /run/cyberos";
        return output::failed(&OperatorError::new(Exit::USAGE, why), cli.json);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            return output::failed(&OperatorError::new(Exit::FAILED, format!("cannot start: {e}")), cli.json);
        }
    };
    let context = Context { socket: client::socket_path(cli.socket.as_deref()), json: cli.json };
    let done = runtime.block_on(dispatch(&context, cli.command));
    // A read of standard input that will never come must not hold the process.
    runtime.shutdown_background();
    match done {
        Ok(exit) => ExitCode::from(exit),
        Err(failure) => output::failed(&failure, context.json),
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<Exit, OperatorError> {
    match command {
        Command::Up(up) => match up.run().await {
            Ok(()) => Ok(Exit::OK),
            Err(e) => Err(OperatorError::new(Exit::FAILED, format!("{e:#}"))),
        },
        Command::Demo(demo) => demo.run().await,
        Command::Doctor(doctor) => doctor.run(context).await,
        Command::Skill(command) => command.run(context).await,
        Command::Status => broker::status(context).await,
        Command::Tail(command) => command.run(context).await,
        Command::Replay(command) => command.run(context).await,
        Command::Why(command) => command.run(context).await,
        Command::Audit(command) => command.run(context).await,
        Command::Skillfs(command) => command.run(context).await,
    }
}
