//! The seam between the daemons. If it is not here, the sides cannot say it.
//!
//! ```text
//! broker ──Request──►  helper        message.rs   what may be asked, answered, told; descriptors each carries
//! skillfs ─Request──►  (root)        plan.rs      what a sandbox or a mount is: bounded data, check() is pure
//! broker ──ControlRequest──► skillfs control.rs   verdicts, refresh, await, status, explain
//!                                    limits.rs    what one sandbox may use at most
//!                                    report.rs    what a sandbox is really made of
//!                                    ungrantable.rs  what is granted to nobody, by name
//!                                    mounts.rs    the kernel's list of mounts
//!                                    terminal.rs  text of others', made fit to be printed
//!                                    ids.rs       newtypes that cannot hold a bad value
//!                                    tree.rs      the digest of a tree, in the one place where it is defined
//!                                    beneath.rs   opening below a directory, and nowhere else
//!                                    folder.rs    a skill's folder, opened by a path that a person gave
//!                                    invoker.rs   who called sudo
//!                                    link.rs      SEQPACKET: one packet = one message + its descriptors
//!                                    wait.rs      waiting for descriptors
//! ```
//!
//! Wire form of every packet: one byte [`PROTOCOL_VERSION`], then the message in postcard. Leftover bytes, a
//! missing or surplus descriptor and a value outside its bounds are errors, never panics.
#![forbid(clippy::panic)]

pub mod beneath;
pub mod control;
pub mod folder;
pub mod ids;
pub mod invoker;
pub mod limits;
pub mod link;
pub mod message;
pub mod mounts;
pub mod plan;
pub mod report;
pub mod terminal;
pub mod tree;
pub mod ungrantable;
pub mod wait;

/// First byte of every packet. Both sides come from one build; another version is refused, not guessed at.
pub const PROTOCOL_VERSION: u8 = 4;
