//! Ledger time: nanoseconds since 1970 (UTC) by the wall clock, the day and month they fall on, and the steps that the
//! wall clock makes against one that only goes forward (`[6.3]`). It knows no row and no file.

use nix::time::{ClockId, clock_gettime};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

const NS_PER_DAY: u64 = 86_400 * NS_PER_S;
const NS_PER_S: u64 = 1_000_000_000;
/// A larger step of the wall clock has a row of its own.
const STEP_NS: u64 = 60 * NS_PER_S;

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// The wall clock, ns since 1970: what rows, days and paths are dated by. It may be set forward and back.
    pub wall_ns: u64,
    /// CLOCK_BOOTTIME: goes on evenly, also through a suspend, and is set by nobody.
    pub boot_ns: u64,
}

/// Where a ledger reads the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock {
    /// The machine's.
    pub fn system() -> Clock {
        Clock::of(now)
    }

    /// Another one.
    pub fn of(read: impl Fn() -> Time + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(read))
    }

    /// Both clocks now.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

fn now() -> Time {
    let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| {
        let (s, ns) = (u64::try_from(t.tv_sec()).unwrap_or(0), u64::try_from(t.tv_nsec()).unwrap_or(0));
        s.saturating_mul(NS_PER_S).saturating_add(ns)
    });
    Time { wall_ns: now_ns(), boot_ns: boot }
}

/// The wall clock; 0 before 1970, the last instant that 64 bits hold after 2554.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it would have shown without the step.
    pub from_ns: u64,
    /// What it shows.
    pub to_ns: u64,
    /// Whether it was found at a start, where the last row is all that is known of the time before.
    pub at_start: bool,
}

impl Step {
    /// Its length, in ms; negative for a clock that was set back.
    pub fn ms(&self) -> i64 {
        let ns = i128::from(self.to_ns) - i128::from(self.from_ns);
        i64::try_from(ns / 1_000_000).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Notices steps: while the wall clock is left alone, the difference between the two clocks stays what it is.
#[derive(Debug)]
pub(super) struct Steps {
    difference: i128,
}

impl Steps {
    /// From `now` on. A wall clock that shows an earlier time than the last row has been set back, then or since.
    pub(super) fn begin(now: Time, last_row_ns: Option<u64>) -> (Steps, Option<Step>) {
        let behind = last_row_ns.filter(|last| last.saturating_sub(now.wall_ns) > STEP_NS);
        let step = behind.map(|last| Step { from_ns: last, to_ns: now.wall_ns, at_start: true });
        (Steps { difference: difference(now) }, step)
    }

    /// The step since the last one that was found, if there was one. Smaller ones add up until they are one.
    pub(super) fn look(&mut self, now: Time) -> Option<Step> {
        let moved = difference(now) - self.difference;
        if moved.unsigned_abs() <= u128::from(STEP_NS) {
            return None;
        }
        self.difference = difference(now);
        let from = i128::from(now.wall_ns) - moved;
        let from_ns = u64::try_from(from.max(0)).unwrap_or(u64::MAX);
        Some(Step { from_ns, to_ns: now.wall_ns, at_start: false })
    }
}

fn difference(time: Time) -> i128 {
    i128::from(time.wall_ns) - i128::from(time.boot_ns)
}

/// The UTC day of `ts_ns`, counted from 1970-01-01.
pub(super) fn day(ts_ns: u64) -> u64 {
    ts_ns / NS_PER_DAY
}

/// The first instant of the UTC day of `ts_ns`.
pub(super) fn day_begins(ts_ns: u64) -> u64 {
    day(ts_ns) * NS_PER_DAY
}

/// A UTC month; shown as `YYYY-MM`, which sorts by time up to the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Month {
    year: i32,
    month: u8,
}

impl Month {
    /// The month of `ts_ns`.
    pub(crate) fn of(ts_ns: u64) -> Self {
        // Every instant that 64 bits hold has a date; the last of them is in 2554.
        let date =
            OffsetDateTime::from_unix_timestamp_nanos(ts_ns.into()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        Month { year: date.year(), month: date.month().into() }
    }
}

impl Month {
    /// The month that [`Display`](fmt::Display) has written.
    pub(super) fn parse(text: &str) -> Option<Month> {
        let (year, month) = text.split_once('-')?;
        let month = Month { year: year.parse().ok()?, month: month.parse().ok()? };
        ((1..=12).contains(&month.month) && month.to_string() == text).then_some(month)
    }

    /// The month after it.
    pub(super) fn next(self) -> Month {
        match self.month {
            12 => Month { year: self.year + 1, month: 1 },
            month => Month { month: month + 1, ..self },
        }
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_and_end_where_the_calendar_says() {
        let at = |seconds: u64| Month::of(seconds * 1_000_000_000).to_string();
        for (seconds, month) in [
            (0, "1970-01"),
            (951_782_399, "2000-02"),
            (951_868_799, "2000-02"),
            (951_868_800, "2000-03"),
            (1_796_033_177, "2026-11"),
            (1_798_761_599, "2026-12"),
            (1_798_761_600, "2027-01"),
            (4_107_542_399, "2100-02"),
            (4_107_542_400, "2100-03"),
        ] {
            assert_eq!(at(seconds), month, "{seconds}");
        }
        assert!(Month::of(u64::MAX) > Month::of(0));
        let december = Month::parse("2026-12").unwrap();
        assert_eq!((december.to_string(), december.next().to_string()), ("2026-12".into(), "2027-01".into()));
        for bad in ["", "2026", "2026-13", "2026-00", "2026-1", "+026-01", "2026-01.binlog"] {
            assert_eq!(Month::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_step_is_what_the_wall_clock_does_alone() {
        let at = |wall_s: u64, boot_s: u64| Time { wall_ns: wall_s * NS_PER_S, boot_ns: boot_s * NS_PER_S };
        let (mut steps, none) = Steps::begin(at(1_000_000, 500), Some(999_999 * NS_PER_S));
        assert_eq!(none, None);
        assert_eq!(steps.look(at(1_090_000, 90_500)), None, "a long night");
        assert_eq!(steps.look(at(1_090_060, 90_500)), None, "sixty seconds are none");
        let step = steps.look(at(1_090_061, 90_500)).unwrap();
        assert_eq!((step.ms(), step.from_ns, step.at_start), (61_000, 1_090_000 * NS_PER_S, false));
        assert_eq!(steps.look(at(1_090_071, 90_510)), None, "once");
        let step = steps.look(at(1_000, 90_520)).unwrap();
        assert_eq!(step.ms(), -1_089_081_000);
        for n in 1..=6 {
            assert_eq!(steps.look(at(1_000 + 10 * n, 90_520)), None);
        }
        assert_eq!(steps.look(at(1_070, 90_520)).unwrap().ms(), 70_000, "small ones add up");
        let (_, step) = Steps::begin(at(1_000, 10), Some(1_061 * NS_PER_S));
        assert_eq!(step.map(|s| (s.ms(), s.at_start)), Some((-61_000, true)));
        assert_eq!(Steps::begin(at(1_000, 10), Some(1_060 * NS_PER_S)).1, None);
        assert_eq!(Steps::begin(at(1_000, 10), None).1, None);
        let (mut steps, _) = Steps::begin(at(0, 0), None);
        assert_eq!(steps.look(Time { wall_ns: u64::MAX, boot_ns: 0 }).unwrap().from_ns, 0);
    }
}
