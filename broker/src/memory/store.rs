//! The memory store: `STATE/tenants/<uuid>/memories/…` (`[5.3]`). It turns a canonical memory path into bytes and back.
//! It knows no scope and no skill: whether a path may be touched has been decided before. Even so it trusts no path and no
//! entry that it meets: everything is opened beneath the tenant's own directory, which is held open, through no symbolic
//! link and no mount, and only regular files are files. The memory tools call it, from a thread that may block.
//!
//! A write is durable when it returns, and atomic: whoever reads, and whoever starts after a crash at any point, finds the
//! old content or the new one. So it goes
//!
//! ```text
//! quotas → <uuid>/.tmp/<random> written, fsync → missing directories made, each fsynced in its parent → rename → fsync
//! ```
//!
//! and an existing file is replaced. What a crash leaves in `.tmp` is swept at the next start.

use super::open::beneath;
use super::usage::{self, Block, Meter};
use crate::disk_guard::{DiskGuard, Short};
use cyberos_proto::ids::TenantId;
use data_encoding::HEXLOWER;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Largest file that is read or written.
pub const MAX_FILE: u64 = 16 << 20;
/// Longest path, in bytes.
pub const MAX_PATH: usize = 1024;
/// Most segments of a path.
pub const MAX_DEPTH: usize = 32;
/// Bytes that a tenant may use unless the configuration says otherwise (`[2.8]`).
pub const TENANT_QUOTA: u64 = 4 << 30;

/// The first segment of every path.
const ROOT: &str = "memories";
const TEMPORARY: &str = ".tmp";
/// A tenant that is full is counted anew after this time: the operator may have removed something.
const RECOUNT: Duration = Duration::from_secs(60);

/// A file of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// Its content.
    pub bytes: Vec<u8>,
    /// SHA-256 of it, 64 hex digits.
    pub sha256: String,
}

/// A file that has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// SHA-256 of its content, 64 hex digits.
    pub sha256: String,
    /// Whether there had been another content.
    pub replaced: bool,
}

/// What a write may take (`[2.8]`).
#[derive(Clone, Debug)]
pub struct Allowance {
    /// Bytes that the tenant may use in all.
    pub tenant: u64,
    /// What the invocation has written so far, replaced files included.
    pub written: Arc<Meter>,
    /// And may write.
    pub invocation: u64,
}

/// Why a file is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Nothing has that name.
    #[error("there is no memory {path}")]
    NotFound {
        /// The path.
        path: String,
    },
    /// Not a path of the store.
    #[error("{path:?} is not a memory path: {why}")]
    BadPath {
        /// The path.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A directory, a symbolic link, or something else that is no file, has that name or lies on the way.
    #[error("{path} is not a plain file below plain directories")]
    NotAFile {
        /// The path.
        path: String,
    },
    /// More than [`MAX_FILE`].
    #[error("{path} has {size} bytes; a memory holds at most {MAX_FILE}")]
    TooLarge {
        /// The path.
        path: String,
        /// The size.
        size: u64,
    },
    /// The tenant's quota is used up (`quota_exceeded`).
    #[error(
        "the tenant's memory uses {used} of {quota} bytes (quota.tenant_store_mb), and {needed} more are \
         needed"
    )]
    TenantFull {
        /// Bytes in use.
        used: u64,
        /// Bytes allowed.
        quota: u64,
        /// Bytes that the write needs.
        needed: u64,
    },
    /// The invocation's quota is used up (`quota_exceeded`).
    #[error(
        "the invocation has written {written} of {quota} bytes (quota.invocation_write_mb), and {needed} \
         more are needed"
    )]
    InvocationFull {
        /// Bytes written.
        written: u64,
        /// Bytes allowed.
        quota: u64,
        /// Bytes that the write needs.
        needed: u64,
    },
    /// Too little space is left on the file system (`quota_exceeded`).
    #[error("{0}")]
    DiskFull(Short),
    /// The system refused something.
    #[error("the memory store cannot {doing} {path}: {error}")]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what.
        path: String,
        /// The system's answer.
        error: io::Error,
    },
}

impl MemoryError {
    pub(super) fn io(doing: &'static str, path: &str, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT) => MemoryError::NotFound { path: path.to_owned() },
            Some(Errno::ELOOP | Errno::EXDEV | Errno::ENOTDIR | Errno::EISDIR | Errno::ENXIO) => {
                MemoryError::NotAFile { path: path.to_owned() }
            }
            _ => MemoryError::Io { doing, path: path.to_owned(), error },
        }
    }
}

