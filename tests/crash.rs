//! `kill -9` of each daemon in the middle of a run: what is left within 2 s, and that everything goes on (`[2.2]`,
//! `[9.9]`, `[10.4]`); and two `up`s at once, which don't disturb each other (`[7.5]`).

mod support;

use nix::sys::signal::Signal;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::up::{Ran, Skill, Up, eventually, signal};

/// What the machine may show of a broken part at most so long.
const LIMIT: Duration = Duration::from_secs(2);

const TALKER: &str = "#!/usr/bin/python3\nimport os, time\nif os.fork() == 0:\n    time.sleep(1000)\nprint('runs', flush=True)\ntime.sleep(1000)\n";

fn up() -> Up {
    Up::new(|source| {
        Skill { id: "talker", main: TALKER, ..Skill::default() }.write(source);
        Skill { id: "quick", main: "#!/bin/sh\necho quick\n", ..Skill::default() }.write(source);
    })
}

/// A run that has begun and waits.
fn begin(up: &Up) -> (Child, u64, String) {
    let mut child = up
        .command(&["skill", "run", "talker"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0u8; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    assert_eq!(&byte, b"runs\n");
    let row = up.rows("skill.invoked_started").last().unwrap()["extra"].clone();
    let socket = format!("/tmp/cyberos-skill-broker.{}.sock", row["invocation_id"].as_str().unwrap());
    assert!(std::path::Path::new(&socket).exists());
    let uid = row["uid"].as_u64().unwrap();
    assert_eq!(processes_of(uid), 2, "the skill and its child");
    (child, uid, socket)
}

fn processes_of(uid: u64) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|e| {
            let status = std::fs::read_to_string(e.path().join("status")).unwrap_or_default();
            status.contains(&format!("\nUid:\t{uid}\t")) && !status.contains("\nState:\tZ")
        })
        .count()
}

/// Whether the mount point is free, or answers: a dead mount does neither.
fn no_dead_mount(up: &Up) -> bool {
    match std::fs::read_dir(up.mount()) {
        Ok(mut entries) => entries.all(|e| e.is_ok()),
        Err(e) => e.raw_os_error() != Some(nix::errno::Errno::ENOTCONN as i32),
    }
}

fn works_again(up: &Up) {
    let mut last = None;
    let ok = eventually(Duration::from_secs(20), || {
        let ran = up.run("quick", &[]);
        let good = ran.exit == 0 && ran.stdout == "quick\n";
        last = Some(ran);
        good
    });
    assert!(ok, "{}\n{}", last.unwrap(), up.log());
}

