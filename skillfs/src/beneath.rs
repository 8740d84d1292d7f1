//! Opens one name below a held directory, and never leaves it (`[9.6]`). Nobody else in the crate opens what a
//! source holds; `source.rs`, `snapshot.rs`, `watch.rs` and `tree.rs` call it.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

fn resolve() -> ResolveFlag {
    ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV
}

/// An O_PATH descriptor of `name` itself, also when it is a symlink. Opening it has no effect on what it is.
pub(crate) fn pin(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat2(directory, name, OpenHow::new().flags(flags).resolve(resolve()))
}

/// An O_PATH descriptor of the directory at `path`, which may have several components, none of them a symlink.
pub(crate) fn directory(directory: impl AsFd, path: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat2(directory, path, OpenHow::new().flags(flags).resolve(resolve()))
}

/// An O_PATH descriptor of what `name` leads to, if it is a symlink that stays inside.
pub(crate) fn follow(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let inside = resolve() & !ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(directory, name, OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(inside))
}

/// The name under which a held descriptor can be opened again.
pub(crate) fn proc_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Opens a pinned regular file for reading.
pub(crate) fn reopen_file(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    nix::fcntl::open(&proc_path(fd), flags, nix::sys::stat::Mode::empty())
}

/// An entry of a directory as the file system lists it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: OsString,
    /// If the file system tells.
    pub(crate) kind: Option<nix::dir::Type>,
    pub(crate) inode: u64,
}

/// The entries of a pinned directory, without `.` and `..`.
pub(crate) fn list(fd: impl AsFd) -> Result<Vec<Listed>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = openat2(fd, ".", OpenHow::new().flags(flags).resolve(resolve()))?;
    let mut out = Vec::new();
    for entry in Dir::from_fd(opened)?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let name = OsStr::from_bytes(name).to_owned();
            out.push(Listed { name, kind: entry.file_type(), inode: entry.ino() });
        }
    }
    Ok(out)
}
