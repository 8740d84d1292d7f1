//! `x-rate-limit-per-minute` (`[1.4]`): at most so many calls in any sixty seconds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);

/// The times of the calls that the last minute admitted; never more than the limit.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_minute: usize,
    admitted: Mutex<VecDeque<Instant>>,
}

impl RateLimit {
    pub(super) fn new(per_minute: u32) -> Self {
        let per_minute = usize::try_from(per_minute).unwrap_or(usize::MAX);
        RateLimit { per_minute, admitted: Mutex::default() }
    }

    /// Whether a call at `now` is within the limit. A call that is not admitted doesn't count.
    pub(super) fn admit(&self, now: Instant) -> bool {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        while admitted.front().is_some_and(|&t| now.saturating_duration_since(t) >= WINDOW) {
            admitted.pop_front();
        }
        let room = admitted.len() < self.per_minute;
        if room {
            admitted.push_back(now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_holds_more_calls_than_the_limit() {
        let limit = RateLimit::new(3);
        let start = Instant::now();
        let at = |s| limit.admit(start + Duration::from_secs(s));
        assert_eq!([at(0), at(1), at(2), at(3), at(59)], [true, true, true, false, false]);
        assert_eq!([at(60), at(60), at(61), at(62), at(63)], [true, false, true, true, false]);
    }
}
