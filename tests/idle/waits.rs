//! What takes the minute for which nothing is to wake up.

use crate::support::machine::{children, status};
use crate::support::skillfs::{one, read, until};
use cyberos_proto::control::Verdict;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// The watchdog asks every five seconds.
const QUESTIONS: u64 = 60 / 5 + 1;

/// How often each thread of a process has been put on a processor, by number and name.
fn switches(pid: i32) -> BTreeMap<(i32, String), u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| text.lines().find_map(|l| Some(l.strip_prefix(name)?.trim().to_owned()));
        let count = |name: &str| field(name)?.parse::<u64>().ok();
        let number = thread.file_name().to_str()?.parse().ok()?;
        let all = count("voluntary_ctxt_switches:")? + count("nonvoluntary_ctxt_switches:")?;
        Some(((number, field("Name:")?), all))
    };
    threads.filter_map(of).collect()
}

/// The threads that were woken between the two, and how often. One that came or went counts as well.
fn woken(
    before: &BTreeMap<(i32, String), u64>,
    after: &BTreeMap<(i32, String), u64>,
) -> BTreeMap<String, u64> {
    let mut woken = BTreeMap::new();
    for thread in before.keys().chain(after.keys()) {
        let times = before.get(thread).unwrap_or(&0).abs_diff(*after.get(thread).unwrap_or(&0));
        if times > 0 {
            woken.insert(format!("{} {}", thread.0, thread.1), times);
        }
    }
    woken
}

fn rest(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn a_view_at_rest_wakes_nobody_but_for_its_watchdogs_question() {
    // What others mount meanwhile does wake SkillFS: it may lie on the way to its source. Here nobody else does.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
    let bench = one(&[]);
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    let skillfs = bench.pid();
    let mut watchdog = None;
    until("a watchdog", || {
        let named = |p: &i32| status(*p).starts_with("Name:\tskillfs-watch\n");
        watchdog = children(skillfs).into_iter().map(|p| p.as_raw()).find(named);
        watchdog.is_some()
    });
    // What has been done ends first: a control client's thread, a second look at the way to the source.
    let mut last = switches(skillfs);
    until("at rest", || {
        rest(Duration::from_secs(2));
        let before = std::mem::replace(&mut last, switches(skillfs));
        woken(&before, &last).keys().all(|name| name.contains("fuser-"))
    });
    let both = || (switches(skillfs), switches(watchdog.unwrap()));
    let before = both();
    rest(MINUTE);
    let after = both();
    let (of_server, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        woken(&before.0, &after.0).into_iter().partition(|(name, _)| name.contains("fuser-"));
    // A change of others' on the way to its source does wake it; whoever polled would wake each ten seconds at least.
    assert!(others.values().sum::<u64>() < 4, "nothing was to be done: {others:?}");
    // Each question is one answer; that a thread had to make way for another's work is nothing of ours.
    let answers: u64 = of_server.values().sum();
    assert!((1..=2 * QUESTIONS).contains(&answers), "{of_server:?}");
    // Who asks wakes to ask and with the answer; who waits wakes for the time and for the answer, and makes way.
    let asked: u64 = woken(&before.1, &after.1).values().sum();
    assert!((1..=10 * QUESTIONS).contains(&asked), "{:?}", woken(&before.1, &after.1));
}
