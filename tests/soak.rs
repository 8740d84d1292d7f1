//! After many spawns everything is what it was: descriptors, memory, mounts, control groups, leases, processes, zombies.
//! And two hundred at once all start and all end.
//!
//! How many is CYBEROS_SOAK_SPAWNS; without it 2,000, which a test run can afford. CI sets 10,000.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod support;

use cyberos_proto::message::{Event, Exit, Refusal, Reply};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::helper::{Asks, Helper, Peer, plan, until};
use support::machine::{descriptors, status, with_descendants};
use support::up::{Ran, Skill, Up, eventually};

/// Leases of a block of 256, whose first serves the inits.
const LEASES: usize = 255;
/// How much a helper's processes may grow in all, in KiB: an allocator's pages, and nothing that adds up.
const GROWTH: u64 = 2048;

fn spawns() -> usize {
    std::env::var("CYBEROS_SOAK_SPAWNS").map_or(2000, |n| n.parse().expect("CYBEROS_SOAK_SPAWNS is a number"))
}

/// What the machine shows of a helper between two spawns.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Open descriptors of each of its processes.
    descriptors: BTreeMap<i32, usize>,
    zombies: usize,
    mounts: usize,
    groups: BTreeSet<PathBuf>,
    left: Vec<String>,
}

fn processes(helper: &Helper) -> Vec<Pid> {
    with_descendants(vec![helper.pid()])
}

fn see(helper: &Helper) -> Seen {
    let (all, links) = (processes(helper), [vec![helper.pid()], helper.children()].concat());
    let mounts = |p: Pid| fs::read_to_string(format!("/proc/{p}/mountinfo")).unwrap_or_default();
    // The init that is ready for the next sandbox is another one after each.
    let mut held = BTreeMap::new();
    for p in &all {
        *held.entry(if links.contains(p) { p.as_raw() } else { 0 }).or_default() += descriptors(*p);
    }
    let own = helper.dir.path().to_str().unwrap();
    // Other tests mount things in directories of their own. What the helper's own namespaces hold is its own.
    let foreign = |l: &&str| {
        let at = l.split(' ').nth(4).unwrap_or_default();
        (at.starts_with("/tmp/cyberos-") || at.starts_with("/var/tmp/cyberos-")) && !at.starts_with(own)
    };
    Seen {
        descriptors: held,
        zombies: all.iter().filter(|p| status(**p).contains("\nState:\tZ")).count(),
        mounts: all.iter().map(|p| mounts(*p).lines().filter(|l| !foreign(l)).count()).sum(),
        groups: groups(helper),
        left: helper.leftovers(),
    }
}

/// Control groups of ours: made by this helper, or by another that runs now and is told apart by its numbers.
fn groups(helper: &Helper) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let path = entry.path();
                let number =
                    |n: &str| n.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).max();
                let name = path.to_string_lossy().into_owned();
                let ours = |n: u32| (helper.uids.0..=helper.uids.1).contains(&n);
                if name.contains("cyberos") && number(&name).is_some_and(ours) {
                    found.insert(path.clone());
                }
                open.push(path);
            }
        }
    }
    found
}

/// Resident memory of its processes that isn't a file's, in KiB.
fn resident(helper: &Helper) -> u64 {
    let of = |p: &Pid| {
        let status = status(*p);
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap_or("0").to_owned();
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    processes(helper).iter().map(of).sum()
}

/// The same twice in a row: whatever has just ended is gone.
fn at_rest(helper: &Helper) -> Seen {
    let mut last = see(helper);
    let settled = || {
        let now = see(helper);
        let same = now == last;
        last = now;
        same
    };
    assert!(eventually(Duration::from_secs(10), settled), "never at rest");
    last
}

/// One sandbox to its end; its uid.
fn once(peer: &Peer, words: &[&str], expected: Exit) -> u32 {
    let run = peer.start(plan(words), &[]);
    let uid = run.uid;
    let invocation = run.invocation;
    assert_eq!(peer.exit(invocation), expected);
    assert_eq!(peer.ask(&invocation.release(), &[]).0, Reply::Done);
    uid
}

#[test]
fn after_thousands_of_spawns_everything_is_as_before() {
    let helper = Helper::start("");
    let peer = helper.broker();
    // One whole round of leases first: what is taken once, and then kept, is taken.
    let round: Vec<u32> = (0..LEASES).map(|_| once(&peer, &["/bin/true"], Exit::Code(0))).collect();
    assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), LEASES, "each lease was given once");
    let (before, memory) = (at_rest(&helper), resident(&helper));
    assert_eq!((before.zombies, &*before.left), (0, &[] as &[String]));
    let began = Instant::now();
    let spawns = spawns();
    for i in 0..spawns {
        // First in, first out: the one that has been free for longest comes next.
        let expected = round[i % LEASES];
        let uid = match i % 50 {
            // Not every one ends well, or starts.
            7 => once(&peer, &["/bin/sh", "-c", "exit 3"], Exit::Code(3)),
            13 => once(&peer, &["/bin/sh", "-c", "kill -9 $$"], Exit::Signal(9)),
            21 => once(&peer, &["/bin/sh", "-c", "(sleep 1000 &) ; exit 0"], Exit::Code(0)),
            33 => {
                let (invocation, uid, _listener) = peer.invocation();
                let none = invocation.prepare(plan(&["/no/such/program"]));
                assert!(matches!(peer.refusal(&none, &[]), Refusal::Exec { errno: 2 }));
                assert_eq!(peer.ask(&invocation.release(), &[]).0, Reply::Done);
                uid
            }
            41 => {
                let run = peer.start(plan(&["/bin/sleep", "1000"]), &[]);
                let (invocation, uid) = (run.invocation, run.uid);
                assert_eq!(peer.ask(&invocation.release(), &[]).0, Reply::Done);
                assert_eq!(peer.exit(invocation), Exit::Signal(9));
                uid
            }
            _ => once(&peer, &["/bin/true"], Exit::Code(0)),
        };
        assert_eq!(uid, expected, "spawn {i}");
    }
    let took = began.elapsed();
    assert_eq!(at_rest(&helper), before);
    let after = resident(&helper);
    println!("{spawns} spawns in {took:?}; {memory} KiB before, {after} KiB after");
    assert!(after <= memory + GROWTH, "{memory} KiB became {after} KiB");
    drop(peer);
    helper.leaves_nothing();
}

