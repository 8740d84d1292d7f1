//! What is to be done although nothing tells of it, and when: what the kernel refused is tried again, a source that changes
//! too fast is listed, and a way of which a step cannot be watched is looked at.

use super::lane::Who;
use super::{FIRST_WAY, TICK, Watch};
use crate::decision::Touch;
use crate::way::Way;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::time::Instant;

impl Watch {
    /// Does what is due.
    pub(super) fn tick(&self) {
        let now = Instant::now();
        self.tick_roots(now);
        self.wait_for_ways();
        let hungry = self.table().hungry(now);
        for who in hungry {
            match who {
                Who::Source(index) => self.watch_again(index),
                Who::Skill(id) | Who::Beside(id) => self.queue.soon(id),
            }
        }
        for who in self.shown_unwatched(now) {
            if let Who::Skill(id) = who {
                self.mapping.touch(id, &Touch::Live);
            }
        }
    }

    /// What is shown although it is not watched: the kernel must not keep it.
    fn shown_unwatched(&self, now: Instant) -> Vec<Who> {
        if !self.mapping.keeps_live() {
            return Vec::new();
        }
        let table = self.table();
        table.entries.iter().filter(|(_, entry)| entry.backoff.holds(now)).map(|(who, _)| *who).collect()
    }

    /// When the next tick is due; none while nothing is.
    pub(super) fn next_tick(&self, now: Instant) -> Option<Instant> {
        let unsure = !self.sources.ways().iter().all(Way::is_sure) || !self.shown_unwatched(now).is_empty();
        let by_the_clock = unsure.then(|| now + TICK);
        let hungry = self.table().next_hungry();
        [by_the_clock, hungry, self.next_root()].into_iter().flatten().min()
    }

    /// The next thing that happens to a step of a way wakes the watcher: once, however often it happens until then.
    fn wait_for_ways(&self) {
        for (way, number) in self.sources.ways().iter().zip(FIRST_WAY..) {
            let event = || EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, number);
            way.wait_by(|fd| self.poller.modify(fd, &mut event()).or_else(|_| self.poller.add(fd, event())));
        }
    }
}
