//! The seam between the daemons: the exact bytes of every message, and that no bytes and no descriptors that anybody
//! sends break or leak anything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what a test's own tools cannot do fails the test"
)]

use cyberos_proto::control::{
    ControlReply, ControlRequest, Counters, Decisions, Epoch, SkillState, Status, Verdict,
};
use cyberos_proto::ids::{InvocationId, MountId, SandboxId, SkillName};
use cyberos_proto::link::{self, Link, LinkError, MAX_DESCRIPTORS, MAX_PACKET, Wait};
use cyberos_proto::message::{Event, Exit, FromHelper, Message, Refusal, Reply, Request, Signal};
use cyberos_proto::plan::{
    Bind, BindKind, Cgroup, Feature, Limits, MemoryLimit, Network, PlanFault, Profile, SandboxPath,
    SandboxReport, SpawnPlan,
};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use proptest::prelude::*;
use std::fmt::Debug;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, RawFd};

const ID: &str = "00010203-0405-4607-8809-0a0b0c0d0e0f";
const SANDBOX: &str = "10111213-1415-4617-9819-1a1b1c1d1e1f";

fn id() -> InvocationId {
    ID.parse().unwrap()
}

fn sandbox() -> SandboxId {
    SANDBOX.parse().unwrap()
}

fn prepares(plan: SpawnPlan) -> Request {
    Request::Prepare { sandbox: sandbox(), plan: Box::new(plan) }
}

fn release() -> Request {
    Request::Release { sandbox: sandbox() }
}

