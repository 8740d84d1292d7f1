//! A skill's folder that a person named by its path, opened once (`[1.7]`). Whoever can write there could put a link or a
//! pipe in a file's place, and have root print what it leads to; so nothing is opened but below the folder's descriptor,
//! without following a link, and nothing is waited for. `validate` and `scaffold` come through here; a skill that runs is
//! read from its sealed copy.

use super::MAX_FILE;
use crate::seal;
use cyberos_proto::beneath::{self, Stay, kind};
use cyberos_proto::folder::{self, FolderError};
use cyberos_proto::invoker;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Name of the file that makes a folder a skill.
pub(super) const SKILL_FILE: &str = "SKILL.md";

/// An open skill.
pub(super) struct Folder {
    fd: OwnedFd,
    /// The folder's name, if it is text.
    pub(super) name: Option<String>,
}

/// Opens the folder at `path`; a link there, or one of a stranger's on the way, is an error that says so.
fn open(path: &Path) -> io::Result<OwnedFd> {
    folder::open(path, invoker::uid()).map_err(|e| told(path, e))
}

/// Opens a folder in which a skill is to be made.
pub(crate) fn open_place(path: &Path) -> io::Result<OwnedFd> {
    folder::open_place(path, invoker::uid()).map_err(|e| told(path, e))
}

fn told(path: &Path, e: FolderError) -> io::Error {
    match e {
        FolderError::Os(errno) => errno.into(),
        e => io::Error::new(io::ErrorKind::InvalidInput, format!("{} {e}", path.display())),
    }
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let fd = open(path)?;
        let name = beneath::name_of(&fd)?.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Folder { fd, name })
    }

    /// SKILL.md, at most one byte more of it than the cap: enough to be refused.
    pub(super) fn text(&self) -> io::Result<Vec<u8>> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{SKILL_FILE} {why}"));
        // Looked at before it is opened: to open a device can do things.
        let seen = fstatat(&self.fd, SKILL_FILE, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if kind(&seen) == SFlag::S_IFLNK {
            return Err(refused("is a symlink: put the file itself there"));
        }
        if kind(&seen) != SFlag::S_IFREG {
            return Err(refused("is not a regular file"));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
        let opened = beneath::open(&self.fd, SKILL_FILE, flags, Stay::HERE);
        let file = File::from(opened.map_err(|e| match e {
            Errno::EXDEV => refused("is a mount point; a skill lies on one file system"),
            e => e.into(),
        })?);
        let stat = fstat(&file)?;
        if kind(&stat) != SFlag::S_IFREG {
            return Err(refused("is not a regular file"));
        }
        folder::may_be_published(&stat, fstat(&self.fd)?.st_uid).map_err(refused)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// What lies at `path`, followed as far as it stays inside. What leads out is told from nothing: else a link would tell
    /// of things outside whether they exist.
    pub(super) fn look(&self, path: &str) -> Result<FileStat, Errno> {
        let found = beneath::open(&self.fd, path, OFlag::O_PATH, Stay::LINKS);
        found.and_then(fstat).map_err(|e| match e {
            Errno::EXDEV | Errno::ELOOP => Errno::ENOENT,
            e => e,
        })
    }

    /// What `x-content-sha256` has to be.
    pub(super) fn content_digest(self) -> Result<String, String> {
        let name = self.name.unwrap_or_default();
        seal::content_digest(&name, self.fd).map_err(|e| e.to_string())
    }
}
