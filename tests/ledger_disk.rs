//! What a full disk, a slow disk and a kill do to the ledger: nothing that was acknowledged is lost, nothing is dropped
//! unless the operator said so (`[6.4]`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use cyberos_broker::audit::clock::{Clock, Time};
use cyberos_broker::audit::drops::ROWS_DROPPED;
use cyberos_broker::audit::frame;
use cyberos_broker::audit::ledger::Ledger;
use cyberos_broker::audit::options::{Appended, Class, Durability, LedgerOptions, OnFailure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::store::{ASKS, current, numbered, open, verify, whole};
use support::waiting::until;

/// A file system of its own that a test can fill.
struct Small {
    dir: tempfile::TempDir,
    filler: PathBuf,
    /// Whether it has only so many files.
    names: bool,
    /// What the file system lies in, if it is no tmpfs.
    _image: Option<tempfile::NamedTempFile>,
}

impl Small {
    fn new() -> Small {
        Small::tmpfs("size=512k")
    }

    fn tmpfs(options: &str) -> Small {
        let dir = tempfile::tempdir().unwrap();
        nix::mount::mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(options),
        )
        .expect("this test needs root, to mount a small file system that it can fill");
        Small { filler: dir.path().join("filler"), dir, names: options.contains("nr_inodes"), _image: None }
    }

    /// A real disk's file system, of 48 MiB, in a file.
    fn ext4() -> Small {
        let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        image.as_file().set_len(48 << 20).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let out = Command::new(program).args(args).output().unwrap();
            assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
        };
        run("mkfs.ext4", &["-q".as_ref(), image.path().as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.path().as_os_str(), dir.path().as_os_str()]);
        Small { filler: dir.path().join("filler"), dir, names: true, _image: Some(image) }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&self, on_failure: OnFailure, queue: usize) -> Ledger {
        let options = LedgerOptions { on_failure, queue, preallocate: 0, ..LedgerOptions::default() };
        Ledger::open(&self.store(), options, &mut |_| {}).unwrap().0
    }

    /// To the last byte, and to the last name that a file can have.
    fn fill(&self) {
        let mut file = fs::File::options().append(true).create(true).open(&self.filler).unwrap();
        for piece in [1 << 20, 4096, 512, 1] {
            while file.write_all(&vec![7; piece]).is_ok() {}
            // Blocks that are not on the disk yet are not taken for good.
            let _ = file.sync_all();
        }
        while file.write_all(&[7]).is_ok() {}
        if self.names {
            let made = |n: &u32| fs::File::create_new(self.dir.path().join(format!("file{n}"))).is_ok();
            assert!((0..100_000).take_while(made).count() < 100_000, "names without end");
        }
    }

    fn empty(&self) {
        for entry in fs::read_dir(self.dir.path()).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                fs::remove_file(entry.path()).unwrap();
            }
        }
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
    let told = whole(&small.store()).pop().unwrap();
    assert_eq!((told.op.as_str(), told.number("count")), (ROWS_DROPPED, Some(dropped)));
    assert_eq!(verify(&small.store()).dropped.len(), 1);
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

