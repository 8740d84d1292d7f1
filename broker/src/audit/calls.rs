//! The rows of one call (`[6.1]`): started, completed or denied, and MemoryEmit's own. The only place where a [`Started`] is
//! made. `dispatch` calls it; what a call may do has been decided before.

use super::Audit;
use super::options::{Appended, AuditUnavailable, Class};
use super::row::Draft;
use super::rows::{self, Asked, CallOutcome, Emitted, StartedCall};
use crate::call::{Call, Invocation, Refusal, TraceId};
use crate::grants::{Handles, Permit};
use cyberos_proto::ids::InvocationId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A permitted call whose `skill.tool_call_started` row is in the ledger (or in its queue), with what it may touch. What is
/// to be run takes it by value; until then it holds that too.
#[derive(Debug)]
pub struct Started<W = ()> {
    row: StartedCall,
    kept: Kept,
    handles: Handles,
    work: W,
}

impl<W> Started<W> {
    /// What is to be run, and the right to run it once.
    pub fn into_work(self) -> (W, Started) {
        let Started { row, kept, handles, work } = self;
        (work, Started { row, kept, handles, work: () })
    }

    /// The call's number.
    pub fn number(&self) -> u64 {
        self.row.call
    }

    /// The trace it belongs to.
    pub fn trace(&self) -> TraceId {
        self.row.trace
    }

    /// What it may touch.
    pub fn handles(&mut self) -> &mut Handles {
        &mut self.handles
    }
}

/// The places in the queue that a call keeps for rows of its own, until one of its holders takes them.
#[derive(Clone, Debug)]
pub(super) struct Kept(Arc<AtomicUsize>);

impl Kept {
    fn new(places: usize) -> Self {
        Kept(Arc::new(AtomicUsize::new(places)))
    }

