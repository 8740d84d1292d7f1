//! The signed manifest of one certified version: its form on disk, its signature, and the names of versions. It knows no
//! folders; `certify` writes one, `resolve` reads one.
//!
//! The signature covers a prefix of its own, the skill's name, the version's number and every byte of the manifest, so a
//! manifest cannot be carried to another skill, another number or another purpose of the same key. A manifest is accepted
//! only in exactly the bytes that this program would write: there is one spelling, and no room beside it.

use super::findings::{Findings, Outcome};
use super::keys::{TrustedKeys, key_id};
use cyberos_proto::ids::SkillName;
use cyberos_proto::tree::{Entry, Kind, is_written, written};
use ed25519_dalek::{Signature, Signer, SigningKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Largest manifest, in bytes.
pub const MAX_MANIFEST: u64 = 8 << 20;

const FORMAT: &str = "cyberos-skill-manifest-1";
const SIGNED: &[u8] = b"cyberos-skill-manifest-1 signature\n";

/// Number of a certified version, from 1; written `v` and six digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Version(u32);

impl Version {
    /// The last number that six digits can write.
    pub const MAX: u32 = 999_999;

    /// Checks `n`.
    pub fn new(n: u32) -> Option<Self> {
        (1..=Self::MAX).contains(&n).then_some(Version(n))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Name of its manifest below `.skill-meta/versions`.
    pub fn manifest_name(self) -> String {
        format!("{self}.json")
    }

    /// Name of its snapshot below `.skill-meta/versions`.
    pub fn snapshot_name(self) -> String {
        format!("{self}.snapshot")
    }

    /// The snapshot's path below the skill, as the protocol wants it.
    pub fn target(self) -> String {
        format!(".skill-meta/versions/{self}.snapshot")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{:06}", self.0)
    }
}

impl FromStr for Version {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        let digits = s.strip_prefix('v').filter(|d| d.len() == 6 && d.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|d| d.parse().ok()).and_then(Version::new).ok_or(())
    }
}

impl TryFrom<u32> for Version {
    type Error = &'static str;
    fn try_from(n: u32) -> Result<Self, Self::Error> {
        Version::new(n).ok_or("a version number lies between 1 and 999999")
    }
}

impl From<Version> for u32 {
    fn from(v: Version) -> u32 {
        v.0
    }
}

/// A version by number and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionRef {
    /// Its number.
    pub version: Version,
    /// Digest of its tree, written.
    pub tree_digest: String,
}

/// One entry of the certified tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRow {
    /// Path below the skill; bytes that are no printable UTF-8, and `%`, as `%XX`.
    pub path: String,
    /// `d`, `f`, `x` or `l`, as in the digest.
    pub kind: char,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of content or link target, written; absent for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// What is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    format: String,
    /// The skill: the name of its folder.
    pub skill_name: SkillName,
    /// This version.
    pub version: Version,
    /// When it was certified, UTC.
    pub created: String,
    /// What it was found to be.
    pub status: Outcome,
    /// Summary of the findings.
    pub findings: Findings,
    /// Digest of the tree, written.
    pub tree_digest: String,
    /// The newest version with status pass and other content, if there is one: what to show when this one may not be.
    /// It is part of what is signed, so nobody can choose an older one by taking newer manifests away.
    pub fallback: Option<VersionRef>,
    /// Short name of the key that signs.
    pub key_id: String,
    /// Every entry, sorted by path.
    pub files: Vec<FileRow>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    manifest: Manifest,
    signature: String,
}

/// A manifest whose signature is good.
#[derive(Clone, Debug)]
pub struct Verified {
    /// What was signed.
    pub manifest: Manifest,
    /// SHA-256 of the file's bytes, written: tells two signed manifests of one number apart.
    pub digest: String,
}

/// Why bytes are no manifest of the version that they lie at.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// Not JSON of this form, or not spelt as `certify` spells it.
    #[error("is not a manifest as certify writes it")]
    Form,
    /// Signed by nobody who is believed.
    #[error("is signed with key {0}, which is not among the trusted keys")]
    UnknownKey(String),
    /// The signature does not fit.
    #[error("has a bad signature")]
    Signature,
    /// Made for another skill.
    #[error("was made for the skill {0:?}")]
    OtherSkill(String),
    /// Made for another number.
    #[error("was made for {0}")]
    OtherVersion(Version),
}

