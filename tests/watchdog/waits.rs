//! What takes the 20 s for which a view may be silent.

use super::*;

#[test]
fn a_stopped_skillfs_is_ended_after_twenty_seconds_and_hangs_nobody() {
    let mut bench = one(&[]);
    let (pid, watchdog) = (bench.pid(), watchdog(bench.pid()));
    let began = Instant::now();
    bench.signal(Signal::SIGSTOP);
    let dir = bench.view("never-looked-up-before");
    let reader = std::thread::spawn(move || fs::read(dir).map(drop));
    assert!(eventually(SILENCE + NOTICED, || is_zombie(pid)), "{}", bench.log());
    assert!(began.elapsed() > SILENCE - Duration::from_secs(2), "too early: {:?}", began.elapsed());
    assert_eq!(bench.wait().signal(), Some(9));
    assert!(reader.join().unwrap().is_err(), "who waited gets an error");
    until("the view is taken off", || bench.mounts() == 0);
    assert_eq!(fs::read_dir(bench.path("mnt")).unwrap().count(), 0, "the bare mount point answers");
    until("no watchdog", || !runs(watchdog));
    let log = bench.log();
    let said: Vec<_> = log.lines().filter(|l| l.contains("answered nothing for 20 s")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains(&format!("killing SkillFS (pid {pid})")), "{log}");
    assert!(said[0].contains(bench.path("mnt").to_str().unwrap()), "{log}");
    bench.mount(&[]);
    bench.settle();
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
}

#[test]
fn up_replaces_a_stopped_skillfs_and_the_view_is_back() {
    let mut up = Up::new(|source| {
        Skill { id: "quick", main: "#!/bin/sh\necho quick\n", ..Skill::default() }.write(source);
    });
    up.shown("quick", "current");
    let stopped = up.pids("skillfs")[0];
    let first = watchdog(stopped);
    signal(stopped, Signal::SIGSTOP);
    let replaced = || up.pids("skillfs").iter().any(|p| *p != stopped && *p != first);
    assert!(eventually(SILENCE + NOTICED, replaced), "{}", up.log());
    up.shown("quick", "current");
    assert_eq!(fs::read_to_string(up.mount().join("quick/main")).unwrap(), "#!/bin/sh\necho quick\n");
    assert_eq!(up.run("quick", &[]).stdout, "quick\n");
    assert!(!runs(stopped) && !runs(first));
    let log = up.log();
    assert!(log.contains(&format!("killing SkillFS (pid {stopped})")), "{log}");
    assert!(log.contains("cyberos up: skillfs ended (signal: 9 (SIGKILL)); starting it again"), "{log}");
    let second = watchdog(*up.pids("skillfs").first().unwrap());
    assert_eq!(up.stop(), Some(0));
    until("no watchdog", || !runs(second));
}

#[test]
fn a_skillfs_that_cannot_be_killed_holds_no_view() {
    let mut bench = one(&[]);
    let pid = bench.pid();
    let watchdog = watchdog(pid);
    let freezer = Freezer::of(&[pid]);
    freezer.freeze();
    let dir = bench.view("never-looked-up-before");
    let reader = std::thread::spawn(move || fs::read(dir).map(drop));
    assert!(eventually(SILENCE + NOTICED, || bench.mounts() == 0), "{}", bench.log());
    assert!(reader.join().unwrap().is_err(), "who waited gets an error");
    assert!(runs(pid) || !freezer.keeps_alive(), "the test is about one that lives on");
    drop(freezer);
    assert_eq!(bench.wait().signal(), Some(9));
    until("no watchdog", || !runs(watchdog));
}