fn plan() -> SpawnPlan {
    SpawnPlan {
        program: SandboxPath::new("/opt/cyberos/skills/x/main").unwrap(),
        args: vec![b"main".to_vec(), vec![0xff]],
        env: vec![b"A=b".to_vec()],
        cwd: SandboxPath::new("/tmp").unwrap(),
        binds: vec![
            Bind { target: SandboxPath::new("/opt/cyberos/skills/x").unwrap(), kind: BindKind::Sealed },
            Bind { target: SandboxPath::new("/w").unwrap(), kind: BindKind::Grant { writable: true } },
        ],
        socket: true,
        limits: Limits {
            memory_mb: 512,
            memory_kind: MemoryLimit::Data,
            cpu_s: 1800,
            processes: 8,
            open_files: 256,
            file_mb: 256,
            tmp_mb: 64,
        },
        profile: Profile::Bash,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Holds a message to its bytes, both ways. A change here is another PROTOCOL_VERSION.
fn golden<M: Message + Debug + PartialEq>(message: M, descriptors: usize, want: &str) {
    let packet = link::encode(&message).unwrap();
    assert_eq!(hex(&packet), want.replace(' ', ""), "{message:?}");
    assert_eq!(link::decode::<M>(&packet).unwrap(), message);
    assert_eq!(message.descriptors(), descriptors, "{message:?}");
}

const ID_HEX: &str = "000102030405460788090a0b0c0d0e0f";
const SANDBOX_HEX: &str = "101112131415461798191a1b1c1d1e1f";

#[test]
fn requests_have_exactly_these_bytes() {
    let mount = MountId::new(15).unwrap();
    let create = Request::CreateSocket { sandbox: sandbox(), invocation: id() };
    golden(create, 0, &format!("04 00 {SANDBOX_HEX} {ID_HEX}"));
    let prepare = format!(
        "04 01 {SANDBOX_HEX} 1a {} 02 04 {} 01 ff 01 03 {} 04 {} 02 15 {} 00 02 {} 01 01 01 \
         8004 01 880e 08 8002 8002 40 01",
        hex(b"/opt/cyberos/skills/x/main"),
        hex(b"main"),
        hex(b"A=b"),
        hex(b"/tmp"),
        hex(b"/opt/cyberos/skills/x"),
        hex(b"/w"),
    );
    golden(prepares(plan()), 2, &prepare);
    golden(Request::Go { sandbox: sandbox() }, 0, &format!("04 02 {SANDBOX_HEX}"));
    for (signal, byte) in [(Signal::Term, "00"), (Signal::Kill, "01")] {
        golden(Request::Signal { sandbox: sandbox(), signal }, 0, &format!("04 03 {SANDBOX_HEX} {byte}"));
    }
    golden(release(), 0, &format!("04 04 {SANDBOX_HEX}"));
    golden(Request::Mount { mount }, 0, "04 05 0f");
    golden(Request::Unmount { mount }, 0, "04 06 0f");
    golden(Request::RegisterBacking { mount }, 1, "04 07 0f");
    golden(Request::CloseBacking { mount, id: 300 }, 0, "04 08 0f ac02");
    golden(Request::Describe, 0, "04 09");
}

#[test]
fn answers_of_the_helper_have_exactly_these_bytes() {
    let reply = FromHelper::Reply;
    golden(reply(Reply::SocketCreated { uid: 1_900_000_001 }), 1, "04 00 00 81e6fe8907");
    let report = SandboxReport {
        uid: 300,
        enforced: vec![
            Feature::Namespaces,
            Feature::OwnUid,
            Feature::NoNewPrivs,
            Feature::NoCapabilities,
            Feature::Seccomp,
            Feature::Rlimits,
        ],
        skipped: vec![Feature::Cgroup, Feature::Landlock],
        cgroup: Cgroup::Absent,
        landlock: 0,
        network: Network::Own,
    };
    let prepared = |report| FromHelper::Event(Event::Prepared { sandbox: sandbox(), report });
    let bytes = format!("04 01 00 {SANDBOX_HEX} ac02 06 00 01 02 03 04 05 02 06 07");
    golden(prepared(report.clone()), 3, &format!("{bytes} 00 00 00"));
    let report = SandboxReport { cgroup: Cgroup::V1, landlock: 6, ..report };
    golden(prepared(report.clone()), 3, &format!("{bytes} 01 06 00"));
    let report = SandboxReport { cgroup: Cgroup::V2, ..report };
    golden(prepared(report), 3, &format!("{bytes} 02 06 00"));
    golden(reply(Reply::Mounted), 1, "04 00 01");
    golden(reply(Reply::Done), 0, "04 00 02");
    golden(reply(Reply::Backing { id: 300 }), 0, "04 00 04 ac02");
    golden(reply(Reply::Described { uids: (1, 300) }), 0, "04 00 05 01 ac02");
    let text = || "ab".to_owned();
    let faults = [
        (PlanFault::Args, "00"),
        (PlanFault::Env, "01"),
        (PlanFault::Words, "02"),
        (PlanFault::Path, "03"),
        (PlanFault::Binds, "04"),
        (PlanFault::Limits, "05"),
    ];
    for (fault, byte) in faults {
        golden(reply(Reply::Refused(Refusal::Plan(fault))), 0, &format!("04 00 03 04 {byte}"));
    }
    for (refusal, bytes) in [
        (Refusal::Malformed, "00"),
        (Refusal::Role, "01"),
        (Refusal::Busy, "02"),
        (Refusal::Phase, "03"),
        (Refusal::Ceiling(text()), "05 02 6162"),
        (Refusal::Descriptor(text()), "06 02 6162"),
        (Refusal::Exists, "07"),
        (Refusal::Unavailable { step: text(), errno: 38 }, "08 02 6162 4c"),
        (Refusal::Exec { errno: 2 }, "09 04"),
        (Refusal::System { step: text(), errno: -1 }, "0a 02 6162 01"),
        (Refusal::GrantUnsupported { bind: 1, fs: text() }, "0b 01 02 6162"),
    ] {
        golden(reply(Reply::Refused(refusal)), 0, &format!("04 00 03 {bytes}"));
    }
    let event = FromHelper::Event;
    golden(event(Event::Started { sandbox: sandbox() }), 0, &format!("04 01 01 {SANDBOX_HEX}"));
    let failed = Event::Failed { sandbox: sandbox(), refusal: Refusal::Exec { errno: 2 } };
    golden(event(failed), 0, &format!("04 01 02 {SANDBOX_HEX} 09 04"));
    let exited = |exit, out_of_memory| event(Event::Exited { sandbox: sandbox(), exit, out_of_memory });
    golden(exited(Exit::Code(7), false), 0, &format!("04 01 03 {SANDBOX_HEX} 00 07 00"));
    golden(exited(Exit::Signal(9), true), 0, &format!("04 01 03 {SANDBOX_HEX} 01 09 01"));
}

#[test]
fn control_messages_have_exactly_these_bytes() {
    let skill = || SkillName::new("s").unwrap();
    golden(ControlRequest::Status { after: None }, 0, "04 00 00");
    golden(ControlRequest::Status { after: Some(skill()) }, 0, "04 00 01 01 73");
    golden(ControlRequest::Explain { skill: skill() }, 0, "04 01 01 73");
    golden(ControlRequest::Refresh { skill: None }, 0, "04 02 00");
    golden(ControlRequest::Refresh { skill: Some(skill()) }, 0, "04 02 01 01 73");
    golden(ControlRequest::Await { skill: skill(), timeout_ms: 35_000 }, 0, "04 03 01 73 b89102");
    golden(ControlRequest::Counters, 0, "04 04");
    let state = |verdict| SkillState {
        skill: skill(),
        verdict,
        target: Some("t".into()),
        version: None,
        status: "pass".into(),
        reason: None,
        warning: Some("w".into()),
        epoch: Epoch { start: 1, count: 128 },
        pending: true,
        content_digest: None,
    };
    for (verdict, byte) in [(Verdict::Current, "00"), (Verdict::Fallback, "01"), (Verdict::Hidden, "02")] {
        let bytes = format!("01 73 {byte} 01 01 74 00 04 70617373 00 01 01 77 01 8001 01 00");
        golden(ControlReply::Skill(state(verdict)), 0, &format!("04 01 {bytes}"));
    }
    let status = Status {
        mount: "/m".into(),
        sources: vec!["/s".into()],
        decision_command: None,
        mounted: true,
        total: 2,
        undecided: 0,
        skills: vec![],
        more: false,
    };
    golden(ControlReply::Status(status), 0, "04 00 02 2f6d 01 02 2f73 00 01 02 00 00 00");
    golden(ControlReply::Refreshed { decided: 300 }, 0, "04 02 ac02");
    golden(ControlReply::NoSuchSkill, 0, "04 03");
    golden(ControlReply::Malformed, 0, "04 04");
    let counters = Counters {
        lookups: 1,
        opens: 2,
        decisions: Decisions { current: 3, fallback: 4, hidden: 5, failed: 6 },
        invalidations: 7,
        provider_runs: 8,
        provider_us: 300,
        overflows: 9,
    };
    golden(ControlReply::Counters(counters), 0, "04 05 01 02 03 04 05 06 07 08 ac02 09");
}

#[test]
fn values_out_of_bounds_leftovers_and_other_versions_are_errors() {
    const V: u8 = cyberos_proto::PROTOCOL_VERSION;
    let good = link::encode(&Request::Mount { mount: MountId::new(1).unwrap() }).unwrap();
    assert!(link::decode::<Request>(&good).is_ok());
    for bad in [
        &[][..],
        &[V],
        &[V - 1, 5, 1],
        &[0, 5, 1],
        &[V + 1, 5, 1],
        &[V, 5, 16],
        &[V, 5, 1, 0],
        &[V, 99],
        &[V, 0xff, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(matches!(link::decode::<Request>(bad), Err(LinkError::Malformed)), "{bad:?}");
    }
    let mut other_uuid = link::encode(&release()).unwrap();
    other_uuid[8] = 0x16;
    assert!(link::decode::<Request>(&other_uuid).is_err(), "only random UUIDs");
    assert!(link::decode::<ControlRequest>(&[V, 1, 2, b'a', b'/']).is_err(), "no path for a name");
    let mut wrong_path = link::encode(&prepares(plan())).unwrap();
    wrong_path[19] = b'x';
    assert!(link::decode::<Request>(&wrong_path).is_err(), "no relative program");
}

/// A message of any kind, whatever its bytes, is decoded or refused; what is decoded has the bytes that it came from,
/// or shorter ones (a length may be spelt longer than needed).
fn decodes_or_refuses<M: Message + Debug + PartialEq>(packet: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = link::decode::<M>(packet) {
        let again = link::encode(&message).unwrap();
        prop_assert!(again.len() <= packet.len());
        prop_assert_eq!(link::decode::<M>(&again).unwrap(), message);
    }
    Ok(())
}

fn all_refuse(packet: &[u8]) -> Result<(), TestCaseError> {
    decodes_or_refuses::<Request>(packet)?;
    decodes_or_refuses::<FromHelper>(packet)?;
    decodes_or_refuses::<ControlRequest>(packet)?;
    decodes_or_refuses::<ControlReply>(packet)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_decoding_panic(packet in proptest::collection::vec(any::<u8>(), 0..300)) {
        all_refuse(&packet)?;
    }

    #[test]
    fn no_bytes_behind_a_right_beginning_do(
        kind in 0u8..11, second in 0u8..13, rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut packet = vec![cyberos_proto::PROTOCOL_VERSION, kind, second];
        packet.extend(rest);
        all_refuse(&packet)?;
    }

    #[test]
    fn no_change_of_a_right_message_does(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = link::encode(&prepares(plan())).unwrap();
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        all_refuse(&packet)?;
        packet.truncate(cut.index(packet.len()) + 1);
        all_refuse(&packet)?;
    }
}

/// Open descriptors of this process that lead to this test's own file.
fn copies(of: &File) -> usize {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", of.as_raw_fd())).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to == link)).count()
}

fn send_raw(to: &impl AsFd, bytes: &[u8], fds: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    sendmsg::<UnixAddr>(to.as_fd().as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
}

#[test]
fn case_149_surplus_missing_and_foreign_descriptors_are_refused_and_closed() {
    let file = tempfile::tempfile().unwrap();
    let (client, server): link::Pair<Request, FromHelper> = link::pair().unwrap();
    let spawn = link::encode(&prepares(plan())).unwrap();
    let none = link::encode(&release()).unwrap();
    let before = copies(&file);
    for (packet, counts) in [(&spawn, &[0, 1, 3, 64, 200, 253][..]), (&none, &[1, 64, 200, 253])] {
        for count in counts {
            send_raw(&client, packet, &vec![file.as_raw_fd(); *count]);
            assert!(matches!(server.receive(Wait::Block), Err(LinkError::Descriptors)), "{count}");
            assert_eq!(copies(&file), before, "{count}");
        }
    }
    // With what is no message, or too long for one.
    for packet in [vec![9; 10], vec![3; MAX_PACKET + 1], vec![3; MAX_PACKET + 5000]] {
        send_raw(&client, &packet, &[file.as_raw_fd(); 200]);
        assert!(matches!(server.receive(Wait::Block), Err(LinkError::Malformed)));
        assert_eq!(copies(&file), before);
    }
    // And the right number arrives, close-on-exec.
    send_raw(&client, &spawn, &[file.as_raw_fd(); 2]);
    let (_, fds) = server.receive(Wait::Block).unwrap();
    assert_eq!((fds.len(), copies(&file)), (2, before + 2));
    for fd in &fds {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_ne!(flags & nix::libc::FD_CLOEXEC, 0);
    }
    drop(fds);
    assert_eq!(copies(&file), before);
}

#[test]
fn a_sender_cannot_send_what_its_message_does_not_carry() {
    let file = tempfile::tempfile().unwrap();
    let (client, server): link::Pair<Request, FromHelper> = link::pair().unwrap();
    let release = release();
    assert!(matches!(client.send(&release, &[file.as_fd()], Wait::No), Err(LinkError::Descriptors)));
    let spawn = prepares(plan());
    assert!(matches!(client.send(&spawn, &[file.as_fd()], Wait::No), Err(LinkError::Descriptors)));
    let mut many = plan();
    many.binds = vec![many.binds[0].clone(); MAX_DESCRIPTORS + 1];
    let many = prepares(many);
    let fds = vec![file.as_fd(); MAX_DESCRIPTORS + 1];
    assert!(matches!(client.send(&many, &fds, Wait::No), Err(LinkError::Descriptors)));
    let mut long = plan();
    long.args = vec![vec![b'a'; MAX_PACKET]];
    let long = prepares(long);
    assert!(matches!(client.send(&long, &[file.as_fd(); 2], Wait::No), Err(LinkError::TooLong)));
    assert!(matches!(server.receive(Wait::No), Err(LinkError::WouldBlock)));
    drop(client);
    assert!(matches!(server.receive(Wait::Block), Err(LinkError::Closed)));
}

#[test]
fn a_peer_that_does_not_read_makes_a_send_end_in_time() {
    let (client, _server): link::Pair<Request, FromHelper> = link::pair().unwrap();
    client.set_send_timeout(std::time::Duration::from_millis(50)).unwrap();
    let release = release();
    let ended = (0..100_000).find_map(|_| client.send(&release, &[], Wait::Block).err());
    assert!(matches!(ended, Some(LinkError::WouldBlock)), "{ended:?}");
}

#[test]
fn a_link_says_who_is_on_the_other_side() {
    let (client, server): link::Pair<Request, FromHelper> = link::pair().unwrap();
    let here = i32::try_from(std::process::id()).unwrap();
    let peer = server.peer().unwrap();
    assert_eq!((peer.pid, peer.uid), (here, nix::unistd::geteuid().as_raw()));
    assert_eq!(client.peer().unwrap(), peer);
    fn mirrored<S: Message, R: Message>(_: &Link<S, R>, _: &Link<R, S>) {}
    mirrored(&client, &server);
}
