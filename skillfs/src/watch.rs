//! Sees what changes in the sources, by inotify on every directory of every skill, `.skill-meta` included (`[9.3]`).
//!
//! The kernel queues an event before the call that made the change returns. So whoever drains the queue knows of
//! every change that had ended before: [`Watch::catch_up`] does that, and lookups, the control socket and the
//! resolver call it before they answer. What is stored through a mapping, or through another hard link, makes no
//! event (SEMANTICS.md).
//!
//! It decides nothing: it tells the mapping what was touched and asks the queue for a decision.

use crate::beneath;
use crate::mapping::{Mapping, SkillId, Touch, Tree};
use crate::queue::Queue;
use crate::source::{Sources, identity};
use crate::view;
use cyberos_proto::ids::SkillName;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::stat::fstat;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most directories of one skill, `.skill-meta` included; one with more is not shown.
const MAX_DIRECTORIES: usize = 20_000;
/// Most folders beside the skills that are watched.
const MAX_BESIDE: usize = 1024;
/// How often the watcher looks whether a source's path still leads to the same directory.
const SOURCE_CHECK: Duration = Duration::from_millis(500);

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
    #[error("the skill has more than {MAX_DIRECTORIES} directories")]
    TooMany,
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC => " (raise fs.inotify.max_user_watches)",
        Errno::EACCES => " (SkillFS's user must be able to read it)",
        _ => "",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Source(usize),
    Skill(SkillId, PathBuf),
}

#[derive(Debug, Default)]
struct Table {
    owners: HashMap<WatchDescriptor, Owner>,
    by_skill: HashMap<SkillId, HashSet<WatchDescriptor>>,
    /// Folders that are no skills, watched for the day on which they are.
    beside: HashSet<SkillId>,
}

impl Table {
    fn may_be_beside(&mut self, id: SkillId) -> bool {
        self.beside.contains(&id) || (self.beside.len() < MAX_BESIDE && self.beside.insert(id))
    }
}

/// The watch on all sources.
#[derive(Debug)]
pub struct Watch {
    inotify: Inotify,
    sources: Arc<Sources>,
    mapping: Arc<Mapping>,
    queue: Arc<Queue>,
    /// Held from reading events until they are in the mapping.
    reader: Mutex<()>,
    table: Mutex<Table>,
    /// Identity of each source when it was last watched.
    watched: Mutex<Vec<Option<(u64, u64)>>>,
    stop: AtomicBool,
}

fn events_of_skills() -> AddWatchFlags {
    AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_DELETE_SELF
        | events_of_sources()
}

