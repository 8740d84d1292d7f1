//! Decides skills: one queue, a few workers, one run a skill at a time.
//!
//! ```text
//! queue → find the skill → watch what is needed of it → provider (scan, resolve) → catch up with the watch
//!       → what is to be shown was watched? (else watch it, and from the start) → open and check the snapshot
//!       → install, unless something changed meanwhile
//! ```
//!
//! A decision holds for what the provider has looked at, so one that was taken while the skill changed is thrown
//! away. A provider may write into `.skill-meta` while it runs; that is told from a change by others by running it
//! once more: if it then says the same and touches nothing new, it was its own doing.

use crate::beneath::identity;
use crate::counters::Counters;
use crate::decision::{Decision, Installed, RunTouches, SkillId, Touch};
use crate::mapping::Mapping;
use crate::provider::Provider;
use crate::queue::{self, Queue};
use crate::skill_file;
use crate::snapshot;
use crate::source::{Found, Sources};
use crate::stamps::{self, Stamps, Time};
use crate::tree::Tree;
use crate::verdict::{Answer, Choice, SnapshotName};
use crate::watch::{Covered, Need, Watch};
use cyberos_proto::control::Verdict;
use cyberos_proto::ids::SkillName;
use nix::sys::stat::fstat;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a provider is run for one decision: because it writes into `.skill-meta`, or because it wants to have shown what
/// was not watched when it looked.
const MAX_RUNS: u32 = 4;
/// First and longest pause after a decision that was overtaken by a change.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// One whose decision was overtaken so often in a row is a guest among those that are to be decided.
const RESTLESS: u32 = 4;
/// A large skill that was never shown is looked at again so often after it was last seen to change, each time twice as
/// long after the time before: not all of it is watched, and it may be on its way here.
const LOOKS: u32 = 7;
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What decides.
#[derive(Debug)]
pub struct Resolver {
    sources: Arc<Sources>,
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    queue: Arc<Queue>,
    /// None with `--unprotected`: everything is current.
    provider: Option<Provider>,
    counters: Arc<Counters>,
    /// How often in a row a skill's decision was overtaken.
    overtaken: Mutex<HashMap<SkillId, u32>>,
    /// Skills whose last decision took long.
    slow: Mutex<HashSet<SkillId>>,
    /// How often a skill of which not all is watched was looked at again, and how many of its changes were known then.
    looks: Mutex<HashMap<SkillId, (u64, u32)>>,
}

/// What there is to decide by.
#[derive(Debug)]
enum Said {
    /// The provider's answer; none with `--unprotected`.
    Answer(Option<Answer>),
    /// Nobody was asked: a skill that is just a folder now.
    NoSkill,
}

enum Run {
    /// Installed, or the skill is gone.
    Decided,
    /// The skill changed meanwhile.
    Overtaken,
    /// The provider may have made the changes itself.
    Repeat(String, RunTouches),
}

impl Resolver {
    /// A resolver that does nothing before [`Resolver::work`].
    pub fn new(
        sources: Arc<Sources>,
        mapping: Arc<Mapping>,
        watch: Arc<Watch>,
        queue: Arc<Queue>,
        provider: Option<Provider>,
        counters: Arc<Counters>,
    ) -> Self {
        Resolver {
            sources,
            mapping,
            watch,
            queue,
            provider,
            counters,
            overtaken: Mutex::default(),
            slow: Mutex::default(),
            looks: Mutex::default(),
        }
    }

    /// Decides what the queue gives, until it is closed. One call a thread.
    pub fn work(&self) {
        while let Some(id) = self.queue.take() {
            let began = Instant::now();
            let ended = self.decide(id);
            let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
            if began.elapsed() > queue::LONG {
                slow.insert(id)
            } else {
                slow.remove(&id)
            };
            drop(slow);
            let again = match ended {
                Run::Decided => {
                    self.overtaken.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                    None
                }
                Run::Overtaken | Run::Repeat(..) => Some(self.pause(id)),
            };
            self.queue.done(id, again);
        }
    }

    fn pause(&self, id: SkillId) -> Duration {
        let mut overtaken = self.overtaken.lock().unwrap_or_else(PoisonError::into_inner);
        let times = overtaken.entry(id).or_default();
        *times = times.saturating_add(1);
        PAUSE.saturating_mul(1 << (*times).min(10)).min(LONGEST_PAUSE)
    }

    /// Whether strangers can write in it, or it has taken long or changed all the time.
    fn is_guest(&self, id: SkillId, found: &Found) -> bool {
        let overtaken = self.overtaken.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied();
        overtaken.is_some_and(|times| times >= RESTLESS)
            || self.slow.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
            || !self.watch.is_ours(&found.directory)
    }

