//! What every row says, and what is told from rows alone.

use super::*;

#[test]
fn every_row_has_the_fields_of_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let i = invocation(1);
    run(async {
        audit.invoked_started(&i, &started()).await.unwrap();
        audit.begin_now(&i, &call(1, "Read")).unwrap().completed(success()).await;
        let open = audit.begin_now(&i, &call(2, "Read")).unwrap();
        open.completed(CallOutcome::Error { error: "not_found".into() }).await;
        audit.begin_now(&i, &call(3, "Bash")).unwrap().completed(CallOutcome::Timeout).await;
        audit.refused(&i, &asked(4, "MemoryRead"), &denial()).await.unwrap();
        audit.refused(&i, &asked(5, "Read"), &Refusal::BadParams("path is missing".into())).await.unwrap();
        audit.skill_timeout(&i, 60_000, Some(&(3, "Bash".to_owned())));
        audit.invoked_completed(&i, &ended(Outcome::Timeout));
    });
    audit.no_connect(&invocation(2), 60_000);
    audit.close().unwrap();
    let rows = rows_of(dir.path());
    let fields = |row: &Row| row.extra.keys().map(String::clone).collect::<BTreeSet<_>>();
    let set = |names: &str| names.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    let completed = "invocation_id call skill_id tool_name outcome duration_ms result_hash trace_id";
    let denied =
        "invocation_id call skill_id tool_name reason rule subject sentence attempted_args_hash trace_id";
    let call = "invocation_id call skill_id tool_name args_hash trace_id";
    let expected = [
        (
            INVOKED_STARTED,
            "invocation_id skill_id version tenant_id caller uid args_hash trace_id verdict epoch content_digest sandbox"
                .to_owned(),
        ),
        (CALL_STARTED, call.into()),
        (CALL_COMPLETED, completed.into()),
        (CALL_STARTED, call.into()),
        (CALL_COMPLETED, format!("{completed} error")),
        (CALL_STARTED, call.into()),
        (CALL_COMPLETED, completed.into()),
        (DENIED, denied.into()),
        (DENIED, denied.into()),
        (TIMEOUT, "invocation_id skill_id elapsed_ms last_tool_call trace_id".into()),
        (INVOKED_COMPLETED, "invocation_id skill_id outcome exit_code duration_ms trace_id".into()),
        (NO_CONNECT, "invocation_id skill_id elapsed_ms trace_id".into()),
    ];
    assert_eq!(rows.len(), expected.len());
    for (row, (op, names)) in rows.iter().zip(&expected) {
        assert_eq!((row.op.as_str(), fields(row)), (*op, set(names)));
        assert_eq!(
            (row.actor.as_str(), row.path.as_str(), row.content_sha256.as_str()),
            ("memory-capture", "", "")
        );
        assert_eq!(row.text("skill_id"), Some("memory-capture"));
        assert_eq!(row.text("trace_id").map(str::len), Some(32));
    }
    assert_eq!(rows[9].extra["last_tool_call"], json!({"call": 3, "tool_name": "Bash"}));
    assert_eq!(rows[7].text("trace_id"), Some("09090909090909090909090909090909"), "the caller's trace");
    assert_eq!(rows[8].text("reason"), Some("bad_params"));
    assert_eq!(verify(dir.path()).open_invocations, []);
}

#[test]
fn a_call_that_is_dropped_leaves_a_completed_row() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let open_call = audit.begin_now(&invocation(1), &call(1, "Read")).unwrap();
    assert_eq!(verify(dir.path()).open_calls.len(), 1);
    let panicked = std::thread::spawn(move || {
        let _open = open_call;
        panic!("a tool panics");
    });
    assert!(panicked.join().is_err());
    audit.close().unwrap();
    let rows = rows_of(dir.path());
    assert_eq!((rows[1].text("outcome"), rows[1].text("error")), (Some("error"), Some("dropped")));
    assert_eq!(verify(dir.path()).open_calls, []);
}

#[test]
fn memory_emit_has_its_file_in_the_row() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let open_call = audit.begin_now(&invocation(1), &call(1, "MemoryEmit")).unwrap();
    let emitted = Emitted {
        kind: "note.made",
        row_id: "r1",
        sync_class: "private",
        path: "memories/note/made/x.md",
        content_sha256: "ee",
        bytes: 3,
    };
    let draft = rows::memory_emit(&open_call.row, TenantId::NIL, &emitted);
    assert!(open_call.kept.take() && !open_call.kept.take());
    audit.append(&draft, Class::Owed).unwrap();
    run(open_call.completed(success()));
    audit.close().unwrap();
    let rows = rows_of(dir.path());
    assert_eq!((rows[1].op.as_str(), rows[1].path.as_str()), ("memory.emit", "memories/note/made/x.md"));
    assert_eq!((rows[1].content_sha256.as_str(), rows[1].number("call")), ("ee", Some(1)));
}

