//! What a wall clock that is set does to the ledger (`[6.3]`): rows have its time, their order is that of their numbers, and
//! nothing is falsified or stuck.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;
#[path = "ledger_clock/waits.rs"]
mod waits;

use cyberos_broker::audit::clock::{Clock, Time};
use cyberos_broker::audit::ledger::Ledger;
use cyberos_broker::audit::options::{Appended, LedgerOptions};
use cyberos_broker::audit::recovery::LedgerError;
use cyberos_broker::audit::{Audit, AuditOptions, Ended, InvokedStarted, Outcome, frame};
use cyberos_broker::call::{Invocation, TraceId};
use cyberos_proto::ids::{InvocationId, TenantId};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use support::store::{ASKS, current, numbered, python, verify, whole};

const S: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * S;
const DAY: u64 = 24 * 60 * MINUTE;
/// 2026-11-30, noon.
const NOVEMBER: u64 = 1_796_040_000 * S;

/// Two clocks that a test moves.
#[derive(Clone)]
struct Hands(Arc<Mutex<Time>>);

impl Hands {
    fn new() -> Hands {
        Hands(Arc::new(Mutex::new(Time { wall_ns: NOVEMBER, boot_ns: 1000 * S })))
    }

    fn options(&self) -> LedgerOptions {
        let hands = self.clone();
        LedgerOptions { clock: Clock::of(move || *hands.0.lock().unwrap()), ..LedgerOptions::default() }
    }

    /// Time goes by.
    fn pass(&self, ns: u64) {
        let mut now = self.0.lock().unwrap();
        now.wall_ns += ns;
        now.boot_ns += ns;
    }

    /// Somebody sets the wall clock.
    fn set(&self, wall_ns: u64) {
        self.0.lock().unwrap().wall_ns = wall_ns;
    }

    fn open(&self, store: &Path) -> Ledger {
        Ledger::open(store, self.options(), &mut |_| {}).unwrap().0
    }
}

fn append(ledger: &Ledger) -> u64 {
    match ledger.append(&numbered(1), ASKS).unwrap() {
        Appended::Written { ts_ns, .. } => ts_ns,
        other => panic!("{other:?}"),
    }
}

fn names(store: &Path) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    frame::segments(store).unwrap().iter().map(name).collect()
}

#[test]
fn case_178_a_clock_that_jumps_ahead_and_back_falsifies_nothing_and_stops_nothing() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let ledger = hands.open(dir.path());
    assert_eq!(append(&ledger), NOVEMBER);
    hands.set(NOVEMBER + 365 * DAY);
    assert_eq!(append(&ledger), NOVEMBER + 365 * DAY);
    hands.pass(S);
    hands.set(NOVEMBER + 2 * S);
    assert_eq!(
        append(&ledger),
        NOVEMBER + 2 * S,
        "a row's time is the wall clock's, also when that was set back"
    );
    hands.pass(58 * S);
    append(&ledger);
    hands.set(NOVEMBER);
    assert_eq!(append(&ledger), NOVEMBER, "a step of a minute is none");
    ledger.close().unwrap();
    let rows = whole(dir.path());
    let kinds: Vec<_> = rows.iter().map(|r| (r.op.as_str(), r.ts_ns)).collect();
    let (there, back) = (NOVEMBER + 365 * DAY, NOVEMBER + 2 * S);
    let stepped = "audit.clock_stepped";
    assert_eq!(
        kinds,
        [
            ("skill.x", NOVEMBER),
            (stepped, there),
            ("skill.x", there),
            (stepped, back),
            ("skill.x", back),
            ("skill.x", NOVEMBER + MINUTE),
            ("skill.x", NOVEMBER)
        ]
    );
    assert_eq!(rows[1].extra["step_ms"], 365 * 86_400_000u64);
    assert_eq!(rows[1].extra["from_ts_ns"], NOVEMBER);
    assert_eq!(rows[3].extra["step_ms"], 1000 - 365 * 86_400_000i64);
    let steps = verify(dir.path()).clock_steps;
    assert_eq!(steps.iter().map(|s| (s.seq, s.told)).collect::<Vec<_>>(), [(2, true), (4, true)]);
    assert_eq!(python(dir.path()).0["what"], serde_json::Value::Null);
}

#[test]
fn a_clock_that_was_set_back_between_two_starts_is_told_of_at_the_second() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let ledger = hands.open(dir.path());
    append(&ledger);
    ledger.close().unwrap();
    hands.set(NOVEMBER - DAY);
    let ledger = hands.open(dir.path());
    append(&ledger);
    ledger.close().unwrap();
    let rows = whole(dir.path());
    assert_eq!(rows.len(), 3);
    assert_eq!((rows[1].op.as_str(), rows[1].text("noticed")), ("audit.clock_stepped", Some("start")));
    assert_eq!((rows[1].ts_ns, rows[2].ts_ns), (NOVEMBER - DAY, NOVEMBER - DAY));
    assert_eq!(verify(dir.path()).clock_steps.len(), 1);
}

