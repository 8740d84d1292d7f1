//! A spawn has two phases (`[10.2]`): what is prepared is whole and has executed nothing, what is told to go runs, and
//! nothing that one sandbox waits for keeps another waiting.

use crate::requests::new_id;
use crate::support::helper::*;
use cyberos_proto::ids::InvocationId;
use cyberos_proto::message::{Event, Exit, Refusal, Reply, Signal};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// The inits of a helper's one link.
pub(super) fn inits(helper: &Helper) -> Vec<Pid> {
    helper.children().into_iter().flat_map(children).collect()
}

/// What the processes are that inits have started.
fn programs(helper: &Helper) -> Vec<PathBuf> {
    let programs = inits(helper).into_iter().flat_map(children);
    programs.map(|pid| fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default()).collect()
}

/// Asserts that the sandbox is told to have failed, and why.
fn fails(broker: &Peer, invocation: InvocationId) -> Refusal {
    let of = |e: &Event| matches!(e, Event::Failed { sandbox, .. } if *sandbox == invocation.sandbox());
    match broker.event(of).0 {
        Event::Failed { refusal, .. } => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_prepared_is_whole_and_executes_nothing_until_it_is_told_to_go() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (invocation, uid, _listener) = broker.invocation();
    let program = plan(&["/bin/sh", "-c", "echo ran"]);
    let pipes = broker.prepare(&invocation.prepare(program), &[]).unwrap();
    assert_eq!(pipes.report.uid, uid);
    let own = fs::read_link(format!("/proc/{}/exe", helper.pid())).unwrap();
    assert_eq!(programs(&helper), std::slice::from_ref(&own), "its process is not the program's yet");
    // It has given up everything that it will not have: it is the lease's, under the filter, in the sandbox's view.
    let process = inits(&helper).into_iter().flat_map(children).next().unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let field = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).unwrap().trim().to_owned();
    assert_eq!(field("Uid:"), format!("{uid}\t{uid}\t{uid}\t{uid}"));
    assert_eq!(
        (field("CapEff:"), field("CapBnd:"), field("Seccomp:")),
        ("0".repeat(16), "0".repeat(16), "2".into())
    );
    assert_eq!(
        fs::read_dir(format!("/proc/{process}/root/home")).map(drop).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    broker.go(invocation.sandbox()).unwrap();
    let mut said = String::new();
    File::from(pipes.stdout).read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), broker.exit(invocation)), ("ran\n", Exit::Code(0)));
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn each_phase_is_taken_once_and_in_its_order() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (invocation, ..) = broker.invocation();
    let prepare = invocation.prepare(plan(&["/bin/sleep", "1000"]));
    assert_eq!(broker.refusal(&invocation.go(), &[]), Refusal::Phase, "nothing is prepared");
    broker.prepare(&prepare, &[]).unwrap();
    assert_eq!(broker.ask(&prepare, &[]).0, Reply::Refused(Refusal::Phase), "prepared already");
    // There is no program yet that could be told to end.
    assert_eq!(broker.ask(&invocation.signal(Signal::Term), &[]).0, Reply::Done);
    broker.go(invocation.sandbox()).unwrap();
    assert_eq!(broker.refusal(&invocation.go(), &[]), Refusal::Phase, "it runs");
    assert_eq!(broker.ask(&invocation.signal(Signal::Kill), &[]).0, Reply::Done);
    assert_eq!(broker.exit(invocation), Exit::Signal(9));
    assert_eq!(broker.refusal(&invocation.go(), &[]), Refusal::Phase, "it ran");
    // The lease is there for another.
    broker.prepare(&prepare, &[]).unwrap();
    assert_eq!(broker.ask(&invocation.signal(Signal::Kill), &[]).0, Reply::Done);
    assert!(matches!(fails(&broker, invocation), Refusal::System { .. }));
    broker.prepare(&prepare, &[]).unwrap();
    assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
    assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
    assert_eq!(broker.refusal(&invocation.go(), &[]), Refusal::Phase, "it is gone");
    helper.leaves_nothing();
}

#[test]
fn what_is_prepared_ends_with_its_link() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let pipes: Vec<_> = (0..3)
        .map(|_| {
            let mut bare = plan(&["/bin/sleep", "1000"]);
            bare.socket = false;
            broker.prepare(&new_id().prepare(bare), &[]).unwrap()
        })
        .collect();
    drop(broker);
    helper.leaves_nothing();
    drop(pipes);
}
