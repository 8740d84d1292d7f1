//! One skill's record inside the mapping: plain data and its transitions, under `mapping.rs`'s lock.

use crate::decision::{Decision, RunTouches, Touch};
use crate::exposure::{self, Facts, OnChange, OnFailure, Shown};
use crate::stamps::Stamps;
use crate::tree::Tree;
use cyberos_proto::control::{Epoch, SkillState, Verdict, bounded};
use cyberos_proto::ids::SkillName;
use std::path::Path;
use std::sync::Arc;

/// Most paths that are told apart while one provider runs; beyond, everything counts as a change.
const MAX_RUN_TOUCHES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Skill {
    pub(crate) name: SkillName,
    /// Whose it was when it came, if that is a stranger.
    pub(crate) stranger: Option<u32>,
    /// In no source, or only as a folder that is no skill.
    pub(crate) gone: bool,
    /// The live folder, once it was opened.
    pub(crate) live: Option<Arc<Tree>>,
    pub(crate) decision: Option<Decision>,
    /// What the live folder's files were when it was decided, if it is to be shown.
    pub(crate) stamps: Option<Arc<Stamps>>,
    /// Why the last resolve was no decision, if so.
    pub(crate) failed: Option<String>,
    /// Why it is not looked at now, if it changes too fast for that.
    pub(crate) held: Option<String>,
    pub(crate) shown: Option<Arc<Tree>>,
    /// Whether anything of it was shown since it came.
    pub(crate) ever_shown: bool,
    pub(crate) undecided: bool,
    pub(crate) live_touched: bool,
    pub(crate) snapshot_touched: bool,
    /// Raised by each change that a decision must take into account.
    pub(crate) changes: u64,
    /// Present while a provider looks at it.
    pub(crate) running: Option<RunTouches>,
    pub(crate) epoch: u64,
    /// Changes of what is shown, and how many of them the kernel has been told.
    pub(crate) flips_queued: u64,
    pub(crate) flips_done: u64,
    pub(crate) runs_begun: u64,
    pub(crate) runs_decided: u64,
}

impl Skill {
    pub(crate) fn new(name: SkillName) -> Self {
        Skill {
            name,
            stranger: None,
            gone: true,
            live: None,
            decision: None,
            stamps: None,
            failed: None,
            held: None,
            shown: None,
            ever_shown: false,
            undecided: false,
            live_touched: false,
            snapshot_touched: false,
            changes: 0,
            running: None,
            epoch: 0,
            flips_queued: 0,
            flips_done: 0,
            runs_begun: 0,
            runs_decided: 0,
        }
    }

    pub(crate) fn pending(&self) -> bool {
        self.undecided || self.flips_done < self.flips_queued
    }

    /// Whether a path below `.skill-meta` is the trusted snapshot, in it, or on the way to it.
    fn in_trusted(&self, path: &Path) -> bool {
        let trusted = self.decision.as_ref().and_then(|d| d.trusted.as_ref());
        trusted.is_some_and(|(name, _)| {
            let snapshot = Path::new("versions").join(name.as_str());
            path.starts_with(&snapshot) || snapshot.starts_with(path)
        })
    }

    pub(crate) fn touch(&mut self, touch: &Touch) {
        self.epoch += 1;
        match touch {
            Touch::Live => self.live_touched = true,
            Touch::Private(path) => {
                self.snapshot_touched |= self.in_trusted(path);
                if let Some(run) = &mut self.running
                    && run.paths.len() < MAX_RUN_TOUCHES
                {
                    run.paths.insert(path.clone());
                    return;
                }
            }
            Touch::Place => {
                self.gone = false;
                self.live_touched = true;
                self.snapshot_touched = true;
            }
        }
        self.changes += 1;
        self.undecided = true;
    }

    pub(crate) fn begin(&mut self) {
        self.runs_begun += 1;
        self.running = Some(RunTouches::default());
    }

    pub(crate) fn remove(&mut self) {
        self.gone = true;
        self.live = None;
        self.decision = None;
        self.stamps = None;
        self.held = None;
        self.ever_shown = false;
        self.running = None;
        self.undecided = false;
        self.epoch += 1;
        self.changes += 1;
        self.runs_begun += 1;
        self.runs_decided = self.runs_begun;
    }

    pub(crate) fn install(&mut self, outcome: Result<Decision, String>, on_failure: OnFailure) {
        self.epoch += 1;
        self.undecided = false;
        self.live_touched = false;
        self.held = None;
        self.runs_decided = self.runs_begun;
        self.failed = outcome.as_ref().err().cloned();
        match (outcome, &mut self.decision) {
            (Ok(decision), _) => {
                self.snapshot_touched = false;
                self.decision = Some(decision);
            }
            // What was shown stays, as the operator chose; a snapshot that was touched stays touched.
            (Err(why), Some(before)) if on_failure == OnFailure::KeepPrevious => {
                before.warning =
                    Some(format!("the last resolve failed, the mapping of before is kept: {why}"));
            }
            (Err(why), _) => {
                self.decision = Some(Decision {
                    verdict: Verdict::Hidden,
                    trusted: None,
                    version: None,
                    status: "error".to_owned(),
                    reason: Some(why),
                    warning: None,
                    content_digest: None,
                });
            }
        }
    }

    /// The tree to show.
    pub(crate) fn compute(&self, policy: OnChange) -> Option<Arc<Tree>> {
        let trusted = self.decision.as_ref().and_then(|d| d.trusted.as_ref()).map(|(_, t)| t.clone());
        let facts = Facts {
            decided: self.decision.as_ref().map(|d| d.verdict),
            undecided: self.undecided,
            live_touched: self.live_touched,
            snapshot_touched: self.snapshot_touched,
            snapshot: trusted.is_some(),
        };
        match exposure::shown(facts, policy) {
            Shown::Nothing => None,
            Shown::Live => self.live.clone(),
            Shown::Snapshot => trusted,
        }
    }

    pub(crate) fn state(&self, epoch: Epoch) -> SkillState {
        let d = self.decision.as_ref();
        let verdict = match &self.shown {
            None => Verdict::Hidden,
            Some(tree) if tree.live => Verdict::Current,
            Some(_) => Verdict::Fallback,
        };
        // Version and digest belong to what was decided; while something else is shown they would mislead.
        let as_decided = d.filter(|d| d.verdict == verdict);
        let text = |t: &String| bounded(t);
        let target = d.and_then(|d| d.trusted.as_ref()).map(|(name, _)| name.target());
        SkillState {
            skill: self.name.clone(),
            verdict,
            target: if verdict == Verdict::Fallback { target } else { None },
            version: as_decided.and_then(|d| d.version.as_ref()).map(text),
            status: d.map_or_else(|| "none".to_owned(), |d| bounded(&d.status)),
            reason: match d {
                None => Some("not decided yet".to_owned()),
                Some(d) => d.reason.as_ref().map(text),
            },
            warning: self.held.as_ref().or(d.and_then(|d| d.warning.as_ref())).map(text),
            epoch,
            pending: self.pending(),
            content_digest: as_decided.and_then(|d| d.content_digest.clone()),
        }
    }
}
