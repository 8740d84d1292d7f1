//! Calls that get no row of their own (`[2.8]`): once the rows of a run's calls have used up
//! `quota.invocation_ledger_mb`, further ones are refused, counted here, and told of in one row a minute and at the run's
//! end. `dispatch` asks before each call; `runs` closes the account.

use super::options::Class;
use super::rows::{self, Span};
use super::tally::Adds;
use super::{Audit, relock};
use crate::call::Invocation;
use cyberos_proto::ids::InvocationId;
use std::sync::Arc;
use std::time::Duration;

/// How long calls are counted before a row tells of them.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What is counted of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unrecorded {
    /// Such calls since the run began.
    pub total: u64,
    /// Those of them that no row tells of yet.
    pub untold: Option<Span>,
}

impl Audit {
    /// Whether call `number` of this run may be recorded. One that may not is counted here, and must be refused.
    pub fn admits(&self, invocation: &Invocation, number: u64) -> bool {
        let mut live = relock(&self.inner.live);
        let Some(run) = live.get_mut(&invocation.id).filter(|run| run.bytes >= self.inner.run_quota) else {
            return true;
        };
        let one = Span { first: number, last: number, count: 1 };
        let begins = run.unrecorded.untold.is_none();
        if run.unrecorded.total == 0 {
            tracing::warn!(
                invocation = %invocation.id, skill = invocation.skill_id, call = number, bytes = run.bytes,
                "the rows of its calls have used up quota.invocation_ledger_mb: from now on its calls are \
                 refused and counted"
            );
        }
        run.unrecorded.total += 1;
        run.unrecorded.untold = Some(run.unrecorded.untold.map_or(one, |span| span.with(one)));
        drop(live);
        if begins {
            self.tell_later(invocation);
        }
        false
    }

    /// What has been counted of a run that goes on.
    pub fn unrecorded(&self, run: InvocationId) -> Unrecorded {
        relock(&self.inner.live).get(&run).map_or_else(Unrecorded::default, |run| run.unrecorded)
    }

    /// What no row tells of yet, of all runs.
    pub(super) fn untold(&self) -> Adds {
        let live = relock(&self.inner.live);
        Adds::unrecorded(live.values().filter_map(|run| run.unrecorded.untold).map(|span| span.count).sum())
    }

    /// Row `skill.calls_unrecorded`, a minute after the first call that it tells of, unless the run has ended by then.
    fn tell_later(&self, invocation: &Invocation) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, invocation) = (Arc::downgrade(&self.inner), invocation.clone());
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(TOLD_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                if (Audit { inner }).tell(&invocation) {
                    return;
                }
            }
        });
    }

    /// Whether nothing is left to tell.
    fn tell(&self, invocation: &Invocation) -> bool {
        // Held until the row is in, so that the run's end finds either the calls or their row.
        let mut live = relock(&self.inner.live);
        let Some(run) = live.get_mut(&invocation.id) else { return true };
        let Some(span) = run.unrecorded.untold else { return true };
        if run.recorded {
            let draft = rows::calls_unrecorded(invocation, &span);
            if let Err(e) = self.append(&draft, Class::Asks { owes: 0 }) {
                tracing::error!(invocation = %invocation.id, error = %e, "calls without rows are not told of yet");
                return false;
            }
        }
        run.unrecorded.untold = None;
        true
    }

    /// What the run's end has to tell.
    pub(super) fn last_untold(&self, run: InvocationId) -> Unrecorded {
        let mut live = relock(&self.inner.live);
        let Some(run) = live.get_mut(&run) else { return Unrecorded::default() };
        let told = run.unrecorded;
        run.unrecorded.untold = None;
        told
    }
}
