//! Which lane each skill and each source is watched by, how many watches it has, and how it has behaved. `watch.rs` holds
//! this under one lock, which is never held while a lane's is waited for.

use super::lane::{Lane, Who};
use super::pace::Backoff;
use super::share::{Class, Lanes, Limits, Used};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First and longest time until what the kernel refused is tried again.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST_AGAIN: Duration = Duration::from_secs(30);

/// A lane and who shares it.
#[derive(Debug)]
struct Slot {
    lane: Arc<Lane>,
    class: Class,
    members: usize,
}

impl Slot {
    fn is_root(&self) -> bool {
        matches!(self.class, Class::Source | Class::Beside)
    }
}

/// What is kept of a skill or a source.
#[derive(Debug, Default)]
pub(super) struct Entry {
    lane: Option<u64>,
    class: Option<Class>,
    /// Whose it is, if that is a stranger.
    pub(super) stranger: Option<u32>,
    /// Watches that it has.
    pub(super) watches: usize,
    /// Whether it was ever shown.
    pub(super) shown: bool,
    /// Raised each time it loses its watches.
    pub(super) turn: u64,
    /// How often it was too fast.
    pub(super) backoff: Backoff,
    /// Several users can write in it, as a walk has found.
    pub(super) mixed: bool,
    /// When it is tried again because the kernel had no watch or no instance left, and how often it was.
    starved: Option<(Instant, u32)>,
}

impl Entry {
    /// Whether there is nothing to be remembered of it.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.lane.is_none() && self.starved.is_none() && !self.shown && !self.backoff.was_recent(now)
    }

    /// Who it shares a lane with: what was too fast not long ago, with its like.
    fn put_with(&self, who: Who, class: Class) -> Class {
        match who {
            Who::Skill(_) if self.backoff.was_recent(Instant::now()) => Class::Fast,
            _ => class,
        }
    }
}

/// All of it.
#[derive(Debug)]
pub(super) struct Table {
    poller: Arc<Epoll>,
    keeps: bool,
    lanes: BTreeMap<u64, Slot>,
    /// Those of the sources and of the folders beside the skills, which every look into the view asks for.
    roots: Arc<[Arc<Lane>]>,
    next: u64,
    pub(super) entries: HashMap<Who, Entry>,
}

impl Table {
    pub(super) fn new(poller: Arc<Epoll>, keeps: bool) -> Self {
        let (lanes, roots, entries) = (BTreeMap::new(), Arc::default(), HashMap::new());
        Table { poller, keeps, lanes, roots, next: 0, entries }
    }

    /// The lane of that number.
    pub(super) fn lane(&self, number: u64) -> Option<Arc<Lane>> {
        self.lanes.get(&number).map(|slot| slot.lane.clone())
    }

