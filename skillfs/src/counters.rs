//! How often what has happened, for whoever asks over the control socket. Each part counts its own; nobody decides anything by
//! these numbers.

use cyberos_proto::control::{self, Decisions, Verdict};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All of them; [`control::Counters`] says what each one is.
#[derive(Debug, Default)]
pub struct Counters {
    /// Names that were looked up.
    pub lookups: Counter,
    /// Files that were opened to be read.
    pub opens: Counter,
    /// What the kernel was told to forget.
    pub invalidations: Counter,
    /// Times that the kernel dropped events.
    pub overflows: Counter,
    provider_runs: Counter,
    provider_us: Counter,
    current: Counter,
    fallback: Counter,
    hidden: Counter,
    failed: Counter,
}

impl Counters {
    /// The provider was asked.
    pub fn provider_ran(&self, time: Duration) {
        self.provider_runs.add(1);
        self.provider_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// A decision holds; none if there was none to be made.
    pub fn decided(&self, decision: Option<Verdict>) {
        match decision {
            Some(Verdict::Current) => self.current.add(1),
            Some(Verdict::Fallback) => self.fallback.add(1),
            Some(Verdict::Hidden) => self.hidden.add(1),
            None => self.failed.add(1),
        }
    }

    /// What they are now.
    pub fn read(&self) -> control::Counters {
        control::Counters {
            lookups: self.lookups.get(),
            opens: self.opens.get(),
            decisions: Decisions {
                current: self.current.get(),
                fallback: self.fallback.get(),
                hidden: self.hidden.get(),
                failed: self.failed.get(),
            },
            invalidations: self.invalidations.get(),
            provider_runs: self.provider_runs.get(),
            provider_us: self.provider_us.get(),
            overflows: self.overflows.get(),
        }
    }
}
