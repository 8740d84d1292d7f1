//! Whatever is killed, nothing stays: no process, no socket, no mount.

use crate::support::freezer::Freezer;
use crate::support::helper::*;
use crate::views::Server;
use cyberos_proto::ids::{InvocationId, MountId};
use cyberos_proto::message::{Refusal, Reply, Request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

/// A tree that ignores what can be ignored, with a second session and a held pipe.
const TREE: &str = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP; sleep 1000; sleep 1000') & echo ready; \
                    while :; do sleep 1000; done";

/// A broker with two running trees and an invocation without one, and a SkillFS with a view.
struct Everything {
    broker: Peer,
    skillfs: Peer,
    _server: Server,
}

fn everything(helper: &Helper) -> Everything {
    let broker = helper.broker();
    for _ in 0..2 {
        let running = broker.start(plan(&["/bin/sh", "-c", TREE]), &[]);
        running.said("ready");
    }
    broker.invocation();
    let skillfs = helper.peer(SKILLFS);
    let (reply, mut fds) = skillfs.ask(&Request::Mount { mount: MountId::new(0).unwrap() }, &[]);
    assert_eq!(reply, Reply::Mounted);
    let server = Server::start(fds.pop().unwrap());
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok());
    let left = helper.leftovers();
    assert!(left.len() >= 8 && left.iter().any(|l| l.contains("fuse.skillfs")), "{left:?}");
    Everything { broker, skillfs, _server: server }
}

/// The link processes: children that serve, not probes.
fn links(helper: &Helper) -> Vec<Pid> {
    helper.children()
}

#[test]
fn kill_9_of_the_peers() {
    let helper = Helper::start("");
    let all = everything(&helper);
    all.skillfs.kill();
    until("the view is gone", || !helper.leftovers().iter().any(|l| l.contains("fuse")));
    let left = helper.leftovers();
    assert_eq!(
        left.iter().filter(|l| l.ends_with(".sock")).count(),
        3,
        "the other peer's are still there: {left:?}"
    );
    assert!(left.iter().filter(|l| l.starts_with("process")).count() >= 6, "{left:?}");
    all.broker.kill();
    helper.leaves_nothing();
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

#[test]
fn test_17_kill_9_of_a_link_process_ends_only_what_its_peer_had() {
    let helper = Helper::start("");
    let all = everything(&helper);
    let [of_broker, of_skillfs] = links(&helper).try_into().unwrap();
    kill(of_broker, Signal::SIGKILL).unwrap();
    until("the sandboxes are gone, the view stays", || {
        let left = helper.leftovers();
        left.len() == 1 && left[0].contains("fuse.skillfs")
    });
    assert!(all.broker.closed(), "the peer sees it");
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok());
    kill(of_skillfs, Signal::SIGKILL).unwrap();
    helper.leaves_nothing();
    assert!(all.skillfs.closed());
    drop(all);
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

#[test]
fn a_stopped_link_process_whose_peer_has_gone_is_ended_by_the_parent() {
    let helper = Helper::start("");
    let all = everything(&helper);
    for link in links(&helper) {
        kill(link, Signal::SIGSTOP).unwrap();
    }
    drop(all);
    helper.leaves_nothing();
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

#[test]
fn case_073_kill_9_of_the_parent() {
    let mut helper = Helper::start("");
    let all = everything(&helper);
    helper.signal(Signal::SIGKILL);
    helper.leaves_nothing();
    assert!(all.broker.closed() && all.skillfs.closed());
    helper.restart();
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

#[test]
fn kill_9_of_parent_and_links_at_once_is_swept_at_the_next_start() {
    let mut helper = Helper::start("");
    let all = everything(&helper);
    helper.signal(Signal::SIGSTOP);
    let links = links(&helper);
    links.iter().for_each(|l| kill(*l, Signal::SIGSTOP).unwrap());
    links.iter().for_each(|l| kill(*l, Signal::SIGKILL).unwrap());
    helper.signal(Signal::SIGKILL);
    until("every process is gone", || !helper.leftovers().iter().any(|l| l.starts_with("process")));
    assert!(!helper.leftovers().is_empty(), "sockets and the view cannot go by themselves");
    helper.restart();
    assert_eq!(helper.leftovers(), [""; 0]);
    drop(all);
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

#[test]
fn sigterm_ends_everything_in_order() {
    let mut helper = Helper::start("");
    let _all = everything(&helper);
    helper.signal(Signal::SIGTERM);
    helper.restart();
    assert_eq!(helper.leftovers(), [""; 0]);
}

#[test]
fn a_start_sweeps_what_is_its_own_and_never_anything_else() {
    let mut helper = Helper::start("");
    helper.broker().sh(":");
    let before = helper.children();
    helper.signal(Signal::SIGKILL);
    until("nobody has the block", || {
        before.iter().all(|p| !std::path::Path::new(&format!("/proc/{p}")).exists())
    });
    let name = || {
        format!(
            "/tmp/cyberos-skill-broker.{}.sock",
            InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes())
        )
    };
    let uid = helper.uids.0 + 7;
    let ours = name();
    let socket = UnixListener::bind(&ours).unwrap();
    chown(&ours, Some(uid), Some(uid)).unwrap();
    // Owned by a uid of ours but no socket; a socket of another; other names; a link to a socket of ours.
    let (file, other, link) = (name(), name(), name());
    let upper = name().replace(".sock", "").to_uppercase().replace("/TMP", "/tmp") + ".sock";
    let not_an_id = "/tmp/cyberos-skill-broker.x.sock".to_owned();
    fs::write(&file, "").unwrap();
    chown(&file, Some(uid), Some(uid)).unwrap();
    let others: Vec<UnixListener> =
        [&other, &upper, &not_an_id].into_iter().map(|p| UnixListener::bind(p).unwrap()).collect();
    for p in [&upper, &not_an_id] {
        chown(p, Some(uid), Some(uid)).unwrap();
    }
    symlink(&other, &link).unwrap();
    helper.restart();
    let left: Vec<bool> = [&ours, &file, &other, &upper, &not_an_id, &link]
        .iter()
        .map(|p| fs::symlink_metadata(p).is_ok())
        .collect();
    for p in [&file, &other, &upper, &not_an_id, &link] {
        let _ = fs::remove_file(p);
    }
    drop((socket, others));
    assert_eq!(left, [false, true, true, true, true, true]);
}

#[test]
fn two_helpers_with_one_range_share_it_block_by_block() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (.., first, _listener) = broker.invocation();
    let other = helper.twin();
    let peer = other.broker();
    let (.., second, _listener2) = peer.invocation();
    assert_ne!((first - helper.uids.0) / 256, (second - helper.uids.0) / 256);
    assert_eq!(broker.sh("echo both").stdout, peer.sh("echo both").stdout);
    let path = helper.dir.path().join("locks");
    let meta = fs::metadata(path).unwrap();
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o700));
}

