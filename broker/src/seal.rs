//! The sealed copy (`[0.1]`): one walk of a skill as the view shows it, into a read-only tree of normalised modes
//! that is named by its digest. Everything later (frontmatter, entry point, execution) reads the copy alone.
//! Called by `run`. It knows the view's mount point and nothing of verdicts; what the tree says it treats as hostile.

mod walk;

use self::walk::Walk;
use crate::disk_guard::{DiskGuard, Short};
use cyberos_proto::beneath::{self, Stay};
use cyberos_proto::ids::SkillName;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bounds of one copy and of all of them (`seal.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most bytes of one skill, apparent sizes, holes included.
    pub max_bytes: u64,
    /// Most entries of one skill.
    pub max_entries: usize,
    /// Copies that no invocation holds are removed beyond this many bytes.
    pub cache: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Caps { max_bytes: 256 << 20, max_entries: 20_000, cache: 2 << 30 }
    }
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The skill is such that it is never run; the path is below the skill.
    #[error("{skill}/{path}: {why}")]
    Unfit { skill: String, path: String, why: String },
    /// The view does not show it (any more).
    #[error("{0} is not shown by SkillFS")]
    NotShown(String),
    /// The mount point is not SkillFS's.
    #[error("{0} is not a SkillFS mount: is SkillFS running?")]
    NotMounted(PathBuf),
    /// There is too little space for another copy (`[2.8]`).
    #[error("{skill} runs from a copy, and there is none yet: {short}")]
    DiskFull { skill: String, short: Short },
    /// A system call failed.
    #[error("cannot {doing} {path}: {errno}")]
    Os { doing: &'static str, path: String, errno: Errno },
}

/// One copy, held: it is not removed while any of these lives.
#[derive(Debug)]
pub struct Sealed {
    digest: String,
    content: String,
    bytes: u64,
    root: OwnedFd,
    /// Position in the order of last use, for the cache.
    used: Mutex<u64>,
}

impl Sealed {
    /// Its digest as written: `sha256:` and 64 hex digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The digest of everything but SKILL.md, for `x-content-sha256`.
    pub fn content(&self) -> &str {
        &self.content
    }

    /// SKILL.md; none if it is absent or no regular file. A link is not followed, here as wherever SKILL.md is read.
    pub fn text(&self) -> Option<File> {
        self.open_with("SKILL.md", Stay::MOUNTS)
    }

    /// Its directory.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A file of the copy, followed inside the copy only; none if it is absent, leads out, or is not a regular file.
    pub fn open(&self, path: &str) -> Option<File> {
        self.open_with(path, Stay::LINKS_AND_MOUNTS)
    }

    fn open_with(&self, path: &str, stay: Stay) -> Option<File> {
        let fd = beneath::open(&self.root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, stay).ok()?;
        let file = File::from(fd);
        file.metadata().is_ok_and(|m| m.is_file()).then_some(file)
    }
}

/// Makes and keeps the copies of one broker.
#[derive(Debug)]
pub struct Sealer {
    dir: OwnedFd,
    path: PathBuf,
    mount: PathBuf,
    caps: Caps,
    /// What copies are written to.
    disk: DiskGuard,
    /// That, and the state's file system.
    space: DiskGuard,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    copies: HashMap<String, Arc<Sealed>>,
    known: HashMap<(SkillName, String), Weak<Sealed>>,
    clock: u64,
}

/// The digest of everything but SKILL.md below `folder`, which is called `skill` in errors: what `x-content-sha256` has to be.
/// By the walk that makes copies, so that the answer is the same.
pub fn content_digest(skill: &str, folder: OwnedFd) -> Result<String, SealError> {
    let root =
        folder.try_clone().map_err(|e| os("open", skill)(Errno::from_raw(e.raw_os_error().unwrap_or(0))))?;
    let mut walk = Walk { skill, caps: Caps::default(), space: None, bytes: 0, entries: Vec::new() };
    walk.directory(folder, None, &mut Vec::new(), 0)?;
    walk.links_stay_inside(&root)?;
    Ok(walk.content_digest())
}

fn os(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(Errno) -> SealError {
    let path = path.as_ref().display().to_string();
    move |errno| SealError::Os { doing, path, errno }
}

impl Sealer {
    /// Takes the directory `sealed` (made if absent, mode 0700) and empties it: a copy never outlives its broker.
    /// `state` is the file system that copies leave space on beside their own.
    pub fn open(sealed: &Path, mount: &Path, caps: Caps, state: &DiskGuard) -> Result<Self, SealError> {
        match nix::unistd::mkdir(sealed, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(os("create", sealed)(e)),
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open(sealed, flags, Mode::empty()).map_err(os("open", sealed))?;
        let no_exec = nix::sys::statvfs::fstatvfs(&dir).map_err(os("look at", sealed))?;
        if no_exec.flags().contains(nix::sys::statvfs::FsFlags::ST_NOEXEC) {
            return Err(SealError::Unfit {
                skill: sealed.display().to_string(),
                path: String::new(),
                why: "skills run from here, but its file system is mounted noexec".into(),
            });
        }
        for name in names(&dir).map_err(os("list", sealed))? {
            remove_tree(dir.as_fd(), &name).map_err(os("empty", sealed))?;
        }
        let errno = |e: std::io::Error| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let space = state.and(sealed).map_err(|e| os("look at", sealed)(errno(e)))?;
        let disk = DiskGuard::open(sealed).map_err(|e| os("look at", sealed)(errno(e)))?;
        let (path, mount) = (sealed.to_owned(), mount.to_owned());
        Ok(Sealer { dir, path, mount, caps, disk, space, kept: Mutex::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy that was made of this skill at this epoch, if it is still there.
    pub fn known(&self, skill: &SkillName, epoch: &str) -> Option<Arc<Sealed>> {
        let mut kept = self.kept();
        let found = kept.known.get(&(skill.clone(), epoch.to_owned()))?.upgrade();
        if let Some(sealed) = &found {
            kept.clock += 1;
            let now = kept.clock;
            *sealed.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
        found
    }

    /// Remembers that the copy is what the view shows at this epoch (the caller asked before and after).
    pub fn remember(&self, skill: &SkillName, epoch: &str, sealed: &Arc<Sealed>) {
        let mut kept = self.kept();
        kept.known.retain(|(name, _), copy| name != skill && copy.strong_count() > 0);
        kept.known.insert((skill.clone(), epoch.to_owned()), Arc::downgrade(sealed));
    }

    /// Walks the skill as the view shows it now, into a copy. Blocks; may hang as long as SkillFS does.
    pub fn seal(&self, skill: &SkillName) -> Result<Arc<Sealed>, SealError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let mount = nix::fcntl::open(&self.mount, flags, Mode::empty()).map_err(os("open", &self.mount))?;
        if fstatfs(&mount).map_err(os("look at", &self.mount))?.filesystem_type() != FUSE_SUPER_MAGIC {
            return Err(SealError::NotMounted(self.mount.clone()));
        }
        let source = match beneath::open(&mount, skill.as_str(), flags, Stay::HERE) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Err(SealError::NotShown(skill.to_string())),
            Err(e) => return Err(os("open", self.mount.join(skill.as_str()))(e)),
        };
        self.seal_tree(skill, source)
    }

    fn seal_tree(&self, skill: &SkillName, source: OwnedFd) -> Result<Arc<Sealed>, SealError> {
        walk::enough(self.space.lacks(0, 1), skill.as_str())?;
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|_| os("draw randomness for", &self.path)(Errno::EIO))?;
        let temporary = CString::new(format!(".tmp-{:016x}", u64::from_ne_bytes(random))).unwrap_or_default();
        mkdirat(&self.dir, temporary.as_c_str(), Mode::S_IRWXU)
            .map_err(os("create a copy in", &self.path))?;
        let made = self.copy_into(skill, source, &temporary);
        if made.is_err() {
            // Nothing half-done stays behind; what cannot be removed now goes at the next start.
            let _ = remove_tree(self.dir.as_fd(), &temporary);
        }
        made.map_err(|e| self.named_disk(skill, e))
    }

    /// The error, with the disk that has refused a write, and no other.
    fn named_disk(&self, skill: &SkillName, e: SealError) -> SealError {
        match e {
            SealError::Os { errno: Errno::ENOSPC | Errno::EDQUOT, .. } => {
                SealError::DiskFull { skill: skill.to_string(), short: self.disk.full() }
            }
            e => e,
        }
    }

    fn copy_into(
        &self,
        skill: &SkillName,
        source: OwnedFd,
        temporary: &CStr,
    ) -> Result<Arc<Sealed>, SealError> {
        let root = open_directory(self.dir.as_fd(), temporary).map_err(os("open a copy in", &self.path))?;
        let mut walk = Walk {
            skill: skill.as_str(),
            caps: self.caps,
            space: Some(self.space.budget()),
            bytes: 0,
            entries: Vec::new(),
        };
        walk.directory(source, Some(&root), &mut Vec::new(), 0)?;
        walk.links_stay_inside(&root)?;
        let bytes = walk.bytes;
        let (digest, content) = (walk.digest(), walk.content_digest());
        let mut kept = self.kept();
        kept.clock += 1;
        let now = kept.clock;
        if let Some(same) = kept.copies.get(&digest) {
            let same = Arc::clone(same);
            *same.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
            drop(kept);
            let _ = remove_tree(self.dir.as_fd(), temporary);
            return Ok(same);
        }
        let name = digest.trim_start_matches("sha256:");
        renameat2(&self.dir, temporary, &self.dir, name, RenameFlags::RENAME_NOREPLACE)
            .map_err(os("name a copy in", &self.path))?;
        let sealed = Arc::new(Sealed { digest: digest.clone(), content, bytes, root, used: Mutex::new(now) });
        kept.copies.insert(digest, Arc::clone(&sealed));
        self.trim(&mut kept);
        Ok(sealed)
    }

    /// Removes the least recently used copies that nobody holds, until the rest fits the cache.
    fn trim(&self, kept: &mut Kept) {
        let mut total: u64 = kept.copies.values().map(|s| s.bytes).sum();
        let mut free: Vec<_> = kept
            .copies
            .iter()
            .filter(|(_, s)| Arc::strong_count(s) == 1)
            .map(|(d, s)| (*s.used.lock().unwrap_or_else(PoisonError::into_inner), d.clone(), s.bytes))
            .collect();
        free.sort();
        for (_, digest, bytes) in free {
            if total <= self.caps.cache {
                break;
            }
            total = total.saturating_sub(bytes);
            kept.copies.remove(&digest);
            if let Ok(name) = CString::new(digest.trim_start_matches("sha256:")) {
                let _ = remove_tree(self.dir.as_fd(), &name);
            }
        }
    }
}

fn open_directory(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(
        at,
        name,
        OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

/// The names in a directory, sorted, without `.` and `..`.
fn names(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let again = openat(dir, ".", OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(again)?.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes a tree of ours by descriptors, following nothing. Directories are made writable first.
fn remove_tree(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match unlinkat(at, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(e) => return Err(e),
    }
    fchmodat(at, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink).or_else(|e| match e {
        Errno::EOPNOTSUPP => fchmodat(at, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink),
        e => Err(e),
    })?;
    let dir = open_directory(at, name)?;
    for inner in names(&dir)? {
        remove_tree(dir.as_fd(), &inner)?;
    }
    unlinkat(at, name, UnlinkatFlags::RemoveDir)
}

#[cfg(test)]
mod tests;
