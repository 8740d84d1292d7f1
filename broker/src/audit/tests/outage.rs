//! What is kept, given back and said when a row cannot be written.

use super::*;

#[test]
fn a_call_that_could_not_be_recorded_is_handed_back_and_what_ran_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let options = LedgerOptions { queue: 4, ..LedgerOptions::default() };
    let audit = Audit::open(dir.path(), AuditOptions { ledger: options, ..AuditOptions::default() }).unwrap();
    let i = invocation(1);
    let file = break_disk(&audit, "/dev/full");
    let open_calls = [1, 2].map(|n| audit.begin_now(&i, &call(n, "Read")).unwrap());
    let refused = audit.begin_now(&i, &call(3, "Read")).unwrap_err();
    assert!(refused.reason.contains("No space left"), "{refused}");
    assert!(run(audit.refused(&i, &asked(3, "Read"), &denial())).is_err(), "a refusal is not unseen either");
    for open in open_calls {
        run(open.completed(success()));
    }
    assert_eq!(audit.status().ledger.queued, 4);
    mend_disk(&audit, file);
    audit.close().unwrap();
    let told = replay(dir.path(), &i.id.to_string()).unwrap().unwrap();
    assert_eq!(told.calls.iter().map(|c| c.outcome.as_str()).collect::<Vec<_>>(), ["success", "success"]);
    assert_eq!(verify(dir.path()).broken, None);
}

#[test]
fn places_kept_for_rows_that_never_come_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = LedgerOptions { queue: 20, ..LedgerOptions::default() };
    let audit = Audit::open(dir.path(), AuditOptions { ledger: options, ..AuditOptions::default() }).unwrap();
    run(async {
        for n in 0..30 {
            let i = invocation(n);
            audit.invoked_started(&i, &started()).await.unwrap();
            audit.begin_now(&i, &call(1, "MemoryEmit")).unwrap().completed(success()).await;
            drop(audit.begin_now(&i, &call(2, "MemoryEmit")).unwrap());
            if n % 2 == 0 {
                audit.no_connect(&i, 1);
            }
            audit.invoked_completed(&i, &ended(Outcome::Success));
        }
    });
    assert_eq!(audit.inner.ledger.shared.lock().unwrap().owed, 0);
}

#[test]
fn with_continue_nothing_is_completed_that_was_dropped_at_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = LedgerOptions { queue: 3, on_failure: OnFailure::Continue, ..LedgerOptions::default() };
    let audit = Audit::open(dir.path(), AuditOptions { ledger, ..AuditOptions::default() }).unwrap();
    let file = break_disk(&audit, "/dev/full");
    run(async {
        for n in 1..=4 {
            let i = invocation(n);
            audit.invoked_started(&i, &started()).await.unwrap();
            audit.begin_now(&i, &call(1, "MemoryEmit")).unwrap().completed(success()).await;
            audit.invoked_completed(&i, &ended(Outcome::Success));
        }
    });
    let status = audit.status().ledger;
    assert!(status.dropped >= 4, "{status:?}");
    mend_disk(&audit, file);
    audit.close().unwrap();
    let report = verify(dir.path());
    assert_eq!((report.broken, report.open_calls.len(), report.open_invocations.len()), (None, 0, 0));
    assert!(report.rows > 0);
}

#[test]
fn a_disk_that_does_not_sync_is_loud_and_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = LedgerOptions { durability: Durability::Fsync, ..LedgerOptions::default() };
    let audit = Audit::open(dir.path(), AuditOptions { ledger, ..AuditOptions::default() }).unwrap();
    let file = break_disk(&audit, "/dev/null");
    // Written, never synced: comes back because waiting is pointless.
    run(audit.refused(&invocation(1), &asked(1, "Read"), &denial())).unwrap();
    let status = audit.status().ledger;
    assert!(status.failing.unwrap().contains("cannot sync"));
    assert_eq!((status.durable_seq, status.seq), (0, 1));
    mend_disk(&audit, file);
}
