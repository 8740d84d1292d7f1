//! Attacks on the helper and its doors: peers that speak raw bytes, descriptors that lie, everybody at every socket, and the
//! field's faults of this kind. The helper refuses, stays up for its other link, leaks nothing, and ends the peer when
//! the gate says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "attack/backing.rs"]
mod backing;
#[path = "attack/below.rs"]
mod below;
#[path = "attack/bytes.rs"]
mod bytes;
#[path = "attack/cases.rs"]
mod cases;
#[path = "attack/doors.rs"]
mod doors;
#[path = "attack/flood.rs"]
mod flood;
#[path = "attack/forged.rs"]
mod forged;
#[path = "attack/fuzz.rs"]
mod fuzz;
#[path = "attack/granted.rs"]
mod granted;
#[path = "attack/grants.rs"]
mod grants;
#[path = "attack/hanging.rs"]
mod hanging;
#[path = "attack/kernel.rs"]
mod kernel;
#[path = "attack/links.rs"]
mod links;
#[path = "attack/raw.rs"]
mod raw;
#[path = "attack/starts.rs"]
mod starts;
mod support;
#[path = "attack/system.rs"]
mod system;
#[path = "attack/waits.rs"]
mod waits;
