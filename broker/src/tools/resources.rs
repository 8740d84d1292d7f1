//! What a running call has at hand beside its handles: whose call it is, the skill's copy, threads, room for its answer, and
//! the sandboxes that are counted. `dispatch` makes one for each call; nothing is decided with it.

use crate::blocking_pool::{BlockingPool, Stop};
use crate::call::{Invocation, ToolError};
use crate::memory_budget::{Held, Room};
use crate::sandbox::Ending;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    pub(super) fn ending(&self) -> &Ending {
        &self.ending
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
