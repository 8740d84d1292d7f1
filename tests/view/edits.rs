//! A change behind the view is not served before it is decided, and is seen soon after.

use crate::support::skillfs::{Bench, answer, errno, list, name, one, read, until};
use cyberos_proto::control::{ControlReply, ControlRequest, Verdict};
use nix::libc;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn an_edit_behind_the_view_is_never_served_undecided() {
    let bench = one(&[]);
    // The provider takes its time, so that what is undecided stays so for a while.
    fs::write(bench.path("stub/s.scan"), "sleep 0.05").unwrap();
    let file = bench.view("s/SKILL.md");
    let stop = AtomicBool::new(false);
    let good = |text: &str| matches!(text, "live" | "trusted");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match read(&file) {
                        Ok(text) => assert!(good(&text), "served {text:?} undecided"),
                        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => {}
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
                    }
                }
            });
        }
        for turn in 0..30 {
            // Decided as drifted: the folder must not be seen between the edit and this.
            bench.says_fallback("s", "v1");
            let began = Instant::now();
            let live = bench.source("s/SKILL.md");
            if turn % 2 == 0 {
                fs::write(&live, "EVIL").unwrap();
            } else {
                fs::write(bench.path("new"), "EVIL").unwrap();
                fs::rename(bench.path("new"), &live).unwrap();
            }
            // A new open after the edit has ended never finds it, nor the cached text of before.
            let text = read(&file);
            assert!(!text.as_deref().is_ok_and(|t| t == "EVIL"), "turn {turn}");
            let ControlReply::Skill(state) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
                panic!()
            };
            assert!(state.pending, "turn {turn}: {state:?}");
            until("the snapshot is shown", || read(&file).is_ok_and(|t| t == "trusted"));
            assert!(began.elapsed() < Duration::from_secs(1), "turn {turn}");
            let state = bench.state("s");
            assert_eq!((state.verdict, state.pending), (Verdict::Fallback, false), "turn {turn}");
            // And back: what is written is good, and then it is decided as current.
            fs::write(bench.path("new"), "live").unwrap();
            fs::rename(bench.path("new"), &live).unwrap();
            bench.says_current("s");
            bench.refresh("s");
            assert_eq!(read(&file).unwrap(), "live", "turn {turn}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_folder_that_cannot_be_watched_hides_its_skill_and_says_so() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.write("s/closed/f", "x");
    bench.write("t/SKILL.md", "t");
    fs::set_permissions(bench.source("s/closed"), fs::Permissions::from_mode(0o711)).unwrap();
    bench.says_current("s");
    bench.says_current("t");
    bench.mount(&[]);
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Hidden);
    assert!(state.reason.unwrap().contains("closed"));
    assert_eq!(bench.state("t").verdict, Verdict::Current);
    fs::set_permissions(bench.source("s/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    until("shown when repaired", || read(bench.view("s/closed/f")).is_ok());
}

#[test]
fn a_store_through_a_mapping_is_noticed_when_it_is_read() {
    let bench = one(&[]);
    let mut mapper = Command::new("python3");
    mapper
        .args(["-c", "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),4)\nopen(sys.argv[2],'w').close()\nsys.stdin.read()\nm[:4]=b'EVIL'\nm.flush()\nprint('stored',flush=True)\nopen(sys.argv[3]).read()"])
        .arg(bench.source("s/SKILL.md"))
        .arg(bench.path("mapped"))
        .arg(bench.path("hold"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut mapper = mapper.spawn().unwrap();
    nix::unistd::mkfifo(&bench.path("hold"), nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
        .unwrap();
    until("mapped", || bench.path("mapped").exists());
    bench.settle();
    assert_eq!(fs::metadata(bench.view("s/SKILL.md")).unwrap().len(), 4);
    bench.says_fallback("s", "v1");
    drop(mapper.stdin.take());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(mapper.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "stored\n");
    let text = read(bench.view("s/SKILL.md"));
    assert!(!text.is_ok_and(|t| t == "EVIL"), "a stored byte was served");
    until("decided anew", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "trusted"));
    fs::write(bench.path("hold"), "").unwrap();
    mapper.wait().unwrap();
}

#[test]
fn what_is_shown_while_a_change_is_undecided_is_the_policy() {
    for (policy, version, pending) in [
        ("snapshot", Some("v1"), Some("trusted")),
        ("snapshot", None, None),
        ("hide", Some("v1"), None),
        ("keep", Some("v1"), Some("edited")),
    ] {
        let mut bench = Bench::new();
        bench.write("s/SKILL.md", "live");
        bench.snapshot("s", "v1", "trusted");
        let mut said: serde_json::Value =
            serde_json::from_str(&answer("s", "pass", "current", None)).unwrap();
        said["trustedVersion"] = version.into();
        bench.says("s", &said.to_string());
        bench.mount(&["--on-change", policy]);
        bench.settle();
        let file = bench.view("s/SKILL.md");
        assert_eq!(read(&file).unwrap(), "live");
        // While the gate is shut, the provider does not answer.
        let gate = bench.path("stub/gate");
        fs::write(&gate, "").unwrap();
        let wait = format!("while [ -e {} ]; do sleep 0.01; done", gate.display());
        fs::write(bench.path("stub/s.scan"), wait).unwrap();
        fs::write(bench.source("s/SKILL.md"), "edited").unwrap();
        let what = format!("--on-change {policy} with {version:?}");
        until(&what, || read(&file).ok().as_deref() == pending);
        let ControlReply::Skill(state) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
            panic!()
        };
        assert!(state.pending, "{what}");
        fs::remove_file(gate).unwrap();
        until("decided", || read(&file).ok().as_deref() == Some("edited"));
        assert!(!bench.state("s").pending);
    }
}

#[test]
fn epochs_rise_with_every_change_and_are_equal_otherwise() {
    let bench = one(&[]);
    let first = bench.state("s").epoch;
    read(bench.view("s/SKILL.md")).unwrap();
    assert_eq!(bench.state("s").epoch, first, "reading changes nothing");
    bench.write("s/new", "x");
    let second = bench.state("s").epoch;
    assert!(second.start == first.start && second.count > first.count);
    bench.refresh("s");
    assert!(bench.state("s").epoch.count > second.count, "a decision counts");
    // A change that is made and asked about at once is seen: no answer is older than the question.
    for n in 0..50 {
        let before = bench.state("s").epoch;
        bench.write("s/new", n.to_string());
        let ControlReply::Skill(now) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
            panic!()
        };
        assert!(now.pending && now.epoch.count > before.count, "{n}: {before:?} {now:?}");
    }
}

#[test]
fn case_044_changes_at_the_source_are_seen_within_a_second() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "1");
    bench.write("s/d/e/f", "1");
    bench.mount(&["--unprotected"]);
    bench.settle();
    let s = bench.view("s");
    for text in ["22", "333", "4"] {
        assert!(!read(s.join("d/e/f")).unwrap().is_empty());
        let began = Instant::now();
        bench.write("s/d/e/f", text);
        until("the edit is seen", || {
            read(s.join("d/e/f")).is_ok_and(|t| t == text)
                && fs::metadata(s.join("d/e/f")).is_ok_and(|m| m.len() == text.len() as u64)
        });
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    fs::rename(bench.source("s/d/e"), bench.source("s/g")).unwrap();
    until("the rename is seen", || read(s.join("g/f")).is_ok() && fs::metadata(s.join("d/e")).is_err());
    // Changes below the renamed folder are seen as well.
    bench.write("s/g/f", "after the move");
    until("seen there too", || read(s.join("g/f")).is_ok_and(|t| t == "after the move"));
    fs::remove_dir_all(bench.source("s/g")).unwrap();
    until("the removal is seen", || list(&s) == ["SKILL.md", "d"].map(OsString::from).into());
    bench.write("s/new/deep/er/file", "x");
    until("the new folders are seen", || read(s.join("new/deep/er/file")).is_ok());
    bench.write("s/new/deep/er/file", "y");
    until("and watched", || read(s.join("new/deep/er/file")).is_ok_and(|t| t == "y"));
}

