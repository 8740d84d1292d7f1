//! What a full disk, a slow disk and a kill do to the ledger: nothing that was acknowledged is lost, nothing is dropped
//! unless the operator said so (`[6.4]`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/store.rs"]
mod support;

use cyberos_broker::audit::ledger::Ledger;
use cyberos_broker::audit::options::{Appended, Class, Durability, LedgerOptions, OnFailure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{ASKS, current, numbered, open, verify, whole};

/// A file system of its own that a test can fill.
struct Small {
    dir: tempfile::TempDir,
    filler: PathBuf,
}

impl Small {
    fn new() -> Small {
        let dir = tempfile::tempdir().unwrap();
        nix::mount::mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some("size=512k"),
        )
        .expect("this test needs root, to mount a small file system that it can fill");
        let filler = dir.path().join("filler");
        Small { dir, filler }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&self, on_failure: OnFailure, queue: usize) -> Ledger {
        let options = LedgerOptions { on_failure, queue, preallocate: 0, ..LedgerOptions::default() };
        Ledger::open(&self.store(), options, &mut |_| {}).unwrap().0
    }

    fn fill(&self) {
        let mut file = fs::File::options().append(true).create(true).open(&self.filler).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(&self.filler).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.dir.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Appends until a row waits; how many were taken, that one included.
fn append_until_queued(ledger: &Ledger, from: u64) -> u64 {
    (from..).find(|n| matches!(ledger.append(&numbered(*n), ASKS).unwrap(), Appended::Queued { .. })).unwrap()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what} does not come");
        std::thread::yield_now();
    }
}

#[test]
fn case_164_on_a_full_disk_rows_wait_calls_end_and_nothing_is_lost() {
    let small = Small::new();
    let ledger = small.open(OnFailure::Queue, 10);
    small.fill();
    let mut n = append_until_queued(&ledger, 1);
    assert!(ledger.status().failing.unwrap().contains("No space left"));
    // A call that starts now keeps room for its end.
    n += 1;
    assert!(matches!(ledger.append(&numbered(n), Class::Asks { owes: 3 }), Ok(Appended::Queued { .. })));
    let refused = loop {
        match ledger.append(&numbered(n + 1), Class::Asks { owes: 1 }) {
            Ok(_) => {
                n += 1;
                // Its end came: no place is kept for it any more.
                ledger.forgo(1);
            }
            Err(refused) => break refused,
        }
    };
    assert!(refused.to_string().contains("rows wait in memory"), "{refused}");
    for _ in 0..3 {
        n += 1;
        assert!(matches!(ledger.append(&numbered(n), Class::Owed), Ok(Appended::Queued { .. })));
    }
    let status = ledger.status();
    assert!(status.queued <= 10 && status.refused == 1 && status.dropped == 0, "{status:?}");
    // What is in the file is whole while more waits.
    assert_eq!(verify(&small.store()).broken, None);
    small.empty();
    until("the queue's end", || ledger.status().queued == 0);
    n += 1;
    assert!(matches!(ledger.append(&numbered(n), ASKS), Ok(Appended::Written { .. })));
    ledger.close().unwrap();
    assert_eq!(ledger.status().failing, None);
    let read = whole(&small.store());
    assert_eq!(read.iter().map(|r| r.number("n").unwrap()).collect::<Vec<_>>(), (1..=n).collect::<Vec<_>>());
}

#[test]
fn with_refuse_a_full_disk_refuses_at_once_and_recovers() {
    let small = Small::new();
    let ledger = small.open(OnFailure::Refuse, 10);
    ledger.append(&numbered(0), Class::Asks { owes: 1 }).unwrap();
    small.fill();
    let mut taken = 1;
    while ledger.append(&numbered(0), ASKS).is_ok() {
        taken += 1;
    }
    assert!(
        matches!(ledger.append(&numbered(0), Class::Owed), Ok(Appended::Queued { .. })),
        "what ran is recorded"
    );
    assert!(ledger.append(&numbered(0), ASKS).is_err());
    small.empty();
    until("the queue's end", || ledger.status().queued == 0 && ledger.append(&numbered(0), ASKS).is_ok());
    ledger.close().unwrap();
    assert_eq!(whole(&small.store()).len(), taken + 2);
}

#[test]
fn with_continue_a_full_queue_drops_and_counts() {
    let small = Small::new();
    let ledger = small.open(OnFailure::Continue, 5);
    small.fill();
    append_until_queued(&ledger, 1);
    let mut dropped = 0;
    for n in 0..20 {
        dropped += u64::from(ledger.append(&numbered(n), ASKS).unwrap() == Appended::Dropped);
    }
    assert!(dropped > 0);
    assert_eq!(ledger.status().dropped, dropped);
    small.empty();
    until("the queue's end", || ledger.status().queued == 0);
    ledger.close().unwrap();
    whole(&small.store());
}

#[test]
fn with_fsync_a_row_is_on_the_disk_when_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let options = LedgerOptions { durability: Durability::Fsync, ..LedgerOptions::default() };
    let (ledger, _) = Ledger::open(dir.path(), options, &mut |_| {}).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for n in 1..=20 {
        ledger.append(&numbered(n), ASKS).unwrap();
        runtime.block_on(ledger.durable(n));
        assert!(ledger.status().durable_seq >= n);
    }
}

#[test]
fn space_is_reserved_ahead_without_showing_in_the_size() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path()).unwrap();
    ledger.append(&numbered(1), ASKS).unwrap();
    let meta = fs::metadata(current(dir.path())).unwrap();
    assert!(meta.len() < 4096, "{}", meta.len());
    // On tmpfs and ext4 alike reserved blocks are counted.
    assert!(meta.blocks() * 512 >= 64 << 20, "{}", meta.blocks());
    assert_eq!(meta.mode() & 0o777, 0o640);
}

const CHILD: &str = "CYBEROS_TEST_LEDGER_CHILD";

/// What the next test runs in a process that it kills: appends for ever, and says what was acknowledged.
#[test]
fn child_of_the_next_test() {
    let Some(store) = std::env::var_os(CHILD) else { return };
    let (ledger, _) = open(Path::new(&store)).unwrap();
    let mut out = std::io::stdout();
    loop {
        let Appended::Written { seq, .. } = ledger.append(&numbered(7), ASKS).unwrap() else {
            panic!("queued")
        };
        // One write a line: what the parent reads was acknowledged before the kill.
        out.write_all(format!("\nacknowledged {seq}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_killed_writer_loses_no_acknowledged_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut least = 0;
    for round in 0..25u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_the_next_test", "--nocapture"])
            .env(CHILD, &store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = 0;
        // Killed at another point each time, while it goes on writing.
        for line in lines.by_ref() {
            let Some(seq) = line.unwrap().strip_prefix("acknowledged ").map(|n| n.parse::<u64>().unwrap())
            else {
                continue;
            };
            acknowledged = seq;
            if seq >= least + 1 + round * 37 % 211 {
                break;
            }
        }
        child.kill().unwrap();
        for line in lines {
            if let Some(seq) = line.unwrap().strip_prefix("acknowledged ").and_then(|n| n.parse().ok()) {
                acknowledged = seq;
            }
        }
        child.wait().unwrap();
        assert!(acknowledged > least, "the child wrote nothing");
        let report = verify(&store);
        assert_eq!(report.broken, None);
        assert!(report.rows >= acknowledged, "{} of {acknowledged}", report.rows);
        let (ledger, recovery) = open(&store).unwrap();
        assert!(recovery.last_seq >= acknowledged);
        least = recovery.last_seq;
        drop(ledger);
    }
    assert_eq!(whole(&store).len() as u64, least);
}
