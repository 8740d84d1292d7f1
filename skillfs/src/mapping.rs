//! Skill → what is shown of it: the one place where decisions, seen changes and policy meet.
//!
//! ```text
//! watch ──touch──►  Mapping  ◄──begin, install── resolver          fs ──shown──► (a tree, or nothing)
//!                      │ every change of what is shown
//!                      ▼
//!                   flips.rs (tells the kernel) ──settled──► Mapping (pending ends)
//! ```
//!
//! A skill is *pending* from a seen change until it is decided **and** the kernel has been told (`[9.3]`, `[9.4]`).
//! Its epoch counts every seen mutation, decision and change of what is shown (`[0.1]`). No method waits for the
//! kernel or a provider, except those whose name says `wait`; FUSE handlers call none of these.

mod deciding;
mod names;

use crate::beneath::identity;
use crate::decision::{SkillId, Touch};
use crate::exposure::{OnChange, OnFailure};
use crate::flips::Flips;
use crate::state::Skill;
use crate::tree::{Showing, Tree};
use crate::verdict::SnapshotName;
use cyberos_proto::control::{self, Epoch, SkillState};
use cyberos_proto::ids::SkillName;
pub use deciding::Deciding;
use nix::sys::stat::fstat;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

#[derive(Debug, Default)]
pub(crate) struct Inner {
    by_name: BTreeMap<SkillName, SkillId>,
    skills: BTreeMap<u32, Skill>,
    next: u32,
    /// Highest epoch of a name that was dropped: one that comes back does not count anew.
    epoch: u64,
    /// When a skill last appeared or disappeared.
    names_changed: Option<SystemTime>,
}

/// The mapping of all skills.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    on_change: OnChange,
    on_failure: OnFailure,
    inner: Mutex<Inner>,
    changed: Condvar,
    flips: Arc<Flips>,
}

impl Mapping {
    /// An empty mapping. `start` is the random half of every epoch.
    pub fn new(start: u64, on_change: OnChange, on_failure: OnFailure, flips: Arc<Flips>) -> Self {
        Mapping { start, on_change, on_failure, inner: Mutex::default(), changed: Condvar::new(), flips }
    }

