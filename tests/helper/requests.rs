//! What a peer can ask, what it cannot, and what it cannot break by asking.

use crate::support::helper::*;
use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::link;
use cyberos_proto::message::{Exit, Message, Refusal, Reply, Request, Signal};
use cyberos_proto::plan::{Bind, BindKind, PlanFault, SandboxPath, SpawnPlan};
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

pub(crate) fn new_id() -> InvocationId {
    InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes())
}

fn raw(peer: &Peer, bytes: &[u8], fds: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    sendmsg::<UnixAddr>(peer.link.as_fd().as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)
        .unwrap();
}

#[test]
fn each_user_can_ask_for_what_is_its_own_and_no_more() {
    let helper = Helper::start("");
    let mount = MountId::new(0).unwrap();
    let id = new_id();
    let brokers = [
        id.create(),
        id.prepare(plan(&["/bin/true"])),
        id.signal(Signal::Kill),
        id.release(),
        Request::Describe,
    ];
    let file = File::open("/dev/null").unwrap();
    let backing = [file.as_fd()];
    for request in [
        Request::Mount { mount },
        Request::Unmount { mount },
        Request::RegisterBacking { mount },
        Request::CloseBacking { mount, id: 1 },
    ] {
        let peer = helper.broker();
        assert_eq!(peer.refusal(&request, &backing[..request.descriptors()]), Refusal::Role);
        assert!(peer.closed());
    }
    for request in &brokers {
        let peer = helper.peer(SKILLFS);
        assert_eq!(peer.refusal(request, &[]), Refusal::Role);
        assert!(peer.closed());
    }
    for uid in [0, STRANGER, helper.uids.0 + 1] {
        let peer = helper.peer(uid);
        assert_eq!(peer.reply().0, Reply::Refused(Refusal::Role), "uid {uid}");
        assert!(peer.closed());
    }
    assert!(helper.leftovers().is_empty());
}

#[test]
fn requests_out_of_turn_are_refused_and_nothing_happens() {
    let helper = Helper::start("max_sandboxes 2\n");
    let broker = helper.broker();
    let id = new_id();
    assert_eq!(broker.refusal(&id.prepare(plan(&["/bin/true"])), &[]), Refusal::Phase);
    assert_eq!(broker.refusal(&id.signal(Signal::Kill), &[]), Refusal::Phase);
    assert_eq!(broker.ask(&id.release(), &[]).0, Reply::Done, "ending is idempotent");
    let running = broker.start(plan(&["/bin/sleep", "1000"]), &[]);
    let invocation = running.invocation;
    assert_eq!(broker.refusal(&invocation.prepare(plan(&["/bin/true"])), &[]), Refusal::Phase);
    assert_eq!(broker.refusal(&invocation.create(), &[]), Refusal::Phase);
    let (second, ..) = broker.invocation();
    let refusal = broker.refusal(&new_id().create(), &[]);
    assert_eq!(refusal, Refusal::Ceiling("max_sandboxes is 2".into()));
    assert_eq!(broker.ask(&second.release(), &[]).0, Reply::Done);
    assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
    assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
    assert!(matches!(broker.exit(invocation), cyberos_proto::message::Exit::Signal(9)));
    helper.leaves_nothing();
}