#[test]
fn case_011_skills_that_come_are_asked_about_first_and_go_at_once() {
    let mut bench = Bench::new();
    bench.write("a/SKILL.md", "a");
    bench.mount_current(&["a"], &[]);
    bench.says_hidden("b");
    bench.says_current("c");
    for skill in ["b", "c"] {
        fs::create_dir(bench.path(skill)).unwrap();
        fs::write(bench.path(skill).join("SKILL.md"), skill).unwrap();
        fs::rename(bench.path(skill), bench.source(skill)).unwrap();
    }
    until("c is shown", || read(bench.view("c/SKILL.md")).is_ok_and(|t| t == "c"));
    assert_eq!(bench.state("b").verdict, Verdict::Hidden);
    assert_eq!(list(bench.path("mnt")), ["a", "c"].map(OsString::from).into());
    // A folder that takes the place of a decided one is another folder.
    bench.says_hidden("a");
    bench.write("../other/SKILL.md", "EVIL");
    fs::rename(bench.source("a"), bench.path("a.old")).unwrap();
    fs::rename(bench.path("other"), bench.source("a")).unwrap();
    assert!(!read(bench.view("a/SKILL.md")).is_ok_and(|t| t == "EVIL"), "served before it was asked about");
    assert_eq!(bench.state("a").verdict, Verdict::Hidden);
    fs::remove_dir_all(bench.source("c")).unwrap();
    until("c is gone", || fs::metadata(bench.view("c")).is_err());
    until("and forgotten", || {
        bench.ask(&ControlRequest::Explain { skill: name("c") }) == ControlReply::NoSuchSkill
    });
    // And it can come back.
    bench.write("c/SKILL.md", "c again");
    until("c is back", || read(bench.view("c/SKILL.md")).is_ok_and(|t| t == "c again"));
}

