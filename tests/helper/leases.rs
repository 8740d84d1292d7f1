//! Uids are leased to one sandbox at a time, and come back.

use crate::requests::new_id;
use crate::support::helper::*;
use cyberos_proto::message::{Exit, Refusal, Reply, Request, Signal};

#[test]
fn a_sandbox_without_a_socket_leases_by_itself_and_a_refused_one_leaves_no_lease() {
    let helper = Helper::start("max_sandboxes 2\n");
    let broker = helper.broker();
    let bare = |program: &str| {
        let mut p = plan(&[program]);
        p.socket = false;
        p
    };
    let mut seen = Vec::new();
    for program in ["/bin/true", "/no/program", "/bin/true", "/etc/passwd", "/bin/true"] {
        let invocation = new_id();
        match broker.spawn(&invocation.prepare(bare(program)), &[]) {
            Ok(Pipes { report, .. }) => {
                assert!(!seen.contains(&report.uid) && report.uid > helper.uids.0);
                seen.push(report.uid);
                assert_eq!(broker.exit(invocation), Exit::Code(0));
                // It still has its lease: another one in it, but none with a socket that it never had.
                let with = invocation.prepare(plan(&["/bin/true"]));
                assert_eq!(broker.refusal(&with, &[]), Refusal::Phase);
                let again = broker.spawn(&invocation.prepare(bare("/bin/true")), &[]).unwrap();
                assert_eq!(again.report.uid, report.uid);
                broker.exit(invocation);
                assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
            }
            Err(Refusal::Exec { .. }) => {
                let signal = invocation.signal(Signal::Kill);
                assert_eq!(broker.refusal(&signal, &[]), Refusal::Phase, "nobody has heard of it");
            }
            Err(other) => panic!("{program}: {other:?}"),
        }
    }
    assert_eq!(seen.len(), 3);
    // Refused ones count for nothing.
    let _first = broker.invocation();
    let _second = broker.invocation();
    assert!(matches!(broker.refusal(&new_id().prepare(bare("/bin/true")), &[]), Refusal::Ceiling(_)));
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn leases_come_back_first_in_first_out_and_only_when_all_others_have_been_used() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let (invocation, uid, _listener) = broker.invocation();
        broker.ask(&invocation.release(), &[]);
        assert!(!seen.contains(&uid), "{uid} came back while others had waited longer");
        assert_ne!((uid - helper.uids.0) % 256, 0, "the first of a block is for inits");
        seen.push(uid);
    }
}

#[test]
fn the_broker_is_told_which_uids_sandboxes_have() {
    let helper = Helper::start("");
    assert_eq!(helper.broker().ask(&Request::Describe, &[]).0, Reply::Described { uids: helper.uids });
}
