//! Opens the folder of a skill by a path that a person gave, for programs that may run as root: `validate`, `certify` and
//! their like. It knows no skills. Whoever can write where skills lie could plant a symlink there, and have root read, or
//! publish, what it leads to.
//!
//! So the last component is never a symlink. One on the way there is followed only if root or the user who asks has made it:
//! that is how a site is laid out, and a stranger cannot make such a link.

use crate::beneath::kind;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Most links on the way; the kernel allows as many.
const MAX_LINKS: usize = 40;

/// Why a folder is not opened.
#[derive(Debug, PartialEq, Eq)]
pub enum FolderError {
    /// It is a symlink itself.
    Linked,
    /// A symlink of somebody else's lies on the way.
    Stranger(PathBuf),
    /// It is something else than a folder.
    NotAFolder,
    /// The kernel refused.
    Os(Errno),
}

impl core::fmt::Display for FolderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FolderError::Linked => {
                f.write_str("is a symlink: name the folder that it leads to, if that is the skill")
            }
            FolderError::Stranger(link) => {
                write!(
                    f,
                    "is reached through a symlink of another user's ({}): name the real path",
                    link.display()
                )
            }
            FolderError::NotAFolder => f.write_str("is a file: name the skill's folder"),
            FolderError::Os(e) => f.write_str(e.desc()),
        }
    }
}

/// Whether what lies in a folder may be copied to where everybody can read it, or be quoted; the error says why not and what
/// to do. `top` is who owns the folder itself. Whoever can write there could link or move somebody else's file into it and
/// have root publish that: root's own as well, for root leaves private files in other people's folders. What the folder's
/// owner keeps private is the owner's to publish, unless it has a second name, which others may have given it.
pub fn may_be_published(stat: &FileStat, top: u32) -> Result<(), &'static str> {
    let folder = kind(stat) == SFlag::S_IFDIR;
    let everybodys = if folder { 0o005 } else { 0o004 };
    if stat.st_mode & everybodys == everybodys {
        return Ok(());
    }
    if !folder && stat.st_nlink > 1 {
        return Err("has another name elsewhere (a hard link) and is not readable by everyone; \
                    replace it by a copy of its own");
    }
    match (stat.st_uid == top, folder) {
        (true, _) => Ok(()),
        (false, false) => {
            Err("is not readable by everyone and belongs to another user than the skill's folder; \
                               if it may be public, chmod o+r it, or chown it to the folder's owner")
        }
        (false, true) => Err("is not open to everyone and belongs to another user than the skill's folder; \
                              if it may be public, chmod o+rx it, or chown it to the folder's owner"),
    }
}

/// Opens the folder at `path` for reading. `also` is a user besides root and this process's own whose symlinks on the way
/// are followed: the one who called sudo.
pub fn open(path: &Path, also: Option<u32>) -> Result<OwnedFd, FolderError> {
    walk(path, also, false)
}

/// The same for a folder in which something is to be made: the last component too may be a symlink of theirs.
pub fn open_place(path: &Path, also: Option<u32>) -> Result<OwnedFd, FolderError> {
    walk(path, also, true)
}

fn walk(path: &Path, also: Option<u32>, last_too: bool) -> Result<OwnedFd, FolderError> {
    let mut left: VecDeque<OsString> = parts(path);
    let mut at = start(path)?;
    let mut walked = if path.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let pin = openat(
            &at,
            name.as_os_str(),
            OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(FolderError::Os)?;
        let stat = fstat(&pin).map_err(FolderError::Os)?;
        walked.push(&name);
        match kind(&stat) {
            SFlag::S_IFDIR => at = pin,
            SFlag::S_IFLNK if left.is_empty() && !last_too => return Err(FolderError::Linked),
            SFlag::S_IFLNK => {
                if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() && Some(stat.st_uid) != also {
                    return Err(FolderError::Stranger(walked));
                }
                links += 1;
                if links > MAX_LINKS {
                    return Err(FolderError::Os(Errno::ELOOP));
                }
                let target = PathBuf::from(readlinkat(&pin, "").map_err(FolderError::Os)?);
                walked.pop();
                if target.is_absolute() {
                    at = start(&target)?;
                    walked = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            _ => return Err(FolderError::NotAFolder),
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(&at, ".", flags, Mode::empty()).map_err(FolderError::Os)
}

fn start(path: &Path) -> Result<OwnedFd, FolderError> {
    let from = if path.is_absolute() { "/" } else { "." };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, from, flags, Mode::empty()).map_err(FolderError::Os)
}

/// The names of a path, `..` included; without `.`, and without the slashes, a trailing one of which would follow a link.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsStr::new("..").to_owned()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    /// Temporary and removed with the value; proto has no crate for that.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("cyberos-folder-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            fs::create_dir(dir.join("real")).unwrap();
            fs::create_dir(dir.join("real/skill")).unwrap();
            fs::write(dir.join("real/file"), "").unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_folder_itself_is_never_a_link_however_it_is_spelt() {
        let dir = Dir::new("itself");
        symlink("real/skill", dir.0.join("link")).unwrap();
        for spelt in ["link", "link/", "link/.", "real/../link", "./link"] {
            assert_eq!(open(&dir.0.join(spelt), None).unwrap_err(), FolderError::Linked, "{spelt}");
        }
        for spelt in ["real/skill", "real/skill/", "real/./skill/../skill", "real//skill"] {
            assert!(open(&dir.0.join(spelt), None).is_ok(), "{spelt}");
        }
        assert_eq!(open(&dir.0.join("real/file"), None).unwrap_err(), FolderError::NotAFolder);
        assert_eq!(open(&dir.0.join("absent/x"), None).unwrap_err(), FolderError::Os(Errno::ENOENT));
        assert!(open(Path::new("."), None).is_ok() && open(Path::new("/"), None).is_ok());
    }

    #[test]
    fn links_on_the_way_are_followed_only_if_root_or_the_caller_made_them() {
        let dir = Dir::new("way");
        let way = dir.0.join("way");
        symlink(dir.0.join("real"), &way).unwrap();
        symlink("way", dir.0.join("again")).unwrap();
        for first in ["way", "again"] {
            assert!(open(&dir.0.join(first).join("skill"), None).is_ok(), "{first}");
        }
        assert!(geteuid().is_root(), "only root can make a link another user's: run this as root");
        lchown(&way, Some(12345), None).unwrap();
        for first in ["way", "again"] {
            let path = dir.0.join(first).join("skill");
            assert_eq!(open(&path, None).unwrap_err(), FolderError::Stranger(way.clone()), "{first}");
            assert!(open(&path, Some(12345)).is_ok() && open(&path, Some(54321)).is_err(), "{first}");
        }
        assert!(open_place(&way, Some(12345)).is_ok() && open_place(&dir.0.join("real"), None).is_ok());
        assert_eq!(open_place(&way, None).unwrap_err(), FolderError::Stranger(way.clone()));
        symlink("round", dir.0.join("round")).unwrap();
        let round = open(&dir.0.join("round/skill"), None);
        assert_eq!(round.unwrap_err(), FolderError::Os(Errno::ELOOP));
    }
}