#[test]
fn a_start_ends_what_an_earlier_broker_left_open_and_knows_todays_numbers() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let audit = open(dir.path());
    let [ended_run, first, second] = [invocation(1), invocation(2), invocation(3)];
    let open_call = run(async {
        for i in [&ended_run, &first, &second] {
            audit.invoked_started(i, &started()).await.unwrap();
        }
        audit.invoked_completed(&ended_run, &ended(Outcome::Success));
        audit.refused(&first, &asked(1, "Read"), &denial()).await.unwrap();
        audit.begin_now(&first, &call(2, "Read")).unwrap()
    });
    let status = audit.status();
    assert_eq!((status.tool_calls_today, status.denied_today), (2, 1));
    // What a crash would leave: the files as they are now.
    fs::create_dir(crashed.path().join("audit")).unwrap();
    for name in ["HEAD", "audit/current.binlog"] {
        fs::copy(dir.path().join(name), crashed.path().join(name)).unwrap();
    }
    drop((open_call, audit));

    let audit = open(crashed.path());
    let status = audit.status();
    assert_eq!((status.tool_calls_today, status.denied_today), (2, 1), "survives a restart");
    assert_eq!(audit.abort_open().unwrap(), [first.id, second.id]);
    assert_eq!(audit.abort_open().unwrap(), []);
    audit.close().unwrap();
    let report = verify(crashed.path());
    assert_eq!((&report.broken, report.open_invocations.len()), (&None, 0));
    assert_eq!(report.open_calls.len(), 1, "where the broker died stays visible");
    let told = replay(crashed.path(), &first.id.to_string()).unwrap().unwrap();
    assert_eq!(told.completed.unwrap().text("outcome"), Some("aborted"));
    assert_eq!(told.calls.iter().map(|c| c.outcome.as_str()).collect::<Vec<_>>(), ["denied", "open"]);
    drop(audit);
    let audit = open(crashed.path());
    assert_eq!(audit.abort_open().unwrap(), [], "once");
}

#[test]
fn a_run_is_told_from_its_rows_alone() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let (i, other) = (invocation(1), invocation(2));
    run(async {
        audit.invoked_started(&i, &started()).await.unwrap();
        audit.invoked_started(&other, &started()).await.unwrap();
        let slow = audit.begin_now(&i, &call(1, "Read")).unwrap();
        let quick = audit.begin_now(&i, &call(2, "MemoryRead")).unwrap();
        audit.refused(&other, &asked(1, "Bash"), &denial()).await.unwrap();
        quick.completed(CallOutcome::Error { error: "not_found".into() }).await;
        slow.completed(success()).await;
        audit.refused(&i, &asked(3, "MemoryRead"), &denial()).await.unwrap();
        audit.invoked_completed(&i, &ended(Outcome::Success));
    });
    let id = i.id.to_string();
    let told = replay(dir.path(), &id).unwrap().unwrap();
    let line: Vec<_> =
        told.calls.iter().map(|c| (c.call, c.tool_name.as_str(), c.outcome.as_str())).collect();
    assert_eq!(line, [(1, "Read", "success"), (2, "MemoryRead", "error"), (3, "MemoryRead", "denied")]);
    assert_eq!(told.calls[0].result_hash.as_deref(), Some("dd"));
    assert_eq!(told.calls[1].error.as_deref(), Some("not_found"));
    assert!(told.started.is_some() && told.completed.is_some() && told.incident.is_none());
    let refused = why(dir.path(), &id, None, None).unwrap().unwrap();
    let denial = refused[0].denial.as_ref().unwrap();
    assert_eq!((refused.len(), refused[0].call), (1, 3));
    assert_eq!(
        (denial.rule.as_str(), denial.subject.as_str()),
        ("allowed_memory_scopes, line 6", "memories/people/y.md")
    );
    assert_eq!(denial.sentence, "memories/people/y.md is outside; add it");
    assert_eq!(why(dir.path(), &id, Some(1), None).unwrap().unwrap()[0].outcome, "success");
    assert_eq!(replay(dir.path(), "no such run").unwrap(), None);
    let count = |filter: Filter| filter::show(dir.path(), filter).unwrap().count();
    assert_eq!(count(Filter { denied: true, ..Filter::default() }), 2);
    assert_eq!(count(Filter { kind: Some(INVOKED_STARTED.into()), ..Filter::default() }), 2);
    assert_eq!(count(Filter { skill: Some("other".into()), ..Filter::default() }), 0);
    assert_eq!(count(Filter { invocation: Some(id), denied: true, ..Filter::default() }), 1);
    assert_eq!(count(Filter { since_ns: Some(u64::MAX), ..Filter::default() }), 0);
}

