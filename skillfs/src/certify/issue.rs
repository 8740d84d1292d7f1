//! Certifies a skill: a snapshot of what lies there now, and a manifest about it, signed. Run by an operator or by root,
//! never by SkillFS's user (`[9.10]`).
//!
//! The folder may belong to anybody, and be changed while it is read; what is judged and signed is what was copied. The order
//! is copy → rename the snapshot into place → rename the manifest into place. Only a manifest with a good signature makes a
//! version, so whatever an interrupted run leaves is believed by nobody, and the next run removes it.

use super::clock::utc_now;
use super::debris::is_debris;
use super::findings::{Findings, FindingsError, Outcome};
use super::floor::Floors;
use super::keys::{KeyError, Signer, TrustedKeys, key_id};
use super::manifest::{FileRow, MAX_MANIFEST, Manifest, Verified, Version, VersionRef};
use super::prune::prune;
use super::skill::{Skill, SkillError, VERSIONS_DIR, VersionError, Versions};
use super::skill_md;
use super::snapshot;
use super::tree::{self, Rules, TreeError};
use crate::beneath;
use cyberos_proto::tree::{Entry, META_DIR, VCS_DIR, written};
use ed25519_dalek::SigningKey;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, RenameFlags, renameat2};
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// How far past the newest signed version a number may be chosen because of files that are not signed. A planted
/// `v999999.json` would otherwise use up all numbers at once.
const MAX_JUMP: u32 = 64;

/// What to certify, and with what.
pub struct Request {
    /// The skill.
    pub skill: Skill,
    /// What scanners found; empty if none ran.
    pub findings: Findings,
    /// The key that signs.
    pub key: Signer,
    /// Folder of public keys that are believed, for the history.
    pub trusted: PathBuf,
    /// Folder of records; what SkillFS has seen.
    pub state: PathBuf,
    /// If given, the only content that may be certified: what was looked at.
    pub expected_digest: Option<String>,
    /// A version that the new one must come after: what SkillFS has seen, for who cannot read its records.
    pub after: Option<Version>,
    /// How many versions stay.
    pub keep: u32,
}

/// What was done.
#[derive(Debug)]
pub struct Certified {
    /// The version that now stands for the skill's content.
    pub version: Version,
    /// Digest of that content, written.
    pub tree_digest: String,
    /// What it was found to be.
    pub status: Outcome,
    /// Whether this run made it; otherwise it was there already, with the same content and findings.
    pub made: bool,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// Why nothing was certified.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says itself what it is")]
pub enum CertifyError {
    #[error(transparent)]
    Skill(#[from] SkillError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Findings(#[from] FindingsError),
    #[error("the skill cannot be certified: {0}")]
    Tree(TreeError),
    #[error("not certified: {0}")]
    NoSkill(String),
    #[error("{0}; look at it, remove it, and certify again")]
    History(String),
    #[error("the skill's content is {found}, not the {expected} that was asked for: look at it again")]
    OtherContent { found: String, expected: String },
    #[error(
        "{file} is not signed and blocks the next version number; look at it, remove it, and certify again"
    )]
    Blocked { file: String },
    #[error("no version number is left after v999999")]
    NoNumber,
    #[error("somebody else certified this skill at the same moment, with another key; run this again")]
    Raced,
    #[error("the manifest would be larger than 8 MiB: the skill has too many long paths")]
    TooLarge,
    #[error("{place}: {doing}: {}", errno.desc())]
    Io { place: &'static str, doing: &'static str, errno: Errno },
}

// By hand: as a `source` it would be printed a second time by whoever prints the chain.
impl From<TreeError> for CertifyError {
    fn from(error: TreeError) -> Self {
        CertifyError::Tree(error)
    }
}

