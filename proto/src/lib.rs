//! The seam between the daemons. If it is not here, the sides cannot say it.
//!
//! ```text
//! broker ──Request──►  helper        message.rs   what may be asked, answered, told; descriptors each carries
//! skillfs ─Request──►  (root)        plan.rs      what a sandbox or a mount is: bounded data, check() is pure
//! broker ──ControlRequest──► skillfs control.rs   verdicts, refresh, await, status, explain
//!                                    limits.rs    what one sandbox may use at most
//!                                    report.rs    what a sandbox is really made of
//!                                    gate.rs      which request is taken from whom, and when
//!                                    ceiling.rs   what root has written down as the most that may be asked
//!                                    never.rs     what is granted to nobody
//!                                    mounts.rs    the kernel's list of mounts
//!                                    identity.rs  who a file is, and what is decided by that
//!                                    network.rs   whether a network namespace is as good as new
//!                                    terminal.rs  text of others', made fit to be printed
//!                                    groups.rs    what is written into a sandbox's control groups
//!                                    lease.rs     what a lease's uid owns: names of sockets and locks, processes
//!                                    view.rs      what every sandbox sees
//!                                    recent.rs    the last few of what is dear to make
//!                                    ids.rs       newtypes that cannot hold a bad value
//!                                    tree.rs      the digest of a tree, in the one place where it is defined
//!                                    folder.rs    a skill's folder, opened by a path that a person gave
//!                                    link.rs      SEQPACKET: one packet = one message + its descriptors
//!                                    wait.rs      waiting for descriptors
//!                                    start.rs     how the helper is started
//!                                    inner.rs     what the helper's own processes tell each other
//! ```
//!
//! Wire form of every packet: one byte [`PROTOCOL_VERSION`], then the message in postcard. Leftover bytes, a
//! missing or surplus descriptor and a value outside its bounds are errors, never panics.
#![forbid(clippy::panic)]

pub mod ceiling;
pub mod control;
pub mod folder;
pub mod gate;
pub mod groups;
pub mod identity;
pub mod ids;
pub mod inner;
pub mod lease;
pub mod limits;
pub mod link;
pub mod message;
pub mod mounts;
pub mod network;
pub mod never;
pub mod plan;
pub mod recent;
pub mod report;
pub mod start;
pub mod terminal;
pub mod tree;
pub mod view;
pub mod wait;

/// First byte of every packet. Both sides come from one build; another version is refused, not guessed at.
pub const PROTOCOL_VERSION: u8 = 3;
