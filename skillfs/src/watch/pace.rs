//! How fast a skill may change, and how long it is left alone when it changes faster. Numbers and times, nothing else.

use std::time::{Duration, Instant};

/// Of a skill: events that may come at once (a large folder that is unpacked makes fewer than this), and each second for
/// ever.
pub(super) const OF_SKILLS: Rate = Rate { burst: 65_536, each_second: 2_048 };
/// Of a source's own entries, each of which may be another skill that must be looked for.
pub(super) const OF_SOURCES: Rate = Rate { burst: 2_048, each_second: 64 };
/// First and longest time for which a skill is left alone.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without, the next time is the first again.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How much is not too fast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    burst: u64,
    each_second: u64,
}

/// What a member of a lane may still use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Rate,
    left: u64,
    at: Instant,
}

impl Pace {
    /// All of it.
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Pace { rate, left: rate.burst, at: now }
    }

    /// Uses `events` of it; false when that was more than was left.
    pub(super) fn spend(&mut self, events: u64, now: Instant) -> bool {
        let millis = u64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let new = millis.saturating_mul(self.rate.each_second) / 1000;
        if new > 0 {
            self.left = self.left.saturating_add(new).min(self.rate.burst);
            self.at = now;
        }
        let enough = events <= self.left;
        self.left = self.left.saturating_sub(events);
        enough
    }

    /// How much is left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}

/// How long something is left alone: twice as long each time, and as at first after a while without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    times: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// The time to leave it alone from now on, at most `longest`.
    pub(super) fn next(&mut self, now: Instant, longest: Duration) -> Duration {
        let last = FIRST.saturating_mul(1 << self.times.saturating_sub(1).min(10)).min(LONGEST);
        if self.until.is_none_or(|until| now > until + FORGOTTEN.max(last)) {
            self.times = 0;
        }
        let time = FIRST.saturating_mul(1 << self.times.min(10)).min(longest).min(LONGEST);
        self.times = self.times.saturating_add(1);
        self.until = Some(now + time);
        time
    }

    /// How often in a row.
    pub(super) fn times(&self) -> u32 {
        self.times
    }

    /// Whether it is left alone now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether it was left alone not long ago.
    pub(super) fn was_recent(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now <= until + FORGOTTEN)
    }

    /// It is not left alone any more, whatever was said.
    pub(super) fn end(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_passes_and_a_storm_does_not() {
        let start = Instant::now();
        for rate in [OF_SKILLS, OF_SOURCES] {
            let mut pace = Pace::new(rate, start);
            assert!(pace.spend(rate.burst, start));
            assert!(!pace.spend(1, start));
            assert!(pace.spend(rate.each_second, start + SECOND) && !pace.spend(1, start + SECOND));
            // Slowly for ever.
            let mut pace = Pace::new(rate, start);
            for n in 0..100_000 {
                assert!(pace.spend(rate.each_second / 10, start + n * SECOND / 10));
            }
        }
    }

    #[test]
    fn what_goes_on_is_left_alone_longer_and_what_is_quiet_recovers() {
        let (mut now, mut backoff) = (Instant::now(), Backoff::default());
        let mut times = Vec::new();
        for _ in 0..10 {
            let time = backoff.next(now, LONGEST);
            assert!(backoff.holds(now) && !backoff.holds(now + time));
            times.push(time);
            now += time + SECOND;
        }
        assert!(times.is_sorted() && times[0] == FIRST && times[9] == LONGEST, "{times:?}");
        now += LONGEST + FORGOTTEN;
        assert_eq!(backoff.next(now, LONGEST), FIRST);
        backoff.end(now);
        assert!(!backoff.holds(now));
    }
}