/// Certifies the skill as it lies there now.
pub fn certify(request: Request) -> Result<Certified, CertifyError> {
    let Request { skill, findings, key, trusted, state, expected_digest, after, keep } = request;
    let (key, _alone) = key.alone()?;
    let mut notes = skill_md::check(skill.root(), &skill.name, &skill.path).map_err(CertifyError::NoSkill)?;
    let keys = believed(&key, &trusted, &skill, &mut notes)?;
    let seen = Floors::new(&state).read(&skill.path).map_err(|e| {
        notes.push(format!(
            "not checked against what SkillFS has seen: {e}. If SkillFS then says tampered, it also says \
             what to run"
        ));
    });
    let floor = seen.as_ref().ok().and_then(Option::as_ref);

    let dir = versions_dir(&skill)?;
    snapshot::discard_unfinished(dir.as_fd());
    let versions = listed(&dir)?;
    let History { newest, flawed, last_signed } = history_of(&skill, &versions, &keys, &mut notes)?;
    let last_seen = floor.map_or(0, |f| f.newest.get()).max(after.map_or(0, Version::get));
    let last_named = versions.present.keys().next_back().map_or(0, |v| v.get());
    let replayed = |newest: &Verified| {
        floor.is_some_and(|f| f.newest == newest.manifest.version && f.manifest != newest.digest)
    };
    let whole = !flawed && last_seen <= last_signed && !newest.as_ref().is_some_and(replayed);
    let newest = newest.map(|newest| newest.manifest);

    if let Some(newest) = newest.as_ref().filter(|_| whole && after.is_none())
        && newest.findings == findings
        && versions.check_snapshot(newest.version, &newest.tree_digest).is_ok()
    {
        let found = tree::digest_of(skill.root(), Rules::Publish)?;
        expect(&found, expected_digest.as_deref())?;
        if found == newest.tree_digest {
            let (version, status) = (newest.version, newest.status);
            return Ok(Certified { version, tree_digest: found, status, made: false, notes });
        }
    }

    let version = next_number(last_signed.max(last_seen), last_named, &versions)?;
    let temporary = snapshot::temporary_name().map_err(|e| io(VERSIONS, "choosing a name", e))?;
    let mut taken = snapshot::take(skill.root(), dir.as_fd(), &temporary)?;
    let tree_digest = written(&tree::digest(&mut taken.entries));
    let status = findings.outcome();
    // Once more on the copy: that is what is signed.
    let judged = skill_md::check(taken.root(), &skill.name, &skill.path).map_err(CertifyError::NoSkill);
    let expected = judged.and_then(|_| expect(&tree_digest, expected_digest.as_deref()));
    let published = expected.and_then(|()| {
        let fallback = if !whole {
            notes.push("the history is not whole, so no older version will be fallen back to".to_owned());
            None
        } else {
            fallback(newest.as_ref(), &tree_digest, &versions, &skill, &keys)
        };
        if let Some(before) = newest.as_ref().filter(|m| m.tree_digest == tree_digest && m.status > status) {
            notes.push(format!(
                "the same content was {} with worse findings before; this certification replaces them",
                before.version
            ));
        }
        let manifest = Manifest::new(
            skill.name.clone(),
            version,
            utc_now(),
            findings,
            tree_digest.clone(),
            fallback,
            &key,
            &taken.entries,
        );
        publish(&dir, version, &temporary, manifest, &key)
    });
    if let Err(e) = published {
        snapshot::discard(dir.as_fd(), &temporary);
        return Err(e);
    }
    notes.extend(left_lying(&skill, &taken.entries));
    // What cannot be told to be old stays.
    if whole && seen.is_ok() {
        let old = prune(&skill, &listed(&dir)?, &keys, floor, keep);
        notes.extend(old.err().map(|e| format!("old versions were not removed: {e}")));
    }
    Ok(Certified { version, tree_digest, status, made: true, notes })
}

/// The keys whose versions count as history: the trusted ones and the signer's own.
fn believed(
    key: &SigningKey,
    trusted: &std::path::Path,
    skill: &Skill,
    notes: &mut Vec<String>,
) -> Result<TrustedKeys, CertifyError> {
    let own = key.verifying_key();
    let mut keys = match TrustedKeys::load(trusted, &skill.path) {
        Ok(keys) => keys,
        Err(e @ KeyError::Unsafe { .. }) => return Err(e.into()),
        Err(e) => {
            notes.push(e.to_string());
            return Ok(TrustedKeys::only(own));
        }
    };
    if keys.get(&key_id(&own)).is_none() {
        notes.push(format!(
            "the signing key is not trusted yet: SkillFS will hide this version until the key's .pub file is \
             in {}",
            trusted.display()
        ));
        keys.add(own);
    }
    Ok(keys)
}

struct History {
    /// The newest manifest with a good signature.
    newest: Option<Verified>,
    /// Whether something that is not good lies above it.
    flawed: bool,
    /// The highest number that is well signed, be it under the name that the skill had before.
    last_signed: u32,
}

fn history_of(
    skill: &Skill,
    versions: &Versions,
    keys: &TrustedKeys,
    notes: &mut Vec<String>,
) -> Result<History, CertifyError> {
    let mut found = History { newest: None, flawed: false, last_signed: 0 };
    for version in versions.search(u32::MAX, &skill.name, keys) {
        match version {
            Ok(verified) => {
                found.last_signed = found.last_signed.max(verified.manifest.version.get());
                found.newest = Some(verified);
                break;
            }
            Err(e @ VersionError::Unreadable(_)) => return Err(history(e)),
            Err(VersionError::Renamed { version, from, .. }) => {
                if found.last_signed == 0 {
                    notes.push(format!(
                        "renamed from {from:?}: its older versions do not count under this name"
                    ));
                }
                found.last_signed = found.last_signed.max(version.get());
            }
            Err(VersionError::Tampered(why)) => {
                found.flawed = true;
                notes.push(format!("passed over: {why}"));
            }
        }
    }
    Ok(found)
}

fn listed(dir: &OwnedFd) -> Result<Versions, CertifyError> {
    let own = dir.try_clone().map_err(|e| io(VERSIONS, "opening", beneath::errno(&e)))?;
    Versions::new(own).map_err(history)
}

