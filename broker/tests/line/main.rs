//! The call line from a socket to the ledger and back: real sockets, grants, audit trail, tools and files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod client;
mod ending;
mod files;
mod frames;
mod framing;
mod memory;
mod support;
mod vectors;
