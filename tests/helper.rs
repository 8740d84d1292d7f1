//! The privileged helper keeps its promises, tried on the real program over its socket: what a sandbox is, what
//! ordinary programs can do in it, what a peer can ask, what is left behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what a test's own tools cannot do fails the test"
)]

#[path = "helper/backing.rs"]
mod backing;
#[path = "helper/calls.rs"]
mod calls;
#[path = "helper/cleanup.rs"]
mod cleanup;
#[path = "helper/granted.rs"]
mod granted;
#[path = "helper/grants.rs"]
mod grants;
#[path = "helper/lacking.rs"]
mod lacking;
#[path = "helper/leases.rs"]
mod leases;
#[path = "helper/limits.rs"]
mod limits;
#[path = "helper/log.rs"]
mod log;
#[path = "helper/modes.rs"]
mod modes;
#[path = "helper/never_granted.rs"]
mod never_granted;
#[path = "helper/phases.rs"]
mod phases;
#[path = "helper/programs.rs"]
mod programs;
#[path = "helper/requests.rs"]
mod requests;
#[path = "helper/reuse.rs"]
mod reuse;
#[path = "helper/sandbox.rs"]
mod sandbox;
#[path = "helper/start.rs"]
mod start;
mod support;
#[path = "helper/terminals.rs"]
mod terminals;
#[path = "helper/views.rs"]
mod views;
#[path = "helper/waits.rs"]
mod waits;
