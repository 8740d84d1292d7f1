//! What one folder's owner can do to the view: to that folder's skill what he likes, to the others nothing (`[9.3]`, threat
//! A20). Whoever may write in a folder can make changes faster than anybody reads them, and directories without end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

#[path = "storm/heaps.rs"]
mod heaps;
#[path = "storm/runs.rs"]
mod runs;
mod support;

use cyberos_proto::control::{ControlReply, ControlRequest, SkillState, Verdict};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::skillfs::{Bench, name, read, until};

/// A user who owns one folder of the source and nothing else.
const STRANGER: u32 = 61_777;
/// Folders of others beside his.
const OTHERS: usize = 71;

/// How long a storm is watched: a few seconds, or as many as `CYBEROS_STORM_SECONDS` says.
fn long() -> Duration {
    let seconds = std::env::var("CYBEROS_STORM_SECONDS").ok().map(|s| s.parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Processes of the stranger that do the same thing over and over, ended when this is dropped.
struct Storm(Vec<Child>);

impl Storm {
    /// `processes` times `body`, a loop's body in Python that knows `os`, `dir` (a folder) and `n` (which process).
    fn of(processes: usize, dir: &Path, body: &str) -> Self {
        let script = format!("import os, sys\ndir, n = sys.argv[1], int(sys.argv[2])\nwhile True:\n{body}\n");
        let start = |n: usize| {
            let mut python = Command::new("python3");
            python.arg("-c").arg(&script).arg(dir).arg(n.to_string()).uid(STRANGER).gid(STRANGER);
            python.stdin(Stdio::null()).spawn().unwrap()
        };
        Storm((0..processes).map(start).collect())
    }

    /// Four processes that chmod the files `f0` to `f7` of a folder.
    fn of_modes(dir: &Path) -> Self {
        Storm::of(4, dir, " for m in (0o600, 0o644):\n  for f in range(8): os.chmod(f'{dir}/f{f}', m)")
    }

    fn goes_on(&mut self) -> bool {
        self.0.iter_mut().all(|p| matches!(p.try_wait(), Ok(None)))
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn give(path: &Path) {
    chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|e| give(&e.unwrap().path()));
    }
}

/// A folder of the stranger's with eight files in it.
fn strangers(bench: &Bench, skill: &str) {
    for n in 0..8 {
        bench.write(&format!("{skill}/f{n}"), "x");
    }
    give(&bench.source(skill));
}

fn others() -> impl Iterator<Item = String> {
    (0..OTHERS).map(|n| format!("other-{n:02}"))
}

/// A mounted bench with many current skills, one of which is the stranger's.
fn crowd(options: &[&str]) -> Bench {
    let mut bench = Bench::new();
    for skill in others().chain(["mine".to_owned()]) {
        bench.write(&format!("{skill}/SKILL.md"), &skill);
        bench.says_current(&skill);
    }
    strangers(&bench, "mine");
    bench.mount(options);
    bench.settle();
    bench
}

fn explain(bench: &Bench, skill: &str) -> SkillState {
    match bench.ask(&ControlRequest::Explain { skill: name(skill) }) {
        ControlReply::Skill(state) => state,
        other => panic!("{skill}: {other:?}"),
    }
}

fn listed(bench: &Bench) -> BTreeSet<OsString> {
    fs::read_dir(bench.path("mnt")).unwrap().map(|e| e.unwrap().file_name()).collect()
}

/// Looks up names that are not there, which the kernel never keeps, so that each is answered by SkillFS, and reads a
/// file of each skill; every round lists the root. What is missing is a failure. The times of the look-ups, sorted.
fn look_ups(bench: &Bench, time: Duration) -> Vec<Duration> {
    let names: Vec<String> = others().collect();
    let (end, mut took) = (Instant::now() + time, Vec::new());
    while Instant::now() < end {
        for skill in &names {
            let absent = bench.view(&format!("{skill}/absent-{}", took.len()));
            let began = Instant::now();
            assert!(fs::symlink_metadata(absent).is_err());
            took.push(began.elapsed());
            assert_eq!(read(bench.view(&format!("{skill}/SKILL.md"))).unwrap(), *skill);
        }
        let listed = listed(bench);
        let missing: Vec<&String> = names.iter().filter(|n| !listed.contains(&OsString::from(n))).collect();
        assert!(missing.is_empty(), "not listed: {missing:?}");
    }
    took.sort();
    took
}

/// The times of look-ups when nothing else happens, and beside the same storm elsewhere: what it costs to share a few
/// processors with it is not the view's doing.
fn before(bench: &Bench) -> (Vec<Duration>, Vec<Duration>) {
    let quiet = look_ups(bench, Duration::from_secs(1));
    fs::create_dir(bench.path("elsewhere")).unwrap();
    for n in 0..8 {
        fs::write(bench.path(&format!("elsewhere/f{n}")), "x").unwrap();
    }
    give(&bench.path("elsewhere"));
    let _elsewhere = Storm::of_modes(&bench.path("elsewhere"));
    (quiet, look_ups(bench, Duration::from_secs(1)))
}

/// The same in three parts, of which the best counts: what else a machine does in one moment is not the view's doing.
fn best_of_three(bench: &Bench, time: Duration) -> Vec<Duration> {
    (0..3).map(|_| look_ups(bench, time / 3)).min_by_key(|took| p99(took)).unwrap()
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 99 / 100]
}

#[test]
fn threat_a20_a_storm_in_one_folder_harms_that_skill_alone_and_it_is_named() {
    let bench = crowd(&[]);
    let (quiet, busy) = before(&bench);
    let mut storm = Storm::of_modes(&bench.source("mine"));
    until("the storm is named", || explain(&bench, "mine").warning.is_some());
    let during = best_of_three(&bench, long());
    // A decision about another skill is taken in time.
    let began = Instant::now();
    bench.write("other-33/SKILL.md", "other-33");
    let state = bench.state("other-33");
    let decided = began.elapsed();
    assert_eq!((state.verdict, state.pending), (Verdict::Current, false), "{state:?}");
    assert!(storm.goes_on());
    drop(storm);
    eprintln!(
        "p99 of {}, {}, {} look-ups: quiet {:?}, busy {:?}, storm {:?}; max {:?}; decided in {decided:?}",
        quiet.len(),
        busy.len(),
        during.len(),
        p99(&quiet),
        p99(&busy),
        p99(&during),
        during.last().unwrap()
    );
    assert!(p99(&during) <= 5 * p99(&quiet).max(p99(&busy)), "{:?} against {:?}", p99(&during), p99(&quiet));
    assert!(decided < Duration::from_secs(1), "{decided:?}");
    for skill in others() {
        let state = explain(&bench, &skill);
        assert!(state.warning.is_none() && !state.pending, "{state:?}");
    }
    assert!(bench.log().contains("mine"), "the log names it");
    // When it is quiet it comes back by itself.
    until("it is decided again", || bench.state("mine").verdict == Verdict::Current);
    until("shown again", || read(bench.view("mine/SKILL.md")).is_ok());
    assert!(explain(&bench, "mine").warning.is_none());
}

/// What else somebody who may write in a folder, or in a source, can do without end. Each knows two folders that are his.
const WAYS: [(&str, &str); 5] = [
    ("metadata", " for m in (0o600, 0o644): os.chmod(f'{dir}/mine/.skill-meta/f{n}', m)"),
    (
        "directories",
        " os.mkdir(f'{dir}/mine/d{n}')\n os.mkdir(f'{dir}/mine/d{n}/e')\n os.rmdir(f'{dir}/mine/d{n}/e')\n os.rmdir(f'{dir}/mine/d{n}')",
    ),
    (
        "between two skills",
        " for a, b in (('mine', 'his'), ('his', 'mine')):\n  os.rename(f'{dir}/{a}/move{n}', f'{dir}/{b}/move{n}')",
    ),
    ("the source's entries", " os.mkdir(f'{dir}/new{n}')\n os.rmdir(f'{dir}/new{n}')"),
    (
        "the skill's place",
        " if n: os.chmod(f'{dir}/his/f{n}', 0o600)\n else: os.rename(f'{dir}/mine', f'{dir}/went'); os.rename(f'{dir}/went', f'{dir}/mine')",
    ),
];

#[test]
fn no_way_to_make_changes_without_end_reaches_the_others() {
    let mut bench = Bench::new();
    for skill in others().chain(["mine".to_owned(), "his".to_owned()]) {
        bench.write(&format!("{skill}/SKILL.md"), &skill);
        bench.says_current(&skill);
    }
    for n in 0..4 {
        bench.write(&format!("mine/.skill-meta/f{n}"), "x");
        bench.write(&format!("his/f{n}"), "x");
        bench.write(&format!("mine/move{n}/deep/f"), "x");
    }
    give(&bench.source("mine"));
    give(&bench.source("his"));
    // Whoever likes may put a skill here, and nobody may take another's away.
    fs::set_permissions(bench.path("src"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    bench.mount(&[]);
    bench.settle();
    let (quiet, busy) = before(&bench);
    let (quiet, busy) = (p99(&quiet), p99(&busy));
    for (way, body) in WAYS {
        let mut storm = Storm::of(4, &bench.path("src"), body);
        let during = p99(&best_of_three(&bench, long() / 2));
        assert!(storm.goes_on(), "{way}");
        drop(storm);
        eprintln!("{way}: p99 {during:?}, quiet {quiet:?}, busy {busy:?}");
        assert!(during <= 5 * quiet.max(busy), "{way}: {during:?} against {quiet:?} and {busy:?}");
        for skill in others() {
            let state = explain(&bench, &skill);
            // That others can write the source is so, and is said; that this skill was left alone is not.
            let told = state.warning.as_deref().unwrap_or_default();
            let alone = told.is_empty() || told.starts_with("source_shared: ") && !told.contains("faster");
            assert!(!state.pending && alone, "{way}: {state:?}");
        }
        assert_eq!(bench.state("other-07").verdict, Verdict::Current, "{way}");
    }
    // A skill that comes is found, whatever has been before.
    bench.says_current("new");
    bench.write("new/SKILL.md", "new");
    until("the new one is shown", || read(bench.view("new/SKILL.md")).is_ok_and(|t| t == "new"));
}

#[test]
fn a_file_of_anothers_source_does_not_touch_the_skill_of_that_name() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "first");
    bench.says_current("s");
    fs::create_dir(bench.path("second")).unwrap();
    chown(bench.path("second"), Some(STRANGER), None).unwrap();
    let mut arguments = bench.arguments(&[]);
    arguments.insert(2, bench.path("second").display().to_string());
    bench.mount_with(&arguments);
    bench.settle();
    let before = explain(&bench, "s").epoch;
    for _ in 0..50 {
        fs::create_dir(bench.path("second/s")).unwrap();
        assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "first");
        fs::remove_dir(bench.path("second/s")).unwrap();
    }
    assert_eq!(explain(&bench, "s").epoch, before, "the first source's skill was never another one");
}

#[test]
fn providers_that_hang_on_strangers_folders_hold_up_no_other() {
    let mut bench = Bench::new();
    for n in 0..24 {
        let skill = format!("a-hangs-{n:02}");
        strangers(&bench, &skill);
        fs::write(bench.path(&format!("stub/{skill}.scan")), "sleep 70707").unwrap();
    }
    for skill in ["b-good", "z-good"] {
        bench.write(&format!("{skill}/SKILL.md"), "1");
        bench.says_current(skill);
    }
    bench.mount(&["--jobs", "2"]);
    for (turn, skill) in ["b-good", "z-good", "b-good", "z-good"].into_iter().enumerate() {
        bench.write(&format!("{skill}/SKILL.md"), turn.to_string());
        let began = Instant::now();
        until("decided", || {
            read(bench.view(&format!("{skill}/SKILL.md"))).is_ok_and(|t| t == turn.to_string())
        });
        assert!(began.elapsed() < Duration::from_secs(5), "{skill}: {:?}", began.elapsed());
    }
}
