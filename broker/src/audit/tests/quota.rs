//! Calls beyond a run's quota of rows: counted, and told of.

use super::*;

/// Refuses calls `numbers` of `i`, those with rows and those without; how many got one.
async fn ask_for(audit: &Audit, i: &Invocation, numbers: std::ops::RangeInclusive<u64>) -> u64 {
    let mut recorded = 0;
    for number in numbers {
        if audit.admits(i, number) {
            recorded += 1;
            audit.refused(i, &asked(number, "Read"), &denial()).await.unwrap();
        }
    }
    recorded
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_quota_of_rows_are_counted_in_a_row_a_minute_and_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let options = || AuditOptions { run_quota: 4000, ..AuditOptions::default() };
    let audit = Audit::open(dir.path(), options()).unwrap();
    let (greedy, other) = (invocation(1), invocation(2));
    audit.invoked_started(&greedy, &started()).await.unwrap();
    audit.invoked_started(&other, &started()).await.unwrap();
    let recorded = ask_for(&audit, &greedy, 1..=100).await;
    assert!((2..20).contains(&recorded), "{recorded}");
    assert!(audit.admits(&other, 1), "another run has a quota of its own");
    let spans = |store: &Path| {
        let rows = rows_of(store).into_iter().filter(|row| row.op == CALLS_UNRECORDED);
        let number = |row: &Row, field: &str| row.number(field).unwrap();
        rows.map(|row| (number(&row, "first_call"), number(&row, "last_call"), number(&row, "count")))
            .collect::<Vec<_>>()
    };
    let numbers = |audit: &Audit| {
        let status = audit.status();
        (status.tool_calls_today, status.denied_today, status.unrecorded_today)
    };
    tokio::time::sleep(std::time::Duration::from_secs(59)).await;
    assert_eq!(spans(dir.path()), [], "not before the minute is over");
    assert_eq!(numbers(&audit), (100, 100, 100 - recorded), "but counted at once");
    let untold = audit.unrecorded(greedy.id).untold;
    let id = greedy.id.to_string();
    let told = why(dir.path(), &id, None, untold).unwrap().unwrap();
    let sentence = &told.last().unwrap().denial.as_ref().unwrap().sentence;
    assert_eq!(told.len() as u64, recorded + 1);
    assert!(sentence.contains(&format!("calls {} to 100", recorded + 1)), "{sentence}");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let first = (recorded + 1, 100, 100 - recorded);
    assert_eq!(spans(dir.path()), [first]);
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_eq!(spans(dir.path()), [first], "nothing happened, nothing is told");
    ask_for(&audit, &greedy, 101..=150).await;
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    assert_eq!(spans(dir.path()), [first, (101, 150, 50)]);
    ask_for(&audit, &greedy, 151..=151).await;
    audit.invoked_completed(&greedy, &ended(Outcome::Success));
    audit.invoked_completed(&other, &ended(Outcome::Success));
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    let all = [first, (101, 150, 50), (151, 151, 1)];
    assert_eq!(spans(dir.path()), all, "the last one came before the end, and once");
    let unrecorded = 151 - recorded;
    assert_eq!(numbers(&audit), (151, 151, unrecorded));
    audit.close().unwrap();

    let rows = rows_of(dir.path());
    let ends: Vec<_> = rows.iter().filter(|row| row.op == INVOKED_COMPLETED).collect();
    assert_eq!(ends[0].number("unrecorded_calls"), Some(unrecorded));
    assert_eq!(ends[1].number("unrecorded_calls"), None);
    let told = replay(dir.path(), &id).unwrap().unwrap();
    let counted: Vec<_> = told.unrecorded.iter().map(|s| (s.first, s.last, s.count)).collect();
    assert_eq!((told.calls.len() as u64, counted.as_slice()), (recorded, all.as_slice()));
    let of = |call| why(dir.path(), &id, Some(call), None).unwrap().unwrap();
    assert_eq!(of(1)[0].outcome, "denied");
    assert_eq!((of(120).len(), of(120)[0].outcome.as_str()), (1, "unrecorded"));
    assert_eq!(of(152), []);
    let denied = Filter { denied: true, ..Filter::default() };
    assert_eq!(filter::show(dir.path(), denied).unwrap().count() as u64, recorded + 3);
    assert_eq!(verify(dir.path()).broken, None);
    assert_eq!(numbers(&Audit::open(dir.path(), options()).unwrap()), (151, 151, unrecorded));
}

#[tokio::test(start_paused = true)]
async fn calls_without_rows_are_told_of_however_full_the_queue_is() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = LedgerOptions { queue: 8, ..LedgerOptions::default() };
    let options = AuditOptions { ledger, run_quota: 1, ..AuditOptions::default() };
    let audit = Audit::open(dir.path(), options).unwrap();
    let (greedy, other) = (invocation(1), invocation(2));
    audit.invoked_started(&greedy, &started()).await.unwrap();
    assert_eq!(ask_for(&audit, &greedy, 1..=1).await, 1);
    let file = break_disk(&audit, "/dev/full");
    while audit.refused(&other, &asked(1, "Read"), &denial()).await.is_ok() {}
    assert_eq!(ask_for(&audit, &greedy, 2..=9).await, 0);
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    assert!(audit.unrecorded(greedy.id).untold.is_some(), "no place for a row now");
    audit.invoked_completed(&greedy, &ended(Outcome::Success));
    mend_disk(&audit, file);
    audit.close().unwrap();
    let told = replay(dir.path(), &greedy.id.to_string()).unwrap().unwrap();
    assert_eq!(told.unrecorded, [Span { first: 2, last: 9, count: 8 }]);
    assert!(told.completed.is_some());
}
