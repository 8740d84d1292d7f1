//! The rows of a run's own life (`[2.7]`, `[6.1]`): begun, not connected, timed out, ended, and, for runs that an
//! earlier broker left open, aborted. Called by whoever runs a skill. None of them waits for the disk but the first.

use super::options::{Appended, AuditUnavailable, Class};
use super::row::Draft;
use super::rows::{self, Ended, InvokedStarted, Outcome};
use super::unrecorded::Unrecorded;
use super::{Audit, relock};
use crate::call::Invocation;
use cyberos_proto::ids::InvocationId;

/// Rows that a run may still owe when it has begun: one of timeout and no_connect, one of calls that have no rows of their
/// own, and completed.
const OWED_BY_A_RUN: usize = 3;

/// A run that has begun under this broker.
#[derive(Debug)]
pub(super) struct Live {
    /// Whether its first row was taken (`audit.on_failure: continue` may have dropped it).
    pub(super) recorded: bool,
    /// Rows that it still has places for.
    owed: usize,
    /// Bytes of the rows of its calls.
    pub(super) bytes: u64,
    /// Calls that came after those had reached the quota.
    pub(super) unrecorded: Unrecorded,
}

impl Audit {
    /// A row of one of this run's calls, on its account.
    pub(super) fn append_of(
        &self,
        run: InvocationId,
        draft: &Draft,
        class: Class,
    ) -> Result<Appended, AuditUnavailable> {
        let appended = self.append(draft, class)?;
        if let Appended::Written { bytes, .. } | Appended::Queued { bytes, .. } = appended
            && let Some(live) = relock(&self.inner.live).get_mut(&run)
        {
            live.bytes += bytes;
        }
        Ok(appended)
    }

    /// Row `skill.invoked_started`. If it can't be taken, the run must not start.
    pub async fn invoked_started(
        &self,
        invocation: &Invocation,
        started: &InvokedStarted<'_>,
    ) -> Result<(), AuditUnavailable> {
        // Before the first row of many, and not after it.
        self.inner.ledger.look_at_place();
        let draft = rows::invoked_started(invocation, started);
        let appended = self.append(&draft, Class::Asks { owes: OWED_BY_A_RUN })?;
        let recorded = appended != Appended::Dropped;
        if !recorded {
            self.inner.ledger.dropped_beginning(invocation.id.to_string());
        }
        let owed = if recorded { OWED_BY_A_RUN } else { 0 };
        let live = Live { recorded, owed, bytes: 0, unrecorded: Unrecorded::default() };
        relock(&self.inner.live).insert(invocation.id, live);
        self.wait(appended).await;
        Ok(())
    }

    /// Row `skill.timeout`: the deadline's SIGKILL fired; `last` is number and tool of the last call that was asked for.
    pub fn skill_timeout(&self, invocation: &Invocation, elapsed_ms: u64, last: Option<&(u64, String)>) {
        self.note(invocation, &rows::timeout(invocation, elapsed_ms, last));
    }

    /// Row `skill.no_connect`.
    pub fn no_connect(&self, invocation: &Invocation, elapsed_ms: u64) {
        self.note(invocation, &rows::no_connect(invocation, elapsed_ms));
    }

    /// Row `skill.invoked_completed`, the run's last.
    pub fn invoked_completed(&self, invocation: &Invocation, ended: &Ended) {
        let id = invocation.id.to_string();
        let mut draft =
            rows::invoked_completed(&id, &invocation.skill_id, &invocation.trace.to_string(), ended);
        let unrecorded = self.last_untold(invocation.id);
        if let Some(span) = unrecorded.untold {
            self.note(invocation, &rows::calls_unrecorded(invocation, &span));
        }
        if unrecorded.total > 0 {
            draft.extra.insert("unrecorded_calls".into(), unrecorded.total.into());
        }
        self.note(invocation, &draft);
        if let Some(live) = relock(&self.inner.live).remove(&invocation.id) {
            self.inner.ledger.forgo(live.owed);
        }
    }

    /// Ends in the ledger what an earlier broker left open there, with outcome `aborted`; the runs' ids. To be called
    /// once at start, when the helper has swept their sandboxes.
    pub fn abort_open(&self) -> Result<Vec<InvocationId>, AuditUnavailable> {
        let mut left_open = relock(&self.inner.left_open);
        let mut aborted = Vec::new();
        while let Some((id, run)) = left_open.first() {
            let duration_ms = self.now_ns().saturating_sub(run.started_ns) / 1_000_000;
            let ended = Ended { outcome: Outcome::Aborted, exit_code: None, signal: None, duration_ms };
            let draft = rows::invoked_completed(id, &run.skill_id, &run.trace_id, &ended);
            self.append(&draft, Class::Asks { owes: 0 })?;
            aborted.extend(id.parse::<InvocationId>());
            left_open.remove(0);
        }
        Ok(aborted)
    }

    /// A row that follows a run's first one: in the ledger if that one is, so that no end lacks a beginning.
    fn note(&self, invocation: &Invocation, draft: &Draft) {
        let class = match relock(&self.inner.live).get_mut(&invocation.id) {
            Some(live) if !live.recorded => {
                self.inner.ledger.drop_too();
                return;
            }
            Some(live) if live.owed > 0 => {
                live.owed -= 1;
                Class::Owed
            }
            _ => Class::Asks { owes: 0 },
        };
        if let Err(e) = self.append(draft, class) {
            tracing::error!(invocation = %invocation.id, op = draft.op, error = %e, "a row is not in the audit ledger");
        }
    }
}
