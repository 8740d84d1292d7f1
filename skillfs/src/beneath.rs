//! What SkillFS and its provider open below a held directory, by proto's one way of doing that: no symlink followed, no step
//! above the start, no other mount entered (`[9.6]`). It refuses to know what the things are for. Nobody else in the crate
//! opens what a source holds, since a folder's owner may be an attacker who renames and replaces entries while they are
//! looked at.

use cyberos_proto::beneath::{self, Stay};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::libc::mode_t;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::{NixPath, dir::Dir};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An O_PATH descriptor of `path` itself, also when it is a symlink. Opening it has no effect on what it is.
pub(crate) fn pin<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<OwnedFd, Errno> {
    open(dir, path, OFlag::O_PATH)
}

/// An O_PATH descriptor of the directory at `path`, which may have several components, none of them a symlink.
pub(crate) fn directory<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<OwnedFd, Errno> {
    open(dir, path, OFlag::O_PATH | OFlag::O_DIRECTORY)
}

/// An O_PATH descriptor of what `path` leads to, if it is a symlink that stays inside, as a program in the tree would follow
/// it; `EXDEV` where it leaves the tree. A link that leads nowhere is the caller's to judge.
pub(crate) fn follow<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<OwnedFd, Errno> {
    beneath::open(dir, path, OFlag::O_PATH, Stay::LINKS)
}

/// Opens `path` below `dir` with `flags` (close-on-exec and no-follow are added).
pub(crate) fn open<P: ?Sized + NixPath>(dir: impl AsFd, path: &P, flags: OFlag) -> Result<OwnedFd, Errno> {
    beneath::open(dir, path, flags | OFlag::O_NOFOLLOW, Stay::HERE)
}

/// Opens a directory below `dir` for listing.
pub(crate) fn open_dir<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<OwnedFd, Errno> {
    open(dir, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}

/// Opens what should be a regular file for reading. It never waits for a FIFO's writer nor takes a terminal; a thing that
/// is not a regular file is `EINVAL`.
pub(crate) fn open_file<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<(File, FileStat), Errno> {
    let fd = open(dir, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
    let stat = fstat(&fd)?;
    if beneath::kind(&stat) != SFlag::S_IFREG {
        return Err(Errno::EINVAL);
    }
    Ok((File::from(fd), stat))
}

/// Creates a file below `dir` for writing; it must not exist. Its mode is 0600 until the caller sets another.
pub(crate) fn create_file<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<File, Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
    beneath::open_as(dir, path, flags, Mode::S_IRUSR | Mode::S_IWUSR, Stay::HERE).map(File::from)
}

/// Opens a pinned regular file for reading.
pub(crate) fn reopen_file(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    nix::fcntl::open(&proc_path(fd), flags, Mode::empty())
}

/// Device and inode.
pub(crate) fn identity(st: &FileStat) -> (u64, u64) {
    (st.st_dev, st.st_ino)
}

/// The name under which a held descriptor can be opened again.
pub(crate) fn proc_path(fd: impl AsFd) -> PathBuf {
    beneath::again(&fd)
}

/// Whether a pinned directory lies below another one, however deep, and not in what is `left_out` at the top of that.
pub(crate) fn is_below(root: impl AsFd, directory: impl AsFd, left_out: impl Fn(&[u8]) -> bool) -> bool {
    let (own, top) = match (beneath::name_of(&directory), beneath::name_of(&root)) {
        // The kernel tells no name that is so long.
        (Err(Errno::ENAMETOOLONG), _) => return climbs_to(&root, &directory, left_out),
        (Ok(own), Ok(top)) => (own, top),
        _ => return false,
    };
    let below = own.strip_prefix(&top).ok().and_then(|rest| rest.components().next());
    below.is_some_and(|first| !left_out(first.as_os_str().as_bytes()))
}

/// The same, step by step.
fn climbs_to(root: impl AsFd, directory: impl AsFd, left_out: impl Fn(&[u8]) -> bool) -> bool {
    let identity = |fd: &OwnedFd| fstat(fd).map(|st| (st.st_dev, st.st_ino));
    let climb = || -> Result<bool, Errno> {
        let top = fstat(&root).map(|st| (st.st_dev, st.st_ino))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let up = |fd: &OwnedFd| nix::fcntl::openat(fd, "..", flags, Mode::empty());
        let mut at = directory.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        loop {
            let above = up(&at)?;
            if identity(&above)? == top {
                let own = identity(&at)?;
                let names = list(&above)?.into_iter().filter(|e| left_out(e.name.as_bytes()));
                return Ok(names
                    .filter_map(|e| fstatat(&above, e.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok())
                    .all(|st| (st.st_dev, st.st_ino) != own));
            }
            if identity(&above)? == identity(&at)? {
                return Ok(false);
            }
            at = above;
        }
    };
    climb().unwrap_or(false)
}

/// An entry of a directory as the file system lists it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: OsString,
    /// If the file system tells.
    pub(crate) kind: Hint,
    pub(crate) inode: u64,
}

/// What a directory's list says an entry is; `None` where the file system does not tell.
pub(crate) type Hint = Option<nix::dir::Type>;

/// Gives each entry of a directory but `.` and `..` to `take`, until that is no more wanted.
fn each(dir: impl AsFd, mut take: impl FnMut(&nix::dir::Entry) -> Result<bool, Errno>) -> Result<(), Errno> {
    // A descriptor of its own: reading a directory moves the position that duplicates share.
    for entry in Dir::from_fd(open_dir(dir, ".")?)?.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") && !take(&entry)? {
            break;
        }
    }
    Ok(())
}

