//! Walks a skill's tree once from a descriptor and digests it (`[0.1]`; the encoding is `cyberos_proto::tree`). It knows no
//! versions, keys or verdicts. Called for the live folder, for a snapshot, and, with a [`Visitor`] that copies, to make one.
//!
//! The tree is hostile: its owner may change it during the walk, fill it with FIFOs, devices, loops and names of any bytes.
//! So everything is opened below the root's descriptor, types are looked at before anything is opened, and files are read to
//! their end exactly once; what was read is what the digest says.

use super::words::shown;
use crate::beneath;
use cyberos_proto::folder::may_be_published;
use cyberos_proto::tree::{self, Entry, Kind, is_left_out};
use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;

/// Most bytes of content in a tree, counted as apparent sizes (`[0.1]`).
pub const MAX_BYTES: u64 = 256 << 20;
/// Most entries in a tree (`[0.1]`).
pub const MAX_ENTRIES: usize = 20_000;
/// Most directories above an entry.
pub const MAX_DEPTH: usize = 64;
/// Longest path below the root, in bytes: what a program could still open with one call.
pub const MAX_PATH: usize = 4_095;

const BUFFER: usize = 64 << 10;

/// What is asked of a tree besides being walkable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// A live folder: owners, modes and hard links are its own affair.
    Live,
    /// A live folder that is about to be copied to where more people may read. What not everybody can read may be somebody
    /// else's secret, linked or moved here for a root process to publish ([`may_be_published`]).
    Publish,
    /// A snapshot (`[9.6]`): nothing writable by group or others, no file with other links, no set-id bits, no provider's
    /// folder inside, nor `.git`.
    Snapshot,
}

/// Why a tree has no digest.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// It holds something that no certified tree holds, or it changed during the walk: it equals no certified version.
    #[error("{path}: {why}")]
    Unfit {
        /// Where, below the root, escaped for showing.
        path: String,
        /// What is wrong there, and what to do.
        why: &'static str,
    },
    /// This process could not read it, so nothing can be said.
    #[error("{path}: cannot be read: {}", errno.desc())]
    Unreadable {
        /// Where, below the root, escaped for showing.
        path: String,
        /// What the kernel said.
        errno: Errno,
    },
    /// The visitor could not do its part.
    #[error("{path}: cannot be copied: {error}")]
    Visitor {
        /// Where, below the root, escaped for showing.
        path: String,
        /// What it said.
        error: io::Error,
    },
}