    /// Takes one, if there is one.
    pub(super) fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |places| places.checked_sub(1)).is_ok()
    }

    /// Takes all that are left.
    fn take_all(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Audit {
    /// Row `skill.tool_call_started`. The only way to a [`Started`]; the [`OpenCall`] must be completed. When the row
    /// can't be taken the call comes back, to be refused with `audit_unavailable`.
    pub async fn started<W>(
        &self,
        invocation: &Invocation,
        permit: Permit<W>,
    ) -> Result<(Started<W>, OpenCall), Box<(AuditUnavailable, Call)>> {
        let (trace, owed) = (permit.trace(), permit.rows_owed());
        let (call, handles, work) = permit.into_parts();
        let (open, appended) = match self.begin(invocation, &call, trace, owed) {
            Ok(begun) => begun,
            Err(unavailable) => return Err(Box::new((unavailable, call))),
        };
        let started = Started { row: open.row.clone(), kept: open.kept.clone(), handles, work };
        // Whoever gives up while this waits drops the open call, which leaves its completed row.
        self.wait(appended).await;
        Ok((started, open))
    }

    pub(super) fn begin(
        &self,
        invocation: &Invocation,
        call: &Call,
        trace: TraceId,
        rows_owed: usize,
    ) -> Result<(OpenCall, Appended), AuditUnavailable> {
        let asked = Asked { call: call.number, tool: &call.tool, args_hash: &call.args_hash, trace };
        let owes = 1 + rows_owed;
        let appended =
            self.append_of(invocation.id, &rows::call_started(invocation, &asked), Class::Asks { owes })?;
        let recorded = appended != Appended::Dropped;
        let row = StartedCall {
            invocation_id: invocation.id.to_string(),
            call: call.number,
            skill_id: invocation.skill_id.clone(),
            tool: call.tool.clone(),
            trace,
        };
        let open = OpenCall {
            audit: self.clone(),
            run: invocation.id,
            row,
            kept: Kept::new(if recorded { rows_owed } else { 0 }),
            since: Instant::now(),
            owes_row: recorded,
            dropped: !recorded,
        };
        Ok((open, appended))
    }

    /// Row `skill.tool_denied`: a call that a rule refused, or one with wrong parameters. When the row can't be taken
    /// the answer must be `audit_unavailable`, so that refusals can't be probed unseen.
    pub async fn refused(
        &self,
        invocation: &Invocation,
        asked: &Asked<'_>,
        refusal: &Refusal,
    ) -> Result<(), AuditUnavailable> {
        let draft = rows::refused(invocation, asked, refusal);
        let appended = self.append_of(invocation.id, &draft, Class::Asks { owes: 0 })?;
        self.wait(appended).await;
        Ok(())
    }

    /// Row `memory.emit`, MemoryEmit's own, once the file is in the store. Its seq.
    pub async fn memory_emit(
        &self,
        invocation: &Invocation,
        started: &Started,
        emitted: &Emitted<'_>,
    ) -> Result<u64, AuditUnavailable> {
        let (row, kept) = (&started.row, &started.kept);
        let class = if kept.take() { Class::Owed } else { Class::Asks { owes: 0 } };
        let appended =
            self.append_of(invocation.id, &rows::memory_emit(row, invocation.tenant, emitted), class)?;
        self.wait(appended).await;
        match appended {
            Appended::Written { seq, .. } | Appended::Queued { seq, .. } => Ok(seq),
            Appended::Dropped => Err(AuditUnavailable { reason: "its queue is full".into() }),
        }
    }
}

/// A call that has started and owes the row that closes it: `skill.tool_call_completed`, or `skill.tool_denied` when a
/// quota turned out to be used up. Dropped without one (a panic, a cut connection), it writes an error row `dropped`
/// itself: a started row that no other closes then means that the broker died.
#[derive(Debug)]
#[must_use = "a call that started must be completed"]
pub struct OpenCall {
    audit: Audit,
    run: InvocationId,
    pub(super) row: StartedCall,
    pub(super) kept: Kept,
    since: Instant,
    owes_row: bool,
    /// Whether its first row was dropped (`audit.on_failure: continue`): then the one that would close it is, too.
    dropped: bool,
}

impl OpenCall {
    /// Row `skill.tool_call_completed`.
    pub async fn completed(mut self, outcome: CallOutcome) {
        if let Some(appended) = self.complete(&outcome) {
            self.audit.wait(appended).await;
        }
    }

    /// Row `skill.tool_denied` instead: a refusal that was found out once the call ran (`[2.8]`). One row closes the call,
    /// and it counts once.
    pub async fn refused(mut self, invocation: &Invocation, args_hash: &str, refusal: &Refusal) {
        let StartedCall { call, tool, trace, .. } = &self.row;
        let asked = Asked { call: *call, tool, args_hash, trace: *trace };
        let draft = rows::refused_late(invocation, &asked, refusal, ms(self.since));
        if let Some(appended) = self.close(&draft) {
            self.audit.wait(appended).await;
        }
    }

    fn complete(&mut self, outcome: &CallOutcome) -> Option<Appended> {
        let draft = rows::call_completed(&self.row, outcome, ms(self.since));
        self.close(&draft)
    }

    fn close(&mut self, draft: &Draft) -> Option<Appended> {
        let unused = self.kept.take_all();
        if unused > 0 {
            self.audit.inner.ledger.forgo(unused);
        }
        if std::mem::take(&mut self.dropped) {
            self.audit.inner.ledger.drop_too();
        }
        if !std::mem::take(&mut self.owes_row) {
            return None;
        }
        let appended = self.audit.append_of(self.run, draft, Class::Owed);
        if let Err(e) = &appended {
            tracing::error!(
                invocation = self.row.invocation_id, call = self.row.call, op = draft.op, error = %e,
                "the row that closes a call is not in the audit ledger"
            );
        }
        appended.ok()
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.owes_row || self.dropped || self.kept.0.load(Ordering::Relaxed) > 0 {
            self.complete(&CallOutcome::Error { error: "dropped".into() });
        }
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