    /// Whether readers keep the live folder while it is edited.
    pub fn keeps_live(&self) -> bool {
        self.on_change == OnChange::Keep
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The name of that number.
    pub fn name(&self, id: SkillId) -> Option<SkillName> {
        self.lock().get(id).map(|s| s.name.clone())
    }

    /// All numbers.
    pub fn ids(&self) -> Vec<SkillId> {
        self.lock().by_name.values().copied().collect()
    }

    /// The tree that is shown now; none when the skill is hidden or unknown.
    pub fn shown(&self, id: SkillId) -> Option<Arc<Tree>> {
        self.lock().get(id).and_then(|s| s.shown.clone())
    }

    /// The same, with what tells whether anything of it changes.
    pub fn showing(&self, id: SkillId) -> Option<Showing> {
        let inner = self.lock();
        let s = inner.get(id)?;
        let (tree, stamps) = (s.shown.clone()?, s.stamps.clone());
        Some(Showing { tree, changes: s.changes, stamps, keeps: self.keeps_live() })
    }

    /// When a skill last appeared or disappeared: the root's time.
    pub fn names_changed(&self) -> SystemTime {
        self.lock().names_changed.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Up to `most` shown skills from number `first` on, in the order of their numbers.
    pub fn shown_from(&self, first: u32, most: usize) -> Vec<(SkillId, SkillName, Arc<Tree>)> {
        let inner = self.lock();
        let all = inner.skills.range(first..).map(|(n, s)| (SkillId(*n), s));
        all.filter_map(|(id, s)| Some((id, s.name.clone(), s.shown.clone()?))).take(most).collect()
    }

    /// Takes note of a change. While a provider runs, what is touched in `.skill-meta` is noted apart: it may be
    /// the provider's own work, and `resolver.rs` judges it.
    pub fn touch(&self, id: SkillId, touch: &Touch) {
        let mut inner = self.lock();
        let Some(s) = inner.get_mut(id) else { return };
        s.touch(touch);
        self.refresh(id, &mut inner, matches!(touch, Touch::Live));
        drop(inner);
        self.changed.notify_all();
    }

    /// Sets where the skill lies now. The same directory stays the same tree.
    pub fn place(&self, id: SkillId, directory: OwnedFd) {
        let mut inner = self.lock();
        let Some(s) = inner.get_mut(id) else { return };
        let same = match (&s.live, fstat(&directory)) {
            (Some(live), Ok(new)) => fstat(&live.root).is_ok_and(|old| identity(&old) == identity(&new)),
            _ => false,
        };
        if !same {
            if s.live.is_some() {
                s.touch(&Touch::Place);
            }
            s.live = Some(Tree::live(directory));
        }
        s.gone = false;
        self.refresh(id, &mut inner, false);
    }

    /// The skill is in no source any more.
    pub fn gone(&self, id: SkillId) {
        let mut inner = self.lock();
        let Some(s) = inner.get_mut(id) else { return };
        s.remove();
        self.refresh(id, &mut inner, false);
        drop(inner);
        self.changed.notify_all();
    }

    /// The skill changes too fast to be followed: nothing that was decided of it holds. `why` is told to whoever asks,
    /// until it has been decided again.
    pub fn hold(&self, id: SkillId, why: String) {
        let mut inner = self.lock();
        let Some(s) = inner.get_mut(id) else { return };
        s.held = Some(why);
        s.touch(&Touch::Place);
        self.refresh(id, &mut inner, true);
        drop(inner);
        self.changed.notify_all();
    }

    /// Device and inode of the live folder, once it was opened.
    pub fn live_identity(&self, id: SkillId) -> Option<(u64, u64)> {
        let live = self.lock().get(id)?.live.clone()?;
        fstat(&live.root).ok().map(|st| identity(&st))
    }

    /// What must be watched for what is shown of the skill, or was last to be shown: whether it was ever shown, and the
    /// snapshot that was last trusted.
    pub fn must_watch(&self, id: SkillId) -> (bool, Option<SnapshotName>) {
        let inner = self.lock();
        let Some(s) = inner.get(id) else { return (false, None) };
        let trusted = s.decision.as_ref().and_then(|d| d.trusted.as_ref()).map(|(name, _)| name.clone());
        (s.ever_shown, trusted)
    }

    /// The trusted snapshot, as long as nobody touched it.
    pub fn trusted(&self, id: SkillId) -> Option<(SnapshotName, Arc<Tree>)> {
        let inner = self.lock();
        let s = inner.get(id).filter(|s| !s.snapshot_touched)?;
        s.decision.as_ref()?.trusted.clone()
    }

    /// Skills whose last resolve failed, with the reason.
    pub fn failures(&self) -> Vec<(SkillName, String)> {
        let inner = self.lock();
        let failed = |id: &SkillId| inner.get(*id).and_then(|s| Some((s.name.clone(), s.failed.clone()?)));
        inner.by_name.values().filter_map(failed).collect()
    }

    /// Computes what is shown, and has the kernel told when that changed, or when what is shown was `edited`.
    fn refresh(&self, id: SkillId, inner: &mut Inner, edited: bool) {
        let Some(s) = inner.get_mut(id) else { return };
        let tree = s.compute(self.on_change);
        let number = |t: &Option<Arc<Tree>>| t.as_ref().map(|t| t.number);
        let (was, is) = (number(&s.shown), number(&tree));
        let live = tree.as_ref().is_some_and(|t| t.live);
        s.ever_shown |= tree.is_some();
        s.shown = tree;
        if was != is || (edited && live) {
            s.epoch += 1;
            s.flips_queued += 1;
            let name = was.is_none() != is.is_none();
            self.flips.push(id, name, s.flips_queued);
            if name {
                inner.names_changed = Some(SystemTime::now());
            }
        }
    }

    /// The kernel has been told of all flips up to `ticket`.
    pub fn settled(&self, id: SkillId, ticket: u64) {
        if let Some(s) = self.lock().get_mut(id) {
            s.flips_done = s.flips_done.max(ticket);
        }
        self.changed.notify_all();
    }

    fn state_of(&self, s: &Skill) -> SkillState {
        s.state(Epoch { start: self.start, count: s.epoch })
    }

    /// All that is known of a skill; none if it is in no source.
    pub fn state(&self, id: SkillId) -> Option<SkillState> {
        self.lock().get(id).filter(|s| !s.gone).map(|s| self.state_of(s))
    }

    /// A page of skills by name, after `after`; how many there are in all; how many of them are undecided; whether
    /// the page is not the last.
    pub fn page(&self, after: Option<&SkillName>) -> (Vec<SkillState>, u32, u32, bool) {
        let inner = self.lock();
        let all = || inner.by_name.values().filter_map(|id| inner.get(*id)).filter(|s| !s.gone);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut rest = all().filter(|s| after.is_none_or(|a| s.name > *a));
        let page = rest.by_ref().take(control::MAX_PAGE).map(|s| self.state_of(s)).collect();
        let undecided = all().filter(|s| s.pending()).count();
        (page, count(all().count()), count(undecided), rest.next().is_some())
    }

    /// Waits until the skill is not pending, at most until `deadline`. Answers what is known then.
    pub fn wait_decided(&self, id: SkillId, deadline: Instant) -> Option<SkillState> {
        self.wait(deadline, |inner| inner.get(id).is_none_or(|s| !s.pending()));
        self.state(id)
    }

    /// Number of the run that begins next: what [`Mapping::wait_run`] waits for.
    pub fn next_run(&self, id: SkillId) -> u64 {
        self.lock().get(id).map_or(0, |s| s.runs_begun + 1)
    }

    /// Waits until run number `run` or a later one has been decided and the kernel has been told. Not for a skill that
    /// changes too fast to be decided.
    pub fn wait_run(&self, id: SkillId, run: u64, deadline: Instant) -> bool {
        let ended = |s: &Skill| s.held.is_some() || (s.runs_decided >= run && !s.pending());
        self.wait(deadline, |inner| inner.get(id).is_none_or(ended))
            && self.lock().get(id).is_none_or(|s| s.held.is_none())
    }

    fn wait(&self, deadline: Instant, done: impl Fn(&Inner) -> bool) -> bool {
        let mut inner = self.lock();
        while !done(&inner) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        true
    }
}

impl Inner {
    fn get(&self, id: SkillId) -> Option<&Skill> {
        self.skills.get(&id.0)
    }

    fn get_mut(&mut self, id: SkillId) -> Option<&mut Skill> {
        self.skills.get_mut(&id.0)
    }
}