/// The store of all tenants; one a state directory.
#[derive(Debug)]
pub struct Store {
    tenants: OwnedFd,
    space: DiskGuard,
    block: Block,
    open: Mutex<HashMap<TenantId, Arc<Tenant>>>,
}

#[derive(Debug)]
struct Tenant {
    dir: OwnedFd,
    temporary: OwnedFd,
    /// What its files and directories take; what a write will take is counted before it is written.
    usage: Meter,
    /// When all of it was last counted: while it is, nothing is written.
    counted: RwLock<Instant>,
    /// Held from the look at what a rename replaces to the rename.
    naming: Mutex<()>,
}

impl Store {
    /// Opens the store in `tenants` (STATE/tenants), makes it if it isn't there, sweeps what a crash left, and counts
    /// what each tenant uses.
    pub fn open(tenants: &Path) -> Result<Store, MemoryError> {
        let shown = tenants.display().to_string();
        match nix::unistd::mkdir(tenants, Mode::from_bits_truncate(0o700)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(MemoryError::io("make", &shown, e)),
        }
        let dir = File::open(tenants).map_err(|e| MemoryError::io("open", &shown, e))?;
        if !dir.metadata().map_err(|e| MemoryError::io("open", &shown, e))?.is_dir() {
            return Err(MemoryError::NotAFile { path: shown });
        }
        let space = DiskGuard::open(tenants).map_err(|e| MemoryError::io("open", &shown, e))?;
        let block = Block::of(dir.as_fd()).map_err(|e| MemoryError::io("measure", &shown, e))?;
        let store = Store { tenants: dir.into(), space, block, open: Mutex::default() };
        for name in usage::names(store.tenants.as_fd()).map_err(|e| MemoryError::io("list", &shown, e))? {
            // Other entries are not ours.
            if let Some(id) = name.to_str().and_then(|name| name.parse::<TenantId>().ok())
                && id.to_string().as_bytes() == name.as_encoded_bytes()
            {
                store.tenant(id, true)?;
            }
        }
        Ok(store)
    }

    /// The file at the canonical path `path` of `tenant`.
    pub fn read(&self, tenant: TenantId, path: &str) -> Result<MemoryFile, MemoryError> {
        check(path)?;
        let Some(tenant) = self.tenant(tenant, false)? else {
            return Err(MemoryError::NotFound { path: path.to_owned() });
        };
        // O_NONBLOCK: a FIFO that somehow got here keeps nobody waiting before it is refused.
        let file = beneath(tenant.dir.as_fd(), path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
            .map_err(|e| MemoryError::io("open", path, e))?;
        let stat = fstat(&file).map_err(|e| MemoryError::io("read", path, e))?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(MemoryError::NotAFile { path: path.to_owned() });
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        let too_large = |size| Err(MemoryError::TooLarge { path: path.to_owned(), size });
        if size > MAX_FILE {
            return too_large(size);
        }
        let mut bytes = Vec::new();
        File::from(file)
            .take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| MemoryError::io("read", path, e))?;
        if bytes.len() as u64 > MAX_FILE {
            return too_large(bytes.len() as u64);
        }
        let sha256 = HEXLOWER.encode(&Sha256::digest(&bytes));
        Ok(MemoryFile { bytes, sha256 })
    }

    /// Makes `bytes` the content of the canonical path `path` of `tenant`, within what is allowed. Durable when it
    /// returns.
    pub fn write(
        &self,
        tenant: TenantId,
        path: &str,
        bytes: &[u8],
        allowed: &Allowance,
    ) -> Result<Written, MemoryError> {
        let (parents, name) = check(path)?;
        let size = bytes.len() as u64;
        if size > MAX_FILE {
            return Err(MemoryError::TooLarge { path: path.to_owned(), size });
        }
        // Before a tenant's first directory is made.
        self.enough_space(self.block.cost(size), 1)?;
        let Some(tenant) = self.tenant(tenant, true)? else {
            return Err(MemoryError::NotFound { path: path.to_owned() });
        };
        match self.write_counted(&tenant, (&parents, name, path), bytes, allowed) {
            Err(MemoryError::TenantFull { .. }) if self.recounted(&tenant)? => {
                self.write_counted(&tenant, (&parents, name, path), bytes, allowed)
            }
            done => done,
        }
    }

