//! threats.md A24: nobody has to read what the helper writes to its standard error. Whatever that is, and whatever its reader
//! does, both roles are served, runs end when they must, and so does the helper.

use crate::requests::new_id;
use crate::support::helper::*;
use cyberos_proto::message::{Exit, Refusal, Reply, Request, Signal as Asked};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one answer may take where nothing waits for the log.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A helper that is ready, on the uids and locks of `first`, whose standard error is then `end`.
fn logging_to(first: &Helper, end: &impl AsFd) -> Helper {
    // Not closed on exec, so that the shell has it: one that knows numbers of more than one digit.
    let end = nix::unistd::dup(end.as_fd()).unwrap();
    let bash = format!("exec /bin/bash -c 'exec 2>&{}; {BECOME}' \"$0\" \"$1\";", end.as_raw_fd());
    first.twin_with(&format!("{HAND_OVER} echo shell: ready >&2; {bash}"))
}

/// Fills `end` until it takes no more, as somebody else may have.
fn fill(end: &impl AsFd) {
    let flags = OFlag::from_bits_retain(fcntl(end, FcntlArg::F_GETFL).unwrap());
    fcntl(end, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    for size in [4096, 1] {
        while nix::unistd::write(end, &b"x".repeat(size)).is_ok() {}
    }
    fcntl(end, FcntlArg::F_SETFL(flags)).unwrap();
}

/// Everything that makes it write a line, much more often than any buffer has room for; each is answered at once.
fn serves_and_ends(helper: &Helper, what: &str) {
    let at_once =
        |began: Instant, of: &str| assert!(began.elapsed() < AT_ONCE, "{what}, {of}: {:?}", began.elapsed());
    for _ in 0..2 {
        let (broker, skillfs) = (helper.broker(), helper.peer(SKILLFS));
        for peer in [&broker, &skillfs] {
            peer.link.set_receive_timeout(AT_ONCE).unwrap();
        }
        let began = Instant::now();
        let unmount = Request::Unmount { mount: cyberos_proto::ids::MountId::new(0).unwrap() };
        for _ in 0..1500 {
            let none = new_id().signal(Asked::Term);
            assert_eq!(broker.refusal(&none, &[]), Refusal::Phase, "{what}");
            assert_eq!(skillfs.refusal(&unmount, &[]), Refusal::Phase, "{what}");
        }
        at_once(began, "3,000 refusals");
        let began = Instant::now();
        assert_eq!(broker.sh("echo runs").stdout, "runs\n", "{what}");
        let run = broker.start(plan(&["/bin/sh", "-c", "echo ready; sleep 1000"]), &[]);
        run.said("ready");
        let stop = run.invocation.signal(Asked::Kill);
        assert_eq!(broker.ask(&stop, &[]).0, Reply::Done, "{what}");
        assert_eq!(broker.exit(run.invocation), Exit::Signal(9), "{what}");
        at_once(began, "a run and a kill");
        // A second link of a role, and one of nobody's.
        assert!(helper.broker().closed() && helper.peer(STRANGER).closed(), "{what}");
        // What ends with a link and is not ended by hand.
        let run = broker.start(plan(&["/bin/sh", "-c", "echo ready; sleep 1000"]), &[]);
        run.said("ready");
    }
    let began = Instant::now();
    helper.signal(Signal::SIGTERM);
    until(what, || children(helper.pid()).is_empty());
    helper.leaves_nothing();
    at_once(began, "its end");
}

#[test]
fn threat_a24_a_full_pipe_keeps_nobody_waiting_and_what_was_lost_is_counted() {
    let first = Helper::start("");
    let (mut read, write) = pipe().unwrap();
    fill(&write);
    let helper = logging_to(&first, &write);
    let broker = helper.broker();
    let none = new_id().signal(Asked::Term);
    for _ in 0..30 {
        assert_eq!(broker.refusal(&none, &[]), Refusal::Phase);
    }
    // Now somebody reads, and the next line says how many there were before it.
    let mut all = vec![0; 1 << 20];
    assert!(read.read(&mut all).unwrap() >= 4096);
    assert!(
        fcntl(&write, FcntlArg::F_GETFL).unwrap() & nix::libc::O_NONBLOCK == 0,
        "others' opening is as it was"
    );
    drop(broker);
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let (text, strangers) = (RefCell::new(String::new()), Cell::new(0));
    until("a line that says how many were lost", || {
        drop(helper.peer(STRANGER));
        strangers.set(strangers.get() + 1);
        let mut some = Vec::new();
        let _ = (&read).read_to_end(&mut some);
        text.borrow_mut().push_str(&String::from_utf8_lossy(&some));
        text.borrow().contains(" lines dropped\n")
    });
    let lost = text
        .borrow()
        .lines()
        .find_map(|l| l.strip_suffix(" lines dropped")?.rsplit(' ').next()?.parse().ok());
    // ready, begins, and each refusal, the limited ones too; and what has come since then: the end of the link, and
    // strangers that were refused in the same second.
    let lost: u32 = lost.unwrap();
    assert!((32..=33 + strangers.get()).contains(&lost), "{lost}: {}", text.borrow());
    fill(&write);
    serves_and_ends(&helper, "a full pipe");
}

#[test]
fn threat_a24_no_standard_error_keeps_anybody_waiting_or_ends_the_helper() {
    let first = Helper::start("");
    // Whoever read it has gone; before the start, and after.
    let (read, write) = pipe().unwrap();
    drop(read);
    serves_and_ends(&logging_to(&first, &write), "a pipe without reader");
    let (read, write) = pipe().unwrap();
    let helper = logging_to(&first, &write);
    drop((read, write));
    serves_and_ends(&helper, "a pipe whose reader goes");
    let (here, there) = UnixStream::pair().unwrap();
    fill(&there);
    let helper = logging_to(&first, &there);
    serves_and_ends(&helper, "a full socket");
    drop(here);
    serves_and_ends(&logging_to(&first, &there), "a socket whose reader has gone");
    // A terminal that is stopped, as by Ctrl-S.
    let terminal = nix::pty::openpty(None, None).unwrap();
    nix::sys::termios::tcflow(&terminal.slave, nix::sys::termios::FlowArg::TCOOFF).unwrap();
    serves_and_ends(&logging_to(&first, &terminal.slave), "a stopped terminal");
    let full: OwnedFd = fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    serves_and_ends(&logging_to(&first, &full), "/dev/full");
    // A file on a disk that is full, and one that may not grow.
    struct Small(tempfile::TempDir);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
        }
    }
    let small = Small(tempfile::tempdir().unwrap());
    let none: Option<&str> = None;
    mount(none, small.0.path(), Some("tmpfs"), MsFlags::empty(), Some("size=8k")).unwrap();
    let path: PathBuf = small.0.path().join("log");
    let mut file = fs::File::create(&path).unwrap();
    while file.write(b"x").is_ok() {}
    serves_and_ends(&logging_to(&first, &file), "a full disk");
    let log = first.dir.path().join("grows-not");
    let script = format!(
        "exec 3<&0 </dev/null; echo shell: ready >&2; echo begun >{0}; exec 2>>{0}; ulimit -S -f 0;",
        log.display()
    );
    let helper = first.twin_with(&script);
    let broker = helper.broker();
    for _ in 0..50 {
        let none = new_id().signal(Asked::Term);
        assert_eq!(broker.refusal(&none, &[]), Refusal::Phase);
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "begun\n");
    assert!(kill(helper.pid(), None).is_ok(), "it lives");
}

