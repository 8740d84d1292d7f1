//! SkillFS tells over its control socket how often what has happened, for whoever exports it (`[7]`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use cyberos_proto::control::{ControlReply, ControlRequest, Counters, Verdict};
use nix::sys::signal::Signal;
use std::fs;
use support::skillfs::{Bench, one, read, until};

fn counters(bench: &Bench) -> Counters {
    match bench.ask(&ControlRequest::Counters) {
        ControlReply::Counters(counters) => counters,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_has_happened_is_counted_and_told() {
    let bench = one(&[]);
    let start = counters(&bench);
    assert_eq!((start.decisions.current, start.decisions.fallback, start.decisions.failed), (1, 0, 0));
    assert_eq!((start.opens, start.overflows), (0, 0));
    assert!(start.provider_runs >= 1 && start.provider_us > 0, "{start:?}");
    // The skill and its file are looked up once, then the kernel knows them.
    for _ in 0..3 {
        assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
    }
    let seen = counters(&bench);
    assert_eq!((seen.lookups - start.lookups, seen.opens), (2, 1));
    assert_eq!(seen.decisions, start.decisions, "nothing was decided");
    // A listing looks up what it lists.
    assert_eq!(fs::read_dir(bench.view("s")).unwrap().count(), 1);
    assert_eq!(counters(&bench).lookups, seen.lookups + 1);
    bench.says_fallback("s", "v1");
    bench.refresh("s");
    until("it is counted", || counters(&bench).decisions.fallback == 1);
    let fallback = counters(&bench);
    assert_eq!((fallback.decisions.current, fallback.decisions.fallback), (1, 1));
    assert_eq!(fallback.provider_runs, seen.provider_runs + 1);
    assert!(fallback.provider_us > seen.provider_us);
    // How many depends on what the kernel knows by then.
    assert!(fallback.invalidations > seen.invalidations, "{seen:?} {fallback:?}");
    bench.says_hidden("s");
    bench.refresh("s");
    bench.says("s", "no answer");
    bench.refresh("s");
    let decided = || (counters(&bench).decisions.hidden, counters(&bench).decisions.failed);
    until("both are counted", || decided() == (1, 1));
}

#[test]
fn events_that_the_kernel_dropped_are_counted() {
    let bench = one(&[]);
    let most: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    // More than is kept for SkillFS while it reads none.
    bench.signal(Signal::SIGSTOP);
    for n in 0..=most {
        fs::write(bench.source(&format!("s/f{}", n % 7)), "").unwrap();
    }
    bench.signal(Signal::SIGCONT);
    until("the overflow is counted", || counters(&bench).overflows >= 1);
    assert_eq!(bench.state("s").verdict, Verdict::Current, "and all is looked at again");
}
