//! One inotify instance and what is watched by it: a queue of its own in the kernel, so that whoever fills it harms those
//! who share it and nobody else. It knows no policy: `watch.rs` says who gets which, and what follows from what is seen.
//!
//! Whoever reads events holds the lane's lock until they are in the mapping. Each look takes what was there when it began,
//! never "until none is left": while somebody makes events faster than they are read there are always more.

use super::pace::{self, Pace};
use crate::decision::SkillId;
use crate::exposure;
use nix::errno::Errno;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The lock is given up after so many bytes of events, so that nobody waits long for it.
const CHUNK: usize = 32 << 10;
/// Watch descriptor, mask, cookie, length of the name: four numbers of four bytes.
const HEADER: usize = 16;
/// Most bytes of one event: the header and a name of 255 with its zero.
const LONGEST: usize = HEADER + 256;
/// Watches that are removed before what their removal makes (an event each) is read.
const REMOVED_AT_ONCE: usize = 1024;

/// Whose a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Who {
    /// A source itself.
    Source(usize),
    /// Folders that have a skill's name and are none: that may become one, and come before the skill of that name.
    Beside(SkillId),
    /// A skill.
    Skill(SkillId),
}

/// Which directory a watch is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// A source, or a skill's top.
    Top,
    /// Somewhere in the live folder.
    Live,
    /// `.skill-meta`, or the path below it.
    Private(PathBuf),
}

impl Spot {
    /// Where the entry of that name in this directory is. None, if what happens to it is no change of the skill: nobody
    /// reads it, and no decision is about it. `keeps`: readers keep the live folder, version control included.
    pub(super) fn child(&self, name: &OsStr, keeps: bool) -> Option<Spot> {
        match self {
            Spot::Top if !keeps && exposure::is_version_control(name.as_bytes()) => None,
            Spot::Top if exposure::is_private(name.as_bytes()) => Some(Spot::Private(PathBuf::new())),
            Spot::Top | Spot::Live => Some(Spot::Live),
            Spot::Private(path) => Some(Spot::Private(path.join(name))),
        }
    }
}

/// What was seen of one member.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Events.
    pub(super) events: u64,
    /// Something in the live folder changed.
    pub(super) live: bool,
    /// The top itself was moved, deleted or unmounted.
    pub(super) place: bool,
    /// Paths below `.skill-meta` that changed.
    pub(super) private: BTreeSet<PathBuf>,
    /// Names in the top that came, went, or were exchanged.
    pub(super) names: BTreeSet<OsString>,
}

/// What one look has found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// By whose it is.
    pub(super) of: BTreeMap<Who, Changes>,
    /// The kernel has dropped events, and does not say whose: all members. Empty if it has not.
    pub(super) lost: Vec<Who>,
    /// Members that have used up their pace; after an overflow at least whoever has used most of it.
    pub(super) too_fast: Vec<Who>,
}

