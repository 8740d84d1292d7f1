//! What a sandbox costs: from the request to `/bin/true` reaped, through the real helper with everything enforced, against
//! `bwrap --unshare-all` with the same view and against a plain posix_spawn. The last line is the JSON object of the ratios.
//!
//! The client is a bare link: no broker, no async. Rounds of the three alternate; each ratio is of the medians of one round,
//! and the result is their median. A program that does not exit with 0, or a report that lacks a part, is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench without a right result has none")]

#[path = "../support/mod.rs"]
mod support;

use cyberos_proto::ids::InvocationId;
use cyberos_proto::link::{Link, Wait};
use cyberos_proto::message::{Event, Exit, FromHelper, Reply, Request};
use cyberos_proto::plan::{Feature, SandboxPath, SandboxReport, SpawnPlan};
use nix::unistd::{Uid, seteuid};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::helper::{Asks, BROKER, Helper, skill};

/// Rounds of each side, and runs in one.
const ROUNDS: usize = 15;
const RUNS: usize = 60;
/// Sandboxes at once.
const MANY: usize = 200;
const FOLDER: &str = "/opt/cyberos/skills/bench";

type Client = Link<Request, FromHelper>;

/// A helper of the release build with a skill's folder, and room for all sandboxes.
fn start() -> Helper {
    let helper = Helper::start(&format!("max_sandboxes {}\n", MANY + 10));
    fs::create_dir(helper.dir.path().join("sealed/bench")).unwrap();
    fs::write(helper.dir.path().join("sealed/bench/SKILL.md"), "---\n---\n").unwrap();
    helper
}

/// The broker's link to it.
fn connect(helper: &Helper) -> Client {
    seteuid(Uid::from_raw(BROKER)).unwrap();
    let link = Link::connect(&helper.socket());
    seteuid(Uid::from_raw(0)).unwrap();
    let link = link.unwrap();
    link.set_receive_timeout(Duration::from_secs(60)).unwrap();
    link
}

fn folder(helper: &Helper) -> OwnedFd {
    File::open(helper.dir.path().join("sealed/bench")).unwrap().into()
}

/// Processes of its sandboxes, and sockets.
fn left(helper: &Helper) -> usize {
    let left = helper.leftovers();
    left.iter().filter(|l| l.starts_with("process ") || l.starts_with("cyberos-skill-broker.")).count()
}

/// What the broker asks for when a skill is run, with `program` in place of its entry point.
fn plan(program: &str) -> SpawnPlan {
    let mut plan = skill("bench");
    plan.program = SandboxPath::new(program).unwrap();
    plan.args = vec![program.into()];
    plan.env.truncate(1);
    plan.limits.cpu_s = 1800;
    plan
}

fn ask(link: &Client, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
    link.send(request, fds, Wait::Block).unwrap();
    match link.receive(Wait::Block).unwrap() {
        (FromHelper::Reply(Reply::Refused(refusal)), _) => panic!("refused: {refusal}"),
        (FromHelper::Reply(reply), fds) => (reply, fds),
        (FromHelper::Event(event), _) => panic!("{event:?} in place of a reply"),
    }
}

fn event(link: &Client) -> (Event, Vec<OwnedFd>) {
    match link.receive(Wait::Block).unwrap() {
        (FromHelper::Event(event), fds) => (event, fds),
        other => panic!("{other:?} in place of an event"),
    }
}

/// Has a sandbox built, and its program executed; its report and its pipes.
fn spawn(link: &Client, request: &Request, fds: &[BorrowedFd<'_>]) -> (SandboxReport, Vec<OwnedFd>) {
    let Request::Prepare { sandbox, .. } = request else { panic!("{request:?} prepares nothing") };
    assert_eq!(ask(link, request, fds).0, Reply::Done);
    let (Event::Prepared { report, .. }, pipes) = event(link) else { panic!("it was not prepared") };
    assert_eq!(ask(link, &Request::Go { sandbox: *sandbox }, &[]).0, Reply::Done);
    assert_eq!(event(link).0, Event::Started { sandbox: *sandbox });
    (report, pipes)
}

fn new_id() -> InvocationId {
    InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes())
}

/// All that must be in force is; answers what is not, of what may be absent.
fn enforced(report: &SandboxReport) -> Vec<&'static str> {
    use Feature::*;
    for part in [Namespaces, OwnUid, NoNewPrivs, NoCapabilities, Seccomp, Rlimits] {
        assert!(report.enforced.contains(&part), "{part:?} is not in force: {report:?}");
    }
    report.skipped.iter().map(|f| f.as_str()).collect()
}

