//! The memory that one invocation may hold for requests and answers on their way: 64 MiB (`[3.3]`), as four rooms, so
//! that nobody waits in a circle:
//!
//! ```text
//! frames    16 MiB  one unfinished body for each of 16 connections; bounded by their number
//! requests   8 MiB  requests being worked on, by what their trees take
//! batch     16 MiB  the answers of the one batch that is being worked on
//! answers   24 MiB  results being made and answers not yet taken
//! ```
//!
//! Rooms are entered in this order and each at most once, so whoever holds the last one waits for nobody but its peer,
//! and a peer has 30 s. When a room is full its connection stops reading.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of account: a semaphore counts no further than 2^29 on small machines, and nothing here is finer than a page.
const PAGE: usize = 4096;
const REQUESTS: usize = 8 << 20;
const BATCH: usize = 16 << 20;
const ANSWERS: usize = 24 << 20;

/// A part of a room, given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<OwnedSemaphorePermit>);

impl Held {
    /// How much it is.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |permit| permit.num_permits() * PAGE)
    }

    /// Gives back what exceeds `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.0 {
            let surplus = permit.num_permits().saturating_sub(bytes.div_ceil(PAGE));
            drop(permit.split(surplus));
        }
    }
}

/// A room of so many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    pages: Arc<Semaphore>,
    size: usize,
}

impl Room {
    /// An empty one.
    pub(crate) fn new(bytes: usize) -> Self {
        Room { pages: Arc::new(Semaphore::new(bytes / PAGE)), size: bytes / PAGE }
    }

    /// Takes `bytes`, waiting for its turn. More than the room holds is the whole room: then nobody else is in it.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        // Fails only when closed, and it never is.
        Held(self.pages.clone().acquire_many_owned(self.pages_of(bytes)).await.ok())
    }

    /// Takes `bytes` if nobody has to wait for it.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        self.pages.clone().try_acquire_many_owned(self.pages_of(bytes)).ok().map(|p| Held(Some(p)))
    }

    fn pages_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(PAGE).min(self.size)).unwrap_or(u32::MAX)
    }
}

/// The rooms of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    pub(crate) requests: Room,
    pub(crate) batch: Room,
    pub(crate) answers: Room,
}

impl Rooms {
    pub(crate) fn new() -> Self {
        Rooms { requests: Room::new(REQUESTS), batch: Room::new(BATCH), answers: Room::new(ANSWERS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_room_is_full_when_it_is_full_and_empties_again() {
        let room = Room::new(10 * PAGE);
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
}
