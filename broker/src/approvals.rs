//! Consent of an operator for what a skill asks for (`[4.0]`): `STATE/approvals/ID.json`, one file a skill. Consent is
//! for exactly those wishes: a skill that asks for less keeps it, one that asks for anything more must be approved
//! again. It decides nothing about a call; [`crate::grants::Operator`] is told whether there is consent.

use crate::skill::{Item, Skill, TenantScope};
use cyberos_proto::ids::{SkillName, TenantId};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest approval that is read, in bytes: the largest frontmatter fits many times.
const MAX_FILE: u64 = 1 << 20;

/// What a skill asks for, in a form whose order and spelling don't matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wishes {
    tools: BTreeSet<String>,
    memory: BTreeSet<String>,
    files: BTreeSet<String>,
    domains: BTreeSet<String>,
    memory_mb: Option<u32>,
    max_processes: Option<u32>,
    tmp_mb: Option<u32>,
    effort_minutes: u32,
    /// None asks for any number of calls.
    rate_limit_per_minute: Option<u32>,
    shareable: bool,
    pinned: bool,
}

impl Wishes {
    /// What `skill` asks for; a tool that it disallows itself is not asked for.
    pub fn of(skill: &Skill) -> Self {
        let texts =
            |list: &[Item<crate::glob::Pattern>]| list.iter().map(|i| i.value.as_str().to_owned()).collect();
        let x = &skill.extensions;
        let disallowed = |tool: &str| skill.disallowed_tools.iter().any(|d| d.value == tool);
        Wishes {
            tools: skill.allowed_tools.iter().map(|t| t.value.clone()).filter(|t| !disallowed(t)).collect(),
            memory: texts(&skill.allowed_memory_scopes),
            files: texts(&x.allowed_files),
            domains: x.allowed_domains.iter().map(|d| d.value.as_str().to_owned()).collect(),
            memory_mb: x.memory_mb,
            max_processes: x.max_processes,
            tmp_mb: x.tmp_mb,
            effort_minutes: skill.effort_minutes,
            rate_limit_per_minute: x.rate_limit_per_minute,
            shareable: skill.sync_class == crate::skill::SyncClass::Shareable,
            pinned: skill.tenant_scope == TenantScope::Pinned,
        }
    }

    /// SHA-256 of the wishes, 64 hex digits.
    pub fn digest(&self) -> String {
        // Sets are sorted and the fields have one order, so equal wishes have equal text.
        let text = serde_json::to_vec(self).unwrap_or_default();
        Sha256::digest(&text).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Whether nothing is asked for that `self` does not hold.
    fn covers(&self, asked: &Wishes) -> bool {
        let number =
            |consent: Option<u32>, asked: Option<u32>| asked.is_none_or(|n| consent.is_some_and(|c| n <= c));
        asked.tools.is_subset(&self.tools)
            && asked.memory.is_subset(&self.memory)
            && asked.files.is_subset(&self.files)
            && asked.domains.is_subset(&self.domains)
            && number(self.memory_mb, asked.memory_mb)
            && number(self.max_processes, asked.max_processes)
            && number(self.tmp_mb, asked.tmp_mb)
            && asked.effort_minutes <= self.effort_minutes
            && self.rate_limit_per_minute.is_none_or(|c| asked.rate_limit_per_minute.is_some_and(|n| n <= c))
            && (self.shareable || !asked.shareable)
            && (asked.pinned || !self.pinned)
    }

    /// What `asked` holds beyond `self`, for the operator who is asked again.
    pub fn beyond<'a>(&'a self, asked: &'a Wishes) -> impl Iterator<Item = &'a str> {
        let new = |a: &'a BTreeSet<String>, c: &'a BTreeSet<String>| a.difference(c).map(String::as_str);
        new(&asked.tools, &self.tools)
            .chain(new(&asked.memory, &self.memory))
            .chain(new(&asked.files, &self.files))
            .chain(new(&asked.domains, &self.domains))
    }
}

/// One consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The skill's `id`.
    pub skill_id: String,
    /// What was consented to.
    pub wishes: Wishes,
    /// The tenant for which it was given: a pinned skill runs under no other.
    pub tenant: TenantId,
    /// Who gave it, in the operator's words for himself (user name or uid).
    pub by: String,
    /// When, in seconds since 1970.
    pub at: u64,
}

impl Approval {
    /// Consent for all that `skill` asks for now.
    pub fn new(skill: &Skill, tenant: TenantId, by: &str, at: u64) -> Self {
        Approval { skill_id: skill.id.clone(), wishes: Wishes::of(skill), tenant, by: by.to_owned(), at }
    }

    /// Whether it is consent for what `skill` asks for now.
    pub fn covers(&self, skill: &Skill) -> bool {
        self.skill_id == skill.id && self.wishes.covers(&Wishes::of(skill))
    }
}

