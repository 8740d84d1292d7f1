//! Which skills are to be decided, and when: debounced, coalesced, never two at once for one skill (`[9.3]`). It
//! knows no provider; `watch.rs` and `control.rs` fill it, `resolver.rs` empties it.
//!
//! So many are decided at a time as there are *slots*. One that takes long gives its slot to the next, up to
//! [`OVER`] times as many in all. *Guests* are skills in which strangers can write, and those that have taken long or changed
//! all the time before: they never take all of either, so that the others never wait for them.

use crate::decision::SkillId;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A decision waits until no change has been seen for so long…
pub const QUIET: Duration = Duration::from_millis(40);
/// …but not longer than this after the first.
const PATIENCE: Duration = Duration::from_millis(400);
/// A decision that takes longer gives its slot to the next.
pub const LONG: Duration = Duration::from_secs(1);
/// At most so many times the slots are decided at a time, those that take long included.
pub const OVER: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When it is to be decided; none while nothing asks for it.
    due: Option<Instant>,
    first: Option<Instant>,
    /// Not before this, whatever asks.
    pause: Option<Instant>,
    running: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<SkillId, Entry>,
    /// Those that are due and not running, by when they may be taken; guests apart.
    order: BTreeSet<(Instant, SkillId)>,
    guests_order: BTreeSet<(Instant, SkillId)>,
    guests: HashSet<SkillId>,
    /// Since when.
    running: HashMap<SkillId, Instant>,
    closed: bool,
}

/// What [`Queue::take`] does next.
enum Next {
    Take(SkillId),
    WaitUntil(Instant),
    Wait,
}

impl State {
    /// Changes an entry, and its place in the order with it.
    fn change(&mut self, id: SkillId, change: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(id).or_default();
        let at = |e: &Entry| e.due.filter(|_| !e.running).map(|due| e.pause.map_or(due, |p| due.max(p)));
        if let Some(before) = at(entry) {
            self.order.remove(&(before, id));
            self.guests_order.remove(&(before, id));
        }
        change(entry);
        match at(entry) {
            Some(now) if self.guests.contains(&id) => drop(self.guests_order.insert((now, id))),
            Some(now) => drop(self.order.insert((now, id))),
            None if !entry.running => drop(self.entries.remove(&id)),
            None => {}
        }
    }

    /// Guests that are running, and how many of them have not been for long.
    fn guests_running(&self, now: Instant) -> (usize, usize) {
        let guests = || self.running.iter().filter(|(id, _)| self.guests.contains(id));
        (guests().count(), guests().filter(|(_, since)| **since + LONG > now).count())
    }

    fn next(&self, slots: usize, now: Instant) -> Next {
        if self.running.len() >= slots.saturating_mul(OVER) {
            return Next::Wait;
        }
        let ends = self.running.values().map(|since| *since + LONG).filter(|end| *end > now);
        let slot_free = ends.clone().min();
        if ends.count() >= slots {
            return slot_free.map_or(Next::Wait, Next::WaitUntil);
        }
        let (guests, fast_guests) = self.guests_running(now);
        let room = guests < most_guests(slots) && fast_guests < most_fast_guests(slots);
        let first =
            [self.order.first(), self.guests_order.first().filter(|_| room)].into_iter().flatten().min();
        let blocked = slot_free.filter(|_| !room && !self.guests_order.is_empty());
        match first.copied() {
            Some((due, id)) if due <= now => Next::Take(id),
            Some((due, _)) => Next::WaitUntil(blocked.map_or(due, |free| free.min(due))),
            None => blocked.map_or(Next::Wait, Next::WaitUntil),
        }
    }
}

fn most_guests(slots: usize) -> usize {
    slots.saturating_mul(OVER / 2)
}

fn most_fast_guests(slots: usize) -> usize {
    slots.saturating_sub(1).max(1)
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    slots: usize,
    state: Mutex<State>,
    filled: Condvar,
}

impl Queue {
    /// An empty one.
    pub fn new(slots: usize) -> Self {
        Queue { slots: slots.max(1), state: Mutex::default(), filled: Condvar::new() }
    }

    /// Most threads that have a use for [`Queue::take`].
    pub fn takers(&self) -> usize {
        self.slots.saturating_mul(OVER)
    }