#[test]
fn a_path_that_exists_is_left_alone() {
    let helper = Helper::start("");
    let broker = helper.broker();
    for kind in ["file", "link", "dangling"] {
        let invocation = new_id();
        let path = format!("/tmp/cyberos-skill-broker.{invocation}.sock");
        match kind {
            "file" => fs::write(&path, "mine").unwrap(),
            "link" => symlink("/etc/hostname", &path).unwrap(),
            _ => symlink("/nowhere", &path).unwrap(),
        }
        assert_eq!(broker.refusal(&invocation.create(), &[]), Refusal::Exists, "{kind}");
        assert!(fs::symlink_metadata(&path).is_ok(), "{kind} is still there");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(broker.sh("echo goes on").stdout, "goes on\n");
}

#[test]
fn a_second_link_of_a_role_is_turned_away_and_a_dead_one_blocks_nobody() {
    let helper = Helper::start("");
    let first = helper.broker();
    assert_eq!(first.sh("echo first").stdout, "first\n");
    let second = helper.broker();
    assert_eq!(second.reply().0, Reply::Refused(Refusal::Busy));
    assert!(second.closed());
    let skillfs = helper.peer(SKILLFS);
    first.start(plan(&["/bin/sleep", "1000"]), &[]);
    drop(first);
    for _ in 0..10 {
        let again = helper.broker();
        assert_eq!(again.sh("echo again").stdout, "again\n", "at once after the last one closed");
    }
    assert_eq!(skillfs.refusal(&Request::Unmount { mount: MountId::new(0).unwrap() }, &[]), Refusal::Phase);
}

#[test]
fn bytes_that_are_no_request_end_the_link_and_nothing_else() {
    let helper = Helper::start("");
    let good = link::encode(&new_id().release()).unwrap();
    let mut leftover = good.clone();
    leftover.push(0);
    let mut version = good.clone();
    version[0] = 1;
    let mut not_v4 = good.clone();
    not_v4[8] = 0x10;
    let v = cyberos_proto::PROTOCOL_VERSION;
    let mut long = vec![v, 0];
    long.extend([0; link::MAX_PACKET]);
    let cases = [vec![0xff; 100], vec![v], vec![v, 99], leftover, version, not_v4, good[..9].to_vec(), long];
    for (i, bytes) in cases.iter().enumerate() {
        let peer = helper.broker();
        raw(&peer, bytes, &[]);
        assert_eq!(peer.reply().0, Reply::Refused(Refusal::Malformed), "case {i}");
        assert!(peer.closed(), "case {i}");
    }
    assert_eq!(helper.broker().sh("echo fine").stdout, "fine\n");
}

#[test]
fn case_149_descriptors_that_nobody_asked_for_are_closed() {
    let helper = Helper::start("");
    let fds = || descriptors(helper.pid());
    // Once a peer has come and gone, the start is over.
    assert_eq!(helper.broker().sh(":").exit, Exit::Code(0));
    until("it is at rest", || helper.children().is_empty());
    let before = fds();
    let null = File::open("/dev/null").unwrap();
    let good = link::encode(&new_id().release()).unwrap();
    for count in [1, 64, 200, 253] {
        let peer = helper.broker();
        raw(&peer, &good, &vec![null.as_raw_fd(); count]);
        assert_eq!(peer.reply().0, Reply::Refused(Refusal::Malformed), "{count}");
        assert!(peer.closed());
    }
    // To a helper that does not look at the peer at all.
    let stranger = helper.peer(STRANGER);
    let _ = stranger.reply();
    until("descriptors are as before", || helper.children().is_empty() && fds() == before);
}

#[test]
fn plans_above_the_ceiling_or_out_of_shape_are_refused_with_the_key() {
    let helper = Helper::start(
        "max_memory_mb 512\nmax_processes 8\nmax_tmp_mb 64\nmax_cpu_s 60\nmax_file_mb 256\nmax_open_files 256\n",
    );
    let broker = helper.broker();
    let (invocation, ..) = broker.invocation();
    type Raise = fn(&mut SpawnPlan);
    let cases: [(&str, Raise); 6] = [
        ("max_memory_mb", |p| p.limits.memory_mb = 513),
        ("max_processes", |p| p.limits.processes = 9),
        ("max_tmp_mb", |p| p.limits.tmp_mb = u32::MAX),
        ("max_cpu_s", |p| p.limits.cpu_s = 61),
        ("max_file_mb", |p| p.limits.file_mb = 257),
        ("max_open_files", |p| p.limits.open_files = 257),
    ];
    for (key, raise) in cases {
        let mut p = plan(&["/bin/true"]);
        raise(&mut p);
        match broker.refusal(&invocation.prepare(p), &[]) {
            Refusal::Ceiling(text) => assert!(text.starts_with(key), "{text}"),
            other => panic!("{key}: {other:?}"),
        }
    }
    let mut zero = plan(&["/bin/true"]);
    zero.limits.cpu_s = 0;
    assert_eq!(broker.refusal(&invocation.prepare(zero), &[]), Refusal::Plan(PlanFault::Limits));
    let sealed = helper.sealed("x", "");
    let mut nested = skill("x");
    let below = SandboxPath::new("/opt/cyberos/skills/x/y").unwrap();
    nested.binds.push(Bind { target: below, kind: BindKind::Sealed });
    let two = [sealed.as_fd(), sealed.as_fd()];
    assert_eq!(broker.refusal(&invocation.prepare(nested), &two), Refusal::Plan(PlanFault::Binds));
    let mut grant = skill("x");
    grant.binds[0].kind = BindKind::Grant { writable: true };
    let refusal = broker.refusal(&invocation.prepare(grant), &[sealed.as_fd()]);
    assert_eq!(refusal, Refusal::Plan(PlanFault::Binds), "a grant for a skill");
    assert_eq!(broker.start(plan(&["/bin/true"]), &[]).output().exit, cyberos_proto::message::Exit::Code(0));
}

/// A mount that goes with the test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn attacks_a6_a7_only_directories_inside_a_sealed_root_are_bound() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let dir = helper.dir.path().to_owned();
    let root = dir.join("sealed");
    let good = helper.sealed("good", "#!/bin/sh\necho good\n");
    symlink("/root", root.join("link")).unwrap();
    symlink(root.join("good"), dir.join("outside/in")).unwrap();
    fs::create_dir(root.join("tmpfs")).unwrap();
    mount(Some("none"), &root.join("tmpfs"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let _tmpfs = Mounted(root.join("tmpfs"));
    fs::create_dir(root.join("bind")).unwrap();
    mount(Some(&root.join("good")), &root.join("bind"), None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .unwrap();
    let _bind = Mounted(root.join("bind"));
    let gone = File::open(&root).unwrap();
    let removed = root.join("removed");
    fs::create_dir(&removed).unwrap();
    let removed_fd = File::open(&removed).unwrap();
    fs::remove_dir(&removed).unwrap();
    // Another mount namespace in which the same names lead elsewhere.
    let script = "mount -t tmpfs none \"$1\" && mkdir \"$1\"/evil \"$1\"/good && mount --bind /root \"$1\"/evil && \
                  echo ready && read x";
    let mut forger = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(forger.stdout.take().unwrap()), &mut line)
        .unwrap();
    let inside = |name: &str| format!("/proc/{}/root{}/{name}", forger.id(), root.display());
    let path = |p: &str, flags: OFlag| open(p, flags, Mode::empty()).unwrap();
    let directory = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let d = dir.to_str().unwrap();
    let forged: Vec<(&str, OwnedFd)> = vec![
        ("outside", path(&format!("{d}/outside"), OFlag::O_RDONLY)),
        ("/root by O_PATH", path("/root", directory)),
        ("/", path("/", directory)),
        ("/proc/self", path("/proc/self", directory)),
        ("/sys/fs/cgroup", path("/sys/fs/cgroup", directory)),
        ("link out", path(&format!("{d}/sealed/link"), directory)),
        ("a symlink itself", path(&format!("{d}/sealed/link"), OFlag::O_PATH | OFlag::O_NOFOLLOW)),
        ("another mount below", path(&format!("{d}/sealed/tmpfs"), OFlag::O_RDONLY)),
        ("a bind of the same directory", path(&format!("{d}/sealed/bind"), OFlag::O_RDONLY)),
        ("the root itself", gone.into()),
        ("a removed directory", removed_fd.into()),
        ("a file", path(&format!("{d}/sealed/good/main"), OFlag::O_RDONLY)),
        ("memfd", memfd_create("x", MFdFlags::MFD_CLOEXEC).unwrap()),
        ("null", path("/dev/null", OFlag::O_RDWR)),
        (
            "a socket",
            nix::sys::socket::socket(
                nix::sys::socket::AddressFamily::Unix,
                nix::sys::socket::SockType::Stream,
                nix::sys::socket::SockFlag::empty(),
                None,
            )
            .unwrap(),
        ),
        ("same name in another namespace", path(&inside("good"), directory)),
        ("new name in another namespace", path(&inside("evil"), directory)),
        ("the root of another namespace", path(&inside(""), directory)),
    ];
    // Of the link process, which alone takes what peers send.
    let fds = || {
        let all = helper.children();
        all.iter().map(|p| descriptors(*p)).collect::<Vec<_>>()
    };
    let (invocation, uid, listener) = broker.invocation();
    // By the second answer, what the first one carried has been closed.
    broker.refusal(&invocation.prepare(skill("x")), &[forged[0].1.as_fd()]);
    let before = fds();
    for (what, fd) in &forged {
        let refusal = broker.refusal(&invocation.prepare(skill("x")), &[fd.as_fd()]);
        assert!(matches!(refusal, Refusal::Descriptor(_)), "{what}: {refusal:?}");
    }
    until("descriptors are as before", || fds() == before);
    drop(forger.stdin.take());
    forger.wait().unwrap();
    // Both kinds of descriptor of a good directory are taken, also when it was reached through a link.
    let running = broker.start_in(invocation, uid, listener, skill("x"), &[good.as_fd()]);
    assert_eq!(running.output().stdout, "good\n");
    let through = path(&format!("{d}/outside/in"), directory);
    assert_eq!(broker.start(skill("x"), &[through.as_fd()]).output().stdout, "good\n");
}

#[test]
fn a_wrong_number_of_descriptors_is_refused() {
    let helper = Helper::start("");
    let sealed = helper.sealed("x", "#!/bin/sh\n");
    for count in [0usize, 2] {
        let broker = helper.broker();
        let (invocation, ..) = broker.invocation();
        let request = invocation.prepare(skill("x"));
        assert_eq!(request.descriptors(), 1);
        raw(&broker, &link::encode(&request).unwrap(), &vec![sealed.as_raw_fd(); count]);
        assert_eq!(broker.reply().0, Reply::Refused(Refusal::Malformed));
        assert!(broker.closed());
    }
    helper.leaves_nothing();
}

/// Takes over 5 s: that is how long a peer may refuse to read.
#[test]
fn a_peer_that_does_not_read_is_ended_and_hurts_nobody() {
    let helper = Helper::start("");
    let skillfs = helper.peer(SKILLFS);
    let broker = helper.broker();
    let running = broker.start(plan(&["/bin/sleep", "1000"]), &[]);
    let request = link::encode(&new_id().release()).unwrap();
    let fd = broker.link.as_fd().as_raw_fd();
    let ended = loop {
        match nix::sys::socket::send(fd, &request, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    use nix::errno::Errno;
    assert!(matches!(ended, Errno::EPIPE | Errno::ECONNRESET), "{ended}");
    assert!(helper.log().contains("does not read"), "{}", helper.log());
    drop(running);
    assert_eq!(skillfs.refusal(&Request::Unmount { mount: MountId::new(0).unwrap() }, &[]), Refusal::Phase);
    helper.leaves_nothing();
}
