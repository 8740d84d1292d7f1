//! The seam between the daemons. If it is not here, the sides cannot say it.
//!
//! ```text
//! broker ──Request──►  helper        message.rs   what may be asked, answered, told; descriptors each carries
//! skillfs ─Request──►  (root)        plan.rs      what a sandbox or a mount is: bounded data, check() is pure
//! broker ──ControlRequest──► skillfs control.rs   verdicts, refresh, await, status, explain
//!                                    ids.rs       newtypes that cannot hold a bad value
//!                                    tree.rs      the digest of a tree, in the one place where it is defined
//!                                    link.rs      SEQPACKET: one packet = one message + its descriptors
//! ```
//!
//! Wire form of every packet: one byte [`PROTOCOL_VERSION`], then the message in postcard. Leftover bytes, a
//! missing or surplus descriptor and a value outside its bounds are errors, never panics.
#![forbid(clippy::panic)]

pub mod control;
pub mod ids;
pub mod link;
pub mod message;
pub mod plan;
pub mod tree;

/// First byte of every packet. Both sides come from one build; another version is refused, not guessed at.
pub const PROTOCOL_VERSION: u8 = 1;
