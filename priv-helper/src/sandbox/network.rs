//! Network namespaces. Each sandbox has one of its own while it runs; making one costs more than all the rest, so it is
//! used again, by whichever sandbox, once nothing is left in it. It knows no sandboxes.

use super::process::namespace;
use crate::policy::network::is_empty;
use crate::sys::{self, Sys};
use cyberos_proto::message::Refusal;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How many are kept.
const MOST: usize = 16;

/// Those that are free, each looked at since its last use.
#[derive(Default)]
pub(crate) struct Networks(Vec<OwnedFd>);

impl Networks {
    /// One in which nothing is, if there is any.
    pub(crate) fn take(&mut self) -> Option<OwnedFd> {
        self.0.pop()
    }

    /// Takes one back whose last process has ended. That its sockets have ended with it is no matter of course: one may be
    /// in flight, in a message that nobody has read, and lives as long as that. Without a socket in it, and without a
    /// process, nobody can ever make one there. An error means that this process may not be where it was.
    pub(crate) fn give(&mut self, network: OwnedFd) -> Sys<()> {
        if self.0.len() < MOST && empty(&network)? {
            self.0.push(network);
        }
        Ok(())
    }
}

/// Makes one.
pub(crate) fn make() -> Result<OwnedFd, Refusal> {
    namespace(libc::CLONE_NEWNET, "net", || Ok(()), |_| Ok(()))
}

/// Goes there, looks, and comes back.
fn empty(network: &OwnedFd) -> Sys<bool> {
    let own = sys::open("self/ns/net", OFlag::O_RDONLY)?;
    if setns(network, CloneFlags::CLONE_NEWNET).is_err() {
        return Ok(false);
    }
    let read = |name| fs::read_to_string(Path::new("self/net").join(name)).unwrap_or_default();
    let empty = is_empty(&read("unix"), &read("sockstat"));
    setns(own, CloneFlags::CLONE_NEWNET).map(|()| empty)
}
