//! Sends a program's captured output to an operator, as it comes.

use crate::capture::{Capture, Progress, Stream};
use crate::operator::{FrameKind, write_frame};
use interprocess::local_socket::tokio::Stream as Connection;
use tokio::sync::{mpsc, watch};

/// Sends what both streams hold, and with `follow` what comes, until both have ended. Says also, with an empty frame
/// of standard input, when the program has taken what it was sent (`taken`), so that the operator sends more.
pub(super) async fn relay(
    capture: &Capture,
    follow: bool,
    mut taken: Option<mpsc::Receiver<()>>,
    to: &mut &Connection,
) -> std::io::Result<()> {
    let (mut out, mut err) = (
        Follower::new(&capture.stdout, FrameKind::Stdout),
        Follower::new(&capture.stderr, FrameKind::Stderr),
    );
    loop {
        let more = out.send(to).await? | err.send(to).await?;
        if more {
            continue;
        }
        if !follow || (out.over() && err.over()) {
            return Ok(());
        }
        tokio::select! {
            () = out.changed() => {}
            () = err.changed() => {}
            () = next(&mut taken) => write_frame(to, FrameKind::Stdin, &[]).await?,
        }
    }
}

async fn next(taken: &mut Option<mpsc::Receiver<()>>) {
    if let Some(receiver) = taken
        && receiver.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

struct Follower<'a> {
    stream: &'a Stream,
    kind: FrameKind,
    progress: watch::Receiver<Progress>,
    /// What was last looked at: what comes after that is a change, even if it has come before it is waited for.
    at: Progress,
    sent: u64,
}

impl<'a> Follower<'a> {
    fn new(stream: &'a Stream, kind: FrameKind) -> Self {
        Follower { stream, kind, progress: stream.progress(), at: Progress::default(), sent: 0 }
    }

    /// Sends one piece, if there is one.
    async fn send(&mut self, to: &mut &Connection) -> std::io::Result<bool> {
        self.look();
        if self.at.length <= self.sent {
            return Ok(false);
        }
        let bytes = self.stream.read_at(self.sent)?;
        self.sent += bytes.len() as u64;
        if !bytes.is_empty() {
            write_frame(to, self.kind, &bytes).await?;
        }
        Ok(!bytes.is_empty())
    }

    fn look(&mut self) {
        self.at = *self.progress.borrow_and_update();
    }

    fn over(&self) -> bool {
        self.at.ended && self.sent >= self.at.length
    }

    async fn changed(&mut self) {
        if self.at.ended || self.progress.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Keep, Logs};
    use std::time::Duration;

    #[tokio::test]
    async fn an_end_between_a_look_and_the_wait_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(&dir.path().join("logs"), Keep { runs: 1, bytes: 1 }).unwrap();
        let capture = logs.create("run").unwrap();
        let mut follower = Follower::new(&capture.stdout, FrameKind::Stdout);
        follower.look();
        assert!(!follower.over());
        capture.end();
        tokio::time::timeout(Duration::from_secs(10), follower.changed()).await.expect("it is told");
        follower.look();
        assert!(follower.over());
    }
}
