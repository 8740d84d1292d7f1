//! Why a skill cannot be watched, in words for its operator. `walk` finds out, `cover` judges whether it may pass.

use super::share::MAX_DIRECTORIES;
use nix::errno::Errno;
use std::path::PathBuf;

/// Why a skill cannot be watched, and therefore is not shown.
#[derive(Debug, thiserror::Error)]
pub enum Unwatchable {
    /// No watch on a directory.
    #[error("{path:?} cannot be watched for changes: {errno}{}", hint(*.errno))]
    Directory {
        /// Which, relative to the skill.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// Too many.
    #[error("the skill has more than {most} directories{}", share(*.most))]
    TooMany {
        /// Than so many.
        most: usize,
    },
    /// Too deep, or too many entries.
    #[error("the skill is nested too deep, or has too many entries")]
    TooLarge,
    /// It was too fast while it was looked at.
    #[error("it changes faster than SkillFS can follow")]
    TooFast,
}

impl Unwatchable {
    /// Whether it may be another time, when others need less.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Unwatchable::Directory { errno, .. } => {
                matches!(errno, Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)
            }
            Unwatchable::TooMany { most } => *most < MAX_DIRECTORIES,
            Unwatchable::TooLarge | Unwatchable::TooFast => false,
        }
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC => " (raise fs.inotify.max_user_watches; it is tried again)",
        Errno::EMFILE => " (raise fs.inotify.max_user_instances; it is tried again)",
        Errno::EACCES => " (SkillFS's user must be able to read it)",
        _ => "",
    }
}

fn share(most: usize) -> &'static str {
    match most < MAX_DIRECTORIES {
        true => {
            ", which is what is left for it of fs.inotify.max_user_watches (raise that; it is tried again)"
        }
        false => "",
    }
}
