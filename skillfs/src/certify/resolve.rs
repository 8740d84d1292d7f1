//! Decides what may be shown of a skill: `resolve`, and `status` for people. It reads, and writes nothing but the record
//! outside the skill ([`super::floor`]). Every path through it ends in an [`Resolution`]; nothing that a hostile folder holds is
//! an error of the program.
//!
//! Whom it believes, in order: the record of the newest signed version seen; the newest manifest with a good signature, which
//! also names the version to fall back to. The live folder is never believed, only compared.

use super::findings::{Findings, Outcome};
use super::floor::{Floor, Floors};
use super::keys::TrustedKeys;
use super::manifest::{Manifest, Verified, Version, VersionRef};
use super::resolution::{Difference, Finding, Resolution, Status, Trouble, resolution};
use super::skill::{Skill, SkillError, VersionError, Versions, absolute, base_name};
use super::skill_md;
use super::tree::{self, Nothing, Rules, TreeError};
use super::words::quoted;
use cyberos_proto::folder::FolderError;
use cyberos_proto::tree::written;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where to look for what is believed.
pub struct Sources {
    /// Folder of public keys.
    pub trusted: PathBuf,
    /// Folder of records.
    pub state: PathBuf,
    /// Whether the record is kept up to date: SkillFS's question does, a person's look does not.
    pub record: bool,
    /// The command line that certifies with the right folders, up to the skill's path: for what people are told.
    pub certify: String,
}

/// What `scan` says. SkillFS reads only its exit status; this is for people.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scan {
    schema_version: u32,
    skill_name: String,
    /// Number of versions by name; nothing is verified yet.
    versions: usize,
    /// What will keep `resolve` from a good answer.
    problems: Vec<String>,
}

/// Looks whether `resolve` will have what it needs, without reading any content: all that is judged is judged there, at
/// one moment, so there is no scan result that could be out of date.
pub fn scan(path: &Path, sources: &Sources) -> Scan {
    let mut scan = Scan { schema_version: 1, skill_name: base_name(path), versions: 0, problems: Vec::new() };
    let mut note = |problem: Option<String>| scan.problems.extend(problem);
    note(Floors::new(&sources.state).check_writable().err().map(|e| e.to_string()));
    match Skill::open(path) {
        Ok(skill) => {
            note(TrustedKeys::load(&sources.trusted, &skill.path).err().map(|e| e.to_string()));
            match skill.versions() {
                Ok(versions) => scan.versions = versions.map_or(0, |v| v.present.len()),
                Err(e) => note(Some(e.to_string())),
            }
            scan.skill_name = skill.name.as_str().to_owned();
        }
        Err(e) => note(Some(e.to_string())),
    }
    scan
}

/// Answers for the skill at `path`.
pub fn resolve(path: &Path, sources: &Sources) -> Resolution {
    let skill = match Skill::open(path) {
        Ok(skill) => skill,
        Err(e) => {
            let path = absolute(path).unwrap_or_else(|_| path.to_owned());
            return resolution(base_name(&path), None, not_opened(&path, &e, sources));
        }
    };
    let found = judge(&skill, sources);
    resolution(skill.name.as_str().to_owned(), skill.declared_name(), found)
}

/// A skill that was seen as a folder, and is a symlink now, was not merely lost.
fn not_opened(path: &Path, e: &SkillError, sources: &Sources) -> Result<Finding, Trouble> {
    let linked = matches!(e, SkillError::Folder { why: FolderError::Linked, .. });
    match Floors::new(&sources.state).read(path) {
        Ok(Some(floor)) if linked => {
            Ok(Finding::new(Status::Tampered, format!("{e}; {} has been seen as a folder", floor.newest)))
        }
        _ => Err(Trouble(e.to_string())),
    }
}

