//! When a skill is shown as another version, no reader gets a mixture of both, and nothing stale.

use crate::support::skillfs::{Bench, errno, list, one, read};
use cyberos_proto::control::Verdict;
use nix::libc;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn case_041_flips_under_readers_leave_nothing_stale() {
    let mut bench = Bench::new();
    for (tree, text) in [("s", "live"), ("s/.skill-meta/versions/v1.snapshot", "trusted")] {
        bench.write(&format!("{tree}/SKILL.md"), text);
        bench.write(&format!("{tree}/d/deep/f"), text);
        bench.write(&format!("{tree}/only-{text}"), text);
    }
    bench.write("other/SKILL.md", "other");
    bench.mount_current(&["s", "other"], &["--jobs", "2"]);
    let held = fs::File::open(bench.view("s/d/deep/f")).unwrap();
    let root = bench.view("s");
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for path in ["SKILL.md", "d/deep/f", "only-live", "only-trusted"] {
                        let _ = read(root.join(path));
                        let _ = fs::metadata(root.join(path));
                    }
                    let _ = fs::read_dir(&root).map(Iterator::count);
                    let _ = fs::read_dir(root.join("d/deep")).map(Iterator::count);
                    assert_eq!(read(bench.view("other/SKILL.md")).unwrap(), "other");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for flip in 0..300 {
            let expected = match flip % 4 {
                0 => {
                    bench.says_fallback("s", "v1");
                    Some(("trusted", "live"))
                }
                1 | 3 => {
                    bench.says_current("s");
                    Some(("live", "trusted"))
                }
                _ => {
                    bench.says_hidden("s");
                    None
                }
            };
            bench.refresh("s");
            let Some((shown, absent)) = expected else {
                for path in ["", "SKILL.md", "d/deep/f"] {
                    assert_eq!(errno(fs::metadata(root.join(path))), Some(libc::ENOENT), "flip {flip}");
                }
                assert_eq!(list(bench.path("mnt")), BTreeSet::from([OsString::from("other")]), "flip {flip}");
                continue;
            };
            for path in ["SKILL.md", "d/deep/f", &format!("only-{shown}")] {
                assert_eq!(read(root.join(path)).unwrap(), shown, "flip {flip}: a stale open of {path}");
                assert_eq!(fs::metadata(root.join(path)).unwrap().len(), shown.len() as u64, "flip {flip}");
            }
            let gone = root.join(format!("only-{absent}"));
            assert_eq!(errno(fs::metadata(gone)), Some(libc::ENOENT), "flip {flip}: a stale name");
            let names = list(&root);
            assert!(
                names.contains(OsStr::new(&format!("only-{shown}"))) && names.len() == 3,
                "flip {flip}: {names:?}"
            );
            assert_eq!(list(bench.path("mnt")).len(), 2, "flip {flip}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 50);
    let mut text = String::new();
    (&held).read_to_string(&mut text).unwrap();
    assert_eq!(text, "live", "an open handle stays on what it was opened on");
    let began = Instant::now();
    bench.signal(Signal::SIGTERM);
    assert!(bench.wait().success());
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(bench.mounts(), 0);
}

#[test]
fn case_037_a_working_directory_survives_flips_of_its_skill() {
    let bench = one(&[]);
    // A process of its own, since a working directory is a process's.
    let script = "import os,sys\nos.chdir(sys.argv[1])\nprint('in',flush=True)\nfor line in sys.stdin:\n print(os.getcwd(), open('SKILL.md').read(), flush=True)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(bench.view("s"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    assert_eq!(lines.next().unwrap().unwrap(), "in");
    let here = bench.view("s").display().to_string();
    for turn in 0..40 {
        let (shown, _) = if turn % 2 == 0 {
            ("trusted", bench.says_fallback("s", "v1"))
        } else {
            ("live", bench.says_current("s"))
        };
        bench.refresh("s");
        std::io::Write::write_all(&mut stdin, b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("{here} {shown}"), "turn {turn}");
    }
    drop(stdin);
    child.wait().unwrap();
}

#[test]
fn case_004_an_open_handle_never_mixes_two_versions() {
    let mut bench = Bench::new();
    let size = 10 << 20;
    bench.write("s/SKILL.md", "x");
    bench.write("s/big", vec![b'A'; size]);
    bench.write("s/.skill-meta/versions/v1.snapshot/big", vec![b'C'; size]);
    bench.mount_current(&["s"], &[]);
    let mut old = fs::File::open(bench.view("s/big")).unwrap();
    let mut start = vec![0; 1 << 20];
    old.read_exact(&mut start).unwrap();
    // Exchanged atomically, and decided anew as a fallback.
    bench.says_fallback("s", "v1");
    fs::write(bench.source("s/.new"), vec![b'B'; size]).unwrap();
    fs::rename(bench.source("s/.new"), bench.source("s/big")).unwrap();
    assert_eq!(bench.state("s").verdict, Verdict::Fallback);
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).unwrap();
    assert!(start.iter().chain(&rest).all(|b| *b == b'A') && start.len() + rest.len() == size);
    let new = fs::read(bench.view("s/big")).unwrap();
    assert!(new.len() == size && new.iter().all(|b| *b == b'C'));
    // Written in place: what was opened is no more, so the handle gives an error instead of a mixture.
    drop(bench);
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.write("s/big", vec![b'A'; size]);
    bench.mount_current(&["s"], &[]);
    let mut old = fs::File::open(bench.view("s/big")).unwrap();
    old.read_exact(&mut start).unwrap();
    fs::write(bench.source("s/big"), vec![b'B'; size]).unwrap();
    bench.state("s");
    let mut rest = Vec::new();
    let end = old.read_to_end(&mut rest);
    assert!(rest.iter().all(|b| *b == b'A'), "old and new bytes in one handle");
    assert_eq!(errno(end), Some(libc::ESTALE));
    assert!(fs::read(bench.view("s/big")).unwrap().iter().all(|b| *b == b'B'));
    // An old handle that is read again and again does not keep the skill pending.
    let epoch = bench.state("s").epoch;
    for _ in 0..20 {
        let _ = old.read(&mut start);
    }
    assert!(bench.state("s").epoch.count <= epoch.count + 8);
    assert!(fs::read(bench.view("s/big")).is_ok());
}

#[test]
fn live_and_snapshot_files_have_different_inode_numbers() {
    let bench = one(&[]);
    let ino = || fs::metadata(bench.view("s/SKILL.md")).unwrap().ino();
    let top = || fs::metadata(bench.view("s")).unwrap().ino();
    let (live, first_top) = (ino(), top());
    bench.says_fallback("s", "v1");
    bench.refresh("s");
    assert_ne!(ino(), live);
    assert_eq!(top(), first_top, "the top directory keeps its number");
    bench.says_current("s");
    bench.refresh("s");
    assert_eq!(ino(), live);
}
