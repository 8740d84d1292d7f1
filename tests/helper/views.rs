//! FUSE mounts: for SkillFS alone, on the ceiling's mount points alone, and never dead.

use crate::support::helper::*;
use crate::support::machine::mountinfo;
use cyberos_proto::ids::MountId;
use cyberos_proto::message::{Refusal, Reply, Request};
use nix::unistd::{read, write};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

fn mount() -> MountId {
    MountId::new(0).unwrap()
}

/// The least that the kernel takes for a FUSE server: one empty directory.
pub(crate) struct Server {
    mute: Arc<AtomicBool>,
    _thread: JoinHandle<()>,
}

impl Server {
    /// Serves until the mount is gone.
    pub(crate) fn start(fuse: OwnedFd) -> Server {
        Server::with(fuse, init())
    }

    /// One whose mount takes backing files.
    pub(crate) fn passing_through(fuse: OwnedFd) -> Server {
        Server::with(fuse, init_passing_through())
    }

    fn with(fuse: OwnedFd, init: Vec<u8>) -> Server {
        let mute = Arc::new(AtomicBool::new(false));
        let flag = mute.clone();
        let thread = std::thread::spawn(move || {
            let mut request = vec![0u8; 1 << 20];
            while let Ok(n) = read(&fuse, &mut request) {
                let word = |i: usize| u32::from_ne_bytes(request[i..i + 4].try_into().unwrap());
                let (opcode, unique) = (word(4), request[8..16].to_vec());
                assert!(n >= 40);
                if flag.load(Ordering::Relaxed) {
                    continue;
                }
                let (error, body): (i32, Vec<u8>) = match opcode {
                    26 => (0, init.clone()),
                    3 => (0, attributes()),
                    17 => (0, vec![0; 80]),
                    1 => (-nix::libc::ENOENT, Vec::new()),
                    2 | 42 => continue,
                    _ => (-nix::libc::ENOSYS, Vec::new()),
                };
                let mut reply = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
                reply.extend(error.to_ne_bytes());
                reply.extend(unique);
                reply.extend(body);
                let _ = write(&fuse, &reply);
            }
        });
        Server { mute, _thread: thread }
    }

    /// From now on it takes requests and answers none.
    pub(crate) fn swallow(&self) {
        self.mute.store(true, Ordering::Relaxed);
    }
}

fn init() -> Vec<u8> {
    let mut out: Vec<u8> = [7u32, 31, 1 << 17, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
    out.extend([0u8; 4]);
    out.extend((1u32 << 17).to_ne_bytes());
    out.resize(64, 0);
    out
}

/// The same of version 7.40, with FUSE_INIT_EXT and FUSE_PASSTHROUGH, and backing files that are no stacked ones.
fn init_passing_through() -> Vec<u8> {
    let mut out: Vec<u8> = [7u32, 40, 1 << 17, 1 << 30].iter().flat_map(|w| w.to_ne_bytes()).collect();
    out.extend([0u8; 4]);
    out.extend((1u32 << 17).to_ne_bytes());
    // time_gran, max_pages and map_alignment, flags2, max_stack_depth.
    out.extend([1u32, 0, 1 << 5, 1].iter().flat_map(|w| w.to_ne_bytes()));
    out.resize(64, 0);
    out
}

fn attributes() -> Vec<u8> {
    let mut out = vec![0u8; 16];
    out.extend(1u64.to_ne_bytes());
    out.resize(16 + 60, 0);
    out.extend(0o40755u32.to_ne_bytes());
    out.extend(2u32.to_ne_bytes());
    out.resize(16 + 88, 0);
    out
}

fn view(helper: &Helper) -> Option<String> {
    let table = mountinfo();
    let dir = helper.dir.path().join("view");
    table.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).map(str::to_owned)
}

fn mounted(helper: &Helper) -> (Peer, OwnedFd) {
    let peer = helper.peer(SKILLFS);
    let (reply, mut fds) = peer.ask(&Request::Mount { mount: mount() }, &[]);
    assert_eq!(reply, Reply::Mounted, "{}", helper.log());
    (peer, fds.pop().unwrap())
}

