//! Opens one name below a held directory, and never leaves it (`[9.6]`). Nobody else in the crate opens what a
//! source holds; `source.rs`, `snapshot.rs`, `watch.rs` and `tree.rs` call it.

pub(crate) use cyberos_proto::beneath::again as proc_path;

use cyberos_proto::beneath::{Stay, name_of, open};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// An O_PATH descriptor of `name` itself, also when it is a symlink. Opening it has no effect on what it is.
pub(crate) fn pin(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open(directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW, Stay::HERE)
}

/// An O_PATH descriptor of the directory at `path`, which may have several components, none of them a symlink.
pub(crate) fn directory(directory: impl AsFd, path: &OsStr) -> Result<OwnedFd, Errno> {
    open(directory, path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, Stay::HERE)
}

/// An O_PATH descriptor of what `name` leads to, if it is a symlink that stays inside.
pub(crate) fn follow(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open(directory, name, OFlag::O_PATH, Stay::LINKS)
}

/// Device and inode.
pub(crate) fn identity(st: &FileStat) -> (u64, u64) {
    (st.st_dev, st.st_ino)
}

/// Whether a pinned directory lies below another one, however deep, and not in what is `left_out` at the top of that.
pub(crate) fn is_below(root: impl AsFd, directory: impl AsFd, left_out: impl Fn(&[u8]) -> bool) -> bool {
    let (own, top) = match (name_of(&directory), name_of(&root)) {
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

/// Opens a pinned regular file for reading.
pub(crate) fn reopen_file(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    nix::fcntl::open(&proc_path(&fd), flags, Mode::empty())
}

/// An entry of a directory as the file system lists it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: OsString,
    /// If the file system tells.
    pub(crate) kind: Option<nix::dir::Type>,
    pub(crate) inode: u64,
}

/// The directories in a pinned directory, and how many entries it has; no more than `most` are looked at.
pub(crate) fn subdirectories(fd: impl AsFd, most: usize) -> Result<(Vec<OsString>, usize), Errno> {
    let (mut names, mut entries) = (Vec::new(), 0);
    for entry in open_directory(fd)?.iter().take(most) {
        let entry = entry?;
        entries += 1;
        let name = entry.file_name().to_bytes();
        let other = entry.file_type().is_some_and(|k| k != nix::dir::Type::Directory);
        if !other && name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok((names, entries))
}

fn open_directory(fd: impl AsFd) -> Result<Dir, Errno> {
    Dir::from_fd(open(fd, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Stay::HERE)?)
}

/// The entries of a pinned directory, without `.` and `..`.
pub(crate) fn list(fd: impl AsFd) -> Result<Vec<Listed>, Errno> {
    let mut out = Vec::new();
    for entry in open_directory(fd)?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let name = OsStr::from_bytes(name).to_owned();
            out.push(Listed { name, kind: entry.file_type(), inode: entry.ino() });
        }
    }
    Ok(out)
}