    fn decide(&self, id: SkillId) -> Run {
        let Some(name) = self.mapping.name(id) else {
            self.watch.forget(id);
            return Run::Decided;
        };
        let mut before = None;
        let (whole, trusted) = self.mapping.must_watch(id);
        let mut need = Need { whole, snapshots: trusted.into_iter().collect() };
        for last in (0..MAX_RUNS).map(|n| n + 1 == MAX_RUNS) {
            match self.run(id, &name, &mut need, before.take(), last) {
                Run::Repeat(said, touched) => before = Some((said, touched)),
                ended => return ended,
            }
        }
        Run::Overtaken
    }

    fn run(
        &self,
        id: SkillId,
        name: &SkillName,
        need: &mut Need,
        before: Option<(String, RunTouches)>,
        last: bool,
    ) -> Run {
        // Before anything is opened: what is the same afterwards was the same all the time.
        let looks = self.sources.looks();
        let Some(found) = self.sources.find(name) else {
            self.mapping.gone(id);
            // What came back meanwhile was told of by a number that is not its own any more.
            if self.watch.forget(id) && self.sources.find(name).is_some() {
                self.watch.look_for(name);
            }
            return Run::Decided;
        };
        if !found.is_skill && self.mapping.state(id).is_none() {
            // Nobody waits for a folder that is no skill; the watch sees when it becomes one.
            self.mapping.gone(id);
            return Run::Decided;
        }
        if !self.queue.rank(id, self.is_guest(id, &found)) {
            return Run::Overtaken;
        }
        self.mapping.place(id, found.directory);
        // However this ends, if it is not installed it is abandoned.
        let Some(deciding) = self.mapping.begin(id) else { return Run::Decided };
        let (live, changes) = (deciding.live().clone(), deciding.changes());
        let begun = stamps::begin();
        self.watch.pass_over(id, &found.passed_over);
        let covered = self.watch.cover(id, &live, need).map_err(|e| e.to_string());
        let covered = covered.and_then(|covered| Ok((self.stamps(&live, &covered)?, covered)));
        let (answer, stamps, covered) = match covered {
            Ok((stamps, covered)) if found.is_skill => {
                (self.ask(&found.path, name).map(Said::Answer), stamps, covered)
            }
            Ok((stamps, covered)) => (Ok(Said::NoSkill), stamps, covered),
            Err(e) => (Err(e), None, Covered::default()),
        };
        self.watch.catch_up(id);
        let Some(touched) = deciding.touches() else { return Run::Overtaken };
        let said = format!("{answer:?}");
        if let Ok(answer) = &answer {
            *need = self.needed(id, answer);
            if !covered.has(need) {
                return Run::Repeat(said, touched);
            }
        }
        let own_doing = touched.paths.is_empty()
            || before.is_some_and(|(b, t)| b == said && touched.paths.is_subset(&t.paths));
        if !own_doing && !last {
            return Run::Repeat(said, touched);
        }
        let decision = match answer {
            Ok(Said::NoSkill) => Ok(skill_file::lost()),
            Ok(Said::Answer(answer)) => self.judge(id, &live, answer, &touched, begun),
            Err(why) => Err(why),
        };
        let decision = decision.map(|d| skill_file::checked(d, &live.root));
        // The provider was given a path; what was decided must be what that path named all the time.
        if !self.sources.is_still(name, &looks, &live.root) {
            self.mapping.touch(id, &Touch::Place);
        }
        self.watch.catch_up(id);
        report(name, &decision);
        let verdict = decision.as_ref().ok().map(|d| d.verdict);
        match deciding.install(&touched, decision, stamps) {
            Installed::Yes => {
                self.counters.decided(verdict);
                self.look_again(id, changes, &covered);
                Run::Decided
            }
            Installed::Changed => Run::Overtaken,
        }
    }

    /// What the live folder's files are before anybody looks at them. Where it is shown as it is, nobody asks for that, nor
    /// of one that will not be shown before it has been decided again.
    fn stamps(&self, live: &Tree, covered: &Covered) -> Result<Option<Arc<Stamps>>, String> {
        if self.mapping.keeps_live() || !covered.is_whole() {
            return Ok(None);
        }
        Stamps::of_live(&live.root).map(|stamps| Some(Arc::new(stamps))).map_err(|e| e.to_string())
    }

