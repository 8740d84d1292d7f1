//! SKILL.md, which makes a folder a skill: what lies under that name, without opening or reading it (`[9.1]`). It is for
//! the provider to judge what stands in it; here it is looked whether there is anything that an agent could read.
//!
//! `source.rs` asks it what is a skill, `resolver.rs` what is to be said of one.

use crate::beneath;
use crate::decision::Decision;
use crate::exposure;
use cyberos_proto::control::Verdict;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstat, fstatat};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// The name. In this spelling alone.
pub(crate) const NAME: &str = "SKILL.md";

/// What lies under [`NAME`] in a directory; none if there is nothing.
pub(crate) fn kind(directory: impl AsFd) -> Option<SFlag> {
    match fstatat(directory, NAME, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(st) => Some(SFlag::from_bits_truncate(st.st_mode) & SFlag::S_IFMT),
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        // It may be there. If it were none, nobody would be told why the skill is not shown.
        Err(_) => Some(SFlag::empty()),
    }
}

/// What an operator should know of SKILL.md in a tree that is shown.
fn fault(directory: impl AsFd) -> Option<String> {
    let is = match kind(&directory) {
        Some(SFlag::S_IFREG) => return None,
        Some(SFlag::S_IFLNK) if is_file_inside(&directory) => return None,
        Some(SFlag::S_IFLNK) => "a symlink that leads to no file inside the skill",
        Some(SFlag::S_IFDIR) => "a directory",
        Some(SFlag::S_IFIFO) => "a FIFO",
        Some(_) => "no file",
        None => return Some(format!("there is no {NAME} in what is shown: no agent takes it for a skill")),
    };
    Some(format!("{NAME} is {is}: no agent can read it and nothing runs; put a file there"))
}

/// Whether the symlink leads to a regular file inside, for whoever follows it.
fn is_file_inside(directory: impl AsFd) -> bool {
    let target = nix::fcntl::readlinkat(&directory, NAME);
    target.is_ok_and(|t| exposure::link_stays(0, t.as_bytes()))
        && beneath::follow(&directory, OsStr::new(NAME))
            .and_then(fstat)
            .is_ok_and(|st| SFlag::from_bits_truncate(st.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG)
}

/// A live folder without SKILL.md, which was a skill.
pub(crate) fn lost() -> Decision {
    Decision {
        verdict: Verdict::Hidden,
        trusted: None,
        version: None,
        status: "none".to_owned(),
        reason: Some(format!(
            "the folder has no {NAME}, so it is no skill; it is shown again when it has one"
        )),
        warning: None,
        content_digest: None,
    }
}

/// What of a decision holds, given the tree that it would show. A live folder without SKILL.md is not shown, whatever the
/// provider says; of anything else there the operator is told.
pub(crate) fn checked(mut decision: Decision, live: impl AsFd) -> Decision {
    let fault = match (decision.verdict, &decision.trusted) {
        (Verdict::Current, _) if kind(&live).is_none() => {
            return Decision { trusted: decision.trusted, ..lost() };
        }
        (Verdict::Current, _) => fault(live),
        (Verdict::Fallback, Some((_, snapshot))) => fault(&snapshot.root),
        (Verdict::Fallback, None) | (Verdict::Hidden, _) => None,
    };
    if let Some(fault) = fault {
        decision.warning = Some(match decision.warning {
            Some(first) => format!("{first}; {fault}"),
            None => fault,
        });
    }
    decision
}
