//! The sources themselves: which skills come and go, and whether a source is still the directory that it was.
//!
//! Whoever can create entries in a source can make events without end here, too. Nothing that is shown rests on them: that a
//! skill is moved away is seen in its own queue. So a source that changes too fast is listed now and then, not watched.

use super::Watch;
use super::lane::{Changes, Lane, Spot, Who};
use super::pace::Backoff;
use super::share::Class;
use crate::beneath;
use crate::beneath::identity;
use crate::decision::{SkillId, Touch};
use crate::way::Look;
use cyberos_proto::ids::SkillName;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for which a source that changes too fast is not watched.
const LONGEST_HOLD: Duration = Duration::from_secs(5);
/// What an answer takes of a source's queue: a hundred entries or so.
const GLANCE: usize = 4 << 10;
/// Most names that are known at a time, with those that were shown since the start; those of strangers' folders leave half
/// of them free, and one stranger has an eighth of them at most.
const MAX_NAMES: usize = 32_768;

/// Most folders beside the skills that are watched; of strangers and of one stranger as with the names.
const MAX_BESIDE: usize = 1024;

/// What is known of one source.
#[derive(Debug, Default)]
pub(super) struct Root {
    /// The way to it when it was last watched.
    watched: Option<Look>,
    backoff: Backoff,
    /// When it is watched again, if it is not.
    again: Option<Instant>,
}

/// Whether one more fits, if there are `all`, and `of_owner` of a stranger's.
fn may_be_one_more(most: usize, all: usize, of_owner: usize, stranger: Option<u32>) -> bool {
    match stranger {
        Some(_) => all < most / 2 && of_owner < most / 8,
        None => all < most,
    }
}

impl Watch {
    fn roots(&self) -> std::sync::MutexGuard<'_, Vec<Root>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what changed in the sources themselves, and in folders that may come before a skill, unless that is very
    /// much. Most often nothing has, and then nobody waits for anybody.
    pub(crate) fn catch_up_roots(&self) {
        let quiet = || {
            let _reading = self.reading_roots.read().unwrap_or_else(PoisonError::into_inner);
            let lanes = self.table().roots();
            // The lanes first: names are noted before a lane's lock is given up.
            lanes.iter().all(|lane| lane.is_quiet()) && self.names().is_empty()
        };
        if !quiet() {
            self.look_at_roots(GLANCE);
        }
    }

    /// The same, `most` bytes of each queue, of those that have no more if that is a glance.
    pub(super) fn look_at_roots(&self, most: usize) {
        // Held until what was read is in the mapping. What is to be done needs the lanes, so it is done after the reading.
        let _reading = self.reading_roots.write().unwrap_or_else(PoisonError::into_inner);
        let lanes = self.table().roots();
        for lane in lanes.iter().filter(|lane| most > GLANCE || lane.backlog() <= GLANCE) {
            self.look(lane, most);
        }
        let names = std::mem::take(&mut *self.names());
        names.iter().for_each(|name| self.consider(name));
    }

    fn names(&self) -> std::sync::MutexGuard<'_, BTreeSet<SkillName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what to look for. A lane's lock is held.
    pub(super) fn source_changed(&self, changes: Changes) {
        if changes.place {
            self.report_all();
        }
        let names = changes.names.iter().filter_map(|name| SkillName::new(name.to_str()?).ok());
        self.names().extend(names);
    }

    /// The same for folders that are no skills.
    pub(super) fn beside_changed(&self, id: SkillId) {
        self.names().extend(self.mapping.name(id));
    }

    /// What was dropped can only be found by looking.
    pub(super) fn source_lost(&self) {
        self.roots_again(Instant::now());
    }

    pub(super) fn hold_source(&self, index: usize) {
        let now = Instant::now();
        let time = {
            let mut roots = self.roots();
            let Some(root) = roots.get_mut(index).filter(|root| !root.backoff.holds(now)) else { return };
            let time = root.backoff.next(now, LONGEST_HOLD);
            root.again = Some(now + time);
            time
        };
        self.bell().ring();
        tracing::warn!(source = ?self.sources.paths().get(index), seconds = time.as_secs_f32(),
            "entries come and go in a source faster than SkillFS can follow; it is listed again after this time");
        self.part(Who::Source(index));
    }

    /// Something has the name of a skill, or has it no more. A skill that lies where it lay is not touched by it. Of a folder
    /// that is none, only the top is watched, so that it is seen when it becomes one.
    pub(super) fn consider(&self, name: &SkillName) {
        // What comes back while its name is dropped must not be missed.
        if self.consider_once(name) && self.sources.find(name).is_some() {
            self.consider_once(name);
        }
    }

