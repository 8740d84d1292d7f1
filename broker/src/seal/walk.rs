//! One walk of a skill's tree into a copy, or only to digest it: what is taken, what is refused, and what it counts.

use super::{Caps, SealError, names, open_directory, os};
use crate::disk_guard::{Budget, Short};
use cyberos_proto::beneath::{self, Stay, kind};
use cyberos_proto::tree::{self, Entry, Kind};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::symlinkat;
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// 2000-01-01T00:00:00Z, the time of everything in a copy.
const SEALED_TIME: TimeSpec = TimeSpec::new(946_684_800, 0);
/// Deepest directory of a skill. A copy is walked with one descriptor a level.
const MAX_DEPTH: usize = 64;

/// One walk: what has been seen so far.
pub(super) struct Walk<'a> {
    pub(super) skill: &'a str,
    pub(super) caps: Caps,
    /// What the copy may take of the disk; none where nothing is copied.
    pub(super) space: Option<Budget<'a>>,
    pub(super) bytes: u64,
    pub(super) entries: Vec<Entry>,
}

impl Walk<'_> {
    fn unfit(&self, path: &[u8], why: impl Into<String>) -> SealError {
        SealError::Unfit {
            skill: self.skill.to_string(),
            path: String::from_utf8_lossy(path).into_owned(),
            why: why.into(),
        }
    }

    fn os(&self, doing: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> SealError {
        os(doing, Path::new(self.skill).join(OsString::from_vec(path.to_vec())))
    }

    fn count(&mut self, path: &[u8], size: u64) -> Result<(), SealError> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.caps.max_bytes {
            return Err(self.unfit(
                path,
                format!("the skill is larger than {} bytes (seal.max_bytes)", self.caps.max_bytes),
            ));
        }
        if self.entries.len() >= self.caps.max_entries {
            return Err(self.unfit(
                path,
                format!("the skill has more than {} entries (seal.max_entries)", self.caps.max_entries),
            ));
        }
        match &mut self.space {
            Some(budget) => enough(budget.lacks(size), self.skill),
            None => Ok(()),
        }
    }

    pub(super) fn directory(
        &mut self,
        source: OwnedFd,
        target: Option<&OwnedFd>,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), SealError> {
        if depth > MAX_DEPTH {
            return Err(self.unfit(path, format!("deeper than {MAX_DEPTH} directories")));
        }
        let names = names(&source).map_err(self.os("list", path))?;
        for name in names {
            if depth == 0 && tree::is_left_out(name.to_bytes()) {
                continue;
            }
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            self.entry(&source, target, &name, path, depth)?;
            path.truncate(length);
        }
        let Some(target) = target else { return Ok(()) };
        fchmod(target, Mode::from_bits_truncate(0o555)).map_err(self.os("seal", path))?;
        nix::sys::stat::futimens(target, &SEALED_TIME, &SEALED_TIME).map_err(self.os("seal", path))
    }

    fn entry(
        &mut self,
        source: &OwnedFd,
        target: Option<&OwnedFd>,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), SealError> {
        let seen = fstatat(source, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(self.os("look at", path))?;
        match kind(&seen) {
            SFlag::S_IFDIR => {
                self.count(path, 0)?;
                self.entries.push(Entry::directory(path.clone()));
                let inner = beneath::open(source, name, OFlag::O_DIRECTORY | OFlag::O_RDONLY, Stay::HERE)
                    .map_err(self.os("open", path))?;
                let Some(target) = target else { return self.directory(inner, None, path, depth + 1) };
                mkdirat(target, name, Mode::S_IRWXU).map_err(self.os("copy", path))?;
                let copy = open_directory(target.as_fd(), name).map_err(self.os("copy", path))?;
                self.directory(inner, Some(&copy), path, depth + 1)
            }
            SFlag::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
                let from = beneath::open(source, name, flags, Stay::HERE).map_err(self.os("open", path))?;
                let stat = fstat(&from).map_err(self.os("look at", path))?;
                if kind(&stat) != SFlag::S_IFREG {
                    return Err(self.unfit(path, "it changed its type while it was read"));
                }
                self.file(from, &stat, target, name, path)
            }
            SFlag::S_IFLNK => {
                let link = match readlinkat(source, name) {
                    Ok(link) => link.into_vec(),
                    // SkillFS lets nobody read where a link that leaves its skill leads.
                    Err(Errno::EACCES) => {
                        return Err(self.unfit(path, "a symlink that leads out of the skill"));
                    }
                    Err(e) => return Err(self.os("read", path)(e)),
                };
                self.count(path, link.len() as u64)?;
                let to = CString::new(link).map_err(|_| self.unfit(path, "a symlink with a NUL"))?;
                if let Some(target) = target {
                    symlinkat(to.as_c_str(), target, name).map_err(self.os("copy", path))?;
                    utimensat(target, name, &SEALED_TIME, &SEALED_TIME, UtimensatFlags::NoFollowSymlink)
                        .map_err(self.os("copy", path))?;
                }
                let (size, hash) = (to.as_bytes().len() as u64, Sha256::digest(to.as_bytes()).into());
                self.entries.push(Entry { kind: Kind::Symlink, path: path.clone(), size, hash });
                Ok(())
            }
            other => {
                Err(self.unfit(path, format!("a {} cannot be part of a skill that runs", type_word(other))))
            }
        }
    }

    fn file(
        &mut self,
        from: OwnedFd,
        stat: &FileStat,
        target: Option<&OwnedFd>,
        name: &CStr,
        path: &[u8],
    ) -> Result<(), SealError> {
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        self.count(path, size)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut to = match target {
            Some(target) => Some(File::from(
                openat(target, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(self.os("copy", path))?,
            )),
            None => None,
        };
        let mut hasher = Sha256::new();
        // One byte more than it should have, so that a file that grows is noticed and never copied for ever.
        let mut from = File::from(from).take(size.saturating_add(1));
        let mut buffer = vec![0u8; 128 * 1024];
        let mut copied = 0u64;
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.os("read", path)(errno_of(&e))),
            };
            hasher.update(&buffer[..n]);
            if let Some(to) = &mut to {
                to.write_all(&buffer[..n]).map_err(|e| self.os("copy", path)(errno_of(&e)))?;
            }
            copied += n as u64;
        }
        if copied != size {
            return Err(self.unfit(
                path,
                format!("it changed while it was read ({size} bytes announced, {copied} read)"),
            ));
        }
        let executable = stat.st_mode & 0o111 != 0;
        if let Some(to) = &to {
            fchmod(to, Mode::from_bits_truncate(if executable { 0o555 } else { 0o444 }))
                .map_err(self.os("copy", path))?;
            nix::sys::stat::futimens(to, &SEALED_TIME, &SEALED_TIME).map_err(self.os("copy", path))?;
        }
        let kind = if executable { Kind::Executable } else { Kind::File };
        self.entries.push(Entry { kind, path: path.to_vec(), size, hash: hasher.finalize().into() });
        Ok(())
    }

    /// The digest of what was walked.
    pub(super) fn digest(&mut self) -> String {
        let mut hasher = Sha256::new();
        tree::digest(&mut self.entries, |piece| hasher.update(piece));
        tree::written(&hasher.finalize().into())
    }

    /// The same without SKILL.md (`x-content-sha256`).
    pub(super) fn content_digest(&mut self) -> String {
        let mut hasher = Sha256::new();
        tree::content_digest(&mut self.entries, |piece| hasher.update(piece));
        tree::written(&hasher.finalize().into())
    }

    /// Follows each symlink in the finished copy, which nobody can change: leaving it is an error, dangling is not.
    pub(super) fn links_stay_inside(&self, root: &OwnedFd) -> Result<(), SealError> {
        for link in self.entries.iter().filter(|e| e.kind == Kind::Symlink) {
            let path = Path::new(std::ffi::OsStr::from_bytes(&link.path));
            match beneath::open(root, path, OFlag::O_PATH, Stay::LINKS) {
                Err(Errno::EXDEV) => {
                    return Err(self.unfit(&link.path, "a symlink that leads out of the skill"));
                }
                Ok(_)
                | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES | Errno::ENAMETOOLONG) => {
                }
                Err(e) => return Err(self.os("follow", &link.path)(e)),
            }
        }
        Ok(())
    }
}

/// Whether enough stays free, by what was found lacking.
pub(super) fn enough(lacks: std::io::Result<Option<Short>>, skill: &str) -> Result<(), SealError> {
    match lacks {
        Ok(None) => Ok(()),
        Ok(Some(short)) => Err(SealError::DiskFull { skill: skill.to_string(), short }),
        Err(e) => Err(os("measure the disk for", skill)(errno_of(&e))),
    }
}

fn errno_of(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn type_word(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFIFO => "FIFO",
        SFlag::S_IFSOCK => "socket",
        SFlag::S_IFBLK | SFlag::S_IFCHR => "device",
        _ => "file of this type",
    }
}