/// One sandbox: from the spawn request to the program reaped, and with lease, socket and release around it.
fn sandbox(link: &Client, folder: BorrowedFd<'_>, report: &mut Option<SandboxReport>) -> [Duration; 2] {
    let invocation = new_id();
    let began = Instant::now();
    let (_, listener) = ask(link, &invocation.create(), &[]);
    let request = invocation.prepare(plan("/bin/true"));
    let asked = Instant::now();
    let (of_this, pipes) = spawn(link, &request, &[folder]);
    let (ended, _) = event(link);
    let reaped = asked.elapsed();
    let exit = Exit::Code(0);
    let expected = Event::Exited { sandbox: invocation.sandbox(), exit, out_of_memory: false };
    assert_eq!(ended, expected, "it did not run as it should");
    ask(link, &invocation.release(), &[]);
    let whole = began.elapsed();
    drop((listener, pipes));
    *report = Some(of_this);
    [reaped, whole]
}

/// Bubblewrap with the view that a sandbox of ours has.
struct Bubblewrap {
    words: Vec<String>,
}

impl Bubblewrap {
    fn new(helper: &Helper) -> Bubblewrap {
        let found = Command::new("bwrap").arg("--version").output();
        assert!(found.is_ok_and(|o| o.status.success()), "bubblewrap is missing: run tests/benches/peers.sh");
        let etc = helper.dir.path().join("etc");
        fs::create_dir(&etc).unwrap();
        for name in ["passwd", "group", "nsswitch.conf", "hosts", "gitconfig"] {
            fs::write(etc.join(name), "skill:x:7:7:skill:/tmp:/bin/sh\n").unwrap();
        }
        let mut words: Vec<String> = Vec::new();
        let mut add = |w: &[&str]| words.extend(w.iter().map(|w| (*w).to_owned()));
        add(&["--unshare-all", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"]);
        add(&["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--cap-drop", "ALL"]);
        // What is shown of the system, where this machine has it: links as links, the rest read-only.
        for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            let path = format!("/{name}");
            match fs::read_link(&path) {
                Ok(to) => add(&["--symlink", to.to_str().unwrap(), &path]),
                Err(_) if Path::new(&path).exists() => add(&["--ro-bind", &path, &path]),
                Err(_) => {}
            }
        }
        for name in ["localtime", "ld.so.cache", "ssl/certs", "alternatives"] {
            let path = format!("/etc/{name}");
            match fs::read_link(&path) {
                Ok(to) => add(&["--symlink", to.to_str().unwrap(), &path]),
                Err(_) if Path::new(&path).exists() => add(&["--ro-bind", &path, &path]),
                Err(_) => {}
            }
        }
        for entry in fs::read_dir(&etc).unwrap().flatten() {
            let name = format!("/etc/{}", entry.file_name().to_string_lossy());
            add(&["--ro-bind", entry.path().to_str().unwrap(), &name]);
        }
        add(&["--dev", "/dev", "--tmpfs", "/dev/shm", "--proc", "/proc", "--tmpfs", "/tmp"]);
        let socket = helper.socket();
        add(&["--ro-bind", socket.to_str().unwrap(), "/tmp/cyberos-skill-broker.sock"]);
        add(&["--ro-bind", helper.dir.path().join("bin").to_str().unwrap(), "/opt/cyberos/bin"]);
        add(&["--ro-bind", helper.dir.path().join("sealed/bench").to_str().unwrap(), FOLDER]);
        add(&["--chdir", FOLDER]);
        Bubblewrap { words }
    }

    fn run(&self, program: &[&str]) -> Duration {
        let mut command = Command::new("bwrap");
        command.args(&self.words).arg("--").args(program);
        timed(&mut command)
    }

    /// That its view is as good as ours: the same names in the same places.
    fn check(&self) {
        let look = "ls / /etc /dev /opt/cyberos /opt/cyberos/skills; test -e /tmp/*.sock -a -w /dev/shm -a ! -w /usr; ls /proc | wc -l";
        let out =
            Command::new("bwrap").args(&self.words).args(["--", "/bin/sh", "-c", look]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && text.contains("passwd") && text.contains("bench"), "{text}{out:?}");
    }
}

fn timed(command: &mut Command) -> Duration {
    let began = Instant::now();
    let status = command.status().unwrap();
    let took = began.elapsed();
    assert!(status.success(), "{command:?} ended with {status}");
    took
}

fn posix_spawn() -> Duration {
    timed(Command::new("/bin/true").env_clear())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn micros(all: impl IntoIterator<Item = Duration>) -> f64 {
    median(all.into_iter().map(|d| d.as_secs_f64() * 1e6).collect())
}

/// So many sandboxes at the same time: from the first request until all run, and until all have ended and are released.
fn many(helper: &Helper, link: &Client) -> [Duration; 2] {
    let folder = folder(helper);
    let began = Instant::now();
    let mut running = Vec::new();
    for _ in 0..MANY {
        let invocation = new_id();
        let (_, socket) = ask(link, &invocation.create(), &[]);
        // It runs until its standard input ends, so all of them run at once.
        let (_, pipes) = spawn(link, &invocation.prepare(plan("/bin/cat")), &[folder.as_fd()]);
        running.push((invocation, socket, pipes));
    }
    let up = began.elapsed();
    let ids: Vec<_> = running.iter().map(|(id, ..)| *id).collect();
    assert!(left(helper) >= 3 * MANY, "an init, a program and a socket of each: {}", left(helper));
    let ending = Instant::now();
    drop(running);
    let mut ended = Vec::new();
    while ended.len() < MANY {
        match link.receive(Wait::Block).unwrap().0 {
            FromHelper::Event(Event::Exited { sandbox, exit: Exit::Code(0), .. }) => ended.push(sandbox),
            other => panic!("{other:?}"),
        }
    }
    ids.iter().for_each(|invocation| drop(ask(link, &invocation.release(), &[])));
    let down = ending.elapsed();
    assert_eq!(left(helper), 0, "nothing is left");
    [up, down]
}

fn main() {
    assert!(nix::unistd::geteuid().is_root(), "needs root: it starts the helper");
    let helper = start();
    let (link, folder) = (connect(&helper), folder(&helper));
    let bubblewrap = Bubblewrap::new(&helper);
    bubblewrap.check();
    let mut report = None;
    for _ in 0..20 {
        sandbox(&link, folder.as_fd(), &mut report);
        bubblewrap.run(&["/bin/true"]);
        posix_spawn();
    }
    let skipped = enforced(report.as_ref().unwrap());
    println!("not in force here: {skipped:?}");
    let (mut over_bwrap, mut over_spawn, mut whole_over_bwrap, mut times) =
        (Vec::new(), Vec::new(), Vec::new(), [const { Vec::new() }; 4]);
    for round in 0..ROUNDS {
        let mut ours = || -> Vec<[Duration; 2]> {
            (0..RUNS).map(|_| sandbox(&link, folder.as_fd(), &mut report)).collect()
        };
        let first = (round % 2 == 0).then(&mut ours);
        let theirs = micros((0..RUNS).map(|_| bubblewrap.run(&["/bin/true"])));
        let plain = micros((0..RUNS).map(|_| posix_spawn()));
        let ours = first.unwrap_or_else(ours);
        let (reaped, whole) = (micros(ours.iter().map(|t| t[0])), micros(ours.iter().map(|t| t[1])));
        over_bwrap.push(reaped / theirs);
        whole_over_bwrap.push(whole / theirs);
        over_spawn.push(reaped / plain);
        for (all, time) in times.iter_mut().zip([reaped, whole, theirs, plain]) {
            all.push(time);
        }
    }
    let [reaped, whole, theirs, plain] = times.map(median);
    println!("spawn to reaped {reaped:.0} µs, with lease, socket and release {whole:.0} µs");
    println!("bwrap {theirs:.0} µs, posix_spawn {plain:.0} µs; medians of {ROUNDS} rounds of {RUNS}");
    println!("with lease, socket and release: {:.3} x bwrap", median(whole_over_bwrap));
    let [up, down] = many(&helper, &link);
    println!(
        "{MANY} at once: all run after {up:?}, all are ended and released after {down:?} more, nothing left"
    );
    let round = |x: f64| (x * 1000.0).round() / 1000.0;
    let ratios = serde_json::json!({
        "ratio_bwrap": round(median(over_bwrap)),
        "ratio_posix_spawn": round(median(over_spawn)),
    });
    println!("{ratios}");
}