/// Sees each entry of a walk once; a directory comes before what is in it.
pub trait Visitor {
    /// A directory.
    fn directory(&mut self, _path: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// A file begins.
    fn file(&mut self, _path: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// The next bytes of the file that began last.
    fn content(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// That file was read to its end.
    fn file_end(&mut self, _executable: bool) -> io::Result<()> {
        Ok(())
    }
    /// A symlink that stays inside.
    fn symlink(&mut self, _path: &[u8], _target: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The visitor of a walk that only digests.
pub struct Nothing;
impl Visitor for Nothing {}

/// Walks the tree below `root` and returns its entries, sorted by path, without the root and what is left out (`[0.1]`).
pub fn walk(root: BorrowedFd<'_>, rules: Rules, visitor: &mut impl Visitor) -> Result<Vec<Entry>, TreeError> {
    let stat = fstat(root).map_err(|e| at(b".", e))?;
    let owner = stat.st_uid;
    let mut walk =
        Walk { root, owner, rules, visitor, entries: Vec::new(), left: MAX_BYTES, buffer: vec![0; BUFFER] };
    walk.check_modes(b".", &stat)?;
    let mut dirs: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(path) = dirs.pop() {
        walk.directory(&path, &mut dirs)?;
    }
    walk.entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.entries)
}

/// The digest of entries that [`walk`] returned.
pub fn digest(entries: &mut [Entry]) -> [u8; 32] {
    let mut sum = Sha256::new();
    tree::digest(entries, |bytes| sum.update(bytes));
    sum.finalize().into()
}

/// The digest of the tree below `root`, in its written form.
pub fn digest_of(root: BorrowedFd<'_>, rules: Rules) -> Result<String, TreeError> {
    Ok(tree::written(&digest(&mut walk(root, rules, &mut Nothing)?)))
}

struct Walk<'a, V> {
    root: BorrowedFd<'a>,
    /// Who owns the root.
    owner: u32,
    rules: Rules,
    visitor: &'a mut V,
    entries: Vec<Entry>,
    left: u64,
    buffer: Vec<u8>,
}

impl<V: Visitor> Walk<'_, V> {
    fn directory(&mut self, path: &[u8], dirs: &mut Vec<Vec<u8>>) -> Result<(), TreeError> {
        let name = if path.is_empty() { b"." } else { path };
        let dir = beneath::open_dir(self.root, name).map_err(|e| at(name, e))?;
        if !path.is_empty() {
            self.check_modes(path, &fstat(&dir).map_err(|e| at(path, e))?)?;
        }
        let room = MAX_ENTRIES.saturating_sub(self.entries.len());
        // Two more than there is room for: what is left out does not count.
        let names = beneath::list_in_order(&dir, room + 2).map_err(|e| at(name, e))?;
        for (name, hint) in names {
            if path.is_empty() && is_left_out(name.to_bytes()) {
                if self.rules == Rules::Snapshot {
                    return Err(unfit(name.to_bytes(), "has no place in a snapshot"));
                }
                continue;
            }
            let whole = join(path, name.to_bytes());
            if self.entries.len() >= MAX_ENTRIES {
                return Err(unfit(&whole, "is more than the 20,000 entries that a skill may have"));
            }
            if whole.len() > MAX_PATH {
                return Err(unfit(&whole, "has a path of more than 4,095 bytes"));
            }
            match self.kind(dir.as_fd(), &name, &whole, hint)? {
                Type::Directory => {
                    if whole.iter().filter(|b| **b == b'/').count() >= MAX_DEPTH {
                        return Err(unfit(&whole, "lies more than 64 folders deep"));
                    }
                    self.visitor.directory(&whole).map_err(|e| refused(&whole, e))?;
                    self.entries.push(Entry::directory(whole.clone()));
                    dirs.push(whole);
                }
                Type::File => self.file(dir.as_fd(), &name, whole)?,
                Type::Symlink => self.symlink(dir.as_fd(), &name, whole)?,
                _ => {
                    return Err(unfit(
                        &whole,
                        "is no regular file, folder or symlink; a skill may hold nothing else",
                    ));
                }
            }
        }
        Ok(())
    }

    /// What an entry is, known before it is opened: opening a device can do things.
    fn kind(
        &self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        whole: &[u8],
        hint: beneath::Hint,
    ) -> Result<Type, TreeError> {
        if let Some(kind) = hint {
            return Ok(kind);
        }
        let stat = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|e| at(whole, e))?;
        Ok(match cyberos_proto::beneath::kind(&stat) {
            SFlag::S_IFREG => Type::File,
            SFlag::S_IFDIR => Type::Directory,
            SFlag::S_IFLNK => Type::Symlink,
            _ => Type::Fifo,
        })
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr, whole: Vec<u8>) -> Result<(), TreeError> {
        let (mut file, stat) = beneath::open_file(dir, name).map_err(|e| at(&whole, e))?;
        self.check_modes(&whole, &stat)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            unfit(&whole, "brings the skill over the 256 MiB that it may have (holes count)")
        })?;
        self.visitor.file(&whole).map_err(|e| refused(&whole, e))?;
        let mut sum = Sha256::new();
        let mut got: u64 = 0;
        loop {
            let n = match file.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(at(&whole, beneath::errno(&e))),
            };
            got += n as u64;
            if got > size {
                break;
            }
            let bytes = self.buffer.get(..n).unwrap_or_default();
            sum.update(bytes);
            self.visitor.content(bytes).map_err(|e| refused(&whole, e))?;
        }
        if got != size {
            return Err(unfit(&whole, CHANGED));
        }
        let executable = beneath::permissions(&stat) & 0o111 != 0;
        self.visitor.file_end(executable).map_err(|e| refused(&whole, e))?;
        let kind = if executable { Kind::Executable } else { Kind::File };
        self.entries.push(Entry { kind, path: whole, size, hash: sum.finalize().into() });
        Ok(())
    }

    fn symlink(&mut self, dir: BorrowedFd<'_>, name: &CStr, whole: Vec<u8>) -> Result<(), TreeError> {
        let link = beneath::open(dir, name, OFlag::O_PATH).map_err(|e| at(&whole, e))?;
        if cyberos_proto::beneath::kind(&fstat(&link).map_err(|e| at(&whole, e))?) != SFlag::S_IFLNK {
            return Err(unfit(&whole, CHANGED));
        }
        let target = readlinkat(&link, c"").map_err(|e| at(&whole, e))?.into_vec();
        let leaves = "is a symlink that leaves the skill (or enters .skill-meta or .git); \
                      replace it by what it points to";
        if !stays_inside(&whole, &target) {
            return Err(unfit(&whole, leaves));
        }
        // Reading the words is not enough: a `..` after another link starts from where that link leads.
        if beneath::follow(self.root, whole.as_slice()).err() == Some(Errno::EXDEV) {
            return Err(unfit(&whole, leaves));
        }
        self.visitor.symlink(&whole, &target).map_err(|e| refused(&whole, e))?;
        let hash = Sha256::digest(&target).into();
        self.entries.push(Entry { kind: Kind::Symlink, path: whole, size: target.len() as u64, hash });
        Ok(())
    }

    fn check_modes(&self, path: &[u8], stat: &FileStat) -> Result<(), TreeError> {
        match self.rules {
            Rules::Live => return Ok(()),
            Rules::Publish => return may_be_published(stat, self.owner).map_err(|why| unfit(path, why)),
            Rules::Snapshot => {}
        }
        if beneath::permissions(stat) & 0o7022 != 0 {
            return Err(unfit(path, "is writable by group or others, or has a set-id or sticky bit"));
        }
        if cyberos_proto::beneath::kind(stat) == SFlag::S_IFREG && stat.st_nlink != 1 {
            return Err(unfit(path, "has another name elsewhere (a hard link)"));
        }
        Ok(())
    }
}