/// On a disk that others have filled to the last byte and the last file, rows go on being written and HEAD follows: the
/// room that is kept is for them. A start needs no more.
fn goes_on_when_full(small: &Small) {
    let store = small.store();
    let open = || Ledger::open(&store, LedgerOptions::default(), &mut |_| {}).unwrap().0;
    let head = |is: u64| {
        until("HEAD", || frame::read_head(&store).unwrap() == Some(is));
    };
    let ledger = open();
    ledger.append(&numbered(1), ASKS).unwrap();
    head(1);
    small.fill();
    let mut n = 1;
    let mut append = |ledger: &Ledger, rows: u64| {
        for _ in 0..rows {
            n += 1;
            let appended = ledger.append(&numbered(n), ASKS).unwrap();
            assert!(matches!(appended, Appended::Written { seq, .. } if seq == n), "row {n}: {appended:?}");
        }
        n
    };
    head(append(&ledger, 3000));
    let status = ledger.status();
    assert_eq!((status.failing, status.errors, status.queued), (None, 0, 0));
    ledger.close().unwrap();

    let ledger = open();
    head(append(&ledger, 1000));
    assert_eq!(ledger.status().failing, None);
    // Until it is used up; then they wait, HEAD says what is there, and a start still goes on from that.
    while ledger.status().reserved > 64 << 10 {
        append(&ledger, 100);
    }
    let last = append_until_queued(&ledger, append(&ledger, 0) + 1);
    head(last - 1);
    assert!(ledger.status().failing.unwrap().contains("No space left"));
    small.empty();
    until("the queue's end", || ledger.status().queued == 0);
    head(last);
    until("a new reserve", || ledger.status().reserved > 1 << 20);
    assert_eq!(ledger.status().failing, None);
    // And again.
    small.fill();
    n = last;
    for _ in 0..2000 {
        n += 1;
        assert!(matches!(ledger.append(&numbered(n), ASKS).unwrap(), Appended::Written { .. }), "row {n}");
    }
    head(n);
    ledger.close().unwrap();
    let read = whole(&store);
    assert_eq!(read.iter().map(|r| r.number("n").unwrap()).collect::<Vec<_>>(), (1..=n).collect::<Vec<_>>());
}

#[test]
fn on_a_tmpfs_filled_to_the_last_byte_rows_and_head_go_on() {
    goes_on_when_full(&Small::tmpfs("size=16m,nr_inodes=64"));
}

#[test]
fn on_an_ext4_filled_to_the_last_byte_rows_and_head_go_on() {
    goes_on_when_full(&Small::ext4());
}

/// A month that ends on a full disk: the new segment takes over what was reserved for the old one.
#[test]
fn on_a_full_disk_a_month_can_end() {
    let small = Small::tmpfs("size=16m,nr_inodes=64");
    let wall = Arc::new(AtomicU64::new(1_796_040_000_000_000_000));
    let read = Arc::clone(&wall);
    let clock = Clock::of(move || {
        let ns = read.load(Ordering::Relaxed);
        Time { wall_ns: ns, boot_ns: ns }
    });
    let options = LedgerOptions { clock, ..LedgerOptions::default() };
    let (ledger, _) = Ledger::open(&small.store(), options, &mut |_| {}).unwrap();
    ledger.append(&numbered(1), ASKS).unwrap();
    small.fill();
    fs::remove_file(small.dir.path().join("file0")).unwrap(); // a segment is one more file
    wall.fetch_add(20 * 86_400_000_000_000, Ordering::Relaxed);
    for n in 2..=2000 {
        ledger.append(&numbered(n), ASKS).unwrap();
    }
    until("HEAD", || frame::read_head(&small.store()).unwrap() == Some(2000));
    ledger.close().unwrap();
    assert_eq!(frame::segments(&small.store()).unwrap().len(), 2);
    assert_eq!(whole(&small.store()).len(), 2000);
}

/// The program that the next test kills. Built by cargo itself, so that no stale one is tested.
fn writer() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--example", "ledger_writer", "--locked", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(built.status.success(), "cargo build failed");
    let messages = built.stdout.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let executable = |m: serde_json::Value| m["executable"].as_str().map(PathBuf::from);
    messages.filter_map(executable).next_back().expect("cargo names what it has built")
}

#[test]
fn a_killed_writer_loses_no_acknowledged_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (mut least, writer) = (0, writer());
    for round in 0..25u64 {
        let mut child =
            Command::new(&writer).arg(&store).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = 0;
        // Killed at another point each time, while it goes on writing.
        for line in lines.by_ref() {
            let seq = line.unwrap().parse::<u64>().unwrap();
            acknowledged = seq;
            if seq >= least + 1 + round * 37 % 211 {
                break;
            }
        }
        child.kill().unwrap();
        for line in lines {
            acknowledged = line.unwrap().parse().unwrap();
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