    fn write_counted(
        &self,
        tenant: &Tenant,
        (parents, name, path): (&[&str], &str, &str),
        bytes: &[u8],
        allowed: &Allowance,
    ) -> Result<Written, MemoryError> {
        let io = |doing| move |e: Errno| self.failed(doing, path, e);
        let _counted = tenant.counted.read().unwrap_or_else(PoisonError::into_inner);
        let made = missing(tenant.dir.as_fd(), parents).map_err(io("open"))?;
        let (file, directory) = (self.block.cost(bytes.len() as u64), self.block.cost(0));
        let needed = file + directory * made;
        self.enough_space(needed, 1 + made)?;
        // Given back as far as the write does not take it; a file that is replaced counts until it is.
        let held = tenant.usage.hold(needed, allowed.tenant);
        let mut held =
            held.map_err(|used| MemoryError::TenantFull { used, quota: allowed.tenant, needed })?;
        let charged = allowed.written.hold(needed, allowed.invocation);
        let mut charged = charged.map_err(|written| MemoryError::InvocationFull {
            written,
            quota: allowed.invocation,
            needed,
        })?;
        let mut spend = |taken: u64| {
            held.spend(taken);
            charged.spend(taken);
        };
        let (temporary, file) =
            Temporary::write(tenant, bytes, self.block).map_err(|e| self.failed("write", path, e))?;
        let mut parent = tenant.dir.try_clone().map_err(|e| self.failed("open", path, e))?;
        for segment in parents {
            let before = usage::size_of(parent.as_fd(), self.block);
            let (next, made) =
                self::directory(parent.as_fd(), segment).map_err(io("make the directory of"))?;
            if made {
                // It stays, whatever becomes of the file.
                spend(usage::size_of(next.as_fd(), self.block));
                spend(usage::size_of(parent.as_fd(), self.block).saturating_sub(before));
            }
            parent = next;
        }
        let replaced = {
            let _naming = relock(&tenant.naming);
            let replaced = replaced(parent.as_fd(), name, path, self.block)?;
            let before = usage::size_of(parent.as_fd(), self.block);
            renameat(&tenant.temporary, temporary.name.as_str(), &parent, name).map_err(io("rename to"))?;
            temporary.keep();
            spend(file);
            spend(usage::size_of(parent.as_fd(), self.block).saturating_sub(before));
            tenant.usage.give_back(replaced.unwrap_or(0));
            replaced
        };
        fsync(&parent).map_err(io("sync the directory of"))?;
        Ok(Written { sha256: HEXLOWER.encode(&Sha256::digest(bytes)), replaced: replaced.is_some() })
    }

    /// Counts a tenant anew if that was long ago; whether it did.
    fn recounted(&self, tenant: &Tenant) -> Result<bool, MemoryError> {
        let mut counted = tenant.counted.write().unwrap_or_else(PoisonError::into_inner);
        let due = counted.elapsed() >= RECOUNT;
        if due {
            let taken = usage::count(tenant.dir.as_fd(), self.block);
            tenant.usage.set(taken.map_err(|e| MemoryError::io("count", "a tenant's files", e))?);
            *counted = Instant::now();
        }
        Ok(due)
    }

    /// Bytes that the files and directories of `tenant` take, each at least a block.
    pub fn used(&self, tenant: TenantId) -> u64 {
        self.tenant(tenant, false).ok().flatten().map_or(0, |tenant| tenant.usage.bytes())
    }

    /// A tenant's directories, opened once and held. Without `make`, None when it has none.
    fn tenant(&self, id: TenantId, make: bool) -> Result<Option<Arc<Tenant>>, MemoryError> {
        let mut open = relock(&self.open);
        if let Some(tenant) = open.get(&id) {
            return Ok(Some(Arc::clone(tenant)));
        }
        let name = id.to_string();
        let fault = |doing| {
            let name = name.clone();
            move |e: Errno| MemoryError::io(doing, &name, e)
        };
        let dir = if make {
            directory(self.tenants.as_fd(), &name).map_err(fault("make"))?.0
        } else {
            match beneath(self.tenants.as_fd(), &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                Err(Errno::ENOENT) => return Ok(None),
                opened => opened.map_err(fault("open"))?,
            }
        };
        let (temporary, _) = directory(dir.as_fd(), TEMPORARY).map_err(fault("make the temporaries of"))?;
        let list = |fd| usage::names(fd).map_err(fault("list"));
        for left in list(temporary.as_fd())? {
            tracing::info!(tenant = name, file = ?left, "swept a write that did not finish");
            unlinkat(&temporary, left.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(fault("sweep"))?;
        }
        let usage = Meter::default();
        usage.set(usage::count(dir.as_fd(), self.block).map_err(fault("count"))?);
        let counted = RwLock::new(Instant::now());
        let tenant = Arc::new(Tenant { dir, temporary, usage, counted, naming: Mutex::default() });
        open.insert(id, Arc::clone(&tenant));
        Ok(Some(tenant))
    }

    fn enough_space(&self, bytes: u64, files: u64) -> Result<(), MemoryError> {
        match self.space.lacks(bytes, files).map_err(|e| MemoryError::io("measure", "tenants", e))? {
            Some(short) => Err(MemoryError::DiskFull(short)),
            None => Ok(()),
        }
    }

    fn failed(&self, doing: &'static str, path: &str, error: impl Into<io::Error>) -> MemoryError {
        let error = error.into();
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOSPC | Errno::EDQUOT) => MemoryError::DiskFull(self.space.full()),
            _ => MemoryError::io(doing, path, error),
        }
    }
}