fn events_of_sources() -> AddWatchFlags {
    AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

impl Watch {
    /// A watch that watches nothing yet.
    pub fn new(sources: Arc<Sources>, mapping: Arc<Mapping>, queue: Arc<Queue>) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let watched = Mutex::new(vec![None; sources.paths().len()]);
        let (reader, table, stop) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Watch { inotify, sources, mapping, queue, reader, table, watched, stop })
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees changes until [`Watch::stop`].
    pub fn run(&self) {
        let limit = PollTimeout::try_from(SOURCE_CHECK).unwrap_or(PollTimeout::MAX);
        while !self.stop.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, limit) {
                Ok(0) => self.check_sources(),
                _ => self.catch_up(),
            }
        }
    }

    /// Ends [`Watch::run`] soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// After this, every change that had ended before the call is in the mapping.
    pub fn catch_up(&self) {
        // Whoever holds the lock may have read events that are not in the mapping yet: so wait for it in any case.
        let _reading = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut fds = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(n) if n > 0) {
                return;
            }
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|e| self.see(e)),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Notes a change and asks for a decision.
    pub fn report(&self, id: SkillId, touch: &Touch) {
        self.mapping.touch(id, touch);
        self.queue.soon(id);
    }

    fn see(&self, event: &InotifyEvent) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            tracing::warn!("more changes than the kernel could queue; everything is decided again");
            return self.report_all();
        }
        let owner = self.table().owners.get(&event.wd).cloned();
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            return self.drop_watch(event.wd);
        }
        match (owner, &event.name) {
            (None, _) => {}
            (Some(Owner::Source(_)), Some(name)) => {
                if let Some(name) = name.to_str().and_then(|n| SkillName::new(n).ok()) {
                    self.consider(&name);
                }
            }
            (Some(Owner::Source(_)), None) => self.report_all(),
            (Some(Owner::Skill(id, path)), name) if self.mapping.state(id).is_some() => {
                if let Some(touch) = classify(&path, name.as_deref(), self.mapping.keeps_live()) {
                    self.report(id, &touch);
                }
            }
            // A folder that is no skill: all that matters is whether it is still none.
            (Some(Owner::Skill(id, _)), _) => self.mapping.name(id).iter().for_each(|n| self.consider(n)),
        }
    }

    /// An entry of a source came, went or changed. A skill, or what was one, is decided; of a folder that is none, only
    /// the top is watched, so that it is seen when it becomes one.
    fn consider(&self, name: &SkillName) {
        let known = self.mapping.find(name.as_str());
        let is_known = known.is_some_and(|id| self.mapping.state(id).is_some());
        let skill = || self.sources.find(name).filter(|found| found.is_skill);
        if is_known || skill().is_some() {
            return self.report(self.mapping.ensure(name), &Touch::Place);
        }
        let Some(folder) = self.sources.find(name) else {
            return known.into_iter().for_each(|id| self.forget(id));
        };
        let id = self.mapping.ensure(name);
        if !self.table().may_be_beside(id) {
            return tracing::debug!(folder = ?name, "too many folders beside the skills; seen at the next refresh");
        }
        let seen = self.watch_tops(id, &folder.passed_over);
        self.keep_only(id, &seen);
        // It may have become one before it was watched.
        if skill().is_some() {
            self.report(id, &Touch::Place);
        }
    }

    /// Watches the tops of folders that are no skills. Without a watch, one that becomes a skill is seen at the next
    /// refresh.
    fn watch_tops(&self, id: SkillId, folders: &[OwnedFd]) -> HashSet<WatchDescriptor> {
        let watch = |folder: &OwnedFd| {
            let wd = self.inotify.add_watch(&beneath::proc_path(folder), events_of_sources());
            wd.inspect_err(|e| tracing::debug!(error = %e, "a folder beside the skills cannot be watched"))
                .ok()
        };
        let seen: HashSet<WatchDescriptor> = folders.iter().filter_map(watch).collect();
        seen.iter().for_each(|wd| self.own(*wd, id, Path::new("")));
        seen
    }

    fn report_all(&self) {
        for id in self.mapping.ids() {
            self.report(id, &Touch::Place);
        }
    }

    fn drop_watch(&self, wd: WatchDescriptor) {
        let mut table = self.table();
        if let Some(Owner::Skill(id, _)) = table.owners.remove(&wd)
            && let Some(of_skill) = table.by_skill.get_mut(&id)
        {
            of_skill.remove(&wd);
        }
    }

    /// Watches the sources themselves, and finds the skills that came or went. New ones are asked to be decided.
    pub fn discover(&self) {
        for index in 0..self.sources.paths().len() {
            self.watch_source(index);
        }
        let (names, folders) = self.sources.names();
        folders.iter().for_each(|name| self.consider(name));
        for name in &names {
            let known = self.mapping.find(name.as_str()).is_some_and(|id| self.mapping.state(id).is_some());
            if !known {
                let id = self.mapping.ensure(name);
                self.mapping.touch(id, &Touch::Place);
                self.queue.now(id);
            }
        }
        for id in self.mapping.ids() {
            let known = self.mapping.name(id).is_some_and(|n| names.contains(&n) || folders.contains(&n));
            if !known && self.mapping.state(id).is_some() {
                self.report(id, &Touch::Place);
            }
        }
    }

    fn watch_source(&self, index: usize) {
        let watched = self.sources.directory(index).and_then(|dir| {
            let wd = self.inotify.add_watch(&beneath::proc_path(&dir), events_of_sources())?;
            self.table().owners.insert(wd, Owner::Source(index));
            Ok(identity(&fstat(&dir)?))
        });
        if let Err(e) = &watched {
            tracing::error!(source = index, error = %e, "a source cannot be watched");
        }
        if let Some(slot) = self.watched.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *slot = watched.ok();
        }
    }

    /// A source's path may be a symlink, or its directory may be exchanged, without any event that we would get.
    fn check_sources(&self) {
        let before = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = |i| self.sources.directory(i).and_then(fstat).ok().map(|st| identity(&st));
        if before.iter().enumerate().any(|(i, id)| now(i) != *id) {
            tracing::warn!("a source is another directory than before; everything is decided again");
            self.report_all();
            self.discover();
        }
    }

    /// Watches every directory of a skill, parents first: what is created meanwhile is either found or reported.
    /// A watch that the skill no longer needs is removed. Folders that were `passed_over` are watched at their tops.
    pub fn cover(&self, id: SkillId, live: &Tree, passed_over: &[OwnedFd]) -> Result<(), Unwatchable> {
        self.table().beside.remove(&id);
        let mut seen = self.watch_tops(id, passed_over);
        let keeps = self.mapping.keeps_live();
        let root = nix::unistd::dup(&live.root);
        let root = root.map_err(|errno| Unwatchable::Directory { path: PathBuf::new(), errno })?;
        let mut rest: Vec<(OwnedFd, PathBuf)> = vec![(root, PathBuf::new())];
        while let Some((directory, path)) = rest.pop() {
            if seen.len() >= MAX_DIRECTORIES {
                return Err(Unwatchable::TooMany);
            }
            let watched = self.inotify.add_watch(&beneath::proc_path(&directory), events_of_skills());
            let wd = watched.map_err(|errno| Unwatchable::Directory { path: path.clone(), errno })?;
            seen.insert(wd);
            self.own(wd, id, &path);
            let entries = beneath::list(&directory);
            let entries = entries.map_err(|errno| Unwatchable::Directory { path: path.clone(), errno })?;
            for entry in entries {
                let unserved = path.as_os_str().is_empty() && is_unseen(&entry.name, keeps);
                if unserved || entry.kind.is_some_and(|k| k != nix::dir::Type::Directory) {
                    continue;
                }
                match beneath::directory(&directory, &entry.name) {
                    Ok(child) => rest.push((child, path.join(&entry.name))),
                    // Gone again, no directory, or a mount point: never shown.
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {}
                    Err(errno) => {
                        return Err(Unwatchable::Directory { path: path.join(&entry.name), errno });
                    }
                }
            }
        }
        self.keep_only(id, &seen);
        Ok(())
    }

    /// The watch of a directory that was moved here from another skill is ours now.
    fn own(&self, wd: WatchDescriptor, id: SkillId, path: &Path) {
        let mut table = self.table();
        let before = table.owners.insert(wd, Owner::Skill(id, path.to_owned()));
        if let Some(Owner::Skill(other, _)) = before
            && other != id
            && let Some(of_other) = table.by_skill.get_mut(&other)
        {
            of_other.remove(&wd);
        }
        table.by_skill.entry(id).or_default().insert(wd);
    }

    fn keep_only(&self, id: SkillId, seen: &HashSet<WatchDescriptor>) {
        let mut table = self.table();
        let Some(of_skill) = table.by_skill.get_mut(&id) else { return };
        let surplus: Vec<WatchDescriptor> = of_skill.difference(seen).copied().collect();
        of_skill.retain(|wd| seen.contains(wd));
        for wd in surplus {
            table.owners.remove(&wd);
            let _ = self.inotify.rm_watch(wd);
        }
    }

    /// The skill is gone.
    pub fn forget(&self, id: SkillId) {
        self.table().beside.remove(&id);
        self.keep_only(id, &HashSet::new());
    }
}

