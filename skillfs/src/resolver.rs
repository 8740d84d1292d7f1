//! Decides skills: one queue, a few workers, one run a skill at a time.
//!
//! ```text
//! queue → find the skill → watch all of it → provider (scan, resolve) → catch up with the watch
//!       → open and check the snapshot → install, unless something changed meanwhile
//! ```
//!
//! A decision holds for what the provider has looked at, so one that was taken while the skill changed is thrown
//! away. A provider may write into `.skill-meta` while it runs; that is told from a change by others by running it
//! once more: if it then says the same and touches nothing new, it was its own doing.

use crate::mapping::{Decision, Installed, Mapping, RunTouches, SkillId, Touch, Tree};
use crate::provider::Provider;
use crate::queue::Queue;
use crate::skill_file;
use crate::snapshot;
use crate::source::{Sources, identity};
use crate::stamps::{self, Stamps, Time};
use crate::verdict::{Answer, SnapshotName, Verdict};
use crate::watch::Watch;
use cyberos_proto::control;
use cyberos_proto::ids::SkillName;
use nix::sys::stat::fstat;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a provider that writes into `.skill-meta` is run for one decision.
const MAX_RUNS: u32 = 3;
/// First and longest pause after a decision that was overtaken by a change.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What decides.
#[derive(Debug)]
pub struct Resolver {
    sources: Arc<Sources>,
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    queue: Arc<Queue>,
    /// None with `--unprotected`: everything is current.
    provider: Option<Provider>,
    /// How often in a row a skill's decision was overtaken.
    overtaken: Mutex<HashMap<SkillId, u32>>,
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
    ) -> Self {
        Resolver { sources, mapping, watch, queue, provider, overtaken: Mutex::default() }
    }

    /// Decides what the queue gives, until it is closed. One call a thread.
    pub fn work(&self) {
        while let Some(id) = self.queue.take() {
            let again = match self.decide(id) {
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

    fn decide(&self, id: SkillId) -> Run {
        let Some(name) = self.mapping.name(id) else { return Run::Decided };
        let mut before = None;
        for last in (0..MAX_RUNS).map(|n| n + 1 == MAX_RUNS) {
            match self.run(id, &name, before.take(), last) {
                Run::Repeat(said, touched) => before = Some((said, touched)),
                ended => return ended,
            }
        }
        Run::Overtaken
    }

    fn run(&self, id: SkillId, name: &SkillName, before: Option<(String, RunTouches)>, last: bool) -> Run {
        let Some(found) = self.sources.find(name) else {
            self.mapping.gone(id);
            self.watch.forget(id);
            return Run::Decided;
        };
        if !found.is_skill && self.mapping.state(id).is_none() {
            // Nobody waits for a folder that is no skill; the watch sees when it becomes one.
            self.mapping.gone(id);
            return Run::Decided;
        }
        self.mapping.place(id, found.directory);
        let Some((mark, live)) = self.mapping.begin(id) else { return Run::Decided };
        let begun = stamps::begin();
        let covered = self.watch.cover(id, &live, &found.passed_over).map_err(|e| e.to_string());
        let (answer, stamps) = match covered.and_then(|()| self.stamps(&live)) {
            Ok(stamps) if found.is_skill => (self.ask(&found.path, name).map(Said::Answer), stamps),
            Ok(stamps) => (Ok(Said::NoSkill), stamps),
            Err(e) => (Err(e), None),
        };
        self.watch.catch_up();
        let Some(touched) = self.mapping.run_touches(id, mark) else {
            self.mapping.abandon(id);
            return Run::Overtaken;
        };
        let said = format!("{answer:?}");
        let own_doing = touched.paths.is_empty()
            || before.is_some_and(|(b, t)| b == said && touched.paths.is_subset(&t.paths));
        if !own_doing && !last {
            self.mapping.abandon(id);
            return Run::Repeat(said, touched);
        }
        let decision = match answer {
            Ok(Said::NoSkill) => Ok(skill_file::lost()),
            Ok(Said::Answer(answer)) => self.judge(id, &live, answer, &touched, begun),
            Err(why) => Err(why),
        };
        let decision = decision.map(|d| skill_file::checked(d, &live.root));
        if !self.is_still_there(name, &live) {
            self.mapping.touch(id, &Touch::Place);
        }
        self.watch.catch_up();
        report(name, &decision);
        match self.mapping.install(id, mark, &touched, decision, stamps) {
            Installed::Yes => Run::Decided,
            Installed::Changed => Run::Overtaken,
        }
    }

    /// What the live folder's files are before anybody looks at them. Where it is shown as it is, nobody asks for that.
    fn stamps(&self, live: &Tree) -> Result<Option<Arc<Stamps>>, String> {
        if self.mapping.keeps_live() {
            return Ok(None);
        }
        Stamps::of_live(&live.root).map(|stamps| Some(Arc::new(stamps))).map_err(|e| e.to_string())
    }

    /// The provider was given a path; what was decided must still be what that path names.
    fn is_still_there(&self, name: &SkillName, live: &Tree) -> bool {
        let same = |found: crate::source::Found| {
            Some(identity(&fstat(&found.directory).ok()?) == identity(&fstat(&live.root).ok()?))
        };
        self.sources.find(name).and_then(same).unwrap_or(false)
    }

    fn ask(&self, path: &Path, name: &SkillName) -> Result<Option<Answer>, String> {
        match &self.provider {
            None => Ok(None),
            Some(provider) => provider.decide(path, name).map(Some).map_err(|e| e.to_string()),
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
        let (verdict, trusted, version) = match answer.verdict {
            Verdict::Current => {
                (control::Verdict::Current, snapshot.and_then(Result::ok), answer.current_version)
            }
            Verdict::Fallback(_) => {
                (control::Verdict::Fallback, snapshot.transpose()?, answer.trusted_version)
            }
            Verdict::Hidden => (control::Verdict::Hidden, None, None),
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
        verdict: control::Verdict::Current,
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
