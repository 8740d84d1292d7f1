//! Point by point what a packet can be and must not: garbage, cut, too long, empty, early, repeated, another role's, with
//! descriptors that nobody asked for or that are not what they must be.

use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper, SKILLFS, plan, skill, until};
use cyberos_proto::link::MAX_PACKET;
use cyberos_proto::message::{Message, Refusal, Reply, Request};
use nix::fcntl::{OFlag, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::pipe;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

fn requests_of(role: u32) -> Vec<Request> {
    if role == BROKER { of_broker(new_id()) } else { of_skillfs() }
}

/// Every number of bytes of every request, from one to all but one; and each with one byte too many.
#[test]
fn cut_and_lengthened_packets_end_the_link() {
    let helper = Helper::start("");
    for (role, other) in [(BROKER, SKILLFS), (SKILLFS, BROKER)] {
        let mut beside = Dialler::new(&helper.socket(), other);
        let _beside = beside.dial();
        let mut dialler = Dialler::new(&helper.socket(), role);
        for request in requests_of(role) {
            let whole = good(&request);
            for length in 1..whole.len() {
                dialler.dial().is_ended_by(&format!("{length} of {request:?}"), &whole[..length], &[]);
            }
            dialler.dial().is_ended_by("one byte more", &[&whole[..], &[0]].concat(), &[]);
        }
    }
    assert!(helper.leftovers().is_empty());
}

#[test]
fn garbage_wrong_versions_and_lengths_that_lie_end_the_link() {
    let (helper, other, mut dialler) = attacked("");
    let before = at_rest(&helper);
    let version = good(&new_id().release())[0];
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    // Every first byte that is not the version, every tag that is none, and tags spelt longer than they are.
    let release = good(&new_id().release());
    for first in (0..=255u8).filter(|b| *b != version) {
        let mut packet = release.clone();
        packet[0] = first;
        all.push((format!("version {first}"), packet));
    }
    for tag in [32u8, 64, 127] {
        all.push((format!("tag {tag}"), [&[version, tag][..], &[0; 40]].concat()));
    }
    all.push(("an endless number".into(), [&[version][..], &[0xff; 40]].concat()));
    all.push(("a tag of four billion".into(), [version, 0xff, 0xff, 0xff, 0xff, 0x0f].to_vec()));
    all.push(("text".into(), b"GET / HTTP/1.1\r\n\r\n".to_vec()));
    all.push(("json".into(), br#"{"jsonrpc":"2.0","method":"spawn"}"#.to_vec()));
    // A plan that promises four billion words, and paths that are none.
    let packet = good(&new_id().prepare(plan(&["/bin/true"])));
    let at = 2 + 16;
    assert_eq!(&packet[at..at + 10], b"\x09/bin/true", "the shape that is spoilt here");
    let spoilt = |text: &[u8]| {
        let mut p = packet[..at].to_vec();
        p.push(u8::try_from(text.len()).unwrap());
        p.extend(text);
        p.extend(&packet[at + 10..]);
        p
    };
    let paths: [&[u8]; 8] =
        [b"", b"/", b"bin/true", b"/bin/../true", b"/bin//true", b"/bin/true/", b"/bin/\0true", b"/\xff\xfe"];
    for text in paths {
        all.push((format!("program {text:?}"), spoilt(text)));
    }
    let words = [&packet[..at + 10], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    all.push(("four billion words".into(), words));
    all.push((
        "a string of four billion bytes".into(),
        [&packet[..at], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat(),
    ));
    for (what, packet) in all {
        dialler.dial().is_ended_by(&what, &packet, &[]);
    }
    other.answers();
    flat(&helper, &before);
}

#[test]
fn packets_that_are_too_long_or_empty_end_the_link() {
    let (_helper, other, mut dialler) = attacked("");
    let release = good(&new_id().release());
    for length in [MAX_PACKET, MAX_PACKET + 1, MAX_PACKET + 5000, 150_000] {
        let mut packet = release.clone();
        packet.resize(length, 0);
        dialler.dial().is_ended_by(&format!("{length} bytes"), &packet, &[]);
    }
    let raw = dialler.dial();
    assert_eq!(raw.ask(&[], &[]), Answer::Closed, "an empty packet is nobody's");
    let null = open("/dev/null", OFlag::O_RDWR, Mode::empty()).unwrap();
    assert_eq!(dialler.dial().ask(&[], &vec![null.as_raw_fd(); 253]), Answer::Closed, "nor with descriptors");
    other.answers();
}

/// What is sent before the helper has even seen the connection is answered in its order like all else.
#[test]
fn early_and_repeated_requests_are_answered_each_and_done_once() {
    let (helper, other, mut dialler) = attacked("");
    let first = dialler.dial();
    let waiting = dialler.dial();
    let id = new_id();
    // Sent to a helper that will turn the link away without reading it.
    for request in of_broker(id) {
        let _ = waiting.send(&good(&request), &[]);
    }
    assert_eq!(waiting.answer(), Answer::Said(Reply::Refused(Refusal::Busy)));
    assert_eq!(waiting.answer(), Answer::Closed);
    let create = good(&id.create());
    let start = good(&id.prepare(plan(&["/bin/sleep", "1000"])));
    let release = good(&id.release());
    for packet in [&start, &create, &create, &create, &start, &start, &create, &release, &release, &start] {
        first.send(packet, &[]).unwrap();
    }
    let said: Vec<_> = (0..10)
        .map(|_| match first.answer() {
            Answer::Said(Reply::SocketCreated { .. }) => "socket",
            Answer::Said(Reply::Done) => "done",
            Answer::Said(Reply::Refused(Refusal::Phase)) => "phase",
            _ => "else",
        })
        .collect();
    let expected = ["phase", "socket", "phase", "phase", "done", "phase", "phase", "done", "done", "phase"];
    assert_eq!(said, expected);
    other.answers();
    helper.leaves_nothing();
}

#[test]
fn another_roles_requests_end_the_link_whatever_comes_with_them() {
    let helper = Helper::start("");
    let null = open("/dev/null", OFlag::O_RDWR, Mode::empty()).unwrap();
    for (role, requests) in [(BROKER, of_skillfs()), (SKILLFS, of_broker(new_id()))] {
        let mut dialler = Dialler::new(&helper.socket(), role);
        for request in requests {
            let fds = vec![null.as_raw_fd(); request.descriptors()];
            let raw = dialler.dial();
            assert_eq!(raw.ask(&good(&request), &fds), Answer::Said(Reply::Refused(Refusal::Role)));
            assert_eq!(raw.answer(), Answer::Closed, "{request:?}");
        }
    }
    helper.leaves_nothing();
}

/// With each request every wrong number up to the kernel's most.
#[test]
fn surplus_and_missing_descriptors_end_the_link_and_are_closed() {
    let helper = Helper::start("");
    let other = Other::skillfs(&helper);
    let before = at_rest(&helper);
    let null = open("/dev/null", OFlag::O_RDWR, Mode::empty()).unwrap();
    let mut requests = of_broker(new_id());
    requests.push(new_id().prepare(skill("x")));
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let wrong = |dialler: &mut Dialler, request: Request| {
        for count in (0..4).chain([63, 64, 65, 252, 253]).filter(|n| *n != request.descriptors()) {
            let fds = vec![null.as_raw_fd(); count];
            dialler.dial().is_ended_by(&format!("{count} with {request:?}"), &good(&request), &fds);
        }
    };
    requests.into_iter().for_each(|request| wrong(&mut dialler, request));
    other.answers();
    flat(&helper, &before);
    drop(other);
    let mut dialler = Dialler::new(&helper.socket(), SKILLFS);
    of_skillfs().into_iter().for_each(|request| wrong(&mut dialler, request));
    until("nothing is left", || helper.children().is_empty());
}

/// Everything that a descriptor can be and that is no directory of a sealed copy. The link goes on after each.
#[test]
fn descriptors_that_are_not_what_they_must_be_are_refused_and_closed() {
    let (helper, other, mut dialler) = attacked("");
    let raw = dialler.dial();
    let id = new_id();
    assert!(matches!(raw.ask(&good(&id.create()), &[]), Answer::Said(_)));
    let asked = id.prepare(skill("x"));
    let request = good(&asked);
    let path = |name: &str, flags: OFlag| open(name, flags, Mode::empty()).unwrap();
    let (reader, writer) = pipe().unwrap();
    let (end, mirror) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let listener = cyberos_proto::link::listen(&helper.dir.path().join("l")).unwrap();
    let mut all: Vec<(&str, OwnedFd)> = vec![
        ("null", path("/dev/null", OFlag::O_RDWR)),
        ("a device by O_PATH", path("/dev/null", OFlag::O_PATH)),
        ("full", path("/dev/full", OFlag::O_RDONLY)),
        ("/dev/fuse", path("/dev/fuse", OFlag::O_RDWR)),
        ("a terminal", path("/dev/ptmx", OFlag::O_RDWR | OFlag::O_NOCTTY)),
        ("/ by O_PATH", path("/", OFlag::O_PATH)),
        ("/dev", path("/dev", OFlag::O_RDONLY | OFlag::O_DIRECTORY)),
        ("/proc", path("/proc", OFlag::O_RDONLY | OFlag::O_DIRECTORY)),
        ("/proc/self/fd", path("/proc/self/fd", OFlag::O_RDONLY | OFlag::O_DIRECTORY)),
        ("a mount namespace", path("/proc/self/ns/mnt", OFlag::O_RDONLY)),
        ("a user namespace", path("/proc/self/ns/user", OFlag::O_RDONLY)),
        ("/proc/self/mem", path("/proc/self/mem", OFlag::O_RDWR)),
        ("memfd", memfd_create("x", MFdFlags::MFD_CLOEXEC).unwrap()),
        ("a pipe to read", reader),
        ("a pipe to write", writer),
        ("a listening socket", listener),
        (
            "a datagram socket",
            socket(AddressFamily::Unix, SockType::Datagram, SockFlag::empty(), None).unwrap(),
        ),
        ("the peer's own link", raw.link.as_fd().try_clone_to_owned().unwrap()),
        ("epoll", nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap().0),
    ];
    // A socket in whose queue lie descriptors, among them its own other end: nobody but the kernel's collector frees it.
    let inner: [RawFd; 3] = [mirror.as_raw_fd(), end.as_raw_fd(), all[0].1.as_raw_fd()];
    let rights = [nix::sys::socket::ControlMessage::ScmRights(&inner)];
    let parts = [std::io::IoSlice::new(b"x")];
    let flags = nix::sys::socket::MsgFlags::empty();
    nix::sys::socket::sendmsg::<nix::sys::socket::UnixAddr>(end.as_raw_fd(), &parts, &rights, flags, None)
        .unwrap();
    all.push(("a socket that holds itself", mirror));
    drop(end);
    // By the second answer, what the first one carried has been closed.
    raw.refusal("first", &request, &[all[0].1.as_raw_fd()]);
    let before = at_rest(&helper);
    for (what, fd) in &all {
        let refusal = raw.refusal(what, &request, &[fd.as_raw_fd()]);
        assert!(matches!(refusal, Refusal::Descriptor(_)), "{what}: {refusal:?}");
        other.answers();
    }
    flat(&helper, &before);
    // What it may have, it still gets.
    let sealed = helper.sealed("x", "#!/bin/sh\n");
    assert!(raw.spawn(&asked, &[sealed.as_raw_fd()]).is_ok());
    drop((raw, all));
    helper.leaves_nothing();
}
