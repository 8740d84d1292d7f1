//! Where work that may wait for a disk is done: on threads of its own, a bounded number of them, so that a file
//! system that hangs takes its invocation's share and no more. `dispatch` and the tools use it; it knows neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// Threads that all invocations have together.
const OF_ALL: usize = 64;
/// Threads that one invocation may use at once.
const OF_ONE: usize = 4;

/// The threads.
#[derive(Clone, Debug)]
pub struct BlockingPool {
    all: Arc<Semaphore>,
    one: Arc<Semaphore>,
}

/// The work was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work ended in a panic, or the broker is stopping")]
pub struct Lost;

impl Default for BlockingPool {
    fn default() -> Self {
        BlockingPool { all: Arc::new(Semaphore::new(OF_ALL)), one: Arc::new(Semaphore::new(OF_ONE)) }
    }
}

impl BlockingPool {
    /// A share of the same threads for one more invocation.
    pub fn share(&self) -> Self {
        BlockingPool { all: self.all.clone(), one: Arc::new(Semaphore::new(OF_ONE)) }
    }

    /// Does `work` on one of them. When nobody waits for the result any more, `work` finds that in its [`Stop`]; it
    /// keeps its thread until it looks.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let one = self.one.clone().acquire_owned().await.map_err(|_| Lost)?;
        let all = self.all.clone().acquire_owned().await.map_err(|_| Lost)?;
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let _stopped_when_dropped = StopOnDrop(stop.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _places = (one, all);
            work(&stop)
        });
        task.await.map_err(|_| Lost)
    }
}

/// Says whether a result is still wanted.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// True when nobody wants the result.
    pub fn wanted_no_more(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn one_invocation_cannot_take_the_threads_of_another() {
        let all = BlockingPool::default();
        let (mine, other) = (all.share(), all.share());
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let hung: Vec<_> = (0..OF_ONE * 3)
            .map(|_| {
                let (mine, gate) = (mine.clone(), gate.clone());
                tokio::spawn(async move { mine.run(move |_| gate.lock().unwrap().recv().is_ok()).await })
            })
            .collect();
        while mine.one.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(other.run(|_| 7).await, Ok(7));
        drop(release);
        for task in hung {
            assert_eq!(task.await.unwrap(), Ok(false));
        }
    }

    #[tokio::test]
    async fn work_learns_that_nobody_waits_for_it_and_a_panic_is_an_error() {
        let workers = BlockingPool::default();
        let (began, begins) = tokio::sync::oneshot::channel();
        let (stopped, stops) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let work = move |stop: &Stop| {
                began.send(()).unwrap();
                while !stop.wanted_no_more() {
                    std::thread::yield_now();
                }
                stopped.send(()).unwrap();
            };
            workers.run(work).await
        });
        begins.await.unwrap();
        task.abort();
        stops.await.unwrap();
        assert_eq!(BlockingPool::default().run(|_| panic!("on purpose")).await, Err::<(), _>(Lost));
    }
}
