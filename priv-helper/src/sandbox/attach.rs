//! Trees of mounts that become part of a sandbox's root: first all names, in file systems of our own, and only then
//! anything of the host's.

use crate::sys;
use cyberos_proto::beneath::{self, Stay};
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::libc;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// One tree to attach.
pub(crate) struct Attach {
    /// Where, without leading slash.
    pub(crate) target: PathBuf,
    pub(crate) tree: OwnedFd,
    /// Whether the target may be in a tree that was attached before: then it must be the very same directory.
    pub(crate) nested: bool,
}

/// Attaches trees below the working directory, after the names that are `missing` have been made there.
pub(crate) fn attach(trees: &[Attach], missing: impl Fn(&Attach) -> bool) -> Result<(), Refusal> {
    for a in trees.iter().filter(|a| missing(a)) {
        let name = a.target.to_string_lossy();
        if step(&name, sys::identity(&a.tree))?.is(libc::S_IFDIR) {
            step(&name, fs::create_dir_all(&a.target))?;
        } else {
            step(&name, fs::File::create_new(&a.target))?;
        }
    }
    for a in trees {
        let name = a.target.to_string_lossy();
        let at = step(&name, beneath::open(AT_FDCWD, &a.target, OFlag::O_PATH, Stay::MOUNTS))?;
        if a.nested {
            let (at, tree) = (step(&name, sys::identity(&at))?, step(&name, sys::identity(&a.tree))?);
            let same = if at.key == tree.key { Ok(()) } else { Err(Errno::ESTALE) };
            step("a nested grant is elsewhere", same)?;
        }
        step(&name, sys::attach(a.tree.as_fd(), at.as_fd()))?;
    }
    Ok(())
}
