//! Which names are known, and by which numbers.

use super::Mapping;
use crate::decision::SkillId;
use crate::state::Skill;
use cyberos_proto::ids::SkillName;

impl Mapping {
    /// The number of that name, known or new. A new one is no skill before it is touched as a `Touch::Place`: then it
    /// is hidden and pending.
    pub fn ensure(&self, name: &SkillName) -> SkillId {
        self.ensure_of(name, None)
    }

    /// The same; a new one counts as that stranger's.
    pub fn ensure_of(&self, name: &SkillName, stranger: Option<u32>) -> SkillId {
        let mut inner = self.lock();
        if let Some(id) = inner.by_name.get(name) {
            return *id;
        }
        let id = SkillId(inner.next);
        // When all numbers are used, the last is no skill's.
        if let Some(next) = inner.next.checked_add(1) {
            let skill = Skill { stranger, epoch: inner.epoch, ..Skill::new(name.clone()) };
            inner.skills.insert(id.0, skill);
            inner.by_name.insert(name.clone(), id);
            inner.next = next;
        }
        id
    }

    /// Drops the name of one that is in no source and was never shown; answers whether it is not known any more.
    pub fn forget(&self, id: SkillId) -> bool {
        let mut inner = self.lock();
        let Some(s) = inner.get(id) else { return true };
        if !s.gone || s.flips_queued > 0 {
            return false;
        }
        inner.epoch = inner.epoch.max(s.epoch + 1);
        if let Some(s) = inner.skills.remove(&id.0) {
            inner.by_name.remove(&s.name);
        }
        drop(inner);
        self.changed.notify_all();
        true
    }

    /// How many names are known, and how many of them are that stranger's.
    pub fn count(&self, stranger: Option<u32>) -> (usize, usize) {
        let inner = self.lock();
        let of_owner = inner.skills.values().filter(|s| s.stranger == stranger).count();
        (inner.skills.len(), of_owner)
    }

    /// The number of that name, if it was ever seen.
    pub fn find(&self, name: &str) -> Option<SkillId> {
        let name = SkillName::new(name).ok()?;
        self.lock().by_name.get(&name).copied()
    }
}
