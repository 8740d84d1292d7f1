//! The ledger keeps what it acknowledged, and shows what was done to it (`[6.3]` to `[6.5]`). Every store that these
//! tests write is read by two readers: the broker's, and `support/ledger_reader.py`, which knows the format alone.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use cyberos_broker::audit::frame;
use cyberos_broker::audit::options::{Appended, AuditUnavailable};
use cyberos_broker::audit::recovery::LedgerError;
use cyberos_broker::audit::row::Draft;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::store::{ASKS, current, numbered, open, python, row, store_of, verify, whole};

#[test]
fn a_ledger_of_another_implementation_is_accepted() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/ledger");
    let rows = whole(&sample);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].path, "memories/people/ý.md");
    assert_eq!(rows[1].extra["nested"]["a"][2], "\u{2028}\"\\/");
    // And gone on with.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("audit")).unwrap();
    for name in ["HEAD", "audit/current.binlog"] {
        fs::copy(sample.join(name), dir.path().join(name)).unwrap();
    }
    let (ledger, recovery) = open(dir.path()).unwrap();
    assert_eq!((recovery.last_seq, recovery.head, &recovery.cut), (2, 2, &None));
    ledger.append(&numbered(3), ASKS).unwrap();
    drop(ledger);
    assert_eq!(whole(dir.path()).len(), 3);
}

fn any_extra() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[\\x00-\\x20\"\\\\/\u{7f}\u{2028}\u{feff}\u{10ffff}]{0,12}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    });
    prop::collection::vec((any::<String>(), value), 0..5).prop_map(|entries| entries.into_iter().collect())
}