    /// Whether the name is not known any more.
    fn consider_once(&self, name: &SkillName) -> bool {
        let found = self.sources.find(name);
        let here = found.as_ref().and_then(|f| fstat(&f.directory).ok()).map(|st| identity(&st));
        let known = self.mapping.find(name.as_str());
        let skill = known.filter(|id| self.mapping.state(*id).is_some());
        match (skill, found) {
            (Some(id), Some(found)) if here.is_some() && here == self.mapping.live_identity(id) => {
                self.pass_over(id, &found.passed_over);
            }
            (Some(id), _) => self.report(id, &Touch::Place),
            (None, None) => return known.is_some_and(|id| self.forget(id)),
            (None, Some(found)) => {
                let Some(id) = self.admit(name, self.limits.stranger(&found.directory)) else { return false };
                // It may become one before it is watched.
                if !found.is_skill {
                    self.pass_over(id, &found.passed_over);
                }
                if found.is_skill || self.sources.find(name).is_some_and(|f| f.is_skill) {
                    self.report(id, &Touch::Place);
                } else if !self.table().entries.contains_key(&Who::Beside(id)) {
                    // Nobody watches it: it is found by its name, as it was now.
                    self.mapping.forget(id);
                }
            }
        }
        false
    }

    /// Watches the tops of folders that have the skill's name and are none, and no others. Without a watch, one that becomes
    /// a skill is seen at the next refresh.
    pub(crate) fn pass_over(&self, id: SkillId, folders: &[OwnedFd]) {
        let who = Who::Beside(id);
        let mut table = self.table();
        let held = table.entries.get(&who).is_some_and(|entry| entry.backoff.holds(Instant::now()));
        if folders.is_empty() || held {
            let watched = table.entries.contains_key(&who);
            drop(table);
            return if watched && !held {
                self.part(who)
            };
        }
        let stranger = folders.iter().find_map(|folder| self.limits.stranger(folder));
        let beside = || table.entries.iter().filter(|(w, _)| matches!(w, Who::Beside(_)));
        let of_owner = beside().filter(|(_, entry)| entry.stranger == stranger).count();
        if !table.entries.contains_key(&who)
            && !may_be_one_more(MAX_BESIDE, beside().count(), of_owner, stranger)
        {
            return tracing::debug!(?id, "too many folders beside the skills; seen at the next refresh");
        }
        let lane = table.assign(who, Class::Beside, &self.limits);
        table.entries.entry(who).or_default().stranger = stranger;
        drop(table);
        let watch = |lane: &Lane| {
            let add = |folder: &OwnedFd| lane.add(who, &beneath::proc_path(folder), &Spot::Top).ok();
            folders.iter().filter_map(add).collect()
        };
        match lane {
            Ok(lane) => self.keep(&lane, who, &watch(&lane)),
            Err(e) => tracing::debug!(error = %e, "a folder beside the skills cannot be watched"),
        }
    }

    /// Folders that are no skills change too fast: they are looked at again after a while.
    pub(super) fn hold_beside(&self, id: SkillId) {
        let who = Who::Beside(id);
        let mut table = self.table();
        let entry = table.entries.entry(who).or_default();
        if entry.backoff.holds(Instant::now()) {
            return;
        }
        let time = entry.backoff.next(Instant::now(), LONGEST_HOLD);
        drop(table);
        tracing::warn!(folder = ?self.mapping.name(id), seconds = time.as_secs_f32(),
            "a folder that is no skill changes faster than SkillFS can follow; it is looked at again after \
             this time");
        self.part(who);
        self.roots_again(Instant::now() + time);
    }

    /// A number for a new name, unless there are too many.
    fn admit(&self, name: &SkillName, stranger: Option<u32>) -> Option<SkillId> {
        static SAID: AtomicBool = AtomicBool::new(false);
        let is_full = || {
            let (all, of_owner) = self.mapping.count(stranger);
            !may_be_one_more(MAX_NAMES, all, of_owner, stranger)
        };
        if self.mapping.find(name.as_str()).is_none() && is_full() {
            self.drop_names();
            if is_full() {
                if !SAID.swap(true, Ordering::Relaxed) {
                    tracing::warn!(skill = ?name, owner = stranger, "not shown: there are, or were, too many skills");
                }
                return None;
            }
        }
        Some(self.mapping.ensure_of(name, stranger))
    }

    /// Drops the names of what is gone, was never shown, and whose haste is forgotten.
    fn drop_names(&self) {
        let mut table = self.table();
        let now = Instant::now();
        table.entries.retain(|_, entry| !entry.is_idle(now));
        let unwatched =
            |id: &SkillId| [Who::Skill(*id), Who::Beside(*id)].iter().all(|w| !table.entries.contains_key(w));
        let ids: Vec<SkillId> = self.mapping.ids().into_iter().filter(unwatched).collect();
        drop(table);
        for id in ids {
            self.mapping.forget(id);
        }
    }

