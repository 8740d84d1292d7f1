//! What takes as long as a rule says: ten seconds for each phase of a spawn (`[10.2]`).

use crate::phases::inits;
use crate::requests::new_id;
use crate::support::freezer::Freezer;
use crate::support::helper::*;
use cyberos_proto::message::{Event, Exit, Refusal, Reply, Signal};
use nix::libc::ETIMEDOUT;
use std::time::{Duration, Instant};

/// How long another sandbox's SIGKILL may take, at best of three.
const KILLED: Duration = Duration::from_millis(50);

fn failed(broker: &Peer) -> Refusal {
    match broker.event(|e| matches!(e, Event::Failed { .. })).0 {
        Event::Failed { refusal, .. } => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_never_started_is_ended_after_ten_seconds_and_counts_until_then() {
    let helper = Helper::start("max_sandboxes 1\n");
    let broker = helper.broker();
    let mut bare = plan(&["/bin/true"]);
    bare.socket = false;
    let pipes = broker.prepare(&new_id().prepare(bare.clone()), &[]).unwrap();
    let since = Instant::now();
    let another = broker.refusal(&new_id().prepare(bare.clone()), &[]);
    assert_eq!(another, Refusal::Ceiling("max_sandboxes is 1".into()));
    let refusal = failed(&broker);
    let took = since.elapsed();
    assert!(matches!(refusal, Refusal::System { errno: ETIMEDOUT, .. }), "{refusal:?}");
    assert!((Duration::from_secs(10)..Duration::from_secs(14)).contains(&took), "{took:?}");
    drop(pipes);
    // With its lease.
    broker.spawn(&new_id().prepare(bare), &[]).unwrap();
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn while_one_sandbox_takes_ten_seconds_to_prepare_others_are_made_and_killed_at_once() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let program = || plan(&["/bin/sleep", "1000"]);
    let running: Vec<_> = (0..3).map(|_| broker.start(program(), &[])).collect();
    // Who will build the next sandbox waits for it, and has started nothing.
    let idle = || inits(&helper).into_iter().filter(|init| children(*init).is_empty()).collect::<Vec<_>>();
    until("an init is ready", || idle().len() == 1);
    let freezer = Freezer::of(&[idle()[0].as_raw()]);
    freezer.freeze();
    let (slow, ..) = broker.invocation();
    let since = Instant::now();
    assert_eq!(broker.ask(&slow.prepare(program()), &[]).0, Reply::Done);
    let killed = running.iter().map(|other| {
        let asked = Instant::now();
        assert_eq!(broker.ask(&other.invocation.signal(Signal::Kill), &[]).0, Reply::Done);
        assert_eq!(broker.exit(other.invocation), Exit::Signal(9));
        asked.elapsed()
    });
    let killed: Vec<_> = killed.collect();
    assert!(killed.iter().min().is_some_and(|best| *best < KILLED), "{killed:?}");
    assert_eq!(broker.sh("echo meanwhile").stdout, "meanwhile\n");
    assert!(
        since.elapsed() < Duration::from_secs(9),
        "the others were not made meanwhile: {:?}",
        since.elapsed()
    );
    let refusal = failed(&broker);
    let took = since.elapsed();
    assert!(matches!(refusal, Refusal::System { errno: ETIMEDOUT, .. }), "{refusal:?}");
    assert!((Duration::from_secs(10)..Duration::from_secs(14)).contains(&took), "{took:?}");
    drop(freezer);
    drop(running);
    drop(broker);
    helper.leaves_nothing();
}
