//! Sees what changes in the sources, by inotify (`[9.3]`): of a skill that is, or is to be, shown, every directory of the live
//! folder and of the trusted snapshot; of one that was never shown, and is not small, its top and `.skill-meta`.
//!
//! The kernel queues an event before the call that made the change returns. So whoever takes what is queued knows of
//! every change that had ended before: [`Watch::catch_up`] does that for one skill, and lookups, the control socket and the
//! resolver call it before they answer. What is stored through a mapping, or through another hard link, makes no
//! event (SEMANTICS.md).
//!
//! Each skill has a queue of its own in the kernel, as long as there are enough, and a share of the watches, so that the owner
//! of one folder harms that skill alone: one that changes too fast is not watched for a while, and hidden meanwhile.
//!
//! | module | says |
//! | --- | --- |
//! | `lane` | one queue: what is watched by it and what was seen |
//! | `table`, `share` | who has which queue and how many watches |
//! | `pace` | what is too fast, and how long it is left alone |
//! | `cover`, `walk`, `unwatchable` | what of a skill is watched; its directories; why it cannot be |
//! | `roots` | the sources themselves: which skills there are |
//! | `tick` | what is due although nothing tells of it |
//!
//! It decides nothing: it tells the mapping what was touched and asks the queue for a decision.

mod cover;
mod lane;
mod pace;
mod roots;
mod share;
mod table;
mod tick;
mod unwatchable;
mod walk;

use crate::bell::Bell;
use crate::counters::Counters;
use crate::decision::{SkillId, Touch};
use crate::mapping::Mapping;
use crate::queue::Queue;
use crate::source::Sources;
use crate::way::MOUNTS;
pub use cover::{Covered, Need};
use cyberos_proto::ids::SkillName;
use lane::{Lane, Seen, Who};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use roots::Root;
use share::Limits;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use table::Table;
pub use unwatchable::Unwatchable;

/// The watcher looks no more often than this whether a source's path still leads to the same directory, and whose time has
/// come. It looks when something tells it to; by the clock alone while there is something that nobody tells of: a way that
/// leads nowhere, or a step of one that cannot be watched.
const TICK: Duration = Duration::from_millis(500);
/// What the poller calls what is no lane.
const BELL: u64 = u64::MAX;
const MOUNTED: u64 = u64::MAX - 1;
const FIRST_WAY: u64 = u64::MAX / 2;
/// What the watcher takes of one queue before it looks at the next.
const TURN: usize = 64 << 10;
/// What an answer about more than one skill takes of each queue. A longer one is somebody's storm, which the watcher reads.
const GLANCE: usize = 32 << 10;
/// Longest time for which a skill that changes too fast is left alone.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The watch on all sources.
#[derive(Debug)]
pub struct Watch {
    sources: Arc<Sources>,
    mapping: Arc<Mapping>,
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    limits: Limits,
    poller: Arc<Epoll>,
    /// Held for the poller.
    _mounts: Option<File>,
    table: Mutex<Table>,
    roots: Mutex<Vec<Root>>,
    /// Held alone from when something of the sources is read until it is in the mapping.
    reading_roots: RwLock<()>,
    /// Names that came, went or changed in the sources, until they are looked for.
    names: Mutex<BTreeSet<SkillName>>,
    stop: AtomicBool,
    #[cfg(test)]
    looks: std::sync::atomic::AtomicUsize,
}

