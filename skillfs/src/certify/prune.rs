//! Removes old versions of a skill (`[9.10]`). Called by `prune`, and by `certify` beyond the number that it keeps.
//!
//! What stays, however old: the newest version; the one that is fallen back to; the one that would be, if the content of
//! that were found bad; what SkillFS has seen last and what it shows since; and the version that the folder equals. A
//! version goes in three steps, snapshot renamed to `.tmp-*` → manifest removed → the rest removed, after each of which all
//! other versions are as good as before, and the next `certify` or `prune` takes away what is left.

use super::floor::Floor;
use super::keys::TrustedKeys;
use super::manifest::{Manifest, Version};
use super::removal::{Removal, Stays};
use super::skill::{Skill, VersionError, Versions};
use super::snapshot;
use super::tree::{self, Rules};
use crate::beneath;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::collections::{BTreeMap, BTreeSet};

/// How many versions `certify` keeps, and `prune`, unless they are told otherwise.
pub const DEFAULT_KEEP: u32 = 10;

/// Why nothing more was removed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// What may be needed cannot be told.
    #[error("{0}; certify again first")]
    History(String),
    /// Its snapshot may not be this version's to lose.
    #[error(".skill-meta/versions: {version} is not removed: {why}")]
    Stays {
        /// The version.
        version: Version,
        /// What is in the way.
        why: Stays,
    },
    /// The kernel refused.
    #[error(".skill-meta/versions: removing {version}: {}", errno.desc())]
    Io {
        /// The version.
        version: Version,
        /// What the kernel said.
        errno: Errno,
    },
}

/// What was done.
#[derive(Debug, Default)]
pub struct Pruned {
    /// What is gone.
    pub removed: Vec<Version>,
    /// What stays beside the newest that were asked for, and why: words for a person.
    pub beside: Vec<(Version, &'static str)>,
}

/// Removes all but the newest `keep` versions and those that are or may be needed. `floor` is what SkillFS has seen.
pub fn prune(
    skill: &Skill,
    versions: &Versions,
    keys: &TrustedKeys,
    floor: Option<&Floor>,
    keep: u32,
) -> Result<Pruned, PruneError> {
    snapshot::discard_unfinished(versions.dir());
    if versions.present.is_empty() {
        return Ok(Pruned::default());
    }
    let needed = needed(skill, versions, keys, floor)?;
    let newest: BTreeSet<Version> =
        versions.present.keys().rev().take(usize::try_from(keep).unwrap_or(usize::MAX)).copied().collect();
    let older = versions.present.keys().filter(|v| !newest.contains(v));
    let beside = older.clone().filter_map(|v| Some((*v, *needed.get(v)?))).collect();
    let mut old = older.filter(|v| !needed.contains_key(v)).peekable();
    let Some(first) = old.peek() else { return Ok(Pruned { removed: Vec::new(), beside }) };
    let mut removal =
        Removal::new(versions.dir()).map_err(|errno| PruneError::Io { version: **first, errno })?;
    let removed = old.map(|v| remove(versions, *v, &mut removal).map(|()| *v)).collect::<Result<_, _>>()?;
    Ok(Pruned { removed, beside })
}

/// The versions that stay however old they are, each with what it is needed for.
fn needed(
    skill: &Skill,
    versions: &Versions,
    keys: &TrustedKeys,
    floor: Option<&Floor>,
) -> Result<BTreeMap<Version, &'static str>, PruneError> {
    let history = |e: VersionError| PruneError::History(e.to_string());
    let newest = match versions.search(u32::MAX, &skill.name, keys).next() {
        Some(newest) => newest.map_err(history)?.manifest,
        None => return Err(PruneError::History("no manifest was found".to_owned())),
    };
    if let Some(floor) = floor.filter(|floor| floor.newest > newest.version) {
        return Err(PruneError::History(format!(
            "the newest version is {}, but {} has been seen",
            newest.version, floor.newest
        )));
    }
    // What is needed for two things is called by the first.
    let mut needed = BTreeMap::new();
    let mut need = |version: Version, why| {
        needed.entry(version).or_insert(why);
    };
    if let Some(trusted) = newest.trusted() {
        need(trusted.version, "the last that passed: it is shown when the folder is not");
        let older = match trusted.version == newest.version {
            true => newest.fallback.clone(),
            false => {
                versions.manifest(trusted.version, &skill.name, keys).map_err(history)?.manifest.fallback
            }
        };
        if let Some(older) = older {
            need(older.version, "it would be shown if the last that passed were found bad");
        }
    }
    if let Some(floor) = floor {
        if let Some(trusted) = &floor.trusted {
            need(trusted.version, "SkillFS may show it now");
        }
        need(floor.newest, "the last that SkillFS has seen");
    }
    if let Some(live) = live(skill, versions, keys, &newest) {
        need(live, "the folder is equal to it");
    }
    need(newest.version, "the newest");
    Ok(needed)
}

/// The newest version that the folder equals; none where it cannot be read or equals none.
fn live(skill: &Skill, versions: &Versions, keys: &TrustedKeys, newest: &Manifest) -> Option<Version> {
    let live = tree::digest_of(skill.root(), Rules::Live).ok()?;
    let older = || versions.search(newest.version.get(), &skill.name, keys).flatten().map(|v| v.manifest);
    std::iter::once(newest.clone()).chain(older()).find(|m| m.tree_digest == live).map(|m| m.version)
}

fn remove(versions: &Versions, version: Version, removal: &mut Removal) -> Result<(), PruneError> {
    let io = |errno| PruneError::Io { version, errno };
    let dir = versions.dir();
    let aside = snapshot::temporary_name().map_err(io)?;
    let name = version.snapshot_name();
    let stays = |why| PruneError::Stays { version, why };
    let c_path = |name: &str| tree::c_path(name.as_bytes()).map_err(|e| io(beneath::errno(&e)));
    removal.look(dir, &c_path(&name)?, Vec::new()).map_err(stays)?;
    // Held, so that a run beside this one does not remove it at the same time. That it can be held is not needed.
    let _held =
        beneath::open_dir(dir, name.as_str()).ok().map(|fd| Flock::lock(fd, FlockArg::LockExclusiveNonblock));
    match renameat2(dir, name.as_str(), dir, aside.as_str(), RenameFlags::RENAME_NOREPLACE) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(e) => return Err(io(e)),
    }
    match unlinkat(dir, version.manifest_name().as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(e) => return Err(io(e)),
    }
    removal.take(dir, &c_path(&aside)?, Vec::new()).map_err(stays)
}