    /// The skills' lanes.
    pub(super) fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.values().filter(|slot| !slot.is_root()).map(|slot| slot.lane.clone()).collect()
    }

    /// Whether that lane is of sources, or of folders beside the skills.
    pub(super) fn is_root(&self, number: u64) -> bool {
        self.lanes.get(&number).is_some_and(Slot::is_root)
    }

    /// Lanes of the sources and of the folders beside the skills.
    pub(super) fn roots(&self) -> Arc<[Arc<Lane>]> {
        self.roots.clone()
    }

    fn collect_roots(&mut self) {
        self.roots =
            self.lanes.values().filter(|slot| slot.is_root()).map(|slot| slot.lane.clone()).collect();
    }

    /// The lane that it is watched by now, with its number.
    pub(super) fn lane_of(&self, who: Who) -> Option<(u64, Arc<Lane>)> {
        let number = self.entries.get(&who)?.lane?;
        Some((number, self.lane(number)?))
    }

    /// Whether its lane is not one for its class: it must leave it first.
    pub(super) fn is_misplaced(&self, who: Who, class: Class, limits: &Limits) -> bool {
        let Some(entry) = self.entries.get(&who) else { return false };
        let class = entry.put_with(who, class);
        let slot = entry.lane.and_then(|number| self.lanes.get(&number));
        slot.is_some_and(|slot| {
            let full = || limits.is_full(class, self.count(|c| c == class));
            !limits.fits(class, slot.class) && (slot.members > 1 || full())
        })
    }

    fn count(&self, of: impl Fn(Class) -> bool) -> usize {
        self.lanes.values().filter(|slot| of(slot.class)).count()
    }

    /// The lane that it has, or one for that class: its own while there are enough, else one that it shares with its like.
    /// Strangers never share one with those who are ours.
    pub(super) fn assign(&mut self, who: Who, class: Class, limits: &Limits) -> Result<Arc<Lane>, Errno> {
        let entry = self.entries.entry(who).or_default();
        entry.class = Some(class);
        let class = entry.put_with(who, class);
        if let Some(number) = entry.lane
            && let Some(slot) = self.lanes.get_mut(&number)
        {
            if !limits.fits(class, slot.class) {
                slot.class = class;
            }
            return Ok(slot.lane.clone());
        }
        let number = match self.new_lane(class, limits) {
            Ok(number) => number,
            Err(errno) => self.shared(class, limits).or_else(|| self.with_any(class, limits)).ok_or(errno)?,
        };
        let slot = self.lanes.get_mut(&number).ok_or(Errno::EMFILE)?;
        slot.members += 1;
        let lane = slot.lane.clone();
        self.entries.entry(who).or_default().lane = Some(number);
        Ok(lane)
    }

    fn new_lane(&mut self, class: Class, limits: &Limits) -> Result<u64, Errno> {
        let lanes = Lanes {
            all: self.lanes.len(),
            of_strangers: self.count(|c| !limits.is_ours(c)),
            of_class: self.count(|c| c == class),
        };
        if !limits.one_more_lane(class, lanes) {
            return Err(Errno::EMFILE);
        }
        self.next += 1;
        let lane = Arc::new(Lane::new(self.keeps)?);
        self.poller.add(lane.fd(), EpollEvent::new(EpollFlags::EPOLLIN, self.next))?;
        self.lanes.insert(self.next, Slot { lane, class, members: 0 });
        self.collect_roots();
        Ok(self.next)
    }

    /// The lane that fewest share, of this class or of one that it may be put with.
    fn shared(&self, class: Class, limits: &Limits) -> Option<u64> {
        let least = |of: &dyn Fn(Class) -> bool| {
            let fitting = self.lanes.iter().filter(|(_, slot)| of(slot.class));
            fitting.min_by_key(|(_, slot)| slot.members).map(|(number, _)| *number)
        };
        least(&|c| c == class).or_else(|| least(&|c| limits.fits(class, c)))
    }

    /// For a stranger when others have all lanes: the one that is kept for several, or else any of strangers', which is
    /// several's from then on.
    fn with_any(&mut self, class: Class, limits: &Limits) -> Option<u64> {
        if limits.is_ours(class) || class == Class::Beside {
            return None;
        }
        self.new_lane(Class::Several, limits).ok().or_else(|| {
            let of_strangers =
                self.lanes.iter_mut().filter(|(_, s)| !s.is_root() && !limits.is_ours(s.class));
            let (number, slot) = of_strangers.min_by_key(|(_, slot)| slot.members)?;
            slot.class = Class::Several;
            Some(*number)
        })
    }

    /// It is watched by no lane any more; answers the one it was, and whether somebody else is.
    pub(super) fn leave(&mut self, who: Who) -> Option<(Arc<Lane>, bool)> {
        let entry = self.entries.get_mut(&who)?;
        entry.turn += 1;
        entry.watches = 0;
        let number = entry.lane.take()?;
        let slot = self.lanes.get_mut(&number)?;
        slot.members = slot.members.saturating_sub(1);
        let (lane, shared) = (slot.lane.clone(), slot.members > 0);
        if !shared {
            let _ = self.poller.delete(lane.fd());
            self.lanes.remove(&number);
            self.collect_roots();
        }
        Some((lane, shared))
    }

    /// Watches of others than `who`.
    pub(super) fn used(&self, who: Who, limits: &Limits) -> Used {
        let mut used = Used::default();
        let owner = self.entries.get(&who).and_then(|entry| entry.stranger);
        for (_, entry) in self.entries.iter().filter(|(w, _)| **w != who) {
            if !entry.class.is_some_and(|c| limits.is_ours(c)) {
                used.by_strangers += entry.watches;
            }
            if owner.is_some() && entry.stranger == owner {
                used.by_owner += entry.watches;
            }
            if !entry.shown {
                used.never_shown += entry.watches;
            }
        }
        used
    }

    /// The kernel had nothing left for it.
    pub(super) fn starved(&mut self, who: Who, now: Instant) {
        let entry = self.entries.entry(who).or_default();
        let times = entry.starved.map_or(0, |(_, times)| times);
        let wait = AGAIN.saturating_mul(1 << times.min(10)).min(LONGEST_AGAIN);
        entry.starved = Some((now + wait, times + 1));
    }

    /// It has what it needs.
    pub(super) fn fed(&mut self, who: Who) {
        if let Some(entry) = self.entries.get_mut(&who) {
            entry.starved = None;
        }
    }

    /// Watches were given back: who waits for some need not wait much longer. Whether anybody does.
    pub(super) fn freed(&mut self, now: Instant) -> bool {
        let mut sooner = false;
        for (at, times) in self.entries.values_mut().filter_map(|entry| entry.starved.as_mut()) {
            sooner |= *at > now + AGAIN;
            (*at, *times) = ((*at).min(now + AGAIN), 0);
        }
        sooner
    }

    /// When the next one is to be tried again.
    pub(super) fn next_hungry(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.starved).map(|(at, _)| at).min()
    }

    /// Those whose time to be tried again has come; each is named once.
    pub(super) fn hungry(&mut self, now: Instant) -> Vec<Who> {
        let mut due = Vec::new();
        for (who, entry) in &mut self.entries {
            if let Some((at, _)) = &mut entry.starved
                && *at <= now
            {
                // If it is refused again, `starved` sets the next time.
                *at = now + LONGEST_AGAIN;
                due.push(*who);
            }
        }
        due
    }
}
