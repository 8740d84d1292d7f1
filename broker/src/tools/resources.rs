//! What a running call has at hand beside its handles: whose call it is, the skill's copy, threads, room for its answer, and
//! the sandboxes that are counted. `dispatch` makes one for each call; nothing is decided with it.

use crate::blocking_pool::{BlockingPool, Stop};
use crate::call::{Invocation, ToolError};
use crate::memory_budget::{Held, Room};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// What one call works with.
#[derive(Debug)]
pub struct CallResources {
    pub(crate) invocation: Arc<Invocation>,
    /// The skill's sealed copy, a directory.
    pub(crate) copy: Arc<OwnedFd>,
    pub(crate) deadline: Instant,
    pub(crate) pool: BlockingPool,
    pub(crate) sandboxes: Arc<Semaphore>,
    pub(crate) answers: Room,
    /// Where it learns what the result takes of `answers`.
    pub(crate) held: Arc<Mutex<Held>>,
    pub(crate) ending: Ending,
}

impl CallResources {
    /// Whose call it is.
    pub fn invocation(&self) -> &Arc<Invocation> {
        &self.invocation
    }

    /// The skill's sealed copy, a directory.
    pub fn copy(&self) -> &Arc<OwnedFd> {
        &self.copy
    }

    /// What is left until the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Waits until the invocation may have one sandbox more; none when the broker is stopping.
    pub(super) async fn sandbox(&self) -> Option<OwnedSemaphorePermit> {
        self.sandboxes.clone().acquire_owned().await.ok()
    }

    /// Where the call leaves what must be over before it counts as completed, however it is cut.
    pub(super) fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Waits until the invocation may hold `bytes` more for this call's result. A tool asks once, before it makes
    /// a result of more than a few pages.
    pub async fn room_for(&self, bytes: usize) {
        let first = self.held.lock().is_ok_and(|held| held.bytes() == 0);
        if first {
            let taken = self.answers.take(bytes).await;
            if let Ok(mut held) = self.held.lock() {
                *held = taken;
            }
        }
    }

    /// Does `work`, which may wait for a disk, on a thread for such work.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        self.pool.run(work).await.unwrap_or_else(|_| Err(ToolError::internal()))
    }
}

/// What a tool was still ending when it was dropped. Without it, a call could be completed in the ledger while
/// something of it lives on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Ending {
    /// Has `work` done, whether or not anybody comes back for it.
    pub(super) fn leave(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Outside a runtime nothing is left that could do it: the broker is going, and the helper ends what it made.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(runtime.spawn(work));
        }
    }

    /// Waits until all of it is over.
    pub(crate) async fn over(&self) {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for task in left {
            if let Err(e) = task.await {
                tracing::error!(error = %e, "ending a call ended in a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_dropped_tool_was_ending_is_waited_for() {
        let ending = Ending::default();
        let (finish, finishes) = tokio::sync::oneshot::channel::<()>();
        let of_tool = ending.clone();
        of_tool.leave(async move { drop(finishes.await) });
        drop(of_tool);
        let over = ending.over();
        tokio::pin!(over);
        assert!(is_pending(over.as_mut()).await);
        finish.send(()).unwrap();
        over.await;
        ending.over().await;
    }

    async fn is_pending(mut future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }
}
