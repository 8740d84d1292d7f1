//! What is kept, given back and said when a row cannot be written.

use super::*;
use std::io::Write;

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

/// Puts what a run printed and what it remembered at `ts_ns` where a state directory has them.
fn leave_signs(state: &Path, i: &Invocation, ts_ns: u64) {
    let logs = state.join("logs").join(i.id.to_string());
    fs::create_dir_all(&logs).unwrap();
    let out = File::create(logs.join("stdout")).unwrap();
    (&out).write_all(b"printed").unwrap();
    out.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(ts_ns)).unwrap();
    let notes = state.join("tenants").join(i.tenant.to_string()).join("memories/notes");
    fs::create_dir_all(&notes).unwrap();
    let meta = json!({"skill_id": i.skill_id, "trace_id": i.id.to_string(), "ts": ts_ns});
    fs::write(notes.join(format!("{}.md", i.id)), format!("---\n{meta}\n---\nbody")).unwrap();
}

#[test]
fn rows_that_were_dropped_by_policy_are_told_of_and_are_not_taken_for_a_cut() {
    let state = tempfile::tempdir().unwrap();
    let store = state.path().join("store");
    let ledger = LedgerOptions { queue: 6, on_failure: OnFailure::Continue, ..LedgerOptions::default() };
    let audit = Audit::open(&store, AuditOptions { ledger, ..AuditOptions::default() }).unwrap();
    let work = |n: u8| {
        let i = invocation(n);
        run(async {
            audit.invoked_started(&i, &started()).await.unwrap();
            let open = audit.begin_now(&i, &call(1, "MemoryEmit")).unwrap();
            leave_signs(state.path(), &i, audit.now_ns());
            open.completed(success()).await;
            audit.invoked_completed(&i, &ended(Outcome::Success));
        });
    };
    let file = break_disk(&audit, "/dev/full");
    let from = audit.now_ns();
    // The queue takes what it can, so the rows of the next two are dropped.
    while audit.status().ledger.dropped == 0 {
        run(audit.refused(&invocation(1), &asked(1, "Read"), &denial())).unwrap();
    }
    work(2);
    work(3);
    let to = audit.now_ns();
    let dropped = audit.status().ledger.dropped;
    assert_eq!(dropped, 1 + 2 * 4, "begun, called, completed, ended, of two runs");
    let beside = answer::verify(&store, audit.known()).unwrap();
    assert_eq!(beside["ok"], true, "while the disk is bad nothing is missing: {beside}");
    mend_disk(&audit, file);
    audit.close().unwrap();

    let said = answer::verify(&store, None).unwrap();
    assert_eq!(said["ok"], true, "{said}");
    let told = &said["dropped"][0];
    assert_eq!(
        (told["count"].as_u64(), told["policy"].as_str()),
        (Some(dropped), Some("continue")),
        "{said}"
    );
    let (first, last) = (told["from_ts_ns"].as_u64().unwrap(), told["to_ts_ns"].as_u64().unwrap());
    assert!(from <= first && first <= last && last <= to, "{from} {first} {last} {to}");
    assert!(told["why"].as_str().unwrap().contains("No space left"), "{told}");
    let runs: Vec<&str> = told["runs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(runs, [2, 3].map(|n| invocation(n).id.to_string()));

    // What is older or newer must have its row, and so must a run that was not among them.
    for (n, ts_ns) in [(4, first - 1), (5, last + 1), (6, first)] {
        let i = invocation(n);
        leave_signs(state.path(), &i, ts_ns);
        let said = answer::verify(&store, None).unwrap();
        assert!(said["what"].as_str().unwrap().contains("rows are missing at the end"), "{n}: {said}");
        fs::remove_dir_all(state.path().join("logs").join(i.id.to_string())).unwrap();
        let found = answer::verify(&store, None).unwrap();
        assert_eq!(found["ok"], n == 6, "its memory alone, {n}: {found}");
        fs::remove_file(memory_of(state.path(), &i)).unwrap();
    }
    // And so is the cut that takes the row away which tells of them.
    let rows = rows_of(&store).len() as u64;
    let mut end = 0;
    let mut frames = frame::FrameReader::new(File::open(current(&store)).unwrap(), 0).unwrap();
    while let frame::Next::Frame(frame) = frames.next_frame().unwrap() {
        if frame.seq < rows {
            end = frames.offset();
        }
    }
    File::options().write(true).open(current(&store)).unwrap().set_len(end).unwrap();
    fs::write(store.join("HEAD"), (rows - 1).to_le_bytes()).unwrap();
    let said = answer::verify(&store, None).unwrap();
    assert!(said["what"].as_str().unwrap().contains("2 runs have printed"), "{said}");
}

fn memory_of(state: &Path, i: &Invocation) -> std::path::PathBuf {
    let memories = state.join("tenants").join(i.tenant.to_string()).join("memories");
    memories.join("notes").join(format!("{}.md", i.id))
}

fn current(store: &Path) -> std::path::PathBuf {
    store.join("audit").join(frame::CURRENT)
}

#[test]
fn a_ledger_that_was_removed_takes_no_row_that_may_be_refused_unless_calls_go_before_rows() {
    for (on_failure, taken) in
        [(OnFailure::Queue, false), (OnFailure::Refuse, false), (OnFailure::Continue, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let ledger = LedgerOptions { on_failure, ..LedgerOptions::default() };
        let audit = Audit::open(dir.path(), AuditOptions { ledger, ..AuditOptions::default() }).unwrap();
        let i = invocation(1);
        run(audit.invoked_started(&i, &started())).unwrap();
        fs::remove_file(current(dir.path())).unwrap();
        let next = run(audit.invoked_started(&invocation(2), &started()));
        assert_eq!(next.is_ok(), taken, "{on_failure:?}: {next:?}");
        let call = audit.begin_now(&i, &call(1, "Read"));
        assert_eq!(call.is_ok(), taken, "{on_failure:?}: {call:?}");
        drop(call);
        let status = audit.status().ledger;
        assert!(status.tampered.is_some_and(|what| what.contains("was removed")));
        let end = audit.close().unwrap_err();
        assert!(matches!(end, NotClosed::Changed { .. }), "{end}");
    }
}

#[test]
fn the_end_says_which_rows_are_lost_or_may_be() {
    let closed = |device: &str| {
        let dir = tempfile::tempdir().unwrap();
        let audit = open(dir.path());
        run(audit.refused(&invocation(1), &asked(1, "Read"), &denial())).unwrap();
        while audit.status().ledger.durable_seq < 1 {
            std::thread::yield_now();
        }
        let file = break_disk(&audit, device);
        run(audit.refused(&invocation(1), &asked(2, "Read"), &denial())).unwrap();
        let end = audit.close().unwrap_err().to_string();
        drop(file);
        end
    };
    let lost = closed("/dev/full");
    assert!(lost.contains("without rows 2 to 2") && lost.contains("No space left"), "{lost}");
    let unsure = closed("/dev/null");
    assert!(unsure.contains("up to row 2") && unsure.contains("may not have reached the disk"), "{unsure}");
}
