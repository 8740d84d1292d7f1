//! What a process gives up before it is a sandbox's: its uid, its capabilities, and system calls. Each step is one that
//! is never skipped (`[10.6]`).

use caps::CapSet;
use cyberos_proto::message::{Refusal, never_skipped};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{self, Gid, Uid};

/// A filter of build.rs, by name. What a sandbox loads only takes away from the helper's own, which it inherits.
macro_rules! filter {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf")) as &'static [u8]
    };
}
pub(crate) use filter;

/// Becomes `uid` and the gid of the same number, in no other group, with no capability in any set: the helper's bounding
/// and inheritable sets have been empty since its start, as no_new_privs has been set.
pub(crate) fn become_uid(uid: u32) -> Result<(), Refusal> {
    let (u, g) = (Uid::from_raw(uid), Gid::from_raw(uid));
    never_skipped("no groups", unistd::setgroups(&[]))?;
    never_skipped("own gid", unistd::setresgid(g, g, g))?;
    never_skipped("own uid", unistd::setresuid(u, u, u))?;
    let empty = |set| caps::read(None, set).is_ok_and(|left| left.is_empty());
    let none = [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable].into_iter().all(empty);
    never_skipped("no capabilities", if none { Ok(()) } else { Err(Errno::EPERM) })?;
    let set = prctl::get_no_new_privs().and_then(|set| set.then_some(()).ok_or(Errno::EPERM));
    never_skipped("no_new_privs", set)
}
