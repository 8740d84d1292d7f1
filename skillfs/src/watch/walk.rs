//! Watches the directories of one skill, parents first: what is created meanwhile is either found or reported. Bounded in
//! directories, depth and entries, since the folder may be anybody's and may grow while it is walked.

use super::lane::{Lane, Spot, Who};
use super::share::{Class, Limits};
use super::unwatchable::Unwatchable;
use crate::beneath;
use crate::verdict::SnapshotName;
use nix::errno::Errno;
use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Deepest nesting. A sealed copy ends sooner.
const MAX_DEPTH: usize = 128;
/// Most entries of all its directories together. A sealed copy ends much sooner.
const MAX_ENTRIES: usize = 400_000;
/// Where snapshots lie, in `.skill-meta`.
const VERSIONS: &str = "versions";

/// One walk.
pub(super) struct Walk<'a> {
    lane: &'a Lane,
    who: Who,
    limits: &'a Limits,
    /// Most directories.
    most: usize,
    entries: usize,
    /// Watches that this walk has made or found.
    pub(super) seen: HashSet<i32>,
    /// Another user than the top's can write in a directory further down.
    pub(super) mixed: bool,
    class: Class,
}

struct Frame {
    directory: OwnedFd,
    spot: Spot,
    path: PathBuf,
    rest: std::vec::IntoIter<OsString>,
}

impl<'a> Walk<'a> {
    /// A walk that has seen nothing.
    pub(super) fn new(lane: &'a Lane, who: Who, limits: &'a Limits, class: Class, most: usize) -> Self {
        Walk { lane, who, limits, most, entries: 0, seen: HashSet::new(), mixed: false, class }
    }

    /// Instead of what was seen, only the top and `.skill-meta`, where whoever certifies a skill writes.
    pub(super) fn start_over(&mut self, top: impl AsFd) -> Result<(), Unwatchable> {
        (self.most, self.seen) = (2, HashSet::new());
        let top = copy(top)?;
        self.add(&top, &Spot::Top, Path::new(""))?;
        let name = OsStr::from_bytes(cyberos_proto::tree::META_DIR);
        if let Some(meta) = open(&top, name, Path::new(""))? {
            self.add(&meta, &Spot::Private(PathBuf::new()), Path::new(name))?;
        }
        Ok(())
    }

    /// The live folder, and of `.skill-meta` all but what is in a snapshot.
    pub(super) fn live(&mut self, top: impl AsFd) -> Result<(), Unwatchable> {
        self.tree(copy(top)?, Spot::Top, PathBuf::new())
    }

    /// A snapshot. One that is not there is watched by way of the directory that it would be in.
    pub(super) fn snapshot(&mut self, top: impl AsFd, name: &SnapshotName) -> Result<(), Unwatchable> {
        let target = PathBuf::from(name.target());
        match open(&copy(top)?, target.as_os_str(), Path::new(""))? {
            Some(root) => self.tree(root, Spot::Private(Path::new(VERSIONS).join(name.as_str())), target),
            None => Ok(()),
        }
    }

    /// Watches a snapshot that may be named, if it has no more than `most` directories.
    pub(super) fn guess(&mut self, top: impl AsFd, name: &SnapshotName, most: usize) -> bool {
        let (all, before) = (self.most, self.seen.clone());
        self.most = all.min(before.len() + most);
        let whole = self.snapshot(top, name).is_ok();
        self.most = all;
        if !whole {
            self.seen = before;
        }
        whole
    }

    fn tree(&mut self, root: OwnedFd, spot: Spot, path: PathBuf) -> Result<(), Unwatchable> {
        let mut frames = vec![self.enter(root, spot, path)?];
        while let Some(frame) = frames.last_mut() {
            let Some(name) = frame.rest.next() else {
                frames.pop();
                continue;
            };
            let Some(spot) = frame.spot.child(&name, self.lane.keeps) else { continue };
            let path = frame.path.join(&name);
            if let Some(child) = open(&frame.directory, &name, &frame.path)? {
                if frames.len() >= MAX_DEPTH {
                    return Err(Unwatchable::TooLarge);
                }
                let child = self.enter(child, spot, path)?;
                frames.push(child);
            }
        }
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, spot: Spot, path: PathBuf) -> Result<Frame, Unwatchable> {
        self.add(&directory, &spot, &path)?;
        // What lies in a snapshot is watched if that is the trusted one; see `snapshot`.
        let rest = match &spot {
            Spot::Private(inside) if inside == Path::new(VERSIONS) => Vec::new(),
            _ => {
                let left = MAX_ENTRIES.saturating_sub(self.entries);
                let (names, entries) = beneath::subdirectories(&directory, left)
                    .map_err(|errno| Unwatchable::Directory { path: path.clone(), errno })?;
                self.entries += entries;
                if self.entries >= MAX_ENTRIES {
                    return Err(Unwatchable::TooLarge);
                }
                names
            }
        };
        Ok(Frame { directory, spot, path, rest: rest.into_iter() })
    }

    fn add(&mut self, directory: &OwnedFd, spot: &Spot, path: &Path) -> Result<(), Unwatchable> {
        if self.seen.len() >= self.most {
            return Err(Unwatchable::TooMany { most: self.most });
        }
        let class = self.limits.class(directory);
        self.mixed |= class != self.class && class != Class::Owner(0);
        let watched = self.lane.add(self.who, &beneath::proc_path(directory), spot);
        let wd = watched.map_err(|errno| Unwatchable::Directory { path: path.to_owned(), errno })?;
        self.seen.insert(wd);
        Ok(())
    }
}

/// The newest snapshot by name: most often the one that a provider will name.
pub(super) fn newest_snapshot(top: impl AsFd) -> Option<SnapshotName> {
    let meta = Path::new(OsStr::from_bytes(cyberos_proto::tree::META_DIR)).join(VERSIONS);
    let versions = beneath::directory(top, meta.as_os_str()).ok()?;
    let (names, _) = beneath::subdirectories(&versions, MAX_ENTRIES).ok()?;
    let names: BTreeSet<&str> = names.iter().filter_map(|n| n.to_str()).collect();
    let target = |name: &&str| SnapshotName::from_target(&meta.join(name).display().to_string());
    names.iter().rev().find_map(target)
}

fn copy(fd: impl AsFd) -> Result<OwnedFd, Unwatchable> {
    nix::unistd::dup(fd).map_err(|errno| Unwatchable::Directory { path: PathBuf::new(), errno })
}

/// A directory; none if it is gone again, is no directory, or is a mount point, which is never shown.
fn open(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<Option<OwnedFd>, Unwatchable> {
    match beneath::directory(directory, name) {
        Ok(child) => Ok(Some(child)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
        Err(errno) => Err(Unwatchable::Directory { path: path.join(name), errno }),
    }
}
