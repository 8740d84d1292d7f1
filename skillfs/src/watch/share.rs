//! Who gets how much of what the kernel gives to one user in all: instances of inotify, and watches. A folder's owner can use
//! up what is the owner's, never what the others need.
//!
//! Skills are told apart by who can write in them, since that is who can make changes and directories. What only root,
//! SkillFS's user, or the owner of a source can write is *ours*; the rest is strangers'.

use crate::source::Sources;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstat, fstatat};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// Most directories of one skill, if watches are left.
pub(super) const MAX_DIRECTORIES: usize = 20_000;
/// Of a skill that was never shown so many directories are watched if these are all; of a larger one the top and
/// `.skill-meta`.
const SMALL: usize = 64;
/// Instances that are kept for the first of strangers and of those that were too fast.
const RESERVED: usize = 4;

/// Those who share an instance when there are not enough of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// A source itself.
    Source,
    /// Folders beside the skills.
    Beside,
    /// What only this user can write, beside root and SkillFS (who are 0).
    Owner(u32),
    /// What several users, or everybody, can write.
    Several,
    /// What changed too fast not long ago, whosoever it is.
    Fast,
}

/// What the kernel gives, and who is not a stranger.
#[derive(Debug)]
pub(super) struct Limits {
    instances: usize,
    watches: usize,
    us: u32,
    ours: BTreeSet<u32>,
}

/// Watches in use by those who are not ours, by the same owner of these, and by those that were never shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) by_strangers: usize,
    pub(super) by_owner: usize,
    pub(super) never_shown: usize,
}

/// Instances in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes {
    pub(super) all: usize,
    pub(super) of_strangers: usize,
    pub(super) of_class: usize,
}

fn limit(name: &str, otherwise: usize) -> usize {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok();
    text.and_then(|t| t.trim().parse().ok()).unwrap_or(otherwise)
}

impl Limits {
    /// As the kernel says now. A part is left to other programs of the same user.
    pub(super) fn read(sources: &Sources) -> Self {
        let (instances, watches) = (limit("max_user_instances", 128), limit("max_user_watches", 8192));
        let us = nix::unistd::geteuid().as_raw();
        let owner = |n: usize| sources.directory(n).and_then(fstat).ok().map(|st| st.st_uid);
        let ours = (0..sources.paths().len()).filter_map(owner).chain([0]).collect();
        Limits { instances: (instances / 4 * 3).max(2), watches: watches - watches / 16, us, ours }
    }

    /// Who can write in a directory. Whoever shares the group of the directory around it can write there too.
    pub(super) fn class(&self, directory: impl AsFd) -> Class {
        let around = fstatat(&directory, "..", AtFlags::AT_SYMLINK_NOFOLLOW);
        match (fstat(&directory), around) {
            (Ok(st), Ok(around)) => self.class_of(&st, around.st_gid),
            _ => Class::Several,
        }
    }

    fn class_of(&self, st: &FileStat, group: u32) -> Class {
        match st.st_uid {
            _ if st.st_mode & 0o002 != 0 || (st.st_mode & 0o020 != 0 && st.st_gid != group) => Class::Several,
            0 => Class::Owner(0),
            uid if uid == self.us => Class::Owner(0),
            uid => Class::Owner(uid),
        }
    }

    /// Whether it is no stranger's.
    pub(super) fn is_ours(&self, class: Class) -> bool {
        match class {
            Class::Source => true,
            Class::Owner(uid) => self.ours.contains(&uid),
            Class::Beside | Class::Several | Class::Fast => false,
        }
    }

    /// Whether that user is root, SkillFS's, or the owner of a source.
    pub(super) fn is_our_uid(&self, uid: u32) -> bool {
        uid == self.us || self.ours.contains(&uid)
    }

    /// Whose a stranger's directory is, whoever else can write in it; none if it is ours.
    pub(super) fn stranger(&self, directory: impl AsFd) -> Option<u32> {
        match self.is_ours(self.class(&directory)) {
            true => None,
            false => Some(fstat(&directory).map_or(u32::MAX, |st| st.st_uid)),
        }
    }

    /// Whether strangers of this class have all the instances that one class of them gets.
    pub(super) fn is_full(&self, class: Class, of_class: usize) -> bool {
        !self.is_ours(class) && of_class >= (self.instances / 8).max(1)
    }

