//! Rows that are not kept because the operator wants calls to go on (`audit.on_failure: continue`): counted while the disk
//! is bad, told of in one row as soon as rows can be written again, and read back by `verify`, so that a gap that the
//! operator's own word made is not taken for somebody's cut. `tail` counts, [`super::signs`] and
//! [`super::report`] read.

use super::row::Row;
use serde::Serialize;
use serde_json::Value;

/// Rows were dropped. The ledger's own row, of no run.
pub const ROWS_DROPPED: &str = "audit.rows_dropped";
/// So many runs are named in one row.
const MAX_RUNS: usize = 1000;

/// Rows that were dropped, between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowsDropped {
    /// Seq of the row that says so.
    pub seq: u64,
    /// How many.
    pub count: u64,
    /// When the first of them would have been written.
    pub from_ts_ns: u64,
    /// And the last.
    pub to_ts_ns: u64,
    /// By which `audit.on_failure`.
    pub policy: String,
    /// What was wrong then.
    pub why: String,
    /// Runs whose first row was among them.
    pub runs: Vec<String>,
    /// More of those, unnamed.
    pub more_runs: u64,
}

impl RowsDropped {
    /// One row more, which would have been dated `ts_ns`; `why` it was not kept, if it was the disk.
    pub(super) fn add(dropped: &mut Option<RowsDropped>, ts_ns: u64, why: &str) {
        let all = dropped.get_or_insert_with(|| RowsDropped {
            from_ts_ns: ts_ns,
            to_ts_ns: ts_ns,
            policy: "continue".to_owned(),
            ..RowsDropped::default()
        });
        all.count += 1;
        // The clock may be set back meanwhile.
        all.from_ts_ns = all.from_ts_ns.min(ts_ns);
        all.to_ts_ns = all.to_ts_ns.max(ts_ns);
        if all.why.is_empty() {
            why.clone_into(&mut all.why);
        }
    }

    /// The last of them began this run.
    pub(super) fn began(&mut self, run: String) {
        if self.runs.len() < MAX_RUNS {
            self.runs.push(run);
        } else {
            self.more_runs += 1;
        }
    }

    /// Whether something that happened at `ts_ns` may have had one of these rows.
    pub(super) fn covers(&self, ts_ns: u64) -> bool {
        (self.from_ts_ns..=self.to_ts_ns).contains(&ts_ns)
    }

    /// What such a row says; none of another row.
    pub(super) fn of(row: &Row) -> Option<RowsDropped> {
        if row.op != ROWS_DROPPED {
            return None;
        }
        let (number, text) =
            (|key| row.number(key).unwrap_or(0), |key| row.text(key).unwrap_or_default().to_owned());
        let runs = row.extra.get("runs").and_then(Value::as_array).into_iter().flatten();
        Some(RowsDropped {
            seq: row.seq,
            count: number("count"),
            from_ts_ns: number("from_ts_ns"),
            to_ts_ns: number("to_ts_ns"),
            policy: text("policy"),
            why: text("why"),
            runs: runs.filter_map(|run| run.as_str().map(str::to_owned)).collect(),
            more_runs: number("more_runs"),
        })
    }
}