#[test]
fn months_rotate_without_breaking_the_chain() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let ledger = hands.open(dir.path());
    append(&ledger);
    hands.pass(20 * DAY);
    append(&ledger);
    hands.pass(1);
    append(&ledger);
    drop(ledger);
    // A new month that begins with a start.
    let ledger = hands.open(dir.path());
    hands.pass(60 * DAY);
    append(&ledger);
    drop(ledger);
    assert_eq!(names(dir.path()), ["2026-11.binlog", "2026-12.binlog", "current.binlog"]);
    assert_eq!(whole(dir.path()).len(), 4);
    // A start knows rows of older segments too.
    drop(hands.open(dir.path()));
    fs::remove_file(current(dir.path())).unwrap();
    assert!(matches!(
        Ledger::open(dir.path(), hands.options(), &mut |_| {}),
        Err(LedgerError::Missing { from: 4, to: 4, .. })
    ));
}

#[test]
fn segments_rotate_forwards_only_and_go_on_rotating_after_a_clock_was_far_ahead() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let ledger = hands.open(dir.path());
    append(&ledger);
    // A day in 2030, and back.
    hands.set(NOVEMBER + 4 * 365 * DAY);
    append(&ledger);
    assert_eq!(names(dir.path()), ["2026-11.binlog", "current.binlog"]);
    hands.set(NOVEMBER + MINUTE);
    append(&ledger);
    assert_eq!(names(dir.path()).len(), 2, "a clock that is set back begins no segment");
    // December comes: November's name is taken, so this segment goes on. From January on all is as it was.
    for month in 1..=4 {
        hands.pass(30 * DAY);
        append(&ledger);
        assert_eq!(names(dir.path()).len(), 1 + month, "after {month} months");
    }
    assert_eq!(
        names(dir.path())[..4],
        ["2026-11.binlog", "2026-12.binlog", "2027-01.binlog", "2027-02.binlog"]
    );
    // Two months in 2040: names go on from there, and are only names.
    hands.set(NOVEMBER + 14 * 365 * DAY);
    append(&ledger);
    hands.pass(31 * DAY);
    append(&ledger);
    let many = names(dir.path()).len();
    hands.set(NOVEMBER + 150 * DAY);
    append(&ledger);
    for month in 1..=3 {
        hands.pass(31 * DAY);
        append(&ledger);
        assert_eq!(names(dir.path()).len(), many + month, "after {month} months");
    }
    ledger.close().unwrap();
    let mut sorted = names(dir.path());
    sorted.sort();
    assert_eq!(names(dir.path()), sorted);
    whole(dir.path());
    // And a start goes on with all of them.
    let ledger = hands.open(dir.path());
    hands.pass(31 * DAY);
    append(&ledger);
    ledger.close().unwrap();
    whole(dir.path());
}

#[test]
fn today_is_the_day_that_rows_are_dated_by_and_goes_on_after_a_clock_was_ahead() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let audit = || {
        Audit::open(dir.path(), AuditOptions { ledger: hands.options(), ..AuditOptions::default() }).unwrap()
    };
    let run = |audit: &Audit, n: u8| {
        let invocation = Invocation {
            id: InvocationId::from_random([n; 16]),
            skill_id: "s".into(),
            version: "1.0.0".into(),
            tenant: TenantId::NIL,
            trace: TraceId::new([7; 16]).unwrap(),
            sync_private: true,
        };
        let begun = InvokedStarted {
            caller: "0",
            uid: 1,
            args_hash: "",
            verdict: "current",
            epoch: "",
            content_digest: "",
            sandbox: serde_json::Value::Null,
        };
        let asked =
            cyberos_broker::audit::Asked { call: 1, tool: "Read", args_hash: "", trace: invocation.trace };
        let refusal = cyberos_broker::call::Refusal::BadParams("wrong".into());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(audit.invoked_started(&invocation, &begun)).unwrap();
        runtime.block_on(audit.refused(&invocation, &asked, &refusal)).unwrap();
        let ended = Ended { outcome: Outcome::Success, exit_code: Some(0), signal: None, duration_ms: 1 };
        audit.invoked_completed(&invocation, &ended);
    };
    let today = |audit: &Audit| audit.status().tool_calls_today;
    let broker = audit();
    run(&broker, 1);
    run(&broker, 2);
    assert_eq!(today(&broker), 2);
    hands.set(NOVEMBER + 365 * DAY);
    run(&broker, 3);
    assert_eq!(today(&broker), 1, "another day");
    hands.set(NOVEMBER + MINUTE);
    assert_eq!(today(&broker), 2, "the day that was interrupted");
    run(&broker, 4);
    assert_eq!(today(&broker), 3);
    assert_eq!(broker.now_ns(), NOVEMBER + MINUTE);
    broker.close().unwrap();
    drop(broker);
    let broker = audit();
    assert_eq!(today(&broker), 3, "also after a restart");
    hands.pass(DAY);
    assert_eq!(today(&broker), 0, "and it ends");
}