fn judge(skill: &Skill, sources: &Sources) -> Result<Finding, Trouble> {
    let floors = Floors::new(&sources.state);
    let floor = match floors.read(&skill.path) {
        Ok(floor) => floor,
        Err(e) if !sources.record => {
            tracing::warn!("not checked against what SkillFS has seen: {e}");
            None
        }
        Err(e) => return Err(trouble(e)),
    };
    let versions = match skill.versions() {
        Ok(Some(versions)) if !versions.present.is_empty() => versions,
        Ok(_) => return Ok(without_versions(skill, floor, sources)),
        Err(VersionError::Unreadable(why)) => return Err(Trouble(why)),
        Err(e) => return Ok(Finding::new(Status::Tampered, e.to_string())),
    };
    let keys = TrustedKeys::load(&sources.trusted, &skill.path).map_err(trouble)?;
    let history = History { skill, versions: &versions, keys: &keys };

    let (newest, flaw) = history.newest()?;
    if let (None, None, Some(VersionError::Renamed { from, .. })) = (&newest, &floor, &flaw)
        && !skill.has_neighbour(from)
    {
        return Ok(Finding::new(Status::None, renamed(skill, from, sources)));
    }
    let flaw = flaw.map(|flaw| flaw.to_string());
    let seen = newest.as_ref().map(Verified::floor);
    let authority = match (&seen, &floor) {
        (Some(seen), Some(floor)) if seen.newest < floor.newest => Err(format!(
            "the newest signed version is {}, but {} has been seen: an older state was put back",
            seen.newest, floor.newest
        )),
        (Some(seen), Some(floor)) if seen.newest == floor.newest && seen.manifest != floor.manifest => {
            Err(format!("another signed manifest of {} has been seen", seen.newest))
        }
        (None, Some(floor)) => {
            Err(format!("{} has been seen, but its manifest is no longer good", floor.newest))
        }
        _ => Ok(()),
    }
    .map_err(|why| match &floor {
        Some(floor) => format!("{why}; {}", meant(skill, floor, sources)),
        None => why,
    });
    if let (Ok(()), Some(seen), true) = (&authority, &seen, sources.record) {
        floors.raise(&skill.path, seen).map_err(trouble)?;
    }
    let trusted = if authority.is_ok() { seen } else { floor }.and_then(|f| f.trusted);

    // The newest version once its snapshot was found whole, so that it is not read again below.
    let mut whole = None;
    let mut found = match (flaw, authority, newest) {
        (Some(flaw), _, newest) => Finding::tampered(flaw, newest),
        (None, Err(why), newest) => Finding::tampered(why, newest),
        (None, Ok(()), Some(newest)) => {
            match versions.check_snapshot(newest.manifest.version, &newest.manifest.tree_digest) {
                Ok(()) => {
                    whole = Some(newest.manifest.reference());
                    history.compare(newest.manifest)?
                }
                Err(VersionError::Unreadable(why)) => return Err(Trouble(why)),
                Err(e) => Finding::tampered(e.to_string(), Some(newest)),
            }
        }
        (None, Ok(()), None) => Finding::new(Status::None, never_certified(skill, sources)),
    };
    found.trusted = match trusted {
        Some(trusted) if whole.as_ref() == Some(&trusted) => Some(trusted),
        Some(trusted) => history.usable(trusted, &mut found)?,
        None => None,
    };
    Ok(found)
}

fn without_versions(skill: &Skill, floor: Option<Floor>, sources: &Sources) -> Finding {
    match floor {
        None => Finding::new(Status::None, never_certified(skill, sources)),
        Some(floor) => Finding::new(
            Status::Tampered,
            format!(
                "its versions are gone, but {} has been seen; {}",
                floor.newest,
                meant(skill, &floor, sources)
            ),
        ),
    }
}

fn never_certified(skill: &Skill, sources: &Sources) -> String {
    format!("never certified: look at it, then run `{} {}`", sources.certify, spelt(skill))
}

/// Of a skill that runs, `id` is still the name that it had.
fn renamed(skill: &Skill, from: &str, sources: &Sources) -> String {
    let id = skill_md::declared_id(skill.root()).filter(|id| id != skill.name.as_str());
    let id = id.map_or(String::new(), |_| format!("set id in its SKILL.md to {}, ", skill.name.as_str()));
    format!(
        "renamed from {from:?}: {id}look at it, then certify again: `{} {}`",
        sources.certify,
        spelt(skill)
    )
}

/// What to do when the versions that lie there are not what was seen, as after a redeploy. The number is in the command for
/// operators who cannot read the record.
fn meant(skill: &Skill, floor: &Floor, sources: &Sources) -> String {
    format!(
        "if that was meant, look at it and certify again: `{} --after {} {}`",
        sources.certify,
        floor.newest,
        spelt(skill)
    )
}

fn spelt(skill: &Skill) -> String {
    quoted(&skill.path.to_string_lossy())
}

/// The versions of one skill, read with one set of keys.
struct History<'a> {
    skill: &'a Skill,
    versions: &'a Versions,
    keys: &'a TrustedKeys,
}

