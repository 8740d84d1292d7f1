//! The one way in which a test waits for something that it is not told of: it asks again and again until it is so, and
//! fails when it is not in time. Nothing is ever taken for done because some time has passed.

use std::time::{Duration, Instant};

/// Longest wait for anything that must happen, on a machine that does other things too.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Asks until it is so, at most so long. The pauses grow with the wait: what comes at once is seen at once, and what takes
/// long is not asked so often that it takes longer.
pub(crate) fn eventually(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        let waited = began.elapsed();
        if waited > limit {
            return false;
        }
        let pause = (waited / 16).clamp(Duration::from_micros(100), Duration::from_millis(20));
        std::thread::sleep(pause);
    }
    true
}

/// Waits until it is so.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(eventually(SOON, is_so), "not in time: {what}");
}
