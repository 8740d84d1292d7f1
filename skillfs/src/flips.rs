//! What the kernel must be told: one entry a skill, merged until `notify.rs` takes it. A queue and nothing else, so
//! that `mapping.rs` can fill it under its lock and nobody who fills it ever waits.

use crate::decision::SkillId;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Condvar, Mutex};

/// A change of what is shown of one skill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flip {
    /// The skill appeared or disappeared, so its name at the root is concerned too.
    pub name: bool,
    /// Latest of the skill's flips that this one covers.
    pub ticket: u64,
}

#[derive(Debug, Default)]
struct Queue {
    flips: BTreeMap<SkillId, Flip>,
    /// Whose flip was taken last: the next is the next skill's, so that one that flips all the time holds up no other.
    last: Option<SkillId>,
    closed: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Flips {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Flips {
    /// Adds a flip; one that waits for the same skill is widened.
    pub fn push(&self, id: SkillId, name: bool, ticket: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        let flip = queue.flips.entry(id).or_default();
        flip.name |= name;
        flip.ticket = flip.ticket.max(ticket);
        drop(queue);
        self.filled.notify_one();
    }

    /// Waits for a flip; none when the queue was closed.
    pub fn take(&self) -> Option<(SkillId, Flip)> {
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if queue.closed {
                return None;
            }
            let after = |last| queue.flips.range((Bound::Excluded(last), Bound::Unbounded)).next();
            let next = queue.last.and_then(after).or(queue.flips.first_key_value()).map(|(id, _)| *id);
            if let Some(id) = next {
                queue.last = Some(id);
                return queue.flips.remove_entry(&id);
            }
            queue = self.filled.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Ends whoever waits.
    pub fn close(&self) {
        self.queue.lock().unwrap_or_else(|e| e.into_inner()).closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_flips_all_the_time_holds_up_no_other() {
        let flips = Flips::default();
        for id in [1, 2, 3] {
            flips.push(SkillId(id), false, 1);
        }
        let mut taken = Vec::new();
        for ticket in 2..6 {
            taken.push(flips.take().unwrap().0.0);
            flips.push(SkillId(1), false, ticket);
        }
        assert_eq!(taken, [1, 2, 3, 1]);
        flips.close();
        assert_eq!(flips.take(), None);
    }
}