impl History<'_> {
    /// The newest manifest with a good signature, and what is wrong with the newest version if that is not it.
    fn newest(&self) -> Result<(Option<Verified>, Option<VersionError>), Trouble> {
        let mut flaw: Option<VersionError> = None;
        for found in self.versions.search(u32::MAX, &self.skill.name, self.keys) {
            match found {
                Ok(verified) => return Ok((Some(verified), flaw)),
                Err(VersionError::Unreadable(why)) => return Err(Trouble(why)),
                // A bad one is worse than one of another name, wherever it lies.
                Err(e @ VersionError::Tampered(_)) => match &flaw {
                    None | Some(VersionError::Renamed { .. }) => flaw = Some(e),
                    Some(_) => {}
                },
                Err(e) => flaw = flaw.or(Some(e)),
            }
        }
        Ok((None, flaw))
    }

    /// Compares the live folder with the newest version, which is whole.
    fn compare(&self, newest: Manifest) -> Result<Finding, Trouble> {
        let version = newest.version;
        let mut entries = match tree::walk(self.skill.root(), Rules::Live, &mut Nothing) {
            Ok(entries) => entries,
            Err(e @ TreeError::Unreadable { .. }) => {
                return Err(Trouble(format!("{e}; the provider's user must be able to read the skill")));
            }
            Err(e) => {
                let mut found = Finding::new(Status::Drifted, format!("differs from {version}: {e}"));
                found.current = Some(version);
                return Ok(found);
            }
        };
        let live = written(&tree::digest(&mut entries));
        let (current, same) = if live == newest.tree_digest {
            (newest, true)
        } else {
            match self.equal_to(&live, version) {
                Some(older) => (older, false),
                None => {
                    let difference = Difference::between(&newest, &entries);
                    let mut found =
                        Finding::new(Status::Drifted, format!("differs from {version}: {difference}"));
                    found.current = Some(version);
                    found.difference = Some(difference);
                    found.live = Some(live);
                    return Ok(found);
                }
            }
        };
        let (status, reason) = match current.status {
            Outcome::Pass if same => (Status::Pass, None),
            Outcome::Pass => {
                (Status::Drifted, Some(format!("is {} again, but {version} is the newest", current.version)))
            }
            Outcome::Warn => (Status::Warn, Some(current.findings.sentence())),
            Outcome::Deny => (Status::Deny, Some(current.findings.sentence())),
        };
        let mut found = Finding::new(status, reason);
        found.current = Some(current.version);
        found.findings = Some(current.findings);
        found.live = Some(live);
        Ok(found)
    }

    /// The newest older version that the live folder equals.
    fn equal_to(&self, live: &str, newest: Version) -> Option<Manifest> {
        let older = self.versions.search(newest.get(), &self.skill.name, self.keys);
        older.flatten().map(|v| v.manifest).find(|m| m.tree_digest == live)
    }

    /// `trusted`, if its manifest is still good and its snapshot whole; otherwise the reason says what is missing.
    fn usable(&self, trusted: VersionRef, found: &mut Finding) -> Result<Option<VersionRef>, Trouble> {
        let version = trusted.version;
        let checked = self.versions.manifest(version, &self.skill.name, self.keys).and_then(|m| {
            if m.manifest.trusted().as_ref() != Some(&trusted) {
                return Err(VersionError::Tampered(format!("{version} is not what it was")));
            }
            self.versions.check_snapshot(version, &trusted.tree_digest)
        });
        match checked {
            Ok(()) => Ok(Some(trusted)),
            Err(VersionError::Unreadable(why)) => Err(Trouble(why)),
            Err(e) => {
                let why = e.to_string();
                if let Some(reason) = &mut found.reason
                    && *reason != why
                {
                    reason.push_str(&format!("; it cannot fall back to {version}: {why}"));
                }
                Ok(None)
            }
        }
    }
}

impl Verified {
    /// What is remembered of this version once it has been seen.
    fn floor(&self) -> Floor {
        Floor {
            newest: self.manifest.version,
            manifest: self.digest.clone(),
            trusted: self.manifest.trusted(),
        }
    }
}

impl Findings {
    fn sentence(&self) -> String {
        let counts = format!("found {} errors and {} warnings", self.errors, self.warnings);
        self.examples.first().map_or(counts.clone(), |first| format!("{counts}: {first}"))
    }
}

fn trouble(e: impl std::fmt::Display) -> Trouble {
    Trouble(e.to_string())
}
