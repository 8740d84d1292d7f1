//! Peers that ask too much at once, or take no answers. They hurt themselves.

use crate::raw::*;
use crate::support::helper::{Asks, BROKER, STRANGER, plan};
use crate::support::up::eventually;
use cyberos_proto::link::{LinkError, Wait};
use cyberos_proto::message::{FromHelper, Refusal, Reply, Request};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::MsgFlags;
use nix::unistd::Pid;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Opens so many connections at once, sends on each, holds them, and says how many were answered or closed.
const MANY: &str = "import socket,sys,os,resource,errno
n=int(sys.argv[2]); resource.setrlimit(resource.RLIMIT_NOFILE,(8192,8192))
null=os.open('/dev/null',os.O_RDWR); all=[]
for i in range(n):
  s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.settimeout(60)
  try: socket.send_fds(s,[os.urandom(1+i%300)],[null]*(i%3*100))
  except (BrokenPipeError,ConnectionResetError): pass
  except OSError as e:
    # So many descriptors under way are more than the kernel lets one user have.
    if e.errno!=errno.ETOOMANYREFS: raise
  all.append(s)
ended=0
for s in all:
  try:
    while s.recv(65536): pass
    ended+=1
  except ConnectionResetError: ended+=1
print(ended)";

fn flood(socket: &Path, uid: u32, count: u32) -> std::process::Child {
    Command::new("/usr/bin/python3")
        .args(["-I", "-c", MANY])
        .arg(socket)
        .arg(count.to_string())
        .uid(uid)
        .gid(uid)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// With the broker's role taken, all of them are turned away: the broker's own user's and strangers'.
#[test]
fn thousands_at_once_are_turned_away_and_both_links_go_on() {
    let (helper, other, mut dialler) = attacked("");
    let broker = dialler.dial();
    let release = good(&new_id().release());
    assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
    let before = at_rest(&helper);
    let mut floods = [(BROKER, 2000), (STRANGER, 2000)].map(|(uid, n)| flood(&helper.socket(), uid, n));
    let mut asked = 0;
    while floods.iter_mut().any(|f| f.try_wait().unwrap().is_none()) {
        let began = Instant::now();
        other.answers();
        assert_eq!(broker.ask(&release, &[]), Answer::Said(Reply::Done));
        assert!(began.elapsed() < OTHER_LINK, "{:?}", began.elapsed());
        asked += 1;
    }
    assert!(asked > 10, "asked only {asked} times meanwhile");
    for flood in floods {
        let out = flood.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "2000\n", "each was ended");
    }
    flat(&helper, &before);
}

/// Without the role taken, each is served for as long as its first packet takes.
#[test]
fn a_thousand_links_one_after_the_other_leave_nothing() {
    let (helper, other, mut dialler) = attacked("");
    let before = at_rest(&helper);
    for i in 0..1000u32 {
        let raw = dialler.dial();
        match i % 4 {
            0 => {}
            1 => raw.is_ended_by("garbage", &[0xee; 64], &[]),
            // A lease each, taken back by the close.
            2 => drop(raw.send(&good(&new_id().create()), &[])),
            _ => assert!(matches!(raw.ask(&good(&of_skillfs()[0]), &[]), Answer::Said(Reply::Refused(_)))),
        }
        if i % 50 == 0 {
            other.answers();
        }
    }
    flat(&helper, &before);
    helper.leaves_nothing();
}

/// Thousands of requests on one link, written as fast as they are taken, read only afterwards by another thread.
#[test]
fn ten_thousand_requests_on_one_link_are_each_answered_in_their_order() {
    let (_helper, other, mut dialler) = attacked("");
    let raw = dialler.dial();
    let id = new_id();
    let (done, phase) = (good(&id.release()), good(&id.prepare(plan(&["/bin/true"]))));
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..10_000 {
                raw.send(if i % 2 == 0 { &done } else { &phase }, &[]).unwrap();
            }
        });
        for i in 0..10_000 {
            let expected = if i % 2 == 0 { Reply::Done } else { Reply::Refused(Refusal::Phase) };
            assert_eq!(raw.answer(), Answer::Said(expected), "{i}");
            if i % 1000 == 0 {
                other.answers();
            }
        }
    });
}

/// Its own sandboxes' ends fill its queue; when one no longer fits for 5 s, the link is ended with all that it made.
#[test]
fn a_peer_that_takes_no_events_is_ended_and_its_runs_with_it() {
    let (helper, other, mut dialler) = attacked("max_sandboxes 120\n");
    let raw = dialler.dial();
    for _ in 0..120 {
        let id = new_id();
        assert!(matches!(raw.ask(&good(&id.create()), &[]), Answer::Said(Reply::SocketCreated { .. })));
        raw.spawn(&id.prepare(plan(&["/bin/sleep", "1000"])), &[]).unwrap();
    }
    // From here on it takes nothing.
    let asked = 240;
    for _ in 0..asked {
        raw.send(&good(&Request::Describe), &[]).unwrap();
    }
    let sleepers = || {
        let comm = |p: &Pid| fs::read_to_string(format!("/proc/{p}/comm")).unwrap_or_default();
        let left = helper.leftovers();
        let pids =
            left.iter().filter_map(|l| l.strip_prefix("process /proc/")?.split(' ').next()?.parse().ok());
        pids.map(Pid::from_raw).filter(|p| comm(p) == "sleep\n").collect::<Vec<_>>()
    };
    assert!(eventually(Duration::from_secs(60), || sleepers().len() == 120), "{}", sleepers().len());
    other.answers();
    for sleeper in sleepers() {
        kill(sleeper, Signal::SIGKILL).unwrap();
    }
    let began = Instant::now();
    let ended = eventually(Duration::from_secs(15), || {
        other.answers();
        helper.log().contains("does not read")
    });
    assert!(ended, "it is not ended: {}", helper.log());
    assert!(began.elapsed() > Duration::from_secs(3), "it had its time: {:?}", began.elapsed());
    let release = good(&new_id().release());
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let closed = || matches!(raw.send_with(&release, &[], flags), Err(Errno::EPIPE | Errno::ECONNRESET));
    assert!(eventually(Duration::from_secs(5), closed));
    other.answers();
    helper.leaves_nothing();
    // All answers are there, and not all events: one of those did not fit.
    let (mut replies, mut events) = (0, 0);
    loop {
        match raw.link.receive(Wait::Block) {
            Ok((FromHelper::Reply(_), _)) => replies += 1,
            Ok((FromHelper::Event(_), _)) => events += 1,
            Err(LinkError::Closed) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(events > 0 && replies + events < asked + 120, "{replies} answers, {events} events");
}