fn kill_and_look(name: &str, which: usize) {
    let up = up();
    let (child, uid, socket) = begin(&up);
    let pids = up.pids(name);
    assert!(pids.len() > which, "{name}: {pids:?}");
    let killed = Instant::now();
    signal(pids[which], Signal::SIGKILL);
    let gone = eventually(LIMIT, || processes_of(uid) == 0 && !std::path::Path::new(&socket).exists());
    assert!(
        gone,
        "{name}[{which}]: {} processes, socket {}",
        processes_of(uid),
        std::path::Path::new(&socket).exists()
    );
    assert!(
        eventually(LIMIT.saturating_sub(killed.elapsed()), || no_dead_mount(&up)),
        "{name}: a dead mount"
    );
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert!(ran.exit == 1 || ran.exit == 4 || ran.exit == 137, "{ran}");
    works_again(&up);
    if name == "cyberos-broker" {
        let id = socket.split('.').nth(1).unwrap();
        let wait = format!("skill wait {id}");
        assert!(ran.exit == 1 && ran.stderr.contains(&wait), "whom to ask for its end: {ran}");
        assert_eq!(up.cyberos(&["skill", "wait", id]).exit, 1, "aborted");
    }
    let outcomes: Vec<_> = up
        .rows("skill.invoked_completed")
        .iter()
        .filter(|r| r["extra"]["skill_id"] == "talker")
        .map(|r| r["extra"]["outcome"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(outcomes, ["aborted"], "{name}[{which}]");
    assert_eq!(up.cyberos(&["audit", "verify"]).exit, 0);
}

#[test]
fn kill_9_of_the_broker_ends_its_runs_and_records_them_at_the_next_start() {
    kill_and_look("cyberos-broker", 0);
}

#[test]
fn kill_9_of_the_helpers_parent_ends_the_runs() {
    kill_and_look("cyberos-priv-helper", 0);
}

#[test]
fn kill_9_of_a_helpers_link_process_ends_that_links_runs() {
    let up = up();
    let (child, uid, socket) = begin(&up);
    let pids = up.pids("cyberos-priv-helper");
    let (parent, links) = pids.split_first().unwrap();
    // Whichever process serves the broker's link: all of them but the parent.
    for pid in links {
        signal(*pid, Signal::SIGKILL);
    }
    let gone = eventually(LIMIT, || {
        processes_of(uid) == 0 && !std::path::Path::new(&socket).exists() && no_dead_mount(&up)
    });
    assert!(gone, "{} processes", processes_of(uid));
    drop(Ran::from(child.wait_with_output().unwrap()));
    works_again(&up);
    assert!(up.pids("cyberos-priv-helper").contains(parent), "the parent has lived on");
}

#[test]
fn kill_9_of_skillfs_brings_the_mount_back_and_the_run_goes_on() {
    let up = up();
    let (mut child, uid, socket) = begin(&up);
    signal(up.pids("skillfs")[0], Signal::SIGKILL);
    assert!(eventually(LIMIT, || no_dead_mount(&up)), "a dead mount");
    works_again(&up);
    assert_eq!(processes_of(uid), 2, "the run goes on");
    assert!(std::path::Path::new(&socket).exists());
    let id = up.rows("skill.invoked_started")[0]["extra"]["invocation_id"].as_str().unwrap().to_owned();
    assert_eq!(up.cyberos(&["skill", "stop", &id]).exit, 0);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn kill_9_of_everything_leaves_nothing_and_the_next_up_starts_clean() {
    let mut up = up();
    let (child, uid, socket) = begin(&up);
    let mut all = vec![up.pid()];
    for name in ["cyberos-priv-helper", "cyberos-broker", "skillfs"] {
        all.extend(up.pids(name));
    }
    for pid in all {
        signal(pid, Signal::SIGKILL);
    }
    drop(child.wait_with_output());
    assert!(eventually(LIMIT, || processes_of(uid) == 0), "no skill outlives its init's parent");
    assert_eq!(up.ended_by(), Some(Signal::SIGKILL as i32));
    // The next start, of another instance, sweeps the block whose lock nobody holds.
    let next = self::up();
    works_again(&next);
    assert!(!std::path::Path::new(&socket).exists(), "the next start sweeps {socket}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let dead: Vec<_> = mounts.lines().filter(|l| l.contains(up.dir().to_str().unwrap())).collect();
    for line in &dead {
        // What another instance served is not this one's to unmount; its own next start does that.
        let point = line.split_whitespace().nth(1).unwrap();
        nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn the_same_state_starts_clean_after_a_kill_of_everything() {
    let first = up();
    let (child, _, _) = begin(&first);
    let state = first.state.clone();
    // Stopped first: it starts nothing again, and its end asks nobody to end by himself before he is killed.
    signal(first.pid(), Signal::SIGSTOP);
    let mut all = Vec::new();
    for name in ["cyberos-priv-helper", "cyberos-broker", "skillfs"] {
        all.extend(first.pids(name));
    }
    for pid in all.into_iter().chain([first.pid()]) {
        signal(pid, Signal::SIGKILL);
    }
    drop(child.wait_with_output());
    let mut again = std::process::Command::new(support::binaries::binary("cyberos"))
        .args(["up", "--decision-command"])
        .arg(first.dir().join("provider"))
        .arg("--state")
        .arg(&state)
        .arg("--skills")
        .arg(&first.skills)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(again.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert!(line.contains("\"ready\":true"), "{line}");
    works_again(&first);
    let outcomes = first.rows("skill.invoked_completed");
    assert!(outcomes.iter().any(|r| r["extra"]["outcome"] == "aborted"), "{outcomes:?}");
    signal(again.id().try_into().unwrap(), Signal::SIGTERM);
    assert_eq!(support::up::wait(&mut again, Duration::from_secs(40)).unwrap().code(), Some(0));
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(state.to_str().unwrap()));
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let (a, b) = (up(), up());
    let (mut child, uid, _) = begin(&a);
    works_again(&b);
    let (mut b, begun) = (b, Instant::now());
    assert_eq!(b.stop(), Some(0), "after {:?}", begun.elapsed());
    assert_eq!(processes_of(uid), 2, "the other one's run goes on");
    works_again(&a);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_same_state_is_not_taken_twice() {
    let a = up();
    let out = std::process::Command::new(support::binaries::binary("cyberos"))
        .args(["up", "--state"])
        .arg(&a.state)
        .output()
        .unwrap();
    let ran = Ran::from(out);
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stderr.contains("in use by another"), "{ran}");
    works_again(&a);
}

#[test]
fn a_daemon_that_keeps_dying_ends_the_whole() {
    let mut a = Up::new(|source| drop(Skill::default().write(source)));
    let name = "skillfs";
    let mut killed = Vec::new();
    for _ in 0..3 {
        assert!(eventually(Duration::from_secs(10), || up_pids_other(&a, name, &killed).is_some()));
        let pid = up_pids_other(&a, name, &killed).unwrap();
        killed.push(pid);
        signal(pid, Signal::SIGKILL);
    }
    assert!(eventually(Duration::from_secs(30), || a.pids("cyberos-broker").is_empty()), "{}", a.log());
    let said = eventually(Duration::from_secs(30), || a.log().contains("died 3 times within 30 s"));
    assert!(said, "{}", a.log());
    assert_ne!(a.stop(), Some(0));
}

fn up_pids_other(up: &Up, name: &str, not: &[i32]) -> Option<i32> {
    up.pids(name).into_iter().find(|p| !not.contains(p))
}
