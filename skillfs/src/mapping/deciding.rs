//! A decision that is being made. `resolver.rs` begins one, and installs it or drops it.

use super::Mapping;
use crate::decision::{Decision, Installed, RunTouches, SkillId};
use crate::stamps::Stamps;
use crate::tree::Tree;
use cyberos_proto::control::Verdict;
use std::sync::Arc;

impl Mapping {
    /// A provider begins to look at the skill; none if it is not known where it lies.
    pub fn begin(&self, id: SkillId) -> Option<Deciding<'_>> {
        let mut inner = self.lock();
        let s = inner.get_mut(id)?;
        let live = s.live.clone()?;
        s.begin();
        Some(Deciding { mapping: self, id, run: s.runs_begun, changes: s.changes, live })
    }
}

/// While there is one, what is touched in the skill's `.skill-meta` is noted apart. Dropped, the decision is abandoned, and
/// everything stays as it was.
#[derive(Debug)]
#[must_use = "a decision that is dropped is abandoned"]
pub struct Deciding<'a> {
    mapping: &'a Mapping,
    id: SkillId,
    run: u64,
    changes: u64,
    live: Arc<Tree>,
}

impl Deciding<'_> {
    /// The live folder.
    pub fn live(&self) -> &Arc<Tree> {
        &self.live
    }

    /// How many changes of the skill had been seen when this began.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What was touched in `.skill-meta` since then; none when something else changed too.
    pub fn touches(&self) -> Option<RunTouches> {
        let inner = self.mapping.lock();
        let s = inner.get(self.id)?;
        if s.changes != self.changes { None } else { s.running.clone() }
    }

    /// Installs a decision, or applies the failure policy, unless the skill has changed meanwhile, in `.skill-meta` by more
    /// than `seen`. `stamps` tell what the live folder's files were before it was looked at.
    pub fn install(
        self,
        seen: &RunTouches,
        outcome: Result<Decision, String>,
        stamps: Option<Arc<Stamps>>,
    ) -> Installed {
        let mapping = self.mapping;
        let mut inner = mapping.lock();
        let Some(s) = inner.get_mut(self.id) else { return Installed::Changed };
        if s.running.as_ref() != Some(seen) || s.changes != self.changes {
            return Installed::Changed;
        }
        s.running = None;
        // Also when nobody reported it.
        let edited = s.live_touched || s.stamps != stamps;
        s.install(outcome, mapping.on_failure);
        s.stamps = stamps.filter(|_| s.decision.as_ref().is_some_and(|d| d.verdict == Verdict::Current));
        mapping.refresh(self.id, &mut inner, edited);
        drop(inner);
        mapping.changed.notify_all();
        Installed::Yes
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        if let Some(s) = self.mapping.lock().get_mut(self.id).filter(|s| s.runs_begun == self.run) {
            s.running = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Touch;
    use crate::exposure::{OnChange, OnFailure};
    use crate::flips::Flips;
    use cyberos_proto::ids::SkillName;
    use std::path::PathBuf;

    fn current() -> Decision {
        Decision {
            verdict: Verdict::Current,
            trusted: None,
            version: Some("v000001".to_owned()),
            status: "pass".to_owned(),
            reason: None,
            warning: None,
            content_digest: None,
        }
    }

    fn decided() -> (tempfile::TempDir, Mapping, SkillId) {
        let t = tempfile::tempdir().unwrap();
        let mapping = Mapping::new(1, OnChange::Hide, OnFailure::Hide, Arc::new(Flips::default()));
        let id = mapping.ensure(&SkillName::new("s").unwrap());
        assert!(mapping.begin(id).is_none(), "nobody knows where it lies");
        mapping.place(id, std::fs::File::open(t.path()).unwrap().into());
        let installed = mapping.begin(id).unwrap().install(&RunTouches::default(), Ok(current()), None);
        assert_eq!(installed, Installed::Yes);
        (t, mapping, id)
    }

    fn all(mapping: &Mapping, id: SkillId) -> String {
        let shown = mapping.shown(id).map(|tree| tree.number);
        format!("{:?} {shown:?} {:?} {:?}", mapping.state(id), mapping.must_watch(id), mapping.failures())
    }

    #[test]
    fn an_abandoned_decision_leaves_the_mapping_as_it_was() {
        let (_t, mapping, id) = decided();
        let before = all(&mapping, id);
        let abandoned = mapping.begin(id).unwrap();
        assert_eq!(abandoned.touches(), Some(RunTouches::default()));
        drop(abandoned);
        assert_eq!(all(&mapping, id), before);
        // Nothing is noted apart any more: a change is a change.
        mapping.touch(id, &Touch::Private(PathBuf::from("x")));
        assert!(mapping.state(id).unwrap().pending);
    }

    #[test]
    fn a_decision_that_was_overtaken_is_not_installed_and_is_abandoned() {
        let (_t, mapping, id) = decided();
        for touch in [Touch::Live, Touch::Private(PathBuf::from("x"))] {
            let deciding = mapping.begin(id).unwrap();
            mapping.touch(id, &touch);
            let before = all(&mapping, id);
            let refused = deciding.install(&RunTouches::default(), Err("failed".to_owned()), None);
            assert_eq!(refused, Installed::Changed);
            assert_eq!(all(&mapping, id), before);
            let again = mapping.begin(id).unwrap();
            assert_eq!(
                again.touches(),
                Some(RunTouches::default()),
                "of this one's time nothing was touched"
            );
            assert_eq!(again.install(&RunTouches::default(), Ok(current()), None), Installed::Yes);
        }
    }

    #[test]
    fn an_older_decision_that_is_dropped_ends_no_later_one() {
        let (_t, mapping, id) = decided();
        let older = mapping.begin(id).unwrap();
        let later = mapping.begin(id).unwrap();
        drop(older);
        assert!(later.touches().is_some());
        mapping.gone(id);
        assert_eq!(later.install(&RunTouches::default(), Ok(current()), None), Installed::Changed);
    }
}