    /// Whether the skill is a guest from now on. Answers false if it is running, and more guests run than may.
    pub fn rank(&self, id: SkillId, guest: bool) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if guest { !state.guests.contains(&id) } else { state.guests.contains(&id) };
        if changed && let Some(mut entry) = state.entries.get(&id).copied() {
            // Out of one order and into the other.
            state.change(id, |e| (entry, *e) = (*e, Entry { running: true, ..*e }));
            if guest {
                state.guests.insert(id)
            } else {
                state.guests.remove(&id)
            };
            state.change(id, |e| *e = entry);
        } else if guest {
            state.guests.insert(id);
        } else {
            state.guests.remove(&id);
        }
        let (guests, fast) = state.guests_running(Instant::now());
        !guest || (guests <= most_guests(self.slots) && fast <= most_fast_guests(self.slots))
    }

    fn ask(&self, id: SkillId, quiet: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.change(id, |entry| {
            let first = *entry.first.get_or_insert(now);
            entry.due = Some((now + quiet).min(first + PATIENCE));
        });
        drop(state);
        self.filled.notify_one();
    }

    /// A change was seen.
    pub fn soon(&self, id: SkillId) {
        self.ask(id, QUIET);
    }

    /// Someone wants to know.
    pub fn now(&self, id: SkillId) {
        self.ask(id, Duration::ZERO);
    }

    /// Decided after that time, whatever is asked for meanwhile.
    pub fn later(&self, id: SkillId, pause: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + pause;
        state.change(id, |entry| {
            entry.pause = entry.pause.max(Some(until));
            entry.due.get_or_insert(until);
        });
        drop(state);
        self.filled.notify_one();
    }

    /// Decided now, whatever it had to wait for.
    pub fn at_once(&self, id: SkillId) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.change(id, |entry| {
            entry.pause = None;
            entry.due = Some(Instant::now());
        });
        drop(state);
        self.filled.notify_one();
    }

    /// Decided after that time if nothing asks for it sooner.
    pub fn by(&self, id: SkillId, time: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.change(id, |entry| {
            entry.due.get_or_insert(Instant::now() + time);
        });
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for the next skill to decide; none when the queue was closed.
    pub fn take(&self) -> Option<SkillId> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            state = match state.next(self.slots, now) {
                Next::Take(id) => {
                    state.change(id, |e| *e = Entry { running: true, ..Entry::default() });
                    state.running.insert(id, now);
                    return Some(id);
                }
                Next::WaitUntil(then) => {
                    let wait = self.filled.wait_timeout(state, then.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Wait => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The decision of `id` has ended. With `again` it must be taken anew, after that time at the earliest.
    pub fn done(&self, id: SkillId, again: Option<Duration>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.running.remove(&id);
        state.change(id, |entry| {
            entry.running = false;
            if let Some(pause) = again {
                entry.pause = entry.pause.max(Some(now + pause));
                entry.due.get_or_insert(now);
            }
        });
        drop(state);
        self.filled.notify_all();
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).entries.is_empty()
    }

    /// Ends whoever waits.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skill_is_never_taken_twice_at_once_and_not_lost() {
        let queue = Queue::new(4);
        queue.now(SkillId(1));
        queue.now(SkillId(1));
        assert_eq!(queue.take(), Some(SkillId(1)));
        queue.now(SkillId(1));
        queue.now(SkillId(2));
        assert_eq!(queue.take(), Some(SkillId(2)));
        queue.done(SkillId(1), None);
        assert_eq!(queue.take(), Some(SkillId(1)));
        queue.done(SkillId(1), None);
        queue.done(SkillId(2), None);
        assert!(queue.is_idle());
        queue.close();
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn changes_are_coalesced_but_not_for_ever() {
        let queue = Queue::new(4);
        let began = Instant::now();
        let (taken, pause) = std::thread::scope(|s| {
            let taker = s.spawn(|| queue.take().map(|_| began.elapsed()));
            let (mut last, mut pause) = (began, Duration::ZERO);
            while !taker.is_finished() {
                queue.soon(SkillId(1));
                pause = pause.max(last.elapsed());
                last = Instant::now();
                std::thread::yield_now();
            }
            (taker.join().unwrap().unwrap(), pause)
        });
        // On a busy machine the changes themselves may pause for long enough.
        assert!(taken >= PATIENCE || pause >= QUIET, "{taken:?} with a pause of {pause:?}");
        assert!(taken < PATIENCE * 10, "{taken:?}");
    }

    #[test]
    fn guests_never_take_all_places_and_what_takes_long_gives_up_its_own() {
        let queue = Queue::new(2);
        for id in 1..=20 {
            queue.now(SkillId(id));
            assert!(queue.rank(SkillId(id), true));
        }
        let began = Instant::now();
        let mut guests: Vec<SkillId> = (0..4).map(|_| queue.take().unwrap()).collect();
        // One at a time, until each has taken long, and no more than half of all that may run.
        assert!(began.elapsed() >= 3 * LONG && queue.takers() == 8, "{:?}", began.elapsed());
        queue.now(SkillId(99));
        let began = Instant::now();
        assert_eq!(queue.take(), Some(SkillId(99)));
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        queue.done(SkillId(99), None);
        // One that was taken before it was known to be a guest is one too many.
        queue.now(SkillId(98));
        assert_eq!(queue.take(), Some(SkillId(98)));
        assert!(!queue.rank(SkillId(98), true));
        queue.done(SkillId(98), Some(Duration::ZERO));
        queue.done(guests.pop().unwrap(), None);
        let next = queue.take().unwrap();
        assert!(next.0 <= 20, "{next:?}");
        // Out of the guests and among the others again.
        assert!(queue.rank(SkillId(20), false));
        assert_eq!(queue.take(), Some(SkillId(20)));
    }

    #[test]
    fn what_must_be_taken_anew_waits_for_its_pause() {
        let queue = Queue::new(4);
        queue.now(SkillId(1));
        queue.take();
        queue.now(SkillId(1));
        let began = Instant::now();
        queue.done(SkillId(1), Some(Duration::from_millis(60)));
        assert_eq!(queue.take(), Some(SkillId(1)));
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}