    /// Whether one of this class may be watched by an instance of that one.
    pub(super) fn fits(&self, class: Class, lane: Class) -> bool {
        lane == class
            || match (class, self.is_ours(class)) {
                (Class::Source | Class::Beside, _) => false,
                (_, true) => lane != Class::Source && self.is_ours(lane),
                (_, false) => matches!(lane, Class::Several | Class::Fast),
            }
    }

    /// Whether one more instance may be made for one of this class: while there are many, for each skill one. One owner
    /// gets few of them: the others of his skills share these.
    pub(super) fn one_more_lane(&self, class: Class, lanes: Lanes) -> bool {
        let enough = class != Class::Beside
            && lanes.all + RESERVED < self.instances
            && !self.is_full(class, lanes.of_class)
            && (self.is_ours(class) || lanes.of_strangers < self.instances / 2);
        enough || (lanes.of_class == 0 && !matches!(class, Class::Owner(_)) && lanes.all < self.instances)
    }

    /// Most directories of a skill that is, or is to be, shown. A stranger's share is for all of his skills together.
    pub(super) fn most(&self, class: Class, used: Used) -> usize {
        let share = match self.is_ours(class) {
            true => self.watches / 2,
            false => {
                let of_owner = (self.watches / 8).saturating_sub(used.by_owner);
                of_owner.min((self.watches / 2).saturating_sub(used.by_strangers))
            }
        };
        share.min(MAX_DIRECTORIES)
    }

    /// Most directories of one that was never shown.
    pub(super) fn most_unshown(&self, used: Used) -> usize {
        if used.never_shown < self.watches / 8 { SMALL } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { instances: 96, watches: 180_000, us: 900, ours: [0, 1000].into() }
    }

    #[test]
    fn strangers_cannot_use_up_watches_or_instances() {
        let limits = limits();
        let stranger = Class::Owner(61_777);
        let (mut used, mut owners) = (Used::default(), 0);
        while limits.most(stranger, used) > 0 {
            // One owner, with as many skills as he likes.
            while limits.most(stranger, used) > 0 {
                let most = limits.most(stranger, used);
                used.by_owner += most;
                used.by_strangers += most;
            }
            used.by_owner = 0;
            owners += 1;
        }
        assert!(used.by_strangers <= limits.watches / 2, "{used:?}");
        assert!(owners >= 4, "{owners} owners have used up the half of all strangers");
        assert_eq!(limits.most(Class::Owner(0), used), MAX_DIRECTORIES);
        assert_eq!(limits.most(Class::Owner(1000), used), MAX_DIRECTORIES);
        let mut lanes = Lanes::default();
        while limits.one_more_lane(stranger, lanes) {
            lanes.all += 1;
            lanes.of_strangers += 1;
            lanes.of_class += 1;
        }
        assert!((1..=limits.instances / 8).contains(&lanes.of_strangers), "{lanes:?}");
        lanes.of_class = 0;
        assert!(limits.one_more_lane(Class::Owner(61_778), lanes), "another one gets his");
        assert!(limits.one_more_lane(Class::Owner(0), lanes));
        // When all are taken there is still one for what is everybody's, and one for what was too fast.
        lanes.all = limits.instances - RESERVED;
        assert!(!limits.one_more_lane(Class::Owner(0), lanes) && !limits.one_more_lane(stranger, lanes));
        assert!(limits.one_more_lane(Class::Several, lanes) && limits.one_more_lane(Class::Fast, lanes));
    }

    #[test]
    fn what_others_can_write_is_not_ours() {
        let t = tempfile::tempdir().unwrap();
        let limits = limits();
        let st = fstat(std::fs::File::open(t.path()).unwrap()).unwrap();
        let with = |uid, gid, mode| {
            let mut st = st;
            (st.st_uid, st.st_gid, st.st_mode) = (uid, gid, mode);
            limits.class_of(&st, 5)
        };
        assert_eq!(with(0, 0, 0o40755), Class::Owner(0));
        assert_eq!(with(900, 0, 0o40755), Class::Owner(0));
        assert_eq!(with(1000, 5, 0o40775), Class::Owner(1000));
        assert_eq!(with(1000, 6, 0o40775), Class::Several);
        assert_eq!(with(0, 5, 0o41777), Class::Several);
        assert!(limits.is_ours(Class::Owner(1000)) && !limits.is_ours(Class::Owner(900)));
        assert!([0, 900, 1000].iter().all(|uid| limits.is_our_uid(*uid)) && !limits.is_our_uid(61_777));
    }
}
