//! threats.md A5: descriptors of files whose server swallows requests. Whoever closes, looks at or reads such a file waits
//! for ever, also when killed; so the helper must not, and what it has to close may hang one link and nothing else.

use crate::granted::{Place, dir};
use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper, SKILLFS, plan, skill};
use crate::support::up::eventually;
use cyberos_proto::link;
use cyberos_proto::message::{Event, FromHelper, Refusal, Reply, Request};
use nix::mount::{MntFlags, umount2};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PEER: &str = include_str!("hanging.py");
/// A run must be dead so soon after its end was wanted.
const KILLED: Duration = Duration::from_secs(10);
const KINDS: [&str; 5] = ["file", "reader", "path", "dir", "dirpath"];
/// What a server can leave unanswered, each alone and all together.
const SWALLOWED: [&str; 6] =
    ["FLUSH", "GETATTR", "STATFS", "OPEN OPENDIR", "READ", "READ GETATTR FLUSH OPEN OPENDIR STATFS RELEASE"];

/// The hostile peer's process. While it swallows, nobody else may touch its mount.
pub(crate) struct Hostile {
    child: Child,
    order: ChildStdin,
    said: BufReader<ChildStdout>,
    point: PathBuf,
}

impl Hostile {
    fn new(helper: &Helper, uid: u32) -> Hostile {
        let point = helper.dir.path().join("outside/hanging");
        fs::create_dir_all(&point).unwrap();
        Hostile::at(helper, uid, &point)
    }

    /// With its mount at `point`.
    pub(crate) fn at(helper: &Helper, uid: u32, point: &Path) -> Hostile {
        Hostile::with(&helper.socket(), uid, point)
    }

    /// The server alone, nobody's peer, whose mount takes idmaps.
    pub(crate) fn server(point: &Path) -> Hostile {
        Hostile::with(Path::new("-"), 0, point)
    }

    fn with(socket: &Path, uid: u32, point: &Path) -> Hostile {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-I", "-c", PEER])
            .args([socket, point])
            .arg(uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let order = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut hostile = Hostile { child, order, said, point: point.to_owned() };
        assert_eq!(hostile.line(), "ready");
        hostile
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn tell(&mut self, order: &str) -> String {
        writeln!(self.order, "{order}").unwrap();
        self.line()
    }

    pub(crate) fn send(&mut self, request: &Request, names: &[&str]) -> String {
        let hex: String = good(request).iter().map(|b| format!("{b:02x}")).collect();
        self.tell(&format!("send {hex} {}", names.join(" ")))
    }

    /// What the helper said, if it has said something.
    fn heard(&mut self) -> Option<FromHelper> {
        let line = self.tell("receive");
        let bytes: Result<Vec<u8>, _> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16)).collect();
        bytes.ok().and_then(|b| link::decode::<FromHelper>(&b).ok())
    }