/// The entries of a pinned directory, in the file system's order.
pub(crate) fn list(dir: impl AsFd) -> Result<Vec<Listed>, Errno> {
    let mut out = Vec::new();
    each(dir, |entry| {
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        out.push(Listed { name, kind: entry.file_type(), inode: entry.ino() });
        Ok(true)
    })?;
    Ok(out)
}

/// The entries of a directory, at most `max` of them (more is `E2BIG`), in the order of their names, so that what is reported
/// first does not depend on the file system.
pub(crate) fn list_in_order(dir: impl AsFd, max: usize) -> Result<Vec<(CString, Hint)>, Errno> {
    let mut names = Vec::new();
    each(dir, |entry| {
        if names.len() >= max {
            return Err(Errno::E2BIG);
        }
        names.push((entry.file_name().to_owned(), entry.file_type()));
        Ok(true)
    })?;
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}

/// The directories in a pinned directory, and how many entries it has; no more than `most` are looked at.
pub(crate) fn subdirectories(dir: impl AsFd, most: usize) -> Result<(Vec<OsString>, usize), Errno> {
    let (mut names, mut entries) = (Vec::new(), 0);
    each(dir, |entry| {
        if entries >= most {
            return Ok(false);
        }
        entries += 1;
        if entry.file_type().is_none_or(|kind| kind == nix::dir::Type::Directory) {
            names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        }
        Ok(true)
    })?;
    Ok((names, entries))
}

/// Reads a whole regular file of at most `max` bytes; a larger one is `EFBIG`.
pub(crate) fn read<P: ?Sized + NixPath>(dir: impl AsFd, path: &P, max: u64) -> Result<Vec<u8>, Errno> {
    let (file, _) = open_file(dir, path)?;
    read_open(file, max)
}

/// Reads what is left of an open file, at most `max` bytes; more is `EFBIG`.
pub(crate) fn read_open(file: impl Read, max: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| errno(&e))?;
    if bytes.len() as u64 > max { Err(Errno::EFBIG) } else { Ok(bytes) }
}

/// The errno inside an I/O error (`EIO` where there is none).
pub(crate) fn errno(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Whether the errno says that the thing is there but that this process cannot have it, as against a thing of the wrong
/// kind or none at all, which is what somebody who rearranges the folder leaves behind.
pub(crate) fn is_unreadable(e: Errno) -> bool {
    !matches!(
        e,
        Errno::ENOENT
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::ELOOP
            | Errno::EXDEV
            | Errno::EINVAL
            | Errno::ENXIO
            | Errno::EFBIG
            | Errno::E2BIG
            | Errno::ENAMETOOLONG
            | Errno::EAGAIN
    )
}

/// The permission bits of `stat`, with set-id and sticky.
pub(crate) fn permissions(stat: &FileStat) -> mode_t {
    stat.st_mode & 0o7777
}
