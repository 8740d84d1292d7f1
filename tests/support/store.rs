//! Stores to test, and both readers on them.

use cyberos_broker::audit::canonical::canonical;
use cyberos_broker::audit::filter::{Filter, show};
use cyberos_broker::audit::ledger::Ledger;
use cyberos_broker::audit::options::{Appended, Class, LedgerOptions};
use cyberos_broker::audit::reader::Reader;
use cyberos_broker::audit::recovery::{LedgerError, Recovery};
use cyberos_broker::audit::report::Report;
use cyberos_broker::audit::row::{Draft, Row};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const ASKS: Class = Class::Asks { owes: 0 };

pub(crate) fn open(store: &Path) -> Result<(Ledger, Recovery), LedgerError> {
    Ledger::open(store, LedgerOptions::default(), &mut |_| {})
}

pub(crate) fn row(op: &'static str, extra: Value) -> Draft {
    let Value::Object(extra) = extra else { panic!("extra is an object") };
    Draft { actor: "s".into(), op, path: String::new(), content_sha256: String::new(), extra }
}

pub(crate) fn numbered(n: u64) -> Draft {
    row("skill.x", json!({"n": n}))
}

/// A store of `rows` rows, closed.
pub(crate) fn store_of(rows: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path()).unwrap();
    for n in 1..=rows {
        assert!(
            matches!(ledger.append(&numbered(n), ASKS).unwrap(), Appended::Written { seq, .. } if seq == n)
        );
    }
    ledger.close().unwrap();
    dir
}

pub(crate) fn verify(store: &Path) -> Report {
    Reader::open(store).unwrap().verify().unwrap()
}

pub(crate) fn rows(store: &Path) -> Vec<Row> {
    show(store, Filter::default()).unwrap().map(Result::unwrap).collect()
}

pub(crate) fn current(store: &Path) -> PathBuf {
    store.join("audit/current.binlog")
}

/// The second reader's report, and its rows.
pub(crate) fn python(store: &Path) -> (Value, Vec<Vec<u8>>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/ledger_reader.py");
    let out = Command::new("python3").arg(script).arg(store).arg("--rows").output().unwrap();
    let mut lines: Vec<Vec<u8>> = out.stdout.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    assert_eq!(lines.pop(), Some(Vec::new()), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&lines.pop().unwrap()).unwrap();
    assert_eq!(out.status.code(), Some(if report["what"].is_null() { 0 } else { 3 }));
    (report, lines)
}

/// Both readers find the store whole, and the same rows in it.
pub(crate) fn whole(store: &Path) -> Vec<Row> {
    let report = verify(store);
    assert_eq!((&report.broken, &report.unfinished), (&None, &None));
    let (second, payloads) = python(store);
    assert_eq!(second["what"], Value::Null);
    assert_eq!(second["rows"], report.rows);
    assert_eq!(second["open_calls"], report.open_calls.len());
    assert_eq!(second["open_invocations"], report.open_invocations.len());
    let rows = rows(store);
    let ours: Vec<Vec<u8>> = rows.iter().map(payload).collect();
    assert_eq!(ours, payloads);
    rows
}

pub(crate) fn payload(row: &Row) -> Vec<u8> {
    let mut value = serde_json::to_value(row).unwrap();
    value.as_object_mut().unwrap().remove("seq");
    canonical(&value)
}
