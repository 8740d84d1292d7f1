//! A ledger that somebody else made, to hurt whoever reads it.

use super::frame::{self, CURRENT};
use super::reader::Reader;
use super::report::Report;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Verifies on a thread that may hang or read for ever.
fn verify(store: &Path) -> Result<Report, String> {
    let (store, (done, result)) = (store.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let report = Reader::open(&store).and_then(Reader::verify).map_err(|e| e.to_string());
        let _ = done.send(report);
    });
    result.recv_timeout(Duration::from_secs(20)).expect("it reads on and on")
}

fn store(rows: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("audit")).unwrap();
    let frames = (1..).zip(rows).flat_map(|(seq, row)| frame::encode(seq, 1, row.as_bytes()));
    fs::write(dir.path().join("audit").join(CURRENT), frames.collect::<Vec<_>>()).unwrap();
    fs::write(dir.path().join("HEAD"), 1u64.to_le_bytes()).unwrap();
    dir
}

fn replaced(path: PathBuf, with: impl Fn(&Path)) {
    fs::remove_file(&path).unwrap();
    with(&path);
}

#[test]
fn head_and_segments_that_are_no_files_are_named_and_not_waited_for() {
    type Trap = fn(&Path);
    let traps: [Trap; 3] = [
        |path| symlink("/dev/zero", path).unwrap(),
        |path| mkfifo(path, Mode::S_IRWXU).unwrap(),
        |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
    ];
    for trap in traps {
        let dir = store(&["{}"]);
        replaced(dir.path().join("HEAD"), trap);
        let what = verify(dir.path()).unwrap().broken.map(|fault| fault.what).unwrap_or_default();
        // The row is no row either, and comes first.
        assert!(!what.is_empty());
        let dir = store(&[]);
        replaced(dir.path().join("audit").join(CURRENT), trap);
        let e = verify(dir.path()).unwrap_err();
        assert!(e.contains(CURRENT) && e.contains("not a regular file"), "{e}");
    }
    let dir = store(&[]);
    fs::write(dir.path().join("HEAD"), [0; 1 << 16]).unwrap();
    let e = frame::read_head(dir.path()).unwrap_err();
    assert!(e.to_string().contains("more than 8 bytes"), "{e}");
}

#[test]
fn a_row_of_very_many_small_values_is_not_read() {
    let row = format!("{{\"a\":[0{}]}}", ",0".repeat(7 << 20));
    let fault = verify(store(&[&row]).path()).unwrap().broken.unwrap();
    assert!(fault.what.contains("impossible length"), "{fault}");
    assert_eq!((fault.seq, fault.offset), (1, 0));
}

#[test]
fn a_ledger_without_its_log_says_which_file_is_missing() {
    let dir = store(&[]);
    let log = dir.path().join("audit").join(CURRENT);
    fs::remove_file(&log).unwrap();
    let fault = verify(dir.path()).unwrap().broken.unwrap();
    assert_eq!(fault.segment, log);
    assert!(fault.what.starts_with("there is no such file"), "{fault}");
    fs::remove_dir(dir.path().join("audit")).unwrap();
    let e = verify(dir.path()).unwrap_err();
    assert!(e.contains(&dir.path().join("audit").display().to_string()), "{e}");
}