fn any_draft() -> impl Strategy<Value = Draft> {
    let op = prop::sample::select(vec!["skill.tool_denied", "memory.emit", "skill.timeout"]);
    (any::<String>(), op, any::<String>(), any::<String>(), any_extra())
        .prop_map(|(actor, op, path, content_sha256, extra)| Draft { actor, op, path, content_sha256, extra })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_rows_come_back_from_both_readers_as_they_were(
        before in prop::collection::vec(any_draft(), 0..12),
        after in prop::collection::vec(any_draft(), 0..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        for part in [&before, &after] {
            let (ledger, _) = open(dir.path()).unwrap();
            for draft in part {
                ledger.append(draft, ASKS).unwrap();
            }
            ledger.close().unwrap();
        }
        let read = whole(dir.path());
        let drafts: Vec<&Draft> = before.iter().chain(&after).collect();
        prop_assert_eq!(read.len(), drafts.len());
        for (row, draft) in read.iter().zip(drafts) {
            prop_assert_eq!(&row.actor, &draft.actor);
            prop_assert_eq!(row.op.as_str(), draft.op);
            prop_assert_eq!(&row.path, &draft.path);
            prop_assert_eq!(&row.content_sha256, &draft.content_sha256);
            prop_assert_eq!(&row.extra, &draft.extra);
        }
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let dir = store_of(4);
    let good = fs::read(current(dir.path())).unwrap();
    let mut seen = 0;
    let damaged = |bytes: &[u8], what: String| {
        fs::write(current(dir.path()), bytes).unwrap();
        let report = verify(dir.path());
        assert!(report.broken.is_some(), "{what}");
        // Nothing before the damage is called bad, nothing behind it good.
        assert_eq!(report.first_bad_seq(), Some(report.rows + 1), "{what}");
        report.rows
    };
    for (at, byte) in good.iter().enumerate() {
        let mut bytes = good.clone();
        bytes[at] = byte ^ (1 << (at % 8));
        let rows = damaged(&bytes, format!("bit {} of byte {at}", at % 8));
        assert_eq!(rows, at as u64 * 4 / good.len() as u64, "byte {at} (all rows are equally long)");
        if at % 97 == 0 {
            let (second, _) = python(dir.path());
            assert_eq!(second["first_bad_seq"], rows + 1, "byte {at}: {second}");
            seen += 1;
        }
    }
    for length in 0..good.len() {
        damaged(&good[..length], format!("cut at {length}"));
        if length % 331 == 0 {
            assert_ne!(python(dir.path()).0["what"], Value::Null);
            seen += 1;
        }
    }
    assert!(seen > 10);
    fs::write(current(dir.path()), &good).unwrap();
    whole(dir.path());
}

#[test]
fn a_row_that_is_forged_with_a_right_crc_is_noticed() {
    let dir = store_of(3);
    let good = fs::read(current(dir.path())).unwrap();
    let length = good.len() / 3;
    let forged = |payload: &[u8], ts: u64| {
        let mut bytes = good.clone();
        bytes.splice(length..2 * length, frame::encode(2, ts, payload));
        fs::write(current(dir.path()), bytes).unwrap();
        let report = verify(dir.path());
        assert_eq!(python(dir.path()).0["first_bad_seq"], report.first_bad_seq().unwrap());
        (report.first_bad_seq().unwrap(), report.broken.unwrap().what)
    };
    let payload = good[length + frame::HEADER..2 * length].to_vec();
    let ts = u64::from_be_bytes(good[length + 16..length + 24].try_into().unwrap());
    let text = String::from_utf8(payload.clone()).unwrap();
    let (seq, what) = forged(text.replace("\"n\":2", "\"n\":7").as_bytes(), ts);
    assert_eq!((seq, what.contains("changed after it was written")), (2, true), "{what}");
    let (seq, what) = forged(&payload, ts + 1);
    assert_eq!((seq, what.contains("time")), (2, true), "{what}");
    let (seq, what) = forged(text.replace("\"n\":2", "\"n\": 2").as_bytes(), ts);
    assert_eq!((seq, what.contains("canonical")), (2, true), "{what}");
    // A row of another ledger is whole in itself, but does not follow.
    let (seq, what) = forged(&good[frame::HEADER..length], ts);
    assert_eq!(seq, 2, "{what}");
    // A row taken out, the rest renumbered.
    let mut bytes = good[..length].to_vec();
    let third = &good[2 * length..];
    let ts = u64::from_be_bytes(third[16..24].try_into().unwrap());
    bytes.extend(frame::encode(2, ts, &third[frame::HEADER..]));
    fs::write(current(dir.path()), bytes).unwrap();
    frame::write_head(dir.path(), 2).unwrap();
    let report = verify(dir.path());
    assert_eq!(report.first_bad_seq(), Some(2));
    assert!(report.broken.unwrap().what.contains("chain is cut"));
}

#[test]
fn a_torn_tail_is_cut_above_head_and_refused_below() {
    let dir = store_of(5);
    let path = current(dir.path());
    let good = fs::read(&path).unwrap();
    let torn = good.len() - 10;
    // HEAD says 5: row 5 was on the disk.
    fs::write(&path, &good[..torn]).unwrap();
    match open(dir.path()) {
        Err(LedgerError::Missing { from: 5, to: 5, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(&path).unwrap(), &good[..torn], "nothing is touched by a refusal");
    fs::write(&path, &good[..good.len() / 5 * 2]).unwrap();
    let error = open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("lost rows 3 to 5"), "{error}");
    // HEAD says 4: nobody promised row 5.
    frame::write_head(dir.path(), 4).unwrap();
    fs::write(&path, &good[..torn]).unwrap();
    let report = verify(dir.path());
    assert_eq!((report.rows, report.broken.is_none(), report.unfinished.is_some()), (4, true, true));
    let (ledger, recovery) = open(dir.path()).unwrap();
    assert_eq!((recovery.last_seq, recovery.head), (4, 4));
    assert_eq!(recovery.cut.map(|cut| cut.bytes), Some(good.len() as u64 / 5 - 10));
    ledger.append(&numbered(5), ASKS).unwrap();
    drop(ledger);
    assert_eq!(whole(dir.path()).len(), 5);
}

#[test]
fn a_start_goes_on_from_nothing_that_no_crash_leaves() {
    let refused = |spoil: &dyn Fn(&Path, &[u8]), says: &str| {
        let dir = store_of(3);
        spoil(dir.path(), &fs::read(current(dir.path())).unwrap());
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&|store, _| fs::remove_file(store.join("HEAD")).unwrap(), "HEAD is missing");
    refused(&|store, _| fs::write(store.join("HEAD"), b"3").unwrap(), "1 bytes instead of 8");
    refused(&|store, _| fs::remove_file(current(store)).unwrap(), "lost rows 1 to 3");
    refused(&|store, _| frame::write_head(store, 9).unwrap(), "lost rows 4 to 9");
    let gap = |store: &Path, good: &[u8]| {
        frame::write_head(store, 1).unwrap();
        let third = good.len() / 3;
        fs::write(current(store), [&good[..third], &good[2 * third..]].concat()).unwrap();
    };
    refused(&gap, "there is row 3");
    let last = |store: &Path, good: &[u8]| {
        let start = good.len() / 3 * 2;
        let text = String::from_utf8(good[start + frame::HEADER..].to_vec()).unwrap();
        let ts = u64::from_be_bytes(good[start + 16..start + 24].try_into().unwrap());
        let forged = frame::encode(3, ts, text.replace("\"n\":3", "\"n\":4").as_bytes());
        fs::write(current(store), [&good[..start], &forged].concat()).unwrap();
    };
    refused(&last, "changed after it was written");
}

#[test]
fn a_second_writer_is_refused_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (first, recovery) = open(dir.path()).unwrap();
    assert!(recovery.created);
    let error = open(dir.path()).unwrap_err();
    assert!(
        matches!(error, LedgerError::Locked { .. }) && error.to_string().contains("only one broker"),
        "{error}"
    );
    drop(first);
    let (_second, recovery) = open(dir.path()).unwrap();
    assert!(!recovery.created);
}

#[test]
fn a_stores_lock_can_be_opened_by_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    // Also where an older version has made it readable: who can open it can hold it for ever.
    fs::write(dir.path().join(".lock"), "").unwrap();
    fs::set_permissions(dir.path().join(".lock"), fs::Permissions::from_mode(0o644)).unwrap();
    let (ledger, _) = open(dir.path()).unwrap();
    assert_eq!(fs::metadata(dir.path().join(".lock")).unwrap().permissions().mode() & 0o777, 0o600);
    ledger.close().unwrap();
}

#[test]
fn a_reader_works_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path()).unwrap();
    std::thread::scope(|s| {
        let writing = s.spawn(|| (1..=4000).for_each(|n| assert!(ledger.append(&numbered(n), ASKS).is_ok())));
        let mut last = 0;
        while !writing.is_finished() {
            let report = verify(dir.path());
            assert_eq!(report.broken, None);
            assert!(report.rows >= last);
            last = report.rows;
        }
    });
    assert_eq!(verify(dir.path()).rows, 4000);
}

