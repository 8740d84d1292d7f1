//! What a sandbox can make the kernel keep that nothing counts (threat A23): every system call that is allowed is made in a
//! loop by eight processes, as a skill and as Bash, while the machine's counters are watched. Kernel memory that cannot
//! be reclaimed may grow by what the sandbox's control group is charged, and 64 MiB besides.
//!
//! For how long is CYBEROS_SOAK_SECONDS, a family of calls; without it a quarter of a second, which a test run can afford.
//! The full form is 20, takes an hour, and also holds another skill's calls to 50 ms.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use support::up::{Options, Ran, Skill, Up, python, reachable_dir};

/// How much beyond its charge, in KiB.
const BEYOND: i64 = 64 << 10;
/// What the machine's kernel keeps for itself, as /proc/meminfo calls it.
const COUNTERS: [&str; 6] =
    ["SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "Percpu", "VmallocUsed"];
/// Another skill's calls, at the 99th percentile, in the full form.
const CALL_MS: f64 = 50.0;

fn seconds() -> (f64, bool) {
    match std::env::var("CYBEROS_SOAK_SECONDS") {
        Ok(n) => (n.parse().expect("CYBEROS_SOAK_SECONDS is a number"), true),
        Err(_) => (0.25, false),
    }
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn compile(to: &Path) {
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(to)
        .arg(here("tests/soak/families.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Names of the families with the calls that they are about, and the numbers of the rest.
fn families(program: &Path) -> (Vec<(String, String)>, BTreeSet<u32>) {
    let list = Command::new(program).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let mut all: Vec<_> =
        list.lines().map(|l| l.split_once(':').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let (_, rest) = all.pop().unwrap();
    (all, rest.split_whitespace().map(|n| n.parse().unwrap()).collect())
}

/// Calls that hold nothing, or whose loop ends the process that makes it.
const NOT_LOOPED: &[(&str, &str)] = &[
    ("exit exit_group rt_sigreturn", "end their process, or what it was doing"),
    ("close_range alarm setitimer", "let go, or set the one timer that the process has"),
    ("rt_sigprocmask sigaltstack prlimit64", "set what the process has one of"),
    ("futex_wait futex_wake futex_requeue cachestat", "newer than the headers; looped by their numbers"),
];

#[test]
fn every_call_that_is_allowed_is_in_the_soak() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("families");
    compile(&program);
    let (families, rest) = families(&program);
    let names = fs::read_to_string(here("tests/table/names.h")).unwrap();
    let numbers: BTreeMap<&str, u32> = names
        .lines()
        .filter_map(|l| l.strip_prefix("CALL(")?.strip_suffix(')')?.split_once(", "))
        .map(|(number, name)| (name, number.parse().unwrap()))
        .collect();
    let covered: BTreeSet<&str> = families
        .iter()
        .map(|(_, calls)| calls.as_str())
        .chain(NOT_LOOPED.iter().map(|(calls, _)| *calls))
        .flat_map(str::split_whitespace)
        .collect();
    let allowed: Value =
        serde_json::from_slice(&fs::read(here("priv-helper/src/seccomp/allow.json")).unwrap()).unwrap();
    let allowed = allowed["filter"].as_array().unwrap().iter();
    let allowed = allowed.flat_map(|rule| rule["syscalls"].as_array().unwrap()).map(|s| s.as_str().unwrap());
    let missing: Vec<_> = allowed
        .filter(|call| !covered.contains(call) && !numbers.get(call).is_some_and(|n| rest.contains(n)))
        .collect();
    assert!(missing.is_empty(), "allowed, and in no family of tests/soak/families.c: {missing:?}");
}

/// The counters together, in KiB.
fn kept() -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let of = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap();
    text.lines().filter(|l| COUNTERS.iter().any(|c| l.split(':').next() == Some(c))).map(of).sum()
}

/// The control groups of every helper's sandboxes, in the hierarchy that counts memory: other tests have some too.
fn groups() -> Vec<PathBuf> {
    let (mut open, mut found) = (vec![PathBuf::from("/sys/fs/cgroup")], Vec::new());
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with("cyberos-sandboxes.") {
                let counts = ["memory.usage_in_bytes", "memory.max"].iter().any(|f| path.join(f).exists());
                found.extend(counts.then_some(path));
            } else if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no control group counts memory here, so nothing can be compared with");
    found
}

/// What they are charged of the kernel's own memory, in KiB.
fn charged(groups: &[PathBuf]) -> i64 {
    let of = |group: PathBuf| {
        let first = fs::read_to_string(group.join("memory.kmem.usage_in_bytes")).ok();
        let first = first.and_then(|n| n.trim().parse::<i64>().ok());
        first.or_else(|| {
            let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
            stat.lines().find_map(|l| l.strip_prefix("kernel ")?.trim().parse().ok())
        })
    };
    let all = groups.iter().flat_map(|of| fs::read_dir(of).into_iter().flatten().flatten());
    all.filter_map(|e| of(e.path())).sum::<i64>() / 1024
}

/// The worst of one family.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    beyond: i64,
    kept: i64,
}

/// Runs `child` to its end, and watches meanwhile. It prints a family's name when that begins. `heard` is told each line.
fn watched(
    mut child: Child,
    groups: &[PathBuf],
    heard: impl Fn(&str),
) -> (BTreeMap<String, Worst>, Ran, String) {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (now, ended) = (Mutex::new((String::from("start"), kept(), charged(groups))), AtomicBool::new(false));
    let (worst, text) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut worst: BTreeMap<String, Worst> = BTreeMap::new();
            while !ended.load(Ordering::Relaxed) {
                let (name, base, base_charge) = now.lock().unwrap().clone();
                let (kept, charge) = (kept() - base, charged(groups) - base_charge);
                let of = worst.entry(name).or_default();
                of.kept = of.kept.max(kept);
                of.beyond = of.beyond.max(kept - charge.max(0));
                std::thread::yield_now();
            }
            worst
        });
        let mut text = String::new();
        for line in out.lines() {
            let line = line.unwrap();
            heard(&line);
            if !line.contains([':', ' ']) {
                *now.lock().unwrap() = (line.clone(), kept(), charged(groups));
            }
            text += &line;
            text.push('\n');
        }
        ended.store(true, Ordering::Relaxed);
        (looking.join().unwrap(), text)
    });
    let ran = Ran::from(child.wait_with_output().unwrap());
    (worst, ran, text)
}

