//! `cyberos why` (`[7.6]`): why calls of a run were refused, one sentence each. The sentences are the ledger's: they were
//! worded where the call was refused (`grants`).

use super::client::ask;
use super::{Context, output};
use crate::exit::{Exit, OperatorError};
use crate::operator::Ask;
use crate::terminal::escape_line;
use clap::Args;

/// Say why calls were refused: which rule, the nearest grant, what would allow them
#[derive(Debug, Args)]
pub(super) struct Why {
    /// The invocation's id
    #[arg(long, value_name = "ID")]
    invocation: String,
    /// Only this call
    #[arg(long, value_name = "N")]
    call: Option<u64>,
}

impl Why {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, OperatorError> {
        let asked = self.invocation.clone();
        let (_, told) =
            ask(&context.socket, Ask::Why { invocation: self.invocation, call: self.call }).await?;
        if context.json {
            output::json(&told);
            return Ok(Exit::OK);
        }
        let records = told.as_array().map(Vec::as_slice).unwrap_or_default();
        match self.call.filter(|_| records.is_empty()) {
            Some(call) => output::line!(
                "call {call} was not refused: it was allowed, or there is no such call (`cyberos replay --invocation \
                 {}` lists them)",
                escape_line(&asked)
            ),
            None if records.is_empty() => output::line!("no call of it was refused"),
            None => {}
        }
        for record in records {
            let sentence = record["denial"]["sentence"].as_str().map(escape_line);
            let line = sentence.unwrap_or_else(|| output::text(record, "outcome").into());
            output::line!(
                "call {} {}: {line}",
                output::text(record, "call"),
                output::word(record, "tool_name")
            );
        }
        Ok(Exit::OK)
    }
}