#[test]
fn case_154_a_view_has_exactly_the_options_that_are_safe() {
    let helper = Helper::start("");
    let (peer, fd) = mounted(&helper);
    let _server = Server::start(fd);
    let line = view(&helper).unwrap();
    let (mount_options, super_options) =
        (line.split(' ').nth(5).unwrap(), line.split(' ').next_back().unwrap());
    assert_eq!(mount_options, "ro,nosuid,nodev,relatime");
    let ids = format!("ro,user_id={SKILLFS},group_id={SKILLFS},default_permissions,allow_other");
    assert_eq!(super_options, ids);
    assert!(line.contains(" - fuse.skillfs skillfs "), "{line}");
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok());
    assert_eq!(peer.refusal(&Request::Mount { mount: mount() }, &[]), Refusal::Phase, "a second time");
    let none = MountId::new(1).unwrap();
    assert!(matches!(peer.refusal(&Request::Mount { mount: none }, &[]), Refusal::Ceiling(_)));
    assert_eq!(peer.ask(&Request::Unmount { mount: mount() }, &[]).0, Reply::Done);
    assert_eq!(view(&helper), None);
    assert_eq!(peer.refusal(&Request::Unmount { mount: mount() }, &[]), Refusal::Phase);
    // And again, on the same link.
    let (reply, mut fds) = peer.ask(&Request::Mount { mount: mount() }, &[]);
    assert_eq!(reply, Reply::Mounted);
    let _second = Server::start(fds.pop().unwrap());
    assert!(fs::metadata(helper.dir.path().join("view")).unwrap().is_dir());
}

#[test]
fn a_writable_mount_point_is_mounted_writable() {
    let dir = tempfile::tempdir().unwrap();
    let helper = Helper::start(&format!("mount 3 rw {}", dir.path().display()));
    let peer = helper.peer(SKILLFS);
    let (reply, mut fds) = peer.ask(&Request::Mount { mount: MountId::new(3).unwrap() }, &[]);
    assert_eq!(reply, Reply::Mounted);
    let _server = Server::start(fds.pop().unwrap());
    let table = mountinfo();
    let line = table.lines().find(|l| l.contains(dir.path().to_str().unwrap())).unwrap();
    assert!(line.contains(" rw,nosuid,nodev"), "{line}");
    peer.ask(&Request::Unmount { mount: MountId::new(3).unwrap() }, &[]);
}

#[test]
fn a_view_whose_server_has_gone_is_taken_off_with_its_link() {
    let helper = Helper::start("");
    let (peer, fd) = mounted(&helper);
    drop(fd);
    drop(peer);
    until("unmounted", || view(&helper).is_none());
    let (_peer, fd) = mounted(&helper);
    let _server = Server::start(fd);
    assert!(fs::metadata(helper.dir.path().join("view")).is_ok());
}

#[test]
fn test_3_a_server_that_swallows_requests_hurts_nobody_and_ends_with_its_link() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (peer, fd) = mounted(&helper);
    let server = Server::start(fd);
    assert!(fs::metadata(helper.dir.path().join("view")).is_ok());
    server.swallow();
    let dir = helper.dir.path().join("view");
    let stuck = std::thread::spawn(move || fs::read_dir(dir).map(|d| d.count()));
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(broker.sh("echo lives").stdout, "lives\n");
        assert!(asked.elapsed() < SOON);
    }
    // Its server still holds the other end of the view, and answers nothing.
    drop(peer);
    assert!(stuck.join().unwrap().is_err(), "who waited gets an error");
    until("unmounted", || view(&helper).is_none());
    let (_peer, fd) = mounted(&helper);
    let _server = Server::start(fd);
    assert!(fs::metadata(helper.dir.path().join("view")).is_ok());
    assert_eq!(broker.sh("echo lives").stdout, "lives\n");
}

#[test]
fn attack_a5_a_descriptor_of_a_hanging_server_hangs_nobody_else() {
    let helper = Helper::start("");
    let (_peer, fd) = mounted(&helper);
    let server = Server::start(fd);
    let view_dir = fs::File::open(helper.dir.path().join("view")).unwrap();
    server.swallow();
    let broker = helper.broker();
    let (invocation, ..) = broker.invocation();
    let request = invocation.prepare(skill("x"));
    let asked = Instant::now();
    let refusal = broker.refusal(&request, &[std::os::fd::AsFd::as_fd(&view_dir)]);
    assert!(matches!(refusal, Refusal::Descriptor(_)), "{refusal:?}");
    assert!(asked.elapsed() < SOON);
    assert_eq!(broker.sh("echo lives").stdout, "lives\n");
}