/// Makes calls until its standard input ends; prints how long they took, in ms: the half, the 99th percentile, the most.
const BYSTANDER: &str = "import select, time
took = []
while not select.select([0], [], [], 0.01)[0]:
    began = time.monotonic(); call('MemoryRead', path='memories/none'); took.append((time.monotonic() - began) * 1000)
took.sort()
print(len(took), took[len(took) // 2], took[len(took) * 99 // 100], took[-1])";

fn bystander(up: &Up) -> Child {
    let mut command = up.command(&["skill", "run", "bystander", "--stdin"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// What others on this machine do at the same time counts too, but does not come again: who is over is `tried` again, alone,
/// at most twice.
fn judge(
    profile: &str,
    worst: &mut BTreeMap<String, Worst>,
    expected: &[&str],
    text: &str,
    bystander: Child,
    tried: impl Fn(&str) -> BTreeMap<String, Worst>,
) {
    let (seconds, full) = seconds();
    let mut bad = Vec::new();
    for (name, of) in worst.iter_mut().filter(|(name, _)| expected.contains(&name.as_str())) {
        for _ in 0..2 {
            if of.beyond > BEYOND {
                println!("{profile} {name}: {} MiB beyond the charge, once more", of.beyond >> 10);
                let again = tried(name).get(name).copied().unwrap_or(*of);
                *of = Worst { beyond: of.beyond.min(again.beyond), kept: of.kept.min(again.kept) };
            }
        }
    }
    for name in expected {
        let of = worst.get(*name).unwrap_or_else(|| panic!("{profile}: {name} was never watched:\n{text}"));
        println!("{profile} {name}: {} MiB, {} beyond the charge", of.kept >> 10, of.beyond >> 10);
        if of.beyond > BEYOND {
            bad.push(format!("{name}: {} MiB beyond the charge", of.beyond >> 10));
        }
    }
    let mut bystander = bystander;
    drop(bystander.stdin.take());
    let said = Ran::from(bystander.wait_with_output().unwrap());
    let calls: Vec<f64> = said.stdout.split_whitespace().map(|n| n.parse().unwrap()).collect();
    println!(
        "{profile}, {seconds} s a family; another skill's calls (number; half, 99 of 100, most, in ms): {calls:?}"
    );
    assert!(bad.is_empty(), "{profile}: {bad:#?}\n{text}");
    assert!(calls[0] > 10.0, "{said}");
    assert!(!full || calls[2] <= CALL_MS, "{profile}: another skill's calls took {calls:?} ms");
}

#[test]
fn threat_a23_no_call_of_a_skill_makes_the_kernel_keep_what_nothing_counts() {
    let mut all = Vec::new();
    let up = Up::new(|source| {
        let dir = Skill { id: "soak", more: "effort_minutes: 120\n", ..Skill::default() }.write(source);
        compile(&dir.join("main"));
        all = families(&dir.join("main")).0;
        let main = python(BYSTANDER);
        Skill { id: "bystander", tools: &["MemoryRead"], main: &main, ..Skill::default() }.write(source);
    });
    let groups = groups();
    let beside = bystander(&up);
    let (seconds, _) = seconds();
    // Who takes record locks is ended for it, so that is the last.
    let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    names.retain(|name| *name != "record_locks");
    let run = |names: &[&str]| {
        // Locks are waited for until they have been seen, which is soon.
        let locks = names == ["record_locks"];
        let seconds = if locks { seconds.max(20.0) } else { seconds }.to_string();
        let mut args = vec!["skill", "run", "soak", "--", &seconds, "/tmp"];
        args.extend(names);
        let child = up.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (worst, ran, text) = watched(child, &groups, |_| ());
        // What is charged may well be all that the sandbox has, which ends it: that is what the charge is for.
        assert!(ran.exit == 137 || ran.exit == 0 && !locks, "{text}{ran}");
        assert!(!locks || ran.stderr.contains("record locks"), "{ran}");
        (worst, text)
    };
    names.push("record_locks");
    let (mut worst, mut text) = (BTreeMap::new(), String::new());
    for name in &names {
        let (of, said) = run(&[name]);
        assert!(said.starts_with(&format!("{name}\n")), "{name} did nothing:\n{said}");
        worst.extend(of);
        text += &said;
    }
    judge("skill", &mut worst, &names, &text, beside, |name| run(&[name]).0);
}

/// A file system of its own for what Bash may write, on a loop device.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: &Path, owner: (u32, u32)) -> Disk {
        let (image, at) = (dir.join("image"), dir.join("disk"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        for words in [
            vec!["mkfs.ext4", "-q", "-m", "0", image.to_str().unwrap()],
            vec!["mount", "-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()],
        ] {
            let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        std::os::unix::fs::chown(&at, Some(owner.0), Some(owner.1)).unwrap();
        Disk(at)
    }

    /// Percent of it that is free.
    fn free(&self) -> u64 {
        let fs = nix::sys::statvfs::statvfs(&self.0).unwrap();
        fs.blocks_available() * 100 / fs.blocks()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// One call of Bash for each family. Who fills the disk is ended, and nobody may write until that is undone, outside.
const CALLER: &str = "where, seconds = sys.argv[1:3]
for name in sys.argv[3:]:
    print(name, flush=True)
    answer = call('Bash', cmd=f'{where}/families {seconds} {where} {name}')
    print(name + ':', 'ended' if answer[0] != 'ok' else answer[1]['exit_code'], json.dumps(answer)[:300], flush=True)
    for again in range(300):
        if call('Bash', cmd='true')[0] == 'ok': break
        import time; time.sleep(0.1)";

#[test]
fn threat_a23_no_call_of_bash_makes_the_kernel_keep_what_nothing_counts_or_fills_a_disk() {
    let place = reachable_dir("cyberos-grant-");
    let at = place.join("disk");
    let wish =
        format!("x-allowed-files: [\"{}/**\"]\nx-max-processes: 16\neffort_minutes: 120\n", at.display());
    let options = Options { grant_requested: true, ..Options::default() };
    // It is there when the skill starts.
    let up = Up::with(options, |source| {
        let (main, calls) = (python(CALLER), python(BYSTANDER));
        Skill { id: "soak", tools: &["Bash", "Write"], more: &wish, main: &main, ..Skill::default() }
            .write(source);
        Skill { id: "bystander", tools: &["MemoryRead"], main: &calls, ..Skill::default() }.write(source);
    });
    let state = fs::metadata(up.state.join("broker")).unwrap();
    let disk = Disk::new(&place, (state.uid(), state.gid()));
    let program = at.join("families");
    compile(&program);
    let all = families(&program).0;
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let groups = groups();
    let beside = bystander(&up);
    let seconds = seconds().0.to_string();
    let run = |names: &[&str]| {
        let mut args = vec!["skill", "run", "soak", "--", at.to_str().unwrap(), &seconds];
        args.extend(names);
        let child = up.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (worst, ran, text) = watched(child, &groups, |line| {
            if let Some((name, _)) = line.split_once(": ") {
                assert!(disk.free() >= 4, "{} % are free: {line}", disk.free());
                let _ = fs::remove_dir_all(at.join(name));
            }
        });
        assert_eq!(ran.exit, 0, "{text}{ran}");
        (worst, text)
    };
    let (mut worst, text) = run(&names);
    assert!(disk.free() >= 5, "{} % are free\n{text}", disk.free());
    let locks = text.lines().find(|line| line.starts_with("record_locks: "));
    assert!(
        locks.is_some_and(|line| line.contains("too_many_locks")) || seconds.parse::<f64>().unwrap() < 2.0,
        "{text}"
    );
    judge("Bash", &mut worst, &names, &text, beside, |name| run(&[name]).0);
}