#[test]
fn case_163_texts_of_a_skills_choosing_are_capped_and_split_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let hostile = format!("\n{{\"op\":\"completed\"}}\u{1b}[2J\u{202e}{}", "ü".repeat(500_000));
    run(audit.refused(&invocation(1), &asked(1, &hostile), &denial())).unwrap();
    let rows = rows_of(dir.path());
    let tool = rows[0].text("tool_name").unwrap();
    assert_eq!(rows.len(), 1);
    assert!(tool.starts_with("\n{\"op\":\"completed\"}\u{1b}[2J") && tool.ends_with(" bytes)"), "{tool}");
    assert!(tool.len() < rows::MAX_TEXT + 40);
    let long = "é".repeat(2040);
    let refusal = Denial { subject: long.clone(), rule: long.clone(), sentence: long, ..one_denial() };
    run(audit.refused(&invocation(1), &asked(2, "Read"), &refusal.into())).unwrap();
    audit.close().unwrap();
    assert!(fs::metadata(dir.path().join("audit/current.binlog")).unwrap().len() < 2 * 3072);
}

#[test]
fn a_refusal_that_closes_a_call_is_its_last_row_and_whoever_finds_another_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let i = invocation(1);
    let open_call = audit.begin_now(&i, &call(1, "MemoryEmit")).unwrap();
    run(open_call.refused(&i, "cc", &denial()));
    assert_eq!(audit.inner.ledger.shared.lock().unwrap().owed, 0, "its places are given back");
    let report = verify(dir.path());
    assert_eq!((report.rows, &report.broken, report.open_calls.len()), (2, &None, 0));
    // What earlier versions wrote: a denied row that does not say that it closes, and a completed one.
    let old = audit.begin_now(&i, &call(2, "Read")).unwrap();
    run(audit.refused(&i, &asked(2, "Read"), &denial())).unwrap();
    run(old.completed(CallOutcome::Error { error: "quota_exceeded".into() }));
    assert_eq!(verify(dir.path()).broken, None);
    // What nobody writes: a second end.
    let closed = rows::StartedCall {
        invocation_id: i.id.to_string(),
        call: 1,
        skill_id: i.skill_id.clone(),
        tool: "MemoryEmit".into(),
        trace: i.trace,
    };
    audit.append(&rows::call_completed(&closed, &success(), 1), Class::Asks { owes: 0 }).unwrap();
    let fault = verify(dir.path()).broken.unwrap();
    assert!(fault.seq == 6 && fault.what.contains("had not started"), "{fault}");
}

#[test]
fn who_follows_sees_each_row_once_through_restarts_of_the_reader_and_lag() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let i = invocation(1);
    let deny = |n: u64| rows::refused(&i, &asked(n, "Read"), &denial());
    let next = async |follow: &mut Follow| follow.next().await.unwrap().unwrap().seq;
    run(async {
        for n in 1..=700 {
            audit.append(&deny(n), Class::Asks { owes: 0 }).unwrap();
        }
        let (mut all, mut new) = (audit.follow(Some(1)), audit.follow(None));
        for seq in 1..=300 {
            assert_eq!(next(&mut all).await, seq);
        }
        // More than the announcements that are kept.
        for n in 701..=6000 {
            audit.append(&deny(n), Class::Asks { owes: 0 }).unwrap();
        }
        for seq in 301..=6000 {
            assert_eq!(next(&mut all).await, seq);
        }
        for seq in 701..=6000 {
            assert_eq!(next(&mut new).await, seq);
        }
        // A follower that is cancelled while it waits loses nothing.
        tokio::select! {
            biased;
            row = new.next() => panic!("{row:?}"),
            () = std::future::ready(()) => {}
        }
        audit.append(&deny(6001), Class::Asks { owes: 0 }).unwrap();
        assert_eq!((next(&mut all).await, next(&mut new).await), (6001, 6001));
    });
}

#[test]
fn with_a_key_hashes_are_not_those_that_anyone_can_guess() {
    let dir = tempfile::tempdir().unwrap();
    let value = json!({"path": "memories/x"});
    let Value::Object(map) = &value else { unreachable!() };
    let audit = open(dir.path());
    assert_eq!(audit.hash(&value), canonical::hash(&value));
    assert_eq!(audit.hash_object(map), audit.hash(&value));
    drop(audit);
    let hash_key = Some(HashKey::new(b"secret"));
    let audit = Audit::open(dir.path(), AuditOptions { hash_key, ..AuditOptions::default() }).unwrap();
    assert_ne!(audit.hash(&value), canonical::hash(&value));
    assert_eq!(audit.hash_object(map), audit.hash(&value));
}