/// What lies in the folder and is hardly meant: the operator should hear of it.
fn left_lying(skill: &Skill, entries: &[Entry]) -> Vec<String> {
    let mut notes = Vec::new();
    if fstatat(skill.root(), VCS_DIR, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
        notes.push(".git is left out: it is neither certified nor shown".to_owned());
    }
    let debris: Vec<String> =
        entries.iter().map(|e| FileRow::new(e).path).filter(|path| is_debris(path)).collect();
    // Not the folder, where something in it says more.
    if let Some(example) = debris.iter().max_by_key(|path| path.len()) {
        notes.push(format!(
            "debris is certified too ({} of it, such as {}): if that is not meant, remove it and certify again",
            debris.len(),
            super::words::shown(example.as_bytes(), 200)
        ));
    }
    notes
}

/// The newest passed version with other content. Each manifest names its own, so the way back is itself signed.
fn fallback(
    newest: Option<&Manifest>,
    tree_digest: &str,
    versions: &Versions,
    skill: &Skill,
    keys: &TrustedKeys,
) -> Option<VersionRef> {
    let mut candidate = newest?.trusted();
    // Numbers fall on the way back (a manifest that says otherwise does not verify), so this ends.
    while let Some(reference) = candidate.as_ref().filter(|c| c.tree_digest == tree_digest) {
        candidate = versions.manifest(reference.version, &skill.name, keys).ok()?.manifest.fallback;
    }
    candidate
}

const VERSIONS: &str = ".skill-meta/versions";

/// Opens the folder of versions, making what is missing of it.
fn versions_dir(skill: &Skill) -> Result<OwnedFd, CertifyError> {
    let meta = made_dir(skill.root(), META_DIR, ".skill-meta")?;
    made_dir(meta.as_fd(), VERSIONS_DIR.as_bytes(), VERSIONS)
}

fn made_dir(
    parent: std::os::fd::BorrowedFd<'_>,
    name: &[u8],
    place: &'static str,
) -> Result<OwnedFd, CertifyError> {
    let mode = Mode::from_bits_truncate(0o755);
    let new = match mkdirat(parent, name, mode) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(e) => return Err(io(place, "making the folder", e)),
    };
    let dir = beneath::open_dir(parent, name).map_err(|e| match e {
        Errno::ELOOP | Errno::ENOTDIR => CertifyError::History(format!("{place} is no real folder")),
        e => io(place, "opening the folder", e),
    })?;
    if new {
        // Whatever the umask says: SkillFS's user must be able to read it.
        fchmod(&dir, mode).map_err(|e| io(place, "setting the folder's mode", e))?;
    }
    Ok(dir)
}

/// The number after everything signed, seen or named.
fn next_number(base: u32, last_named: u32, versions: &Versions) -> Result<Version, CertifyError> {
    if last_named > base.saturating_add(MAX_JUMP) {
        let named = Version::new(last_named);
        let file = named.map_or(String::new(), |v| match versions.present.get(&v) {
            Some(present) if present.manifest => v.manifest_name(),
            _ => v.snapshot_name(),
        });
        return Err(CertifyError::Blocked { file: format!("{VERSIONS}/{file}") });
    }
    Version::new(base.max(last_named) + 1).ok_or(CertifyError::NoNumber)
}

fn expect(found: &str, expected: Option<&str>) -> Result<(), CertifyError> {
    match expected {
        Some(expected) if expected != found => {
            Err(CertifyError::OtherContent { found: found.to_owned(), expected: expected.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Puts the snapshot and then the manifest into place; neither replaces anything.
fn publish(
    dir: &OwnedFd,
    version: Version,
    temporary: &str,
    manifest: Manifest,
    key: &SigningKey,
) -> Result<(), CertifyError> {
    let bytes = manifest.sign(key).map_err(|_| io(VERSIONS, "writing the manifest", Errno::EINVAL))?;
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(CertifyError::TooLarge);
    }
    let unfinished = format!("{temporary}.json");
    let in_place = |from: &str, to: String| {
        renameat2(dir, from, dir, to.as_str(), RenameFlags::RENAME_NOREPLACE).map_err(|e| match e {
            Errno::EEXIST => CertifyError::Raced,
            e => io(VERSIONS, "putting the version into place", e),
        })
    };
    let write = || {
        // Locked, as the copy is, so that nobody takes it for a left-over; it is 0600 until it is whole.
        let file = beneath::create_file(dir, unfinished.as_str())?;
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e)?;
        file.write_all(&bytes).map_err(|e| beneath::errno(&e))?;
        fchmod(&*file, Mode::from_bits_truncate(0o444))?;
        Ok(file)
    };
    let done = write().map_err(|e| io(VERSIONS, "writing the manifest", e)).and_then(|_held| {
        in_place(temporary, version.snapshot_name())?;
        in_place(&unfinished, version.manifest_name())
    });
    if done.is_err() {
        snapshot::discard(dir.as_fd(), &unfinished);
    }
    done
}

fn io(place: &'static str, doing: &'static str, errno: Errno) -> CertifyError {
    CertifyError::Io { place, doing, errno }
}

fn history(e: VersionError) -> CertifyError {
    CertifyError::History(e.to_string())
}
