//! What the root part decides on data alone: pure, so that it is tried without root, case by case. Nothing in here makes
//! a system call, and nothing in here knows the rest of the helper, which only carries it out.
//!
//! ```text
//! start     how the helper is started; outcome: what errors are
//! ceiling   the text of root's limits
//! uids      which uids sandboxes have
//! gate      which request is taken from whom, and when
//! never     what is granted to nobody
//! mounts    what the kernel's list of mounts says about a grant, a copy and a view
//! identity  who a file is, and what is decided by that
//! rootfs    what every sandbox sees
//! groups    what is written into a sandbox's control groups
//! lease     what a lease's uid owns: names of sockets and locks, processes
//! network   whether a network namespace is as good as new
//! recent    the last few of what is dear to make
//! ```

pub(crate) mod ceiling;
pub(crate) mod gate;
pub(crate) mod groups;
pub(crate) mod identity;
pub(crate) mod lease;
pub(crate) mod mounts;
pub(crate) mod network;
pub(crate) mod never;
pub(crate) mod outcome;
pub(crate) mod recent;
pub(crate) mod rootfs;
pub(crate) mod start;
mod uids;
