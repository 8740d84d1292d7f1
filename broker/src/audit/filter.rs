//! Which rows an operator wants to see: [`Filter`], over the rows that [`super::reader`] has checked. It reads no bytes
//! and words nothing; `answer` calls it.

use super::clock;
use super::reader::{ReadError, Reader};
use super::row::Row;
use super::rows::{CALLS_UNRECORDED, DENIED};
use std::io;
use std::path::Path;

/// Which rows `audit show` shows; an empty filter shows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// From this time on, ns since 1970.
    pub since_ns: Option<u64>,
    /// Of this skill.
    pub skill: Option<String>,
    /// Of this run.
    pub invocation: Option<String>,
    /// Of this kind, in full (`skill.tool_denied`).
    pub kind: Option<String>,
    /// Refusals only, counted ones included.
    pub denied: bool,
}

impl Filter {
    /// Whether `row` passes.
    pub fn admits(&self, row: &Row) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        self.since_ns.is_none_or(|since| row.ts_ns >= since)
            && is(&self.skill, row.text("skill_id").or(Some(&row.actor)))
            && is(&self.invocation, row.text("invocation_id"))
            && is(&self.kind, Some(&row.op))
            && (!self.denied || row.op == DENIED || row.op == CALLS_UNRECORDED)
    }
}

/// The rows of `store` that `filter` admits, in order.
pub fn show(
    store: &Path,
    filter: Filter,
) -> io::Result<impl Iterator<Item = Result<Row, ReadError>> + use<>> {
    let rows = Reader::open(store)?.rows_from(1, filter.since_ns.unwrap_or(0));
    Ok(rows.filter(move |row| row.as_ref().map_or(true, |row| filter.admits(row))))
}

/// Midnight UTC before now, for `--since today`.
pub fn today_ns() -> u64 {
    clock::day_begins(clock::now_ns())
}