/// The inits of a helper's sandboxes, and everything in them.
fn in_sandboxes(helper: &Helper) -> Vec<i32> {
    let mut found = Vec::new();
    let mut todo: Vec<Pid> = helper.children().into_iter().flat_map(children).collect();
    while let Some(pid) = todo.pop() {
        todo.extend(children(pid));
        found.push(pid.as_raw());
    }
    found
}

#[test]
fn a_sandbox_that_cannot_be_killed_does_not_hold_up_the_end() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let running = broker.start(plan(&["/bin/sh", "-c", "echo ready; exec sleep 1000"]), &[]);
    running.said("ready");
    let freezer = Freezer::of(&in_sandboxes(&helper));
    freezer.freeze();
    helper.signal(Signal::SIGTERM);
    let ended =
        || fs::read_to_string(format!("/proc/{}/stat", helper.pid())).map_or(true, |s| s.contains(") Z "));
    let began = std::time::Instant::now();
    until("the helper has ended", ended);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(helper.log().contains("ended"), "{}", helper.log());
}

/// What such sandboxes hold of the helper's is their uids. The next link is served as long as there are others.
#[test]
fn sandboxes_that_outlive_their_links_keep_no_role_busy() {
    let helper = Helper::start("max_sandboxes 5\n");
    let mut frozen: Vec<Freezer> = Vec::new();
    let mut seen = Vec::new();
    // As many as there are blocks of uids.
    for _ in 0..4 {
        let broker = helper.broker();
        let running = broker.start(plan(&["/bin/sh", "-c", "echo ready; exec sleep 1000"]), &[]);
        running.said("ready");
        let new: Vec<i32> = in_sandboxes(&helper).into_iter().filter(|pid| !seen.contains(pid)).collect();
        let freezer = Freezer::of(&new);
        assert!(freezer.keeps_alive(), "a machine with version 1 of the freezer");
        freezer.freeze();
        frozen.push(freezer);
        seen.extend(new);
    }
    let create = || crate::requests::new_id().create();
    let refusal = helper.broker().refusal(&create(), &[]);
    assert!(
        matches!(&refusal, Refusal::System { step, .. } if step.contains("block of uids")),
        "{refusal:?}"
    );
    let began = std::time::Instant::now();
    drop(frozen);
    until("uids are free again", || {
        matches!(helper.broker().ask(&create(), &[]).0, Reply::SocketCreated { .. })
    });
    assert!(began.elapsed() < SOON);
    helper.leaves_nothing();
}
