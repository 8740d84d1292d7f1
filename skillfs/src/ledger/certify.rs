//! Certifies a skill: a snapshot of what lies there now, and a manifest about it, signed. Run by an operator or by root,
//! never by SkillFS's user (`[9.10]`).
//!
//! The folder may belong to anybody, and be changed while it is read; what is signed is what was copied. The order is
//! copy → rename the snapshot into place → rename the manifest into place. Only a manifest with a good signature makes a
//! version, so whatever an interrupted run leaves is believed by nobody, and the next run removes it.

use super::beneath;
use super::findings::{Findings, FindingsError, Outcome};
use super::floor::Floors;
use super::keys::{KeyError, TrustedKeys, draw, key_id};
use super::manifest::{MAX_MANIFEST, Manifest, Version, VersionRef};
use super::skill::{Skill, SkillError, VERSIONS_DIR, VersionError, Versions};
use super::snapshot::{self, TEMPORARY};
use super::tree::{self, Rules, TreeError};
use cyberos_proto::tree::{META_DIR, written};
use ed25519_dalek::SigningKey;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, RenameFlags, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How far past the newest signed version a number may be chosen because of files that are not signed. A planted
/// `v999999.json` would otherwise use up all numbers at once.
const MAX_JUMP: u32 = 64;
/// How long another run is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to certify, and with what.
pub struct Request {
    /// The skill.
    pub skill: Skill,
    /// What scanners found; empty if none ran.
    pub findings: Findings,
    /// The key that signs.
    pub key: SigningKey,
    /// Folder of public keys that are believed, for the history.
    pub trusted: PathBuf,
    /// Folder of records; what SkillFS has seen.
    pub state: PathBuf,
    /// If given, the only content that may be certified: what was looked at.
    pub expected_digest: Option<String>,
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
    #[error("another certify of this skill has been running for a minute; is it stuck?")]
    Busy,
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
    let Request { skill, findings, key, trusted, state, expected_digest } = request;
    let mut notes = Vec::new();
    let keys = believed(&key, &trusted, &skill, &mut notes)?;
    let floor = Floors::new(&state).read(&skill.path).unwrap_or_else(|e| {
        notes.push(format!("not checked against what SkillFS has seen: {e}"));
        None
    });

    let dir = lock(versions_dir(&skill)?)?;
    snapshot::discard_unfinished(dir.as_fd());
    let own = dir.try_clone().map_err(|e| io(VERSIONS, "opening", beneath::errno(&e)))?;
    let versions = Versions::new(own).map_err(history)?;

    let (newest, flawed) = newest_signed(&skill, &versions, &keys, &mut notes)?;
    let last_seen = floor.as_ref().map_or(0, |f| f.newest.get());
    let last_signed = newest.as_ref().map_or(0, |m| m.version.get());
    let last_named = versions.present.keys().next_back().map_or(0, |v| v.get());

    if let Some(newest) = newest.as_ref().filter(|_| !flawed && last_seen <= last_signed)
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
    let temporary = temporary_name()?;
    let mut entries = snapshot::take(skill.root(), dir.as_fd(), &temporary)?;
    let tree_digest = written(&tree::digest(&mut entries));
    let status = findings.outcome();
    let published = expect(&tree_digest, expected_digest.as_deref()).and_then(|()| {
        let fallback = if flawed || last_signed < last_seen {
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
            &entries,
        );
        publish(&dir, version, &temporary, manifest, &key)
    });
    if let Err(e) = published {
        snapshot::discard(dir.as_fd(), &temporary);
        return Err(e);
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
            "the signing key is not trusted yet: SkillFS will hide this version until the key's .pub file is in {}",
            trusted.display()
        ));
        keys.add(own);
    }
    Ok(keys)
}

/// The newest manifest with a good signature, and whether something that is not good lies above it.
fn newest_signed(
    skill: &Skill,
    versions: &Versions,
    keys: &TrustedKeys,
    notes: &mut Vec<String>,
) -> Result<(Option<Manifest>, bool), CertifyError> {
    let mut flawed = false;
    for found in versions.search(u32::MAX, &skill.name, keys) {
        match found {
            Ok(verified) => return Ok((Some(verified.manifest), flawed)),
            Err(e @ VersionError::Unreadable(_)) => return Err(history(e)),
            Err(VersionError::Tampered(why)) => {
                flawed = true;
                notes.push(format!("passed over: {why}"));
            }
        }
    }
    Ok((None, flawed))
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

/// One certify of a skill at a time. The folder's owner could hold the lock for ever, so patience ends.
fn lock(mut dir: OwnedFd) -> Result<Flock<OwnedFd>, CertifyError> {
    let start = Instant::now();
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((back, Errno::EAGAIN | Errno::EINTR)) if start.elapsed() < PATIENCE => dir = back,
            Err((_, Errno::EAGAIN)) => return Err(CertifyError::Busy),
            Err((_, e)) => return Err(io(VERSIONS, "locking", e)),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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
        renameat2(dir, from, dir, to.as_str(), RenameFlags::RENAME_NOREPLACE)
            .map_err(|e| io(VERSIONS, "putting the version into place", e))
    };
    let write = || {
        let mut file = beneath::create_file(dir, unfinished.as_str())?;
        file.write_all(&bytes).map_err(|e| beneath::errno(&e))?;
        fchmod(&file, Mode::from_bits_truncate(0o444))
    };
    let done = write()
        .map_err(|e| io(VERSIONS, "writing the manifest", e))
        .and_then(|()| in_place(temporary, version.snapshot_name()))
        .and_then(|()| in_place(&unfinished, version.manifest_name()));
    if done.is_err() {
        snapshot::discard(dir.as_fd(), &unfinished);
    }
    done
}

fn temporary_name() -> Result<String, CertifyError> {
    let mut bytes = [0; 8];
    draw(&mut bytes).map_err(|e| io(VERSIONS, "choosing a name", beneath::errno(&e)))?;
    Ok(format!("{TEMPORARY}{:016x}", u64::from_be_bytes(bytes)))
}

/// Now, as `2026-11-30T12:00:00Z`.
fn utc_now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    utc(seconds)
}

fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    let (h, m, s) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{h:02}:{m:02}:{s:02}Z", left + 1)
}

fn io(place: &'static str, doing: &'static str, errno: Errno) -> CertifyError {
    CertifyError::Io { place, doing, errno }
}

fn history(e: VersionError) -> CertifyError {
    CertifyError::History(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_written_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
