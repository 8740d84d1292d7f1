//! What of a skill is watched: of one that is shown, or is to be, all that a reader could see and the folder that decides it;
//! of one that was never shown, little. `resolver.rs` says what it needs and is told what it has.

use super::Watch;
use super::lane::{Lane, Who};
use super::share::Class;
use super::unwatchable::Unwatchable;
use super::walk::{self, Walk};
use crate::decision::{SkillId, Touch};
use crate::tree::Tree;
use crate::verdict::SnapshotName;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Directories of a snapshot that is watched because it may be named, while none was: the answer then holds at once.
const GUESS: usize = 1024;

/// What must be watched before a decision can hold.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// The whole live folder, because the skill is, was, or is to be shown.
    pub whole: bool,
    /// Snapshots that are, or are to be, shown.
    pub snapshots: Vec<SnapshotName>,
}

/// What is watched.
#[derive(Debug, Default)]
pub struct Covered {
    whole: bool,
    snapshots: Vec<SnapshotName>,
}

impl Covered {
    /// Whether it is all that is needed.
    pub fn has(&self, need: &Need) -> bool {
        (self.whole || !need.whole) && need.snapshots.iter().all(|name| self.snapshots.contains(name))
    }

    /// Whether all changes in the live folder are seen.
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

impl Watch {
    /// Watches at least what is needed, and what more is cheap. A watch that the skill no longer needs is removed.
    pub fn cover(&self, id: SkillId, live: &Tree, need: &Need) -> Result<Covered, Unwatchable> {
        let who = Who::Skill(id);
        let (lane, class, most, turn) = self.assign(who, live, need)?;
        let mut walk = Walk::new(&lane, who, &self.limits, class, most);
        let mut outcome = cover(&mut walk, live, need);
        let give_up = match &outcome {
            Ok(_) => false,
            // What it cannot have in full it does not hold in part, while others may need it.
            Err(why) => why.may_pass() || matches!(why, Unwatchable::TooMany { .. } | Unwatchable::TooLarge),
        };
        if give_up && let Err(errno) = walk.start_over(&live.root) {
            outcome = Err(errno);
        }
        let (seen, mixed) = (walk.seen, walk.mixed);
        self.keep(&lane, who, &seen);
        let now = Instant::now();
        let mut table = self.table();
        let entry = table.entries.entry(who).or_default();
        if entry.turn != turn {
            drop(table);
            self.keep(&lane, who, &HashSet::new());
            return Err(Unwatchable::TooFast);
        }
        let before = std::mem::replace(&mut entry.watches, seen.len());
        entry.mixed |= mixed;
        let starved = outcome.as_ref().is_err_and(Unwatchable::may_pass);
        match starved {
            true => table.starved(who, now),
            false => table.fed(who),
        }
        let sooner = outcome.is_ok() && before > seen.len() && table.freed(now);
        drop(table);
        if starved || sooner {
            self.bell().ring();
        }
        outcome
    }

    /// A lane for it, who it is put with, and how many directories it may have.
    fn assign(
        &self,
        who: Who,
        live: &Tree,
        need: &Need,
    ) -> Result<(Arc<Lane>, Class, usize, u64), Unwatchable> {
        let mut class = self.limits.class(&live.root);
        let mut table = self.table();
        let entry = table.entries.entry(who).or_default();
        entry.shown |= need.whole;
        entry.stranger = self.limits.stranger(&live.root);
        if entry.mixed {
            class = Class::Several;
        }
        if table.is_misplaced(who, class, &self.limits) {
            drop(table);
            // Nothing of it is watched for a moment, so it is not shown before it is decided anew.
            if let Who::Skill(id) = who {
                self.report(id, &Touch::Place);
            }
            self.part(who);
            table = self.table();
        }
        let used = table.used(who, &self.limits);
        let most = if need.whole { self.limits.most(class, used) } else { self.limits.most_unshown(used) };
        match table.assign(who, class, &self.limits) {
            Ok(lane) => {
                let turn = table.entries.entry(who).or_default().turn;
                Ok((lane, class, most, turn))
            }
            Err(errno) => {
                table.starved(who, Instant::now());
                self.bell().ring();
                Err(Unwatchable::Directory { path: PathBuf::new(), errno })
            }
        }
    }
}

fn cover(walk: &mut Walk<'_>, live: &Tree, need: &Need) -> Result<Covered, Unwatchable> {
    match walk.live(&live.root) {
        Ok(()) => {}
        Err(why)
            if !need.whole
                && (why.may_pass() || matches!(why, Unwatchable::TooMany { .. } | Unwatchable::TooLarge)) =>
        {
            walk.start_over(&live.root)?;
            return Ok(Covered::default());
        }
        Err(why) => return Err(why),
    }
    for name in &need.snapshots {
        walk.snapshot(&live.root, name)?;
    }
    let mut snapshots = need.snapshots.clone();
    if snapshots.is_empty()
        && let Some(newest) = walk::newest_snapshot(&live.root)
        && walk.guess(&live.root, &newest, GUESS)
    {
        snapshots.push(newest);
    }
    Ok(Covered { whole: true, snapshots })
}
