//! A sandbox: one life for every one, an invocation's, a Bash's, a trial's (`[10.2]`). It is prepared (built, and stopped
//! before its program's first instruction), then started, and at last released; whatever becomes of who holds it, the
//! helper ends it. What runs in it, and what is recorded of it, is its holder's business. Its id is none of theirs.

use crate::helper::{Events, Helper, HelperError};
use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::message::{Event, Exit, Refusal, Signal};
use cyberos_proto::plan::{Feature, SandboxReport, SpawnPlan};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The helper refused it, or could not build it, or is gone.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// It would lack what the operator requires (`sandbox.require`).
    #[error("it would lack {}", words(.0))]
    Lacks(Vec<Feature>),
}

fn words(features: &[Feature]) -> String {
    features.iter().map(|feature| feature.as_str()).collect::<Vec<_>>().join(", ")
}

/// How a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How its program did.
    pub exit: Exit,
    /// Whether the kernel ended a process of it because its control group had no memory left.
    pub out_of_memory: bool,
}

/// A sandbox that its holder signals and releases. Dropped, it is released all the same, by what it was given to end in.
#[derive(Debug)]
pub struct Sandbox {
    id: SandboxId,
    helper: Helper,
    ending: Ending,
    released: bool,
}

/// A sandbox that is built, and in which nothing of what it is for has run.
#[derive(Debug)]
pub struct Prepared {
    /// What the kernel really enforces.
    pub report: SandboxReport,
    id: SandboxId,
    helper: Helper,
    events: Events,
    pipes: [OwnedFd; 3],
}

/// A program that runs.
#[derive(Debug)]
pub struct Started {
    /// Its standard input, to write.
    pub stdin: OwnedFd,
    /// Its standard output, to read.
    pub stdout: OwnedFd,
    /// Its standard error, to read.
    pub stderr: OwnedFd,
    /// Its end.
    pub end: Ends,
}

/// How a program that runs will have ended.
#[derive(Debug)]
pub struct Ends(Events);

impl Ends {
    /// Waits for its end; none when the link was lost first (the helper then ends the sandbox).
    pub async fn wait(&mut self) -> Option<End> {
        loop {
            if let Event::Exited { exit, out_of_memory, .. } = self.0.recv().await?.0 {
                return Some(End { exit, out_of_memory });
            }
        }
    }
}

impl Sandbox {
    /// One that has nothing yet. It leases a uid when it is prepared.
    pub fn new(helper: &Helper, ending: &Ending) -> Sandbox {
        let id = SandboxId::from_random(*Uuid::new_v4().as_bytes());
        Sandbox { id, helper: helper.clone(), ending: ending.clone(), released: false }
    }

    /// Leases a uid and makes the socket of `invocation`: the uid, and the listening descriptor.
    pub async fn create_socket(&self, invocation: InvocationId) -> Result<(u32, OwnedFd), HelperError> {
        self.helper.create_socket(self.id, invocation).await
    }

    /// Builds it of a plan with `descriptors` for its binds. What lacks a feature of `require` is refused: nothing has
    /// run in it then.
    pub async fn prepare(
        &self,
        plan: SpawnPlan,
        descriptors: Vec<OwnedFd>,
        require: &[Feature],
    ) -> Result<Prepared, SandboxError> {
        let mut events = self.helper.prepare(self.id, plan, descriptors).await?;
        let (event, pipes) = events.recv().await.ok_or_else(|| self.helper.lost())?;
        let (report, pipes) = match (event, <[OwnedFd; 3]>::try_from(pipes)) {
            (Event::Prepared { report, .. }, Ok(pipes)) => (report, pipes),
            (Event::Failed { refusal, .. }, _) => return Err(HelperError::Refused(refusal).into()),
            (other, _) => return Err(self.helper.strange(&other).into()),
        };
        let lacks: Vec<_> = report.skipped.iter().copied().filter(|f| require.contains(f)).collect();
        if !lacks.is_empty() {
            return Err(SandboxError::Lacks(lacks));
        }
        Ok(Prepared { report, id: self.id, helper: self.helper.clone(), events, pipes })
    }

    /// Signals its program, or ends it.
    pub async fn signal(&self, signal: Signal) {
        if let Err(e) = self.helper.signal(self.id, signal).await {
            tracing::warn!(sandbox = %self.id, error = %e, "the helper did not signal a sandbox");
        }
    }

    /// Ends what still runs in it and gives it back.
    pub async fn release(mut self) {
        self.released = true;
        release(self.helper.clone(), self.id).await;
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !self.released {
            // Also while it is being made: the helper takes requests in order.
            self.ending.leave(release(self.helper.clone(), self.id));
        }
    }
}

async fn release(helper: Helper, id: SandboxId) {
    match helper.release(id).await {
        // Refused: it was never asked for.
        Ok(()) | Err(HelperError::Refused(_)) => {}
        Err(e) => {
            tracing::warn!(sandbox = %id, error = %e, "the helper did not end a sandbox; its own clean-up will");
        }
    }
}

impl Prepared {
    /// Executes its program. What is recorded of it has been by now.
    pub async fn go(self) -> Result<Started, HelperError> {
        let Prepared { id, helper, mut events, pipes, .. } = self;
        helper.go(id).await.or_else(|e| match e {
            // It has failed meanwhile, and the event says why.
            HelperError::Refused(Refusal::Phase) => Ok(()),
            e => Err(e),
        })?;
        match events.recv().await.ok_or_else(|| helper.lost())?.0 {
            Event::Started { .. } => {}
            Event::Failed { refusal, .. } => return Err(HelperError::Refused(refusal)),
            other => return Err(helper.strange(&other)),
        }
        let [stdin, stdout, stderr] = pipes;
        Ok(Started { stdin, stdout, stderr, end: Ends(events) })
    }
}

/// What a holder was still ending when it was dropped. Without it, a call could be completed in the ledger while
/// something of it lives on.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Ending {
    /// Has `work` done, whether or not anybody comes back for it.
    fn leave(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Outside a runtime nothing is left that could do it: the broker is going, and the helper ends what it made.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(runtime.spawn(work));
        }
    }

    /// Waits until all of it is over.
    pub async fn over(&self) {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for task in left {
            if let Err(e) = task.await {
                tracing::error!(error = %e, "ending a sandbox ended in a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_dropped_holder_was_ending_is_waited_for() {
        let ending = Ending::default();
        let (finish, finishes) = tokio::sync::oneshot::channel::<()>();
        let of_holder = ending.clone();
        of_holder.leave(async move { drop(finishes.await) });
        drop(of_holder);
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
