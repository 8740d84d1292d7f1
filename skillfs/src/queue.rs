//! Which skills are to be decided, and when: debounced, coalesced, never two at once for one skill (`[9.3]`). It
//! knows no provider; `watch.rs` and `control.rs` fill it, `resolver.rs` empties it.

use crate::mapping::SkillId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A decision waits until no change has been seen for so long…
pub const QUIET: Duration = Duration::from_millis(40);
/// …but not longer than this after the first.
const PATIENCE: Duration = Duration::from_millis(400);

#[derive(Debug, Default)]
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
    /// Those that are due and not running, by when they may be taken.
    order: BTreeSet<(Instant, SkillId)>,
    closed: bool,
}

impl State {
    /// Changes an entry, and its place in the order with it.
    fn change(&mut self, id: SkillId, change: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(id).or_default();
        let at = |e: &Entry| e.due.filter(|_| !e.running).map(|due| e.pause.map_or(due, |p| due.max(p)));
        if let Some(before) = at(entry) {
            self.order.remove(&(before, id));
        }
        change(entry);
        match at(entry) {
            Some(now) => drop(self.order.insert((now, id))),
            None if !entry.running => drop(self.entries.remove(&id)),
            None => {}
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

impl Queue {
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

    /// Waits for the next skill to decide; none when the queue was closed.
    pub fn take(&self) -> Option<SkillId> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            state = match state.order.first().copied() {
                Some((due, id)) if due <= now => {
                    state.change(id, |e| *e = Entry { running: true, ..Entry::default() });
                    return Some(id);
                }
                Some((due, _)) => {
                    let wait = self.filled.wait_timeout(state, due - now);
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The decision of `id` has ended. With `again` it must be taken anew, after that time at the earliest.
    pub fn done(&self, id: SkillId, again: Option<Duration>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.change(id, |entry| {
            entry.running = false;
            if let Some(pause) = again {
                entry.pause = Some(now + pause);
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
        let queue = Queue::default();
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
        let queue = Queue::default();
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
    fn what_must_be_taken_anew_waits_for_its_pause() {
        let queue = Queue::default();
        queue.now(SkillId(1));
        queue.take();
        queue.now(SkillId(1));
        let began = Instant::now();
        queue.done(SkillId(1), Some(Duration::from_millis(60)));
        assert_eq!(queue.take(), Some(SkillId(1)));
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}