#[test]
fn rows_of_concurrent_calls_have_one_order() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path()).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let ledger = &ledger;
            s.spawn(move || {
                let mut last = 0;
                for n in 0..500 {
                    let Appended::Written { seq, .. } =
                        ledger.append(&row("skill.x", json!({"thread": thread, "n": n})), ASKS).unwrap()
                    else {
                        panic!("queued without a failure")
                    };
                    assert!(seq > last);
                    last = seq;
                }
            });
        }
    });
    ledger.close().unwrap();
    assert_eq!(ledger.status().durable_seq, 2000);
    assert_eq!(
        ledger.append(&numbered(1), ASKS),
        Err(AuditUnavailable { reason: "it is closed".into() }),
        "no row after the last"
    );
    let rows = whole(dir.path());
    for thread in 0..4 {
        let of: Vec<_> =
            rows.iter().filter(|r| r.number("thread") == Some(thread)).map(|r| r.number("n")).collect();
        assert_eq!(of, (0..500).map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn a_torn_frame_of_any_length_above_head_is_cut() {
    let dir = store_of(2);
    let good = fs::read(current(dir.path())).unwrap();
    let half = good.len() / 2;
    for kept in 1..half {
        fs::write(current(dir.path()), &good[..half + kept]).unwrap();
        frame::write_head(dir.path(), 1).unwrap();
        let (ledger, recovery) = open(dir.path()).unwrap();
        assert_eq!(recovery.last_seq, 1, "{kept}");
        assert_eq!(recovery.cut.unwrap().bytes, kept as u64);
        drop(ledger);
        assert_eq!(fs::read(current(dir.path())).unwrap(), &good[..half]);
    }
    // Zeros, as a power failure may leave them behind the last write.
    fs::write(current(dir.path()), &good).unwrap();
    let file = fs::File::options().write(true).open(current(dir.path())).unwrap();
    file.write_all_at(&[0; 4096], good.len() as u64).unwrap();
    frame::write_head(dir.path(), 2).unwrap();
    let (ledger, recovery) = open(dir.path()).unwrap();
    assert_eq!((recovery.last_seq, recovery.cut.map(|cut| cut.bytes)), (2, Some(4096)));
    drop(ledger);
    whole(dir.path());
}

#[test]
fn head_that_says_nothing_is_a_fault() {
    let dir = store_of(2);
    fs::write(dir.path().join("HEAD"), b"12345").unwrap();
    let report = verify(dir.path());
    assert_eq!((report.rows, report.first_bad_seq()), (2, Some(3)));
    assert!(report.broken.unwrap().what.contains("5 bytes instead of 8"));
}
