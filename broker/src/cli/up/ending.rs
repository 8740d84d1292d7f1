//! The signals that end an `up` (`[7.5]`): an operator's, a service manager's, and a terminal's that goes away.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end an `up`. Held from the start, so that none of them ends the process without its clean-up.
pub(super) struct Ending {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
}

impl Ending {
    pub(super) fn expect() -> Result<Self> {
        Ok(Ending {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Returns when one of them has come.
    pub(super) async fn comes(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}
