//! The memory that one invocation may hold for requests and answers on their way: 64 MiB (`[3.3]`), as five rooms, so
//! that nobody waits in a circle:
//!
//! ```text
//! frames    16 MiB  one unfinished body for each of 16 connections; bounded by their number
//! requests   8 MiB  requests being worked on, by what their trees take; one that takes more is refused unread
//! batch     16 MiB  the answers of the one batch that is being worked on
//! answers   20 MiB  results being made, and answers not yet taken
//! small      4 MiB  answers of at most 32 KiB not yet taken: errors, status, lists
//! ```
//!
//! MemoryBudget are entered in this order, each at most once, and one of the last two: whoever holds one of those waits for
//! nobody but its peer, and a peer has 30 s. When a room is full its connection stops reading. Small answers have a room
//! of their own so that a peer that takes no results does not keep the others from hearing how they stand.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of account of the large rooms: nothing in them is finer than a page.
const PAGE: usize = 4096;
/// Unit of account of the small room.
const LINE: usize = 64;
const REQUESTS: usize = 8 << 20;
const BATCH: usize = 16 << 20;
const ANSWERS: usize = 20 << 20;
const SMALL: usize = 4 << 20;
/// Longest answer that has its place in the small room.
const MAX_SMALL: usize = 32 * 1024;
/// What an answer takes beside its bytes: its place in a queue, and what the allocator keeps.
const OVERHEAD: usize = 128;

/// A part of a room, given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    permit: Option<OwnedSemaphorePermit>,
    unit: usize,
}

impl Held {
    /// How much it is.
    pub(crate) fn bytes(&self) -> usize {
        self.permit.as_ref().map_or(0, |permit| permit.num_permits() * self.unit)
    }

    /// Gives back what exceeds `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.permit {
            let surplus = permit.num_permits().saturating_sub(bytes.div_ceil(self.unit));
            drop(permit.split(surplus));
        }
    }
}

/// A room of so many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    units: Arc<Semaphore>,
    size: usize,
    unit: usize,
}

impl Room {
    /// An empty one, counted in units of so many bytes.
    pub(crate) fn new(bytes: usize, unit: usize) -> Self {
        Room { units: Arc::new(Semaphore::new(bytes / unit)), size: bytes / unit, unit }
    }

    /// How much it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.size * self.unit
    }

    /// Takes `bytes`, waiting for its turn. More than the room holds is the whole room: then nobody else is in it.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        // Fails only when closed, and it never is.
        let permit = self.units.clone().acquire_many_owned(self.units_of(bytes)).await.ok();
        Held { permit, unit: self.unit }
    }

    /// Takes `bytes` if nobody has to wait for it.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        let permit = self.units.clone().try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(Held { permit: Some(permit), unit: self.unit })
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(self.unit).min(self.size)).unwrap_or(u32::MAX)
    }
}

/// The rooms of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    pub(crate) requests: Room,
    pub(crate) batch: Room,
    pub(crate) answers: Room,
    small: Room,
}

impl MemoryBudget {
    pub(crate) fn new() -> Self {
        MemoryBudget {
            requests: Room::new(REQUESTS, PAGE),
            batch: Room::new(BATCH, PAGE),
            answers: Room::new(ANSWERS, PAGE),
            small: Room::new(SMALL, LINE),
        }
    }

    /// Room for an answer of `bytes` that is on its way, `held` being what was taken for it before it was made: what is
    /// too much is given back, and what was too little is not added to but taken anew, so that nobody waits in a room
    /// for more of it.
    pub(crate) async fn settle(&self, mut held: Held, bytes: usize) -> Held {
        let bytes = bytes + OVERHEAD;
        if held.bytes() >= bytes {
            held.shrink(bytes);
            return held;
        }
        drop(held);
        let room = if bytes <= MAX_SMALL { &self.small } else { &self.answers };
        room.take(bytes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_room_is_full_when_it_is_full_and_empties_again() {
        let room = Room::new(10 * PAGE, PAGE);
        let mut first = room.take(6 * PAGE).await;
        assert!(room.try_take(5 * PAGE).is_none());
        first.shrink(PAGE + 1);
        let second = room.try_take(8 * PAGE).unwrap();
        assert!(room.try_take(1).is_none());
        drop((first, second));
        let all = room.take(usize::MAX).await;
        assert!(room.try_take(1).is_none());
        drop(all);
        assert!(room.try_take(0).is_some());
    }

    #[tokio::test]
    async fn every_answer_is_in_a_room_and_a_small_one_does_not_wait_for_the_large() {
        let rooms = MemoryBudget::new();
        let full = rooms.answers.take(usize::MAX).await;
        let status = rooms.settle(Held::default(), 200).await;
        assert!(status.bytes() >= 200 && status.bytes() < 1024, "{}", status.bytes());
        drop(full);
        let large = rooms.settle(Held::default(), 1 << 20).await;
        assert!(large.bytes() >= 1 << 20);
        let guessed = rooms.answers.take(8 << 20).await;
        let settled = rooms.settle(guessed, 5 << 20).await;
        assert!((5 << 20..6 << 20).contains(&settled.bytes()));
        let settled = rooms.settle(rooms.answers.take(PAGE).await, 1 << 20).await;
        assert!(settled.bytes() >= 1 << 20);
    }
}