/// A file of `.tmp` that goes away unless it is kept.
struct Temporary<'a> {
    dir: BorrowedFd<'a>,
    name: String,
    kept: std::cell::Cell<bool>,
}

impl Temporary<'_> {
    /// Writes `bytes` to a new file, and to the disk; and what it takes there.
    fn write<'a>(tenant: &'a Tenant, bytes: &[u8], block: Block) -> io::Result<(Temporary<'a>, u64)> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let name = HEXLOWER.encode(&random);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut file = File::from(beneath(tenant.temporary.as_fd(), &name, flags)?);
        let temporary = Temporary { dir: tenant.temporary.as_fd(), name, kept: std::cell::Cell::new(false) };
        file.write_all(bytes)?;
        file.sync_all()?;
        let taken = block.taken(&fstat(&file)?);
        Ok((temporary, taken))
    }

    fn keep(&self) {
        self.kept.set(true);
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.kept.get() {
            // What stays is swept at the next start.
            let _ = unlinkat(self.dir, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Splits a canonical path into its directories and its name. Grants have made it canonical; that is not relied on.
fn check(path: &str) -> Result<(Vec<&str>, &str), MemoryError> {
    let bad = |why| Err(MemoryError::BadPath { path: path.chars().take(200).collect(), why });
    if path.len() > MAX_PATH {
        return bad("it is longer than 1,024 bytes");
    }
    let mut segments: Vec<&str> = path.split('/').collect();
    if segments.len() > MAX_DEPTH {
        return bad("it has more than 32 segments");
    }
    if segments.iter().any(|s| s.is_empty() || *s == "." || *s == ".." || s.len() > 255 || s.contains('\0')) {
        return bad("a segment is empty, '.', '..', holds a NUL, or is longer than 255 bytes");
    }
    match segments.pop() {
        Some(name) if segments.first() == Some(&ROOT) => Ok((segments, name)),
        _ => bad("it does not begin with memories/"),
    }
}

/// How many of the directories `parents`, each in the one before, are not there.
fn missing(dir: BorrowedFd<'_>, parents: &[&str]) -> Result<u64, Errno> {
    let mut there = dir.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
    for (depth, segment) in parents.iter().enumerate() {
        there = match beneath(there.as_fd(), segment, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Ok(next) => next,
            Err(Errno::ENOENT) => return Ok((parents.len() - depth) as u64),
            Err(e) => return Err(e),
        };
    }
    Ok(0)
}

/// The directory `name` of `dir`, and whether it had to be made. Durable.
fn directory(dir: BorrowedFd<'_>, name: &str) -> Result<(OwnedFd, bool), Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    match beneath(dir, name, flags) {
        Err(Errno::ENOENT) => {}
        opened => return Ok((opened?, false)),
    }
    let made = match mkdirat(dir, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) => true,
        // Another write made it.
        Err(Errno::EEXIST) => false,
        Err(e) => return Err(e),
    };
    fsync(dir)?;
    Ok((beneath(dir, name, flags)?, made))
}

/// What the file takes that a rename to `name` would replace.
fn replaced(
    parent: BorrowedFd<'_>,
    name: &str,
    path: &str,
    block: Block,
) -> Result<Option<u64>, MemoryError> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(MemoryError::io("look at", path, e)),
        Ok(stat) if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG => {
            Ok(Some(block.taken(&stat)))
        }
        Ok(_) => Err(MemoryError::NotAFile { path: path.to_owned() }),
    }
}

fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