impl Manifest {
    /// A manifest of these entries.
    #[expect(clippy::too_many_arguments, reason = "one argument a field; a builder would only say it twice")]
    pub fn new(
        skill_name: SkillName,
        version: Version,
        created: String,
        findings: Findings,
        tree_digest: String,
        fallback: Option<VersionRef>,
        key: &SigningKey,
        entries: &[Entry],
    ) -> Self {
        Manifest {
            format: FORMAT.to_owned(),
            skill_name,
            version,
            created,
            status: findings.outcome(),
            findings,
            tree_digest,
            fallback,
            key_id: key_id(&key.verifying_key()),
            files: entries.iter().map(FileRow::new).collect(),
        }
    }

    /// The version to show while the live folder may not be: itself when it passed, else its fallback.
    pub fn trusted(&self) -> Option<VersionRef> {
        match self.status {
            Outcome::Pass => Some(self.reference()),
            Outcome::Warn | Outcome::Deny => self.fallback.clone(),
        }
    }

    /// This version, by number and content.
    pub fn reference(&self) -> VersionRef {
        VersionRef { version: self.version, tree_digest: self.tree_digest.clone() }
    }

    /// The bytes of its file.
    pub fn sign(self, key: &SigningKey) -> Result<Vec<u8>, serde_json::Error> {
        let signature = key.sign(&self.signed_bytes()?);
        let signature = hex(&signature.to_bytes());
        file_bytes(&Envelope { manifest: self, signature })
    }

    fn signed_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let name = self.skill_name.as_str().as_bytes();
        let mut bytes = SIGNED.to_vec();
        // A name has at most 64 bytes, so one byte counts them.
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&self.version.get().to_be_bytes());
        bytes.extend_from_slice(&Sha256::digest(serde_json::to_vec(self)?));
        Ok(bytes)
    }
}

/// Verifies the bytes of the manifest that lies at `version` of the skill `name`.
pub fn verify(
    bytes: &[u8],
    name: &SkillName,
    version: Version,
    keys: &TrustedKeys,
) -> Result<Verified, Flaw> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|_| Flaw::Form)?;
    if file_bytes(&envelope).map_err(|_| Flaw::Form)? != bytes {
        return Err(Flaw::Form);
    }
    let manifest = envelope.manifest;
    let signature = unhex(&envelope.signature).ok_or(Flaw::Form)?;
    let key = keys.get(&manifest.key_id).ok_or_else(|| {
        Flaw::UnknownKey(super::words::shown(manifest.key_id.as_bytes(), "sha256:".len() + 32))
    })?;
    let signed = manifest.signed_bytes().map_err(|_| Flaw::Form)?;
    key.verify_strict(&signed, &Signature::from_bytes(&signature)).map_err(|_| Flaw::Signature)?;
    if manifest.format != FORMAT || manifest.status != manifest.findings.outcome() || !manifest.has_digests()
    {
        return Err(Flaw::Form);
    }
    // The number first: of a manifest that was made for another skill, callers believe the number that it lies at.
    if manifest.version != version {
        return Err(Flaw::OtherVersion(manifest.version));
    }
    if manifest.skill_name != *name {
        return Err(Flaw::OtherSkill(super::words::shown(manifest.skill_name.as_str().as_bytes(), 64)));
    }
    Ok(Verified { digest: written(&Sha256::digest(bytes).into()), manifest })
}

impl Manifest {
    fn has_digests(&self) -> bool {
        is_written(&self.tree_digest)
            && self.fallback.as_ref().is_none_or(|f| is_written(&f.tree_digest) && f.version < self.version)
    }
}

impl FileRow {
    /// The row of an entry.
    pub fn new(entry: &Entry) -> Self {
        FileRow {
            path: escape(&entry.path),
            kind: char::from(entry.kind.byte()),
            size: entry.size,
            hash: (entry.kind != Kind::Directory).then(|| written(&entry.hash)),
        }
    }
}

/// Indented, with an end of line: people read these files.
fn file_bytes(envelope: &Envelope) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec_pretty(envelope)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A path of any bytes as text, each path in exactly one spelling.
fn escape(path: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(path.len());
    let percent = |out: &mut String, bytes: &[u8]| {
        for b in bytes {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{b:02X}");
        }
    };
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                percent(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(c);
            }
        }
        percent(&mut out, chunk.invalid());
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, b| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{b:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<[u8; 64]> {
    let digits = text.as_bytes();
    if digits.len() != 128 {
        return None;
    }
    let mut out = [0; 64];
    for (to, pair) in out.iter_mut().zip(digits.chunks(2)) {
        let [high, low] = pair else { return None };
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        *to = digit(*high)? << 4 | digit(*low)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests;