#[test]
fn two_hundred_sandboxes_at_once_all_start_and_all_end() {
    const MANY: usize = 200;
    let helper = Helper::start("max_sandboxes 200\n");
    let peer = helper.broker();
    // What is made once for so many, and kept, is made by the first time.
    many(&helper, &peer, MANY);
    let before = at_rest(&helper);
    many(&helper, &peer, MANY);
    let after = at_rest(&helper);
    assert_eq!((after.zombies, &after.left), (0, &Vec::new()));
    assert_eq!(after, before);
}

/// So many at the same time, to their end.
fn many(helper: &Helper, peer: &Peer, many: usize) {
    let mut waiting: BTreeMap<_, (OwnedFd, Vec<OwnedFd>)> = BTreeMap::new();
    for _ in 0..many {
        let (invocation, _, listener) = peer.invocation();
        // Runs until its standard input ends.
        let request = invocation.prepare(plan(&["/bin/cat"]));
        let pipes = peer.spawn(&request, &[]).unwrap();
        waiting.insert(invocation, (listener, vec![pipes.stdin, pipes.stdout, pipes.stderr]));
    }
    let left = helper.leftovers();
    let of = |what: &str| left.iter().filter(|l| l.contains(what)).count();
    assert_eq!(
        (of("process /proc"), of("cyberos-skill-broker.")),
        (2 * many, many),
        "an init and a program each"
    );
    waiting.values_mut().for_each(|(_, pipes)| pipes.clear());
    let mut ended = BTreeSet::new();
    while ended.len() < many {
        match peer.event(|_| true).0 {
            Event::Exited { sandbox, exit: Exit::Code(0), .. } => ended.insert(sandbox),
            other => panic!("{other:?}"),
        };
    }
    for invocation in waiting.keys() {
        assert_eq!(peer.ask(&invocation.release(), &[]).0, Reply::Done);
    }
    until("nothing is left", || helper.leftovers().is_empty());
}

/// Through the whole line: two hundred `cyberos skill run` that all run at once, and end when they are told.
#[test]
fn two_hundred_invocations_at_once_through_the_whole_system() {
    const MANY: u64 = 200;
    // As from an ordinary shell.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(1024), hard).unwrap();
    // Each makes a call, so that it may run for longer than the minute that one without a connection has.
    let main = "#!/bin/sh\n/opt/cyberos/bin/cyberos-call MemoryRead '{}' >/dev/null 2>&1\nread x\necho $x\n";
    let up = Up::new(|source| drop(Skill { id: "waits", main, ..Skill::default() }.write(source)));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let begin = || {
        let mut run = up.command(&["skill", "run", "--stdin", "waits"]);
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let end = |mut run: std::process::Child| {
        run.stdin.take().unwrap().write_all(b"ran\n").unwrap();
        let ran = Ran::from(run.wait_with_output().unwrap());
        assert_eq!((ran.exit, &*ran.stdout), (0, "ran\n"), "{ran}");
    };
    end(begin());
    let active = || {
        let status = up.cyberos(&["--json", "status"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        status["active_invocations"].as_u64().unwrap()
    };
    let broker = up.pids("cyberos-broker")[0];
    let open = || descriptors(broker);
    let before = open();
    let mut all: Vec<_> = (0..MANY).map(|_| begin()).collect();
    let began = eventually(Duration::from_secs(120), || {
        active() == MANY || all.iter_mut().any(|run| run.try_wait().unwrap().is_some())
    });
    if !began || active() != MANY {
        let active = active();
        let mut said = Vec::new();
        for mut run in all {
            if run.try_wait().unwrap().is_some() {
                said.push(Ran::from(run.wait_with_output().unwrap()).to_string());
            } else {
                let _ = run.kill();
                let _ = run.wait();
            }
        }
        panic!("{active} of {MANY} run: {:?}", said.first());
    }
    all.into_iter().for_each(end);
    let rows = up.rows("skill.invoked_completed");
    assert_eq!(rows.len() as u64, MANY + 1);
    assert!(rows.iter().all(|r| r["extra"]["outcome"] == "success"));
    assert_eq!(active(), 0);
    let gone = eventually(Duration::from_secs(10), || open() <= before + 2);
    assert!(gone, "{} descriptors of the broker, {before} before", open());
    let sockets: Vec<_> = rows
        .iter()
        .map(|r| format!("/tmp/cyberos-skill-broker.{}.sock", r["extra"]["invocation_id"].as_str().unwrap()))
        .filter(|path| Path::new(path).exists())
        .collect();
    assert!(sockets.is_empty(), "{sockets:?}");
}
