//! What a permit gives to touch, one handle an access. A handle leads to what was judged and to nothing else: no path and
//! no second look-up is left that a tool could get wrong. Made by [`super::admit`] alone.
//!
//! ```compile_fail,E0451
//! # fn forge(path: String, state: cyberos_broker::grants::SandboxGrant) {
//! let _ = cyberos_broker::grants::Scope { path, ..todo!() };
//! # }
//! ```

use super::{Directory, Grants, Limits};
use crate::beneath::Pinned;
use crate::call::ToolError;
use crate::memory::{Allowance, MemoryError, MemoryFile, Meter, Store, Written};
use cyberos_proto::ids::TenantId;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// One handle.
#[derive(Debug)]
pub(super) enum Handle {
    File(FileRead),
    Memory(Scope),
    Sandbox(SandboxGrant),
}

/// The handles of one call, in the order of its plan's accesses. Each is taken once.
#[derive(Debug, Default)]
pub struct Handles(pub(super) VecDeque<Handle>);

impl Handles {
    /// The next one, if the plan asked for a file there.
    pub fn file(&mut self) -> Result<FileRead, ToolError> {
        match self.0.pop_front() {
            Some(Handle::File(file)) => Ok(file),
            other => Err(not_planned("a file", other.as_ref())),
        }
    }

    /// The next one, if the plan asked for a memory there.
    pub fn memory(&mut self) -> Result<Scope, ToolError> {
        match self.0.pop_front() {
            Some(Handle::Memory(scope)) => Ok(scope),
            other => Err(not_planned("a memory", other.as_ref())),
        }
    }

    /// The next one, if the plan asked for a sandbox there.
    pub fn sandbox(&mut self) -> Result<SandboxGrant, ToolError> {
        match self.0.pop_front() {
            Some(Handle::Sandbox(sandbox)) => Ok(sandbox),
            other => Err(not_planned("a sandbox", other.as_ref())),
        }
    }
}

/// A tool takes other handles than it has planned: a fault of ours.
fn not_planned(wanted: &str, found: Option<&Handle>) -> ToolError {
    tracing::error!(wanted, ?found, "a tool takes a handle that its plan did not ask for");
    ToolError::internal()
}

/// A file to read, found before its call was recorded and held since. Its name is not looked at again.
#[derive(Debug)]
pub struct FileRead(pub(super) Result<Pinned, ToolError>);

impl FileRead {
    /// Its size in bytes when it was found; 0 of what was not found.
    pub fn size(&self) -> u64 {
        self.0.as_ref().map_or(0, Pinned::size)
    }

    /// Opens it. May wait for a file system.
    pub fn open(self) -> Result<File, ToolError> {
        self.0?.open()
    }
}

/// One memory of one tenant.
#[derive(Debug)]
pub struct Scope {
    pub(super) tenant: TenantId,
    pub(super) path: String,
    pub(super) written: Arc<Meter>,
    pub(super) write_quota: u64,
}

impl Scope {
    /// Its canonical path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Reads it. May wait for a disk.
    pub fn read(&self, store: &Store) -> Result<MemoryFile, MemoryError> {
        store.read(self.tenant, &self.path)
    }

    /// Writes it, on the account of the invocation and of its tenant, which may use `tenant_quota` bytes. May wait for a
    /// disk.
    pub fn write(&self, store: &Store, content: &[u8], tenant_quota: u64) -> Result<Written, MemoryError> {
        let (written, invocation) = (self.written.clone(), self.write_quota);
        store.write(
            self.tenant,
            &self.path,
            content,
            &Allowance { tenant: tenant_quota, written, invocation },
        )
    }
}

/// A sandbox of a call: what it may see of the host's files, and how large it may be.
#[derive(Debug)]
pub struct SandboxGrant(pub(super) Arc<Grants>);

impl SandboxGrant {
    /// The directories that it is given, and whether it may write in them. One that is not the directory any more that it
    /// was when the run began is an error.
    pub fn directories(&self) -> Result<(&[Directory], bool), ToolError> {
        let (directories, writable) = self.0.directories();
        match directories.iter().find(|d| !d.is_in_place()) {
            None => Ok((directories, writable)),
            Some(gone) => Err(ToolError {
                reason: "grant_gone",
                message: format!(
                    "{} is no longer the directory that it was when the run began",
                    gone.path.as_str()
                ),
            }),
        }
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        self.0.limits()
    }
}
