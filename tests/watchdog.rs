//! A SkillFS that no longer answers is ended by its own watchdog, which has no privileges and never outlives it
//! (`[9.9]`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;
#[path = "watchdog/waits.rs"]
mod waits;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::freezer::Freezer;
use support::machine::{children, is_zombie, runs, status};
use support::skillfs::{Bench, SKILLFS_UID, one, read, until};
use support::up::{Skill, Up, eventually, signal};

/// How long a view may be silent, and the most that noticing and ending may take beyond it on a busy machine.
const SILENCE: Duration = Duration::from_secs(20);
const NOTICED: Duration = Duration::from_secs(15);

/// The watchdog of that SkillFS, once it has begun to watch.
fn watchdog(skillfs: i32) -> i32 {
    let mut found = None;
    until("a watchdog", || {
        found = children(skillfs)
            .into_iter()
            .map(Pid::as_raw)
            .find(|p| status(*p).starts_with("Name:\tskillfs-watch\n"));
        found.is_some()
    });
    found.unwrap()
}

/// What the descriptors of a process are.
fn descriptors(pid: i32) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|e| Some((e.file_name().into_string().unwrap(), fs::read_link(e.path()).ok()?)))
        .collect();
    all.sort();
    all
}

/// Takes the real 20 s of `[9.9]`: shortened, it would not show that the limit of the program is the rule's.
/// Takes 20 s as well: there is no other way to SkillFS's being replaced because it is silent.
/// Takes the 20 s too. A process that is frozen stands for one that its source's file system holds: SIGKILL does nothing.
#[test]
fn a_killed_skillfs_leaves_no_watchdog() {
    let mut bench = one(&[]);
    let watchdog = watchdog(bench.pid());
    bench.signal(Signal::SIGKILL);
    bench.wait();
    until("no watchdog", || !runs(watchdog));
    assert!(!bench.log().contains("killing SkillFS"), "{}", bench.log());
}

/// Also one that does not run when SkillFS dies.
#[test]
fn a_stopped_watchdog_does_not_outlive_skillfs() {
    let mut bench = one(&[]);
    let watchdog = watchdog(bench.pid());
    signal(watchdog, Signal::SIGSTOP);
    bench.signal(Signal::SIGKILL);
    bench.wait();
    until("no watchdog", || !runs(watchdog));
}

#[test]
fn sigterm_unmounts_and_leaves_no_watchdog() {
    let mut bench = one(&[]);
    let watchdog = watchdog(bench.pid());
    // As a supervisor does that signals all of a service's processes.
    signal(watchdog, Signal::SIGTERM);
    bench.signal(Signal::SIGTERM);
    assert!(bench.wait().success(), "{}", bench.log());
    assert_eq!(bench.mounts(), 0);
    until("no watchdog", || !runs(watchdog));
    let log = bench.log();
    assert!(!log.contains("watchdog") && !log.contains("killing"), "{log}");
}

#[test]
fn the_watchdog_has_skillfs_user_and_of_its_descriptors_the_link_alone() {
    // One that SkillFS was started with and does not know of.
    let handed = fs::File::open("/etc/hostname").unwrap();
    nix::fcntl::fcntl(&handed, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let bench = one(&[]);
    let (pid, watchdog) = (bench.pid(), watchdog(bench.pid()));
    let number = handed.as_raw_fd().to_string();
    assert!(descriptors(pid).iter().any(|(n, _)| *n == number), "SkillFS has it: {:?}", descriptors(pid));
    assert!(descriptors(pid).iter().any(|(_, to)| to.ends_with("fuse")), "{:?}", descriptors(pid));
    // The link, which it can end and nothing else.
    let link = descriptors(watchdog)[1].1.clone();
    assert!(link.to_str().unwrap().starts_with("socket:"), "{link:?}");
    assert!(descriptors(pid).iter().any(|(_, to)| *to == link), "{:?}", descriptors(pid));
    let expected = [
        ("0".to_owned(), PathBuf::from("anon_inode:[pidfd]")),
        ("1".to_owned(), link),
        ("2".to_owned(), bench.path("skillfs.log")),
        // Its own: that the thread which asks has an answer.
        ("3".to_owned(), PathBuf::from("anon_inode:[eventfd]")),
    ];
    assert_eq!(descriptors(watchdog), expected);
    let pidfd = fs::read_to_string(format!("/proc/{watchdog}/fdinfo/0")).unwrap();
    assert!(pidfd.lines().any(|l| l == format!("Pid:\t{pid}")), "{pidfd}");
    let lines = |pid: i32| {
        let kept = ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:", "NoNewPrivs:"];
        let text = status(pid);
        text.lines().filter(|l| kept.iter().any(|k| l.starts_with(k))).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(watchdog), lines(pid));
    assert!(status(watchdog).contains(&format!("\nUid:\t{SKILLFS_UID}\t{SKILLFS_UID}\t{SKILLFS_UID}\t")));
    assert_eq!(fs::read(format!("/proc/{watchdog}/environ")).unwrap(), b"");
}

#[test]
fn there_is_one_watchdog_for_each_mount_through_all_decisions_and_a_lost_one_is_replaced() {
    let mut bench = one(&[]);
    let (pid, first) = (bench.pid(), watchdog(bench.pid()));
    // What a provider leaves behind is ended after each decision; the watchdog is none of that.
    for _ in 0..3 {
        bench.refresh("s");
    }
    bench.restart_helper();
    until("mounted anew", || bench.log().matches("mounted mount=").count() >= 2);
    until("readable", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "live"));
    until("the first is reaped", || status(first).is_empty());
    let second = watchdog(pid);
    until("the new mount's is the only child", || children(pid) == [Pid::from_raw(second)]);
    assert!(!bench.log().contains("the watchdog ended"), "{}", bench.log());
    signal(second, Signal::SIGKILL);
    until("reaped", || status(second).is_empty());
    until("another one", || watchdog(pid) != second);
    assert_eq!(children(pid).len(), 1, "no zombie");
    assert!(bench.log().contains("the watchdog ended; starting it again"), "{}", bench.log());
}

#[test]
fn nobody_else_has_a_use_for_the_watchdog() {
    let bench = Bench::new();
    let output = bench.command(&["watchdog", "/"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("for 'skillfs mount' to start"), "{said}");
    let help = bench.command(&["--help"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("watchdog"));
}
