//! Ledger time: nanoseconds since 1970 (UTC), and the day and month they fall on. It knows no row and no file.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

const NS_PER_DAY: u64 = 86_400 * 1_000_000_000;

/// The wall clock; 0 before 1970, the last instant that 64 bits hold after 2554.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
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
    year: u64,
    month: u64,
}

impl Month {
    /// The month of `ts_ns`.
    pub(crate) fn of(ts_ns: u64) -> Self {
        // Civil date from a day count in years that begin in March, so that the leap day is the last one; 719,468 days
        // lie between 0000-03-01 and 1970-01-01, 146,097 in 400 years.
        let days = day(ts_ns) + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Month { year: era * 400 + year_of_era + u64::from(month <= 2), month }
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
    }
}
