//! What is kept for a link's next sandbox: an init that waits for what it is to become, which is half of what making a
//! sandbox costs, and the limits that it is likely to have.

use super::init::{self, Newborn};
use super::process::has_ended;
use crate::ceiling::Ceiling;
use cyberos_proto::message::Refusal;
use cyberos_proto::plan::{Cgroup, Limits};
use std::os::fd::{AsFd, OwnedFd};

/// What is kept. Nothing before the first sandbox.
#[derive(Default)]
pub(super) struct Spare {
    /// Limits of the last sandbox.
    usual: Option<Limits>,
    init: Option<Newborn>,
}

impl Spare {
    /// Limits that the next sandbox is likely to have.
    pub(super) fn usual(&self) -> Option<Limits> {
        self.usual.clone()
    }

    /// One was made, with these.
    pub(super) fn made(&mut self, limits: Option<&Limits>) {
        self.usual = limits.cloned();
    }

    /// Whether an init is to wait and none does. In version 2 of control groups an init must be born where its limits are.
    pub(super) fn lacks(&self, ceiling: &Ceiling) -> bool {
        self.usual.is_some() && ceiling.groups.version != Cgroup::V2 && self.init.is_none()
    }

    /// Has an init wait, if one is to and none does.
    pub(super) fn keep(&mut self, ceiling: &Ceiling) {
        if self.lacks(ceiling) {
            self.init = init::born(ceiling, None).ok();
            // Not again and again, if there can be none.
            self.usual = self.usual.take().filter(|_| self.init.is_some());
        }
    }

    /// The init that waited, or else a new one, born into `group` if there is one.
    pub(super) fn take(&mut self, ceiling: &Ceiling, group: Option<&OwnedFd>) -> Result<Newborn, Refusal> {
        let waited = self.init.take().filter(|spare| group.is_none() && !has_ended(spare.init.as_fd()));
        waited.map_or_else(|| init::born(ceiling, group), Ok)
    }
}