    /// What must have been watched while the provider looked, for its answer to hold.
    fn needed(&self, id: SkillId, said: &Said) -> Need {
        let (whole, _) = self.mapping.must_watch(id);
        match said {
            Said::Answer(None) => Need { whole: true, snapshots: Vec::new() },
            Said::NoSkill | Said::Answer(Some(Answer { choice: Choice::Hidden, .. })) => {
                Need { whole, snapshots: Vec::new() }
            }
            Said::Answer(Some(answer)) => {
                Need { whole: true, snapshots: answer.trusted_snapshot().into_iter().collect() }
            }
        }
    }

    /// Not everything of this skill is watched: what changes deep inside is found by looking, for a while.
    fn look_again(&self, id: SkillId, changes: u64, covered: &Covered) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if covered.is_whole() {
            looks.remove(&id);
            return;
        }
        let (seen, times) = looks.entry(id).or_default();
        if *seen != changes {
            (*seen, *times) = (changes, 0);
        }
        if *times < LOOKS {
            self.queue.by(id, FIRST_LOOK.saturating_mul(1 << *times));
            *times += 1;
        }
    }

    fn ask(&self, path: &Path, name: &SkillName) -> Result<Option<Answer>, String> {
        match &self.provider {
            None => Ok(None),
            Some(provider) => {
                let began = Instant::now();
                let said = provider.decide(path, name);
                self.counters.provider_ran(began.elapsed());
                said.map(Some).map_err(|e| e.to_string())
            }
        }
    }

    /// Opens and checks the snapshot that the answer names. A fallback without a safe one is a rejected resolve; a
    /// current folder without one has nothing to be shown instead while it is edited.
    fn judge(
        &self,
        id: SkillId,
        live: &Tree,
        answer: Option<Answer>,
        touched: &RunTouches,
        begun: Time,
    ) -> Result<Decision, String> {
        let Some(answer) = answer else { return Ok(unprotected()) };
        let snapshot =
            answer.trusted_snapshot().map(|name| self.open_snapshot(id, live, name, touched, begun));
        let warning = answer.warning();
        let (verdict, trusted, version) = match answer.choice {
            Choice::Current => (Verdict::Current, snapshot.and_then(Result::ok), answer.current_version),
            Choice::Fallback(_) => (Verdict::Fallback, snapshot.transpose()?, answer.trusted_version),
            Choice::Hidden => (Verdict::Hidden, None, None),
        };
        Ok(Decision {
            verdict,
            trusted,
            version,
            status: answer.status.as_str().to_owned(),
            reason: answer.reason,
            warning,
            content_digest: answer.content_digest,
        })
    }

    /// The same snapshot as before, if untouched, stays the same tree, so that nothing flips.
    fn open_snapshot(
        &self,
        id: SkillId,
        live: &Tree,
        name: SnapshotName,
        touched: &RunTouches,
        begun: Time,
    ) -> Result<(SnapshotName, Arc<Tree>), String> {
        let inside = Path::new("versions").join(name.as_str());
        if touched.paths.iter().any(|p| p.starts_with(&inside)) {
            return Err(format!("{} changed while the provider looked at it", name.target()));
        }
        let (root, stamps) = snapshot::open(&live.root, &name).map_err(|e| e.to_string())?;
        if stamps.changed_since(begun) {
            // By somebody whom no watch tells of. The provider may have seen it before or after that.
            self.mapping.touch(id, &Touch::Place);
            return Err(format!("a file of {} changed while the provider looked at it", name.target()));
        }
        if let Some((before, tree)) = self.mapping.trusted(id)
            && before == name
            && tree.stamps == stamps
            && let (Ok(a), Ok(b)) = (fstat(&tree.root), fstat(&root))
            && identity(&a) == identity(&b)
        {
            return Ok((name, tree));
        }
        Ok((name, Tree::snapshot(root, stamps)))
    }
}

fn unprotected() -> Decision {
    Decision {
        verdict: Verdict::Current,
        trusted: None,
        version: None,
        status: "none".to_owned(),
        reason: Some("shown without any decision (--unprotected)".to_owned()),
        warning: None,
        content_digest: None,
    }
}

/// One line of log a decision.
fn report(name: &SkillName, decision: &Result<Decision, String>) {
    match decision {
        Ok(d) => {
            if let Some(warning) = &d.warning {
                tracing::warn!(skill = ?name, warning, "a decision contradicts its status");
            }
            tracing::info!(skill = ?name, verdict = %d.verdict, status = d.status, reason = ?d.reason, "decided");
        }
        Err(why) => tracing::warn!(skill = ?name, why, "not decided; the failure policy applies"),
    }
}
