//! `cyberos`: the operator's command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cyberos_broker::cli::main()
}