    /// What it answered; events are passed over.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        loop {
            match self.heard()? {
                FromHelper::Reply(reply) => return Some(reply),
                FromHelper::Event(_) => {}
            }
        }
    }

    /// What it told unasked.
    fn event(&mut self) -> Option<Event> {
        match self.heard()? {
            FromHelper::Event(event) => Some(event),
            FromHelper::Reply(_) => None,
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // Aborts what waits, so that everybody can end.
        let _ = umount2(&self.point, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn threat_a5_files_that_hang_stop_neither_the_other_link_nor_the_end_of_a_run() {
    for swallowed in SWALLOWED {
        let helper = Helper::start("");
        let other = Other::skillfs(&helper);
        let rest = at_rest(&helper);
        let mut hostile = Hostile::new(&helper, BROKER);
        let id = new_id();
        let run = id.prepare(plan(&["/bin/sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"]));
        for request in [id.create(), run, id.go()] {
            hostile.send(&request, &[]);
            assert!(!matches!(hostile.receive(), None | Some(Reply::Refused(_))), "{}", helper.log());
            if !matches!(request, Request::CreateSocket { .. }) {
                let told = hostile.event();
                assert!(matches!(told, Some(Event::Prepared { .. } | Event::Started { .. })), "{told:?}");
            }
        }
        assert_eq!(hostile.tell(&format!("swallow {swallowed}")), "swallowed");
        for (i, kind) in KINDS.iter().enumerate() {
            let second = new_id();
            hostile.send(&second.create(), &[]);
            let made = hostile.receive();
            other.answers();
            if made.is_none() {
                // The link already waits in a close. It has stopped at a file, never at a directory or a bare path.
                assert!((1..=2).contains(&i), "{swallowed}: hangs after {:?}", &KINDS[..i]);
                break;
            }
            hostile.send(&second.prepare(skill("x")), &[kind]);
            match hostile.receive() {
                None | Some(Reply::Refused(Refusal::Descriptor(_))) => {}
                other => panic!("{swallowed}, {kind}: {other:?}"),
            }
            other.answers();
        }
        let processes = || helper.leftovers().iter().filter(|l| l.starts_with("process")).count();
        assert!(processes() >= 2, "{swallowed}: the run runs");
        let began = Instant::now();
        assert_eq!(hostile.tell("leave"), "left");
        assert!(eventually(KILLED, || processes() == 0), "{swallowed}: {:?}", helper.leftovers());
        println!("{swallowed}: dead after {:?}", began.elapsed());
        other.answers();
        // And the role is free again, while a process of the last link may still wait.
        let mut dialler = Dialler::new(&helper.socket(), BROKER);
        let next = dialler.dial();
        assert!(matches!(
            next.ask(&good(&new_id().create()), &[]),
            Answer::Said(Reply::SocketCreated { .. })
        ));
        drop(next);
        drop(hostile);
        flat(&helper, &rest);
        helper.leaves_nothing();
    }
}

/// A link that waits in a close cannot even be killed. There are never more than a few of those, they keep no block of
/// uids from others for longer than they live, and the role is served again when what they wait for has ended.
#[test]
fn threat_a5_links_that_hang_are_few_and_end_with_what_they_wait_for() {
    let helper = Helper::start("");
    let other = Other::skillfs(&helper);
    let create = || new_id().create();
    let mut stuck: Vec<Hostile> = Vec::new();
    loop {
        let point = dir(&helper.dir.path().join(format!("outside/hanging{}", stuck.len())));
        let mut hostile = Hostile::at(&helper, BROKER, &point);
        hostile.send(&create(), &[]);
        match hostile.receive() {
            Some(Reply::SocketCreated { .. }) => {}
            // The refusal is lost where something had been asked before it came.
            None | Some(Reply::Refused(Refusal::Busy)) => break,
            said => panic!("{said:?} after {}", stuck.len()),
        }
        hostile.tell("swallow READ GETATTR FLUSH OPEN OPENDIR STATFS RELEASE");
        hostile.send(&new_id().prepare(skill("x")), &["file"]);
        hostile.tell("leave");
        other.answers();
        stuck.push(hostile);
    }
    assert_eq!(stuck.len(), 4, "{}", helper.log());
    drop(stuck);
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let free =
        || matches!(dialler.dial().ask(&good(&create()), &[]), Answer::Said(Reply::SocketCreated { .. }));
    assert!(eventually(KILLED, free), "{}", helper.log());
    drop(dialler);
    helper.leaves_nothing();
}

/// Turned away, it has its files in a queue that somebody must throw away.
#[test]
fn threat_a5_files_that_hang_in_a_refused_links_queue_stop_nobody() {
    let (helper, other, mut dialler) = attacked("");
    let broker = dialler.dial();
    let release = good(&new_id().release());
    assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
    let rest = at_rest(&helper);
    nix::sys::signal::kill(helper.pid(), nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut refused = Hostile::new(&helper, BROKER);
    refused.tell("swallow FLUSH RELEASE GETATTR");
    for _ in 0..20 {
        assert_eq!(refused.send(&new_id().prepare(skill("x")), &["file"]), "sent");
    }
    nix::sys::signal::kill(helper.pid(), nix::sys::signal::Signal::SIGCONT).unwrap();
    for _ in 0..50 {
        other.answers();
        assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
    }
    // New links are still accepted and told.
    assert_eq!(dialler.dial().answer(), Answer::Said(Reply::Refused(Refusal::Busy)));
    drop(refused);
    flat(&helper, &rest);
}

/// The same from SkillFS's side, with its view mounted: the broker's link and its runs do not notice.
#[test]
fn threat_a5_skillfs_with_files_that_hang_stops_no_run() {
    for swallowed in SWALLOWED {
        // The files lie below a root for backing files, by name.
        let place = Place::new();
        let point = dir(&place.0.join("hanging"));
        let helper = Helper::start(&format!("root backing {}\n", place.0.display()));
        let mut dialler = Dialler::new(&helper.socket(), BROKER);
        let broker = dialler.dial();
        let id = new_id();
        let release = good(&id.release());
        let create = good(&id.create());
        let run = id.prepare(plan(&["/bin/sleep", "1000"]));
        // What is made once and kept is made now.
        assert!(matches!(broker.ask(&create, &[]), Answer::Said(Reply::SocketCreated { .. })));
        assert!(broker.spawn(&run, &[]).is_ok());
        assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
        let rest = at_rest(&helper);
        let mut hostile = Hostile::at(&helper, SKILLFS, &point);
        hostile.send(&Request::Mount { mount: first_mount() }, &[]);
        assert_eq!(hostile.receive(), Some(Reply::Mounted));
        hostile.tell(&format!("swallow {swallowed}"));
        for kind in KINDS {
            hostile.send(&Request::RegisterBacking { mount: first_mount() }, &[kind]);
            let asked = Instant::now();
            assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
            assert!(asked.elapsed() < OTHER_LINK, "{swallowed}, {kind}: {:?}", asked.elapsed());
        }
        assert!(matches!(broker.ask(&create, &[]), Answer::Said(Reply::SocketCreated { .. })));
        assert!(broker.spawn(&run, &[]).is_ok());
        let asked = Instant::now();
        assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
        assert!(asked.elapsed() < OTHER_LINK);
        hostile.tell("leave");
        drop(hostile);
        flat(&helper, &rest);
        helper.leaves_nothing();
    }
}
