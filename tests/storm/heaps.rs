//! What the kernel gives to one user in all, watches and queues: folders without end use up none that the others need, and
//! what was refused is had as soon as there is some.

use super::{STRANGER, Storm};
use crate::support::skillfs::{self, Bench, read, until};
use cyberos_proto::control::Verdict;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Makes that many directories below `top`, sixty in each of them at most.
fn directories(top: &Path, mut many: usize) {
    let mut parents = std::collections::VecDeque::from([top.to_owned()]);
    while many > 0 {
        let parent = parents.pop_front().unwrap();
        for n in 0..many.min(60) {
            fs::create_dir_all(parent.join(n.to_string())).unwrap();
            parents.push_back(parent.join(n.to_string()));
            many -= 1;
        }
    }
}

/// Watches of inotify that a process holds, and in how many instances.
fn watches(pid: i32) -> (usize, usize) {
    let mut found = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        let here = text.lines().filter(|l| l.starts_with("inotify ")).count();
        found = (found.0 + here, found.1 + usize::from(here > 0));
    }
    found
}

#[test]
fn threat_a20_folders_that_nobody_certified_take_few_watches_and_the_others_are_decided_in_time() {
    let many = std::env::var("CYBEROS_STORM_DIRECTORIES").ok().map_or(2_000, |n| n.parse().unwrap());
    let mut bench = Bench::of(1_899_999_012);
    for n in 0..10 {
        let folder = format!("heap-{n}");
        bench.write(&format!("{folder}/SKILL.md"), "x");
        // One is small enough to be shown when somebody certifies it.
        directories(&bench.source(&folder), if n == 3 { many / 2 } else { many });
        chown(bench.source(&folder), Some(STRANGER), None).unwrap();
    }
    for n in 0..20 {
        bench.write(&format!("good-{n}/SKILL.md"), "x");
        fs::create_dir(bench.source(&format!("good-{n}/d"))).unwrap();
        bench.says_current(&format!("good-{n}"));
    }
    let began = Instant::now();
    bench.mount(&[]);
    for n in 0..20 {
        assert_eq!(bench.state(&format!("good-{n}")).verdict, Verdict::Current);
    }
    let decided = began.elapsed();
    bench.settle();
    let (watched, _) = watches(bench.pid());
    eprintln!("{watched} watches, the others decided in {decided:?}");
    assert!(decided < Duration::from_secs(15), "{decided:?}");
    assert!(watched <= 10 * 2 + 20 * 2 + 1, "{watched} watches");
    // An honest edit with a new folder is decided as ever.
    bench.write("good-7/new/f", "edited");
    until("the edit is shown", || read(bench.view("good-7/new/f")).is_ok_and(|t| t == "edited"));
    // One of the heaps is certified: it is seen, watched as a whole, and shown; then what happens deep inside is seen.
    bench.says_current("heap-3");
    bench.write("heap-3/.skill-meta/manifest.json", "1");
    until("the certified one is shown", || read(bench.view("heap-3/SKILL.md")).is_ok());
    assert!(watches(bench.pid()).0 > many / 2);
    let deep = "heap-3/1/1/deep";
    bench.write(deep, "seen");
    until("a change deep inside is seen", || read(bench.view(deep)).is_ok_and(|t| t == "seen"));
}

#[test]
fn a_large_skill_that_is_still_being_copied_is_found_when_it_is_whole() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    directories(&bench.source("s"), 200);
    bench.mount(&[]);
    assert_eq!(bench.state("s").verdict, Verdict::Hidden);
    // What makes it good comes last, and deep inside, where nobody watches.
    bench.says_current("s");
    bench.write("s/7/7/last", "x");
    until("shown", || read(bench.view("s/7/7/last")).is_ok());
}

#[test]
fn snapshots_of_before_are_no_directories_of_the_skill() {
    const MANY: usize = 800;
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    directories(&bench.source("s"), MANY);
    for version in 1..=5 {
        bench.snapshot("s", &format!("v{version}"), "trusted");
        directories(&bench.source(&format!("s/.skill-meta/versions/v{version}.snapshot")), MANY);
    }
    bench.says(
        "s",
        &skillfs::answer("s", "pass", "current", None)
            .replace("\"trustedVersion\":null", "\"trustedVersion\":\"v4\""),
    );
    bench.mount(&[]);
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Current, "{state:?}");
    let (watched, _) = watches(bench.pid());
    assert!(watched < 2 * MANY + 20, "{watched}: the live folder and the trusted snapshot");
    // What is shown while an edit is undecided is watched, and so is what comes of it.
    std::fs::write(bench.path("stub/s.sh"), "exit 1").unwrap();
    bench.write("s/SKILL.md", "edited");
    until("hidden, since it cannot be decided", || bench.state("s").verdict == Verdict::Hidden);
    std::fs::remove_file(bench.path("stub/s.sh")).unwrap();
    bench.says_fallback("s", "v2");
    bench.refresh("s");
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "trusted");
    bench.says_hidden("s");
    bench.write("s/.skill-meta/versions/v2.snapshot/1/1/f", "touched");
    until("a touched snapshot is hidden", || bench.state("s").verdict == Verdict::Hidden);
}

#[test]
fn what_the_kernel_has_no_queue_for_is_shown_when_it_has() {
    let mut bench = Bench::of(1_899_999_013);
    bench.write("s/SKILL.md", "x");
    bench.says_current("s");
    // Another program of the same user has all of them.
    let script = "import ctypes, time\nlibc = ctypes.CDLL(None)\nwhile libc.inotify_init() >= 0: pass\nprint('all', flush=True)\ntime.sleep(1000)";
    let mut hog = Command::new("python3");
    hog.args(["-c", script]).uid(1_899_999_013).stdout(Stdio::piped());
    let mut hog = Storm(vec![hog.spawn().unwrap()]);
    let mut line = String::new();
    BufReader::new(hog.0[0].stdout.take().unwrap()).read_line(&mut line).unwrap();
    bench.mount(&[]);
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Hidden);
    assert!(state.reason.as_deref().unwrap().contains("fs.inotify.max_user_instances"), "{state:?}");
    drop(hog);
    until("shown by itself", || read(bench.view("s/SKILL.md")).is_ok());
    until("and the source is watched", || watches(bench.pid()).1 == 2);
}

#[test]
fn threat_a20_a_strangers_many_skills_leave_a_queue_for_another_strangers_one() {
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let many = most.trim().parse::<usize>().unwrap() / 2;
    let mut bench = Bench::of(1_899_999_014);
    fs::set_permissions(bench.path("src"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    for n in 0..many {
        bench.write(&format!("a-{n}/SKILL.md"), "x");
        chown(bench.source(&format!("a-{n}")), Some(61_002), Some(61_002)).unwrap();
    }
    bench.mount(&[]);
    bench.settle();
    let (_, used) = watches(bench.pid());
    assert!(used < many / 2, "{used} queues for one stranger's {many} skills");
    bench.says_current("b");
    bench.write("b/SKILL.md", "x");
    chown(bench.source("b"), Some(61_003), Some(61_003)).unwrap();
    until("the other's is shown", || read(bench.view("b/SKILL.md")).is_ok());
    // Those who share a queue are still seen, each by itself.
    bench.says_current("a-7");
    bench.write("a-7/.skill-meta/manifest.json", "1");
    until("one of the many is certified", || read(bench.view("a-7/SKILL.md")).is_ok());
}
