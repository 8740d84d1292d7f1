//! What commands exit with (`[2.1]`), each status spelt once, and the one error that carries such a status from wherever
//! something went wrong to the terminal. It knows nothing of what went wrong.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::process::ExitCode;

/// An exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exit(u8);

impl Exit {
    /// It went well.
    pub const OK: Exit = Exit(0);
    /// A failure; or an invocation that was aborted.
    pub const FAILED: Exit = Exit(1);
    /// The command line is not one.
    pub const USAGE: Exit = Exit(2);
    /// The ledger is broken.
    pub const LEDGER_BROKEN: Exit = Exit(3);
    /// No broker, or not permitted.
    pub const NOT_PERMITTED: Exit = Exit(4);
    /// The skill is hidden or undecided.
    pub const NOT_SHOWN: Exit = Exit(5);
    /// The skill is not valid.
    pub const INVALID: Exit = Exit(6);
    /// Its time was over, or it never connected.
    pub const TIMEOUT: Exit = Exit(124);
    /// Refused by the helper, or by the ledger.
    pub const REFUSED: Exit = Exit(125);
    /// Its entry point cannot be executed.
    pub const NOT_EXECUTABLE: Exit = Exit(126);
    /// Its entry point, or what that needs, is not found.
    pub const NOT_FOUND: Exit = Exit(127);
    /// An operator stopped it.
    pub const STOPPED: Exit = Exit(130);
    /// Whoever read the output has gone: as SIGPIPE would have ended the command.
    pub const PIPE_CLOSED: Exit = Exit::by_signal(13);

    /// The status of a program that ended by itself.
    pub const fn of_program(code: u8) -> Exit {
        Exit(code)
    }

    /// The status of a program that a signal ended.
    pub const fn by_signal(signal: u8) -> Exit {
        Exit(128u8.saturating_add(signal))
    }

    /// The number.
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.0)
    }
}

/// Why an operator's command did not go well: for the process, for a person, and for a program.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// What the command exits with.
    pub exit: Exit,
    /// For a person.
    pub message: String,
    /// For a program; null when there is nothing more.
    pub detail: Value,
}

impl OperatorError {
    /// One with nothing more to tell.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        OperatorError { exit, message: message.into(), detail: Value::Null }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_number_to_programs_and_signals_come_after_128() {
        let error = OperatorError::new(Exit::NOT_SHOWN, "hidden");
        assert_eq!(
            serde_json::to_value(&error).unwrap(),
            serde_json::json!({ "exit": 5, "message": "hidden", "detail": null })
        );
        assert_eq!((Exit::by_signal(9).code(), Exit::PIPE_CLOSED.code()), (137, 141));
        assert_eq!(Exit::by_signal(200).code(), 255);
    }
}