const CHANGED: &str = "changed while it was read";

/// Whether the words of a link's target keep it below the root and out of what is no part of the skill.
fn stays_inside(link: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return false;
    }
    let mut stack: Vec<&[u8]> = link.split(|b| *b == b'/').collect();
    stack.pop();
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                if stack.pop().is_none() {
                    return false;
                }
            }
            name => stack.push(name),
        }
        if stack.first().is_some_and(|first| is_left_out(first)) {
            return false;
        }
    }
    true
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn unfit(path: &[u8], why: &'static str) -> TreeError {
    TreeError::Unfit { path: shown(path, 200), why }
}

fn refused(path: &[u8], error: io::Error) -> TreeError {
    TreeError::Visitor { path: shown(path, 200), error }
}

fn at(path: &[u8], errno: Errno) -> TreeError {
    match errno {
        Errno::EXDEV => unfit(path, "is a mount point; a skill lies on one file system"),
        Errno::E2BIG => unfit(path, "holds more than the 20,000 entries that a skill may have"),
        e if beneath::is_unreadable(e) => TreeError::Unreadable { path: shown(path, 200), errno },
        _ => unfit(path, CHANGED),
    }
}

/// The name of a path as the kernel takes it (no name that came from a directory holds a NUL).
pub(super) fn c_path(path: &[u8]) -> io::Result<CString> {
    CString::new(path).map_err(|_| io::Error::from_raw_os_error(Errno::EINVAL as i32))
}

#[cfg(test)]
mod tests;