impl Watch {
    /// A watch that watches nothing yet.
    pub fn new(
        sources: Arc<Sources>,
        mapping: Arc<Mapping>,
        queue: Arc<Queue>,
        counters: Arc<Counters>,
    ) -> Result<Self, Errno> {
        let poller = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        poller.add(sources.moved(), EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let mounts = File::open(MOUNTS).ok();
        if let Some(mounts) = &mounts {
            poller.add(mounts, EpollEvent::new(EpollFlags::EPOLLPRI, MOUNTED))?;
        }
        let limits = Limits::read(&sources);
        let roots = sources.paths().iter().map(|_| Root::default()).collect();
        let table = Mutex::new(Table::new(poller.clone(), mapping.keeps_live()));
        let roots = Mutex::new(roots);
        let (reading_roots, names, stop) = (RwLock::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Watch {
            sources,
            mapping,
            queue,
            counters,
            limits,
            poller,
            _mounts: mounts,
            table,
            roots,
            reading_roots,
            names,
            stop,
            #[cfg(test)]
            looks: Default::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees changes until [`Watch::stop`].
    pub fn run(&self) {
        let mut last = Instant::now();
        let mut due = Some(last + TICK);
        let mut ready = [EpollEvent::empty(); 32];
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            // A millisecond more, so that a wait never ends just before its time and spins.
            let left = left.map(|left| if left.is_zero() { left } else { left + Duration::from_millis(1) });
            let limit = left.map(|left| EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX));
            let found = self.poller.wait(&mut ready, limit.unwrap_or(EpollTimeout::NONE)).unwrap_or(0);
            let mut asked = false;
            for event in ready.iter().take(found) {
                asked |= self.serve(event.data());
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let now = Instant::now();
            if asked {
                let soon = now.max(last + TICK);
                due = Some(due.map_or(soon, |due| due.min(soon)));
            }
            // Not when nothing happens: in a storm something always does.
            if due.is_some_and(|due| due <= now) {
                self.tick();
                last = Instant::now();
                due = self.next_tick(last);
            }
        }
    }

    /// Answers one event; whether a tick is asked for by it.
    fn serve(&self, who: u64) -> bool {
        match who {
            BELL => self.bell().silence(),
            MOUNTED | FIRST_WAY.. => {}
            number => {
                let table = self.table();
                let (lane, root) = (table.lane(number), table.is_root(number));
                drop(table);
                match lane {
                    Some(_) if root => self.look_at_roots(TURN),
                    Some(lane) => self.look(&lane, TURN),
                    None => {}
                }
                return false;
            }
        }
        true
    }

    /// What the watcher is woken by when there is something to be done that no event tells of.
    fn bell(&self) -> &Bell {
        self.sources.moved()
    }

    /// Ends [`Watch::run`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell().ring();
    }

    /// After this, every change of the skill that had ended before the call is in the mapping. It waits for no other
    /// skill's changes; those of the sources themselves are taken in too, unless somebody is making very many.
    pub fn catch_up(&self, id: SkillId) {
        self.catch_up_each([id]);
    }

    /// The same for each of these, with one look at what they share.
    pub fn catch_up_each(&self, ids: impl IntoIterator<Item = SkillId>) {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.catch_up_roots();
        let table = self.table();
        let lanes: BTreeMap<u64, Arc<Lane>> =
            ids.into_iter().filter_map(|id| table.lane_of(Who::Skill(id))).collect();
        drop(table);
        lanes.values().for_each(|lane| self.look(lane, usize::MAX));
    }

    /// How often somebody has caught up.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// The same for all skills, but for those that change very fast at this moment.
    pub fn catch_up_all(&self) {
        self.catch_up_roots();
        let lanes = self.table().lanes();
        lanes.iter().filter(|lane| lane.backlog() <= GLANCE).for_each(|lane| self.look(lane, GLANCE));
    }

    /// Takes in what waits in a queue now, and stops watching whoever makes too much of it.
    fn look(&self, lane: &Lane, most: usize) {
        let mut too_fast = BTreeSet::new();
        lane.look(most, &mut |seen| too_fast.extend(self.take_in(seen)));
        too_fast.into_iter().for_each(|who| self.hold(who));
    }

    /// Puts what was seen in the mapping; answers who was too fast.
    fn take_in(&self, seen: Seen) -> Vec<Who> {
        for (who, changes) in seen.of {
            match who {
                Who::Source(_) => self.source_changed(changes),
                Who::Beside(id) => self.beside_changed(id),
                Who::Skill(id) => {
                    for path in changes.private {
                        self.mapping.touch(id, &Touch::Private(path));
                    }
                    if changes.live {
                        self.mapping.touch(id, &Touch::Live);
                    }
                    if changes.place {
                        self.mapping.touch(id, &Touch::Place);
                    }
                    self.queue.soon(id);
                }
            }
        }
        self.counters.overflows.add(u64::from(!seen.lost.is_empty()));
        for who in seen.lost {
            match who {
                Who::Source(_) | Who::Beside(_) => self.source_lost(),
                Who::Skill(id) => self.report(id, &Touch::Place),
            }
        }
        seen.too_fast
    }

    /// Notes a change and asks for a decision.
    pub fn report(&self, id: SkillId, touch: &Touch) {
        self.mapping.touch(id, touch);
        self.queue.soon(id);
    }

    /// It is not watched for a while, and not shown; then it is decided anew.
    fn hold(&self, who: Who) {
        let id = match who {
            Who::Source(index) => return self.hold_source(index),
            Who::Beside(id) => return self.hold_beside(id),
            Who::Skill(id) => id,
        };
        let (time, times) = {
            let mut table = self.table();
            let now = Instant::now();
            let entry = table.entries.entry(who).or_default();
            if entry.backoff.holds(now) {
                return;
            }
            (entry.backoff.next(now, LONGEST_HOLD), entry.backoff.times())
        };
        // Where it goes on being shown.
        self.bell().ring();
        let why = format!(
            "it changes faster than SkillFS can follow, so it is not looked at for {:.1} s ({times} times in \
             a row)",
            time.as_secs_f32()
        );
        tracing::warn!(skill = ?self.mapping.name(id), why, "a skill is left alone");
        self.mapping.hold(id, why);
        self.part(who);
        self.queue.later(id, time);
    }

    /// Somebody wants to know now, whatever has been: it need not wait any longer.
    pub fn release(&self, id: SkillId) {
        if let Some(entry) = self.table().entries.get_mut(&Who::Skill(id)) {
            entry.backoff.end(Instant::now());
        }
        self.queue.at_once(id);
    }

    /// Gives all its watches back.
    fn part(&self, who: Who) {
        let mut table = self.table();
        let left = table.leave(who);
        let sooner = table.freed(Instant::now());
        drop(table);
        if sooner {
            self.bell().ring();
        }
        if let Some((lane, true)) = left {
            self.keep(&lane, who, &HashSet::new());
        }
    }

    /// Removes its other watches in that lane.
    fn keep(&self, lane: &Lane, who: Who, kept: &HashSet<i32>) {
        let mut too_fast = BTreeSet::new();
        lane.keep(who, kept, |seen| too_fast.extend(self.take_in(seen)));
        too_fast.into_iter().filter(|other| *other != who).for_each(|other| self.hold(other));
    }

    /// Whether no stranger can write in that folder.
    pub fn is_ours(&self, directory: impl AsFd) -> bool {
        self.limits.is_ours(self.limits.class(directory))
    }

    /// Whether that user is no stranger.
    pub fn is_our_uid(&self, uid: u32) -> bool {
        self.limits.is_our_uid(uid)
    }

    /// The skill is gone. Answers whether its name is not known any more, since nothing of it was ever shown.
    pub fn forget(&self, id: SkillId) -> bool {
        let (skill, beside) = (self.discard(Who::Skill(id)), self.discard(Who::Beside(id)));
        skill && beside && self.mapping.forget(id)
    }

    /// Looks for a skill of that name.
    pub fn look_for(&self, name: &SkillName) {
        self.consider(name);
    }

    fn discard(&self, who: Who) -> bool {
        self.part(who);
        let mut table = self.table();
        // What comes and goes too fast does not begin anew each time.
        if table.entries.get(&who).is_some_and(|entry| !entry.backoff.was_recent(Instant::now())) {
            table.entries.remove(&who);
        }
        !table.entries.contains_key(&who)
    }
}