/// The one moment in which SkillFS cannot tell what was written from what was opened: it has not seen that the name is lost.
#[test]
fn a_handle_on_a_strangers_file_that_lost_its_name_gives_nothing_that_he_wrote_afterwards() {
    const STRANGER: u32 = 61_779;
    let mut bench = Bench::new();
    let (size, end) = (10 << 20, 9 << 20);
    for skill in ["his", "ours"] {
        bench.write(&format!("{skill}/SKILL.md"), "x");
        bench.write(&format!("{skill}/big"), vec![b'A'; size]);
    }
    for path in ["his", "his/SKILL.md", "his/big"] {
        chown(bench.source(path), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    bench.mount_current(&["his", "ours"], &[]);
    let open = |skill: &str| fs::File::open(bench.view(&format!("{skill}/big"))).unwrap();
    let (his, ours) = (open("his"), open("ours"));
    let mut byte = [0];
    for handle in [&his, &ours] {
        handle.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, *b"A");
    }
    // SkillFS sees nothing before all of it has been done.
    bench.signal(nix::sys::signal::Signal::SIGSTOP);
    let file = bench.source("his/big");
    let writer = fs::File::options().write(true).open(&file).unwrap();
    let before = writer.metadata().unwrap().modified().unwrap();
    fs::remove_file(&file).unwrap();
    writer.write_all_at(b"EVIL", end).unwrap();
    writer.set_modified(before).unwrap();
    fs::remove_file(bench.source("ours/big")).unwrap();
    bench.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(errno(his.read_exact_at(&mut byte, end)), Some(libc::ESTALE));
    // What nobody could have written stays what it was opened on.
    ours.read_exact_at(&mut byte, end).unwrap();
    assert_eq!(byte, *b"A");
}