/// Whether `skill` may run under `tenant` (`[1.3]`): a pinned one only with consent, and only under the tenant
/// recorded with it. The error is a sentence for the operator.
pub fn check_tenant(skill: &Skill, approval: Option<&Approval>, tenant: TenantId) -> Result<(), String> {
    if skill.tenant_scope == TenantScope::Any {
        return Ok(());
    }
    match approval.filter(|a| a.covers(skill)) {
        Some(a) if a.tenant == tenant => Ok(()),
        Some(a) => Err(format!("{} is pinned to tenant {} and can't run under {tenant}", skill.id, a.tenant)),
        None => Err(format!(
            "{0} is pinned to one tenant and has not been approved as it is now; `cyberos skill approve {0}` \
             with that tenant pins it",
            skill.id
        )),
    }
}

/// Why an approval could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// The system said so.
    #[error("{path}: {error}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// There is a file, and it is not one that this module has written.
    #[error("{path}: {why}; remove it and approve the skill again")]
    Untrusted {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The directory of approvals.
#[derive(Clone, Debug)]
pub struct Approvals {
    dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    skill_id: String,
    wishes: Wishes,
    wishes_sha256: String,
    tenant: String,
    by: String,
    at: u64,
}

const FORMAT: u32 = 1;

impl Approvals {
    /// Below the broker's `state` directory. Nothing is made until something is recorded.
    pub fn new(state: &Path) -> Self {
        Approvals { dir: state.join("approvals") }
    }

    fn path(&self, id: &str) -> Result<PathBuf, ApprovalError> {
        // An id becomes a file name here; a bad one must not become another directory's.
        match SkillName::new(id) {
            Ok(name) if !name.as_str().starts_with('.') => Ok(self.dir.join(format!("{name}.json"))),
            _ => Err(untrusted(&self.dir, format!("{id:?} is not the id of a skill"))),
        }
    }

    /// The consent for the skill `id`, if there is one. A file that is not exactly what [`Approvals::record`] writes is
    /// an error, and no consent.
    pub fn read(&self, id: &str) -> Result<Option<Approval>, ApprovalError> {
        let path = self.path(id)?;
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ApprovalError::Io { path, error }),
        };
        let bytes = read_private(file).map_err(|why| untrusted(&path, why))?;
        parse(&bytes, id).map(Some).map_err(|why| untrusted(&path, why))
    }

    /// Writes it: whole or not at all, and on the disk when this returns.
    pub fn record(&self, approval: &Approval) -> Result<(), ApprovalError> {
        let path = self.path(&approval.skill_id)?;
        let record = Record {
            format: FORMAT,
            skill_id: approval.skill_id.clone(),
            wishes: approval.wishes.clone(),
            wishes_sha256: approval.wishes.digest(),
            tenant: approval.tenant.to_string(),
            by: approval.by.clone(),
            at: approval.at,
        };
        let text = serde_json::to_vec_pretty(&record).map_err(io::Error::other);
        text.and_then(|text| self.replace(&path, &text)).map_err(|error| ApprovalError::Io { path, error })
    }

    /// Takes consent back. Whether there was one.
    pub fn remove(&self, id: &str) -> Result<bool, ApprovalError> {
        let path = self.path(id)?;
        let removed = match fs::remove_file(&path) {
            Ok(()) => self.sync().map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        };
        removed.map_err(|error| ApprovalError::Io { path, error })
    }

    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let temporary = self.dir.join(format!(".tmp-{:016x}", u64::from_ne_bytes(random)));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(
            |mut file| {
                file.write_all(text)?;
                file.sync_all()?;
                fs::rename(&temporary, path)?;
                self.sync()
            },
        );
        if written.is_err() {
            // Gone already if the rename was done.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        File::from(open(&self.dir, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?).sync_all()
    }
}

/// The content, if nobody but this user can have written it.
fn read_private(file: File) -> Result<Vec<u8>, String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("not a regular file".into());
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() || meta.mode() & 0o077 != 0 || meta.nlink() != 1 {
        return Err("not owned by this user alone, with mode 0600 and one name".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_FILE { Err(format!("more than {MAX_FILE} bytes")) } else { Ok(bytes) }
}

fn parse(bytes: &[u8], id: &str) -> Result<Approval, String> {
    let record: Record = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if record.format != FORMAT {
        return Err(format!("format {} is not known", record.format));
    }
    if record.skill_id != id {
        return Err(format!("it is for the skill {:?}", record.skill_id));
    }
    if record.wishes.digest() != record.wishes_sha256 {
        return Err("its wishes do not have the digest that was recorded".into());
    }
    let tenant = record.tenant.parse().map_err(|e| format!("tenant: {e}"))?;
    Ok(Approval { skill_id: record.skill_id, wishes: record.wishes, tenant, by: record.by, at: record.at })
}

fn untrusted(path: &Path, why: String) -> ApprovalError {
    ApprovalError::Untrusted { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests;