/// Whether what happens to an entry at the top of a skill is no change of it: nobody reads it, and no decision is about it.
fn is_unseen(name: &OsStr, keeps: bool) -> bool {
    !keeps && view::is_version_control(name.as_bytes())
}

/// What an event in directory `path` of a skill is about; nothing, if it is no change of the skill.
fn classify(path: &Path, name: Option<&OsStr>, keeps: bool) -> Option<Touch> {
    let whole = name.map_or_else(|| path.to_owned(), |n| path.join(n));
    let mut components = whole.components();
    match components.next() {
        Some(first) if is_unseen(first.as_os_str(), keeps) => None,
        Some(first) if view::is_private(first.as_os_str().as_bytes()) => {
            Some(Touch::Private(components.as_path().to_owned()))
        }
        _ => Some(Touch::Live),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart_by_where_they_happen() {
        let touch = |p: &str, n: Option<&str>| classify(Path::new(p), n.map(OsStr::new), false).unwrap();
        assert!(matches!(touch("", Some("SKILL.md")), Touch::Live));
        assert!(matches!(touch("", None), Touch::Live));
        assert!(matches!(touch("d/.skill-meta", Some("x")), Touch::Live));
        let Touch::Private(p) = touch(".skill-meta/versions", Some("v1.snapshot")) else { panic!() };
        assert_eq!(p, Path::new("versions/v1.snapshot"));
        let Touch::Private(p) = touch("", Some(".skill-meta")) else { panic!() };
        assert_eq!(p, Path::new(""));
        let git = |p: &str, n: &str, keeps| classify(Path::new(p), Some(OsStr::new(n)), keeps);
        assert!(git("", ".git", false).is_none() && git(".git/refs", "x", false).is_none());
        assert!(matches!(git("", ".git", true), Some(Touch::Live)));
        assert!(matches!(git("d/.git", "x", false), Some(Touch::Live)));
    }
}
