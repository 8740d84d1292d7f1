//! A SkillFS that has been taken over answers nobody, and its watchdog is silenced too: what SECURITY.md names as the way
//! out works, without looking at the view itself.
#![allow(clippy::unwrap_used)]

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use support::skillfs::{Bench, until};

/// The watchdog of that SkillFS, which is a child of one of its threads.
fn watchdog(pid: i32) -> Option<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let children = threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let mut all = children.iter().flat_map(|c| c.split_whitespace()).filter_map(|p| p.parse::<i32>().ok());
    let named =
        |p: &i32| std::fs::read_to_string(format!("/proc/{p}/comm")).is_ok_and(|c| c.contains("watch"));
    all.find(named).map(Pid::from_raw)
}

#[test]
fn who_hangs_on_a_view_that_answers_nobody_is_freed_as_security_md_says() {
    let said = std::fs::read_to_string("SECURITY.md").unwrap();
    assert!(said.contains("umount -f -l /skills"), "the way out is named as it is tried here");
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.mount_current(&["s"], &[]);
    let mut dog = None;
    until("there is a watchdog", || {
        dog = watchdog(bench.pid());
        dog.is_some()
    });
    let dog = dog.unwrap();
    kill(dog, Signal::SIGSTOP).unwrap();
    bench.signal(Signal::SIGSTOP);
    let mut hung = Command::new("cat").arg(bench.view("s/SKILL.md")).stderr(Stdio::null()).spawn().unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/wchan", hung.id())).unwrap_or_default();
    until("it hangs", || state().contains("request_wait_answer") || state().contains("fuse"));
    let mut way_out = Command::new("umount").args(["-f", "-l"]).arg(bench.path("mnt")).spawn().unwrap();
    let mut ended = None;
    until("the command ends", || {
        ended = way_out.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    let mut freed = None;
    until("who hung has an error", || {
        freed = hung.try_wait().unwrap();
        freed.is_some()
    });
    assert!(!freed.unwrap().success());
    kill(dog, Signal::SIGCONT).unwrap();
    bench.signal(Signal::SIGCONT);
}