    fn report_all(&self) {
        for id in self.mapping.ids() {
            if self.mapping.state(id).is_some() {
                self.report(id, &Touch::Place);
            }
        }
    }

    /// All is listed again at that time, if not before.
    fn roots_again(&self, at: Instant) {
        for root in self.roots().iter_mut() {
            root.again = Some(root.again.map_or(at, |before| before.min(at)));
        }
        self.bell().ring();
    }

    /// When the next source is listed again, if one is.
    pub(super) fn next_root(&self) -> Option<Instant> {
        self.roots().iter().filter_map(|root| root.again).min()
    }

    /// Watches the sources themselves, and finds the skills that came or went. New ones are asked to be decided.
    pub fn discover(&self) {
        for index in 0..self.sources.paths().len() {
            self.watch_source(index);
        }
        self.find_skills();
    }

    fn find_skills(&self) {
        let (names, folders) = self.sources.names();
        names.iter().chain(&folders).for_each(|name| self.consider(name));
        for id in self.mapping.ids() {
            let known = self.mapping.name(id).is_some_and(|n| names.contains(&n) || folders.contains(&n));
            if !known && self.mapping.state(id).is_some() {
                self.report(id, &Touch::Place);
            }
        }
    }

    /// Watches a source again, and finds what was missed.
    pub(super) fn watch_again(&self, index: usize) {
        self.watch_source(index);
        self.find_skills();
    }

    fn watch_source(&self, index: usize) {
        let who = Who::Source(index);
        let there = self.sources.look(index);
        let directory = self.sources.directory(index);
        let watched = directory.and_then(|dir| {
            let lane = self.table().assign(who, Class::Source, &self.limits)?;
            let wd = lane.add(who, &beneath::proc_path(&dir), &Spot::Top)?;
            self.keep(&lane, who, &[wd].into());
            Ok(())
        });
        match &watched {
            Ok(()) => self.table().fed(who),
            Err(e) => {
                tracing::error!(source = ?self.sources.paths().get(index), error = %e,
                    "a source cannot be watched; it is tried again");
                if matches!(e, Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) {
                    self.table().starved(who, Instant::now());
                    self.bell().ring();
                }
            }
        }
        if let Some(root) = self.roots().get_mut(index) {
            root.watched = there;
        }
    }

    pub(super) fn tick_roots(&self, now: Instant) {
        self.check_sources();
        let due = |root: &mut Root| root.again.take_if(|at| *at <= now).is_some();
        let due: Vec<usize> =
            self.roots().iter_mut().enumerate().filter_map(|(n, root)| due(root).then_some(n)).collect();
        due.into_iter().for_each(|index| self.watch_again(index));
    }

    /// A source's path may be a symlink, or its directory may be exchanged, without any event that we would get.
    fn check_sources(&self) {
        let before: Vec<_> = self.roots().iter().map(|root| (root.watched.clone(), root.again)).collect();
        let now = |index| self.sources.look(index);
        let exchanged = |(i, (look, again)): (usize, &(Option<Look>, Option<_>))| {
            again.is_none() && !Look::alike(&now(i), look)
        };
        if before.iter().enumerate().any(exchanged) {
            tracing::warn!("a source is another directory than before; everything is decided again");
            self.report_all();
            self.discover();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposure::{OnChange, OnFailure};
    use crate::flips::Flips;
    use crate::mapping::Mapping;
    use std::sync::Arc;

    #[test]
    fn names_that_are_gone_and_were_never_shown_are_given_back() {
        let mapping = Mapping::new(1, OnChange::Hide, OnFailure::Hide, Arc::new(Flips::default()));
        let mut last = None;
        for n in 0..3 * MAX_NAMES {
            let name = SkillName::new(&format!("n{n}")).unwrap();
            let id = mapping.ensure_of(&name, Some(61_002));
            assert!(last < Some(id), "no number is given twice");
            last = Some(id);
            mapping.touch(id, &Touch::Place);
            assert!(!mapping.forget(id), "it is still there");
            mapping.gone(id);
            assert!(
                mapping.forget(id) && mapping.name(id).is_none() && mapping.find(name.as_str()).is_none()
            );
        }
        assert_eq!(mapping.count(Some(61_002)), (0, 0));
    }

    #[test]
    fn one_stranger_uses_up_no_other_strangers_names() {
        let (mut all, mut owners) = (0, 0);
        while may_be_one_more(MAX_NAMES, all, 0, Some(owners)) {
            let mut own = 0;
            while may_be_one_more(MAX_NAMES, all, own, Some(owners)) {
                (all, own) = (all + 1, own + 1);
            }
            owners += 1;
        }
        assert!(owners >= 4 && may_be_one_more(MAX_NAMES, all, 0, None), "{owners} have used up {all}");
    }
}