#[derive(Debug)]
struct Member {
    watches: HashSet<i32>,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Inner {
    spots: HashMap<i32, (Who, Spot)>,
    members: HashMap<Who, Member>,
}

/// An instance.
#[derive(Debug)]
pub(super) struct Lane {
    fd: OwnedFd,
    /// Whether readers keep the live folder while it is edited.
    pub(super) keeps: bool,
    inner: Mutex<Inner>,
}

fn mask(who: Who) -> WatchFlags {
    let of_sources = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let of_skills =
        WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF;
    match who {
        Who::Source(_) | Who::Beside(_) => of_sources,
        Who::Skill(_) => of_sources | of_skills,
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno::from_raw(e.raw_os_error())
}

impl Lane {
    /// A new instance.
    pub(super) fn new(keeps: bool) -> Result<Self, Errno> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(errno)?;
        Ok(Lane { fd, keeps, inner: Mutex::default() })
    }

    /// For a poller.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a directory for `who`; one that is watched for somebody else is `who`'s from now on.
    pub(super) fn add(&self, who: Who, directory: &Path, spot: &Spot) -> Result<i32, Errno> {
        let mut inner = self.inner();
        let wd = inotify::add_watch(&self.fd, directory, mask(who)).map_err(errno)?;
        let before = inner.spots.insert(wd, (who, spot.clone()));
        if let Some((other, _)) = before
            && other != who
            && let Some(other) = inner.members.get_mut(&other)
        {
            other.watches.remove(&wd);
        }
        let rate = if matches!(who, Who::Skill(_)) { pace::OF_SKILLS } else { pace::OF_SOURCES };
        let new = || Member { watches: HashSet::new(), pace: Pace::new(rate, Instant::now()) };
        inner.members.entry(who).or_insert_with(new).watches.insert(wd);
        Ok(wd)
    }

    /// Removes the watches of `who` but for these; answers how many those are.
    pub(super) fn keep(&self, who: Who, kept: &HashSet<i32>, mut tell: impl FnMut(Seen)) -> usize {
        loop {
            let mut inner = self.inner();
            let Some(member) = inner.members.get_mut(&who) else { return 0 };
            let surplus: HashSet<i32> =
                member.watches.difference(kept).take(REMOVED_AT_ONCE).copied().collect();
            if surplus.is_empty() {
                let left = member.watches.len();
                if left == 0 {
                    inner.members.remove(&who);
                }
                return left;
            }
            member.watches.retain(|wd| !surplus.contains(wd));
            for wd in surplus {
                inner.spots.remove(&wd);
                let _ = inotify::remove_watch(&self.fd, wd);
            }
            drop(inner);
            // Each makes an event; a thousand of them at a time do not fill the queue.
            self.look(usize::MAX, &mut tell);
        }
    }

    /// Bytes of events that wait.
    pub(super) fn backlog(&self) -> usize {
        rustix::io::ioctl_fionread(&self.fd).map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// Whether nothing waits, and whoever has read something has told it.
    pub(super) fn is_quiet(&self) -> bool {
        let _reading = self.inner();
        self.backlog() == 0
    }

    /// Takes what waits now, `most` bytes of it at most, and has each part told before others may read on.
    pub(super) fn look(&self, most: usize, tell: &mut impl FnMut(Seen)) {
        let mut left = None;
        loop {
            // Whoever holds the lock may have read events that are not in the mapping yet: so wait for it in any case.
            let mut inner = self.inner();
            let rest = left.get_or_insert_with(|| self.backlog().min(most));
            if *rest == 0 {
                return;
            }
            let mut buffer = [0; CHUNK];
            let room = (*rest).clamp(LONGEST, CHUNK);
            let read = match rustix::io::read(&self.fd, &mut buffer[..room]) {
                Ok(read) => read,
                Err(rustix::io::Errno::INTR) => continue,
                // None is there: another look has taken them.
                Err(_) => return,
            };
            *rest = rest.saturating_sub(read);
            let seen = inner.take_in(&buffer[..read], self.keeps);
            tell(seen);
        }
    }
}

impl Inner {
    fn take_in(&mut self, mut bytes: &[u8], keeps: bool) -> Seen {
        let mut seen = Seen::default();
        let mut overflow = false;
        while let Some((wd, flags, name, rest)) = event(bytes) {
            bytes = rest;
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                overflow = true;
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                if let Some((who, _)) = self.spots.remove(&wd)
                    && let Some(member) = self.members.get_mut(&who)
                {
                    member.watches.remove(&wd);
                    seen.of.entry(who).or_default().events += 1;
                }
                continue;
            }
            let Some((who, spot)) = self.spots.get(&wd) else { continue };
            seen.of.entry(*who).or_default().note(*who, spot, flags, name, keeps);
        }
        let now = Instant::now();
        let mut most = (u64::MAX, None);
        for (who, member) in &mut self.members {
            let events = seen.of.get(who).map_or(0, |c| c.events);
            if !member.pace.spend(events, now) {
                seen.too_fast.push(*who);
            }
            let left = member.pace.left();
            if left < most.0 {
                most = (left, Some(*who));
            }
        }
        if overflow {
            seen.lost.extend(self.members.keys());
            if seen.too_fast.is_empty() {
                seen.too_fast.extend(most.1);
            }
        }
        seen
    }
}

impl Changes {
    fn note(&mut self, who: Who, spot: &Spot, flags: ReadFlags, name: Option<&OsStr>, keeps: bool) {
        self.events += 1;
        let itself = ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT;
        match (who, spot, name) {
            (_, Spot::Top, None) if flags.intersects(itself) => self.place = true,
            (Who::Source(_), _, Some(name)) => drop(self.names.insert(name.to_owned())),
            (Who::Source(_), _, None) | (Who::Beside(_), _, _) => {}
            (Who::Skill(_), Spot::Private(path), None) => drop(self.private.insert(path.clone())),
            (Who::Skill(_), spot, Some(name)) => match spot.child(name, keeps) {
                Some(Spot::Private(path)) => drop(self.private.insert(path)),
                Some(Spot::Top | Spot::Live) => self.live = true,
                None => {}
            },
            (Who::Skill(_), Spot::Top | Spot::Live, None) => self.live = true,
        }
    }
}

/// The first event of what was read: watch descriptor, what, in which name of the directory, and the bytes behind it.
fn event(bytes: &[u8]) -> Option<(i32, ReadFlags, Option<&OsStr>, &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let number = |at: usize| header.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
    let (wd, flags, length) = (number(0)?, number(4)?, number(12)?);
    let (name, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let name = name.split(|b| *b == 0).next().filter(|n| !n.is_empty());
    Some((wd.cast_signed(), ReadFlags::from_bits_retain(flags), name.map(OsStr::from_bytes), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKILL: Who = Who::Skill(SkillId(7));

    fn all(lane: &Lane) -> Seen {
        let mut all = Seen::default();
        lane.look(usize::MAX, &mut |seen| {
            all.lost.extend(seen.lost);
            all.too_fast.extend(seen.too_fast);
            for (who, changes) in seen.of {
                let to = all.of.entry(who).or_default();
                to.events += changes.events;
                to.live |= changes.live;
                to.place |= changes.place;
                to.private.extend(changes.private);
                to.names.extend(changes.names);
            }
        });
        all
    }

    #[test]
    fn events_are_told_apart_by_where_they_happen() {
        let t = tempfile::tempdir().unwrap();
        let lane = Lane::new(false).unwrap();
        let path = |p: &str| t.path().join(p);
        for folder in ["s", "s/d", "s/.skill-meta", "s/d/.skill-meta"] {
            std::fs::create_dir(path(folder)).unwrap();
            let name = Path::new(folder).strip_prefix("s").unwrap();
            let spot = name.iter().fold(Spot::Top, |spot, name| spot.child(name, false).unwrap());
            lane.add(SKILL, &path(folder), &spot).unwrap();
        }
        lane.add(Who::Source(0), t.path(), &Spot::Top).unwrap();
        all(&lane);
        std::fs::write(path("s/.skill-meta/x"), "").unwrap();
        let seen = all(&lane);
        let of = &seen.of[&SKILL];
        assert!(!of.live && !of.place && of.private == [PathBuf::from("x")].into(), "{seen:?}");
        std::fs::write(path("s/d/.skill-meta/x"), "").unwrap();
        assert!(all(&lane).of[&SKILL].live, "further down the name is an ordinary one");
        std::fs::write(path("s/.git"), "").unwrap();
        let of = &all(&lane).of[&SKILL];
        assert!(!of.live && of.private.is_empty(), "version control is no part of it");
        std::fs::rename(path("s/.skill-meta"), path("s/.SKILL-META")).unwrap();
        assert_eq!(all(&lane).of[&SKILL].private, [PathBuf::new()].into());
        std::fs::rename(path("s"), path("t")).unwrap();
        let seen = all(&lane);
        assert!(seen.of[&SKILL].place);
        assert_eq!(seen.of[&Who::Source(0)].names, ["s", "t"].map(OsString::from).into());
    }

    #[test]
    fn a_look_takes_what_was_there_and_not_what_goes_on_coming() {
        let t = tempfile::tempdir().unwrap();
        let lane = Lane::new(false).unwrap();
        lane.add(SKILL, t.path(), &Spot::Top).unwrap();
        for n in 0..4000 {
            std::fs::write(t.path().join(n.to_string()), "").unwrap();
        }
        let mut looks = 0;
        lane.look(usize::MAX, &mut |_| {
            // As much again while it is read: without a bound there would always be more.
            (0..4000).for_each(|n| std::fs::write(t.path().join(n.to_string()), "").unwrap());
            looks += 1;
            assert!(looks < 100);
        });
        assert!(looks > 1 && lane.backlog() > 0);
    }

    #[test]
    fn an_overflow_is_laid_to_whoever_made_most_of_it() {
        let t = tempfile::tempdir().unwrap();
        let lane = Lane::new(false).unwrap();
        let other = Who::Skill(SkillId(8));
        for (who, folder) in [(SKILL, "busy"), (other, "calm")] {
            std::fs::create_dir(t.path().join(folder)).unwrap();
            lane.add(who, &t.path().join(folder), &Spot::Top).unwrap();
        }
        std::fs::write(t.path().join("calm/x"), "").unwrap();
        let most: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        for n in 0..most {
            std::fs::write(t.path().join(format!("busy/{}", n % 7)), "").unwrap();
        }
        let seen = all(&lane);
        assert!(seen.lost.contains(&other) && seen.too_fast.iter().all(|w| *w == SKILL), "{seen:?}");
        assert!(!seen.too_fast.is_empty());
        assert!(seen.of[&other].live);
        assert_eq!(lane.keep(SKILL, &HashSet::new(), |_| ()), 0);
        assert_eq!(lane.inner().members.keys().copied().collect::<Vec<_>>(), [other]);
    }
}