#[test]
fn threat_a24_refusals_are_limited_a_second_and_counted() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let began = Instant::now();
    for _ in 0..5000 {
        let none = new_id().signal(Asked::Term);
        assert_eq!(broker.refusal(&none, &[]), Refusal::Phase);
    }
    // Whole seconds of a clock: one more than have gone by may have begun, and each new one may end another.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    let log = helper.log();
    let refusals = log.lines().filter(|l| l.contains("refused to pid")).count();
    assert!((1..=20 * seconds).contains(&refusals), "{refusals} lines in {seconds} s");
    // Those that were not shown are counted, by a line of the next second at the latest.
    let counted = || {
        let log = helper.log();
        let shown = log.lines().filter(|l| l.contains("refused to pid")).count();
        let dropped = log
            .lines()
            .filter_map(|l| l.strip_suffix(" lines dropped")?.rsplit(' ').next()?.parse::<usize>().ok());
        let dropped: usize = dropped.sum();
        shown + dropped
    };
    until("all are shown or counted", || {
        drop(helper.peer(STRANGER));
        counted() >= 5000
    });
    assert!(helper.log().lines().all(|l| l.starts_with("cyberos-priv-helper: ")), "{}", helper.log());
    assert_eq!(broker.sh("echo served").stdout, "served\n");
    // A flood of them hides nothing of another kind.
    for _ in 0..100 {
        let none = new_id().signal(Asked::Term);
        assert_eq!(broker.refusal(&none, &[]), Refusal::Phase);
    }
    drop(broker);
    until("the end of the link is told", || {
        helper.log().contains("link of Broker, pid ") && helper.log().contains("ended: ")
    });
}
