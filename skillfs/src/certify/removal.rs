//! Takes trees out of a skill's folder of versions. It knows no versions. It may run as root, and the folder be a stranger's,
//! who could move somebody else's directory there to have it removed: what that directory holds was not the stranger's to
//! remove.
//!
//! So nothing is removed from a directory unless this process or the owner of the folder of versions owns it, and no group and
//! no other may write in it: all that `certify` leaves is like that, and such a directory cannot be moved there by a stranger.
//! A tree is looked at to its end before anything of it goes.

use super::tree::{MAX_DEPTH, MAX_ENTRIES};
use super::words::shown;
use crate::beneath;
use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most entries that one run looks at or removes, and how long it takes at most: a folder may grow while it is emptied, and
/// who certifies holds the key meanwhile.
const MAX_STEPS: usize = 50 * MAX_ENTRIES;
const MAX_TIME: Duration = Duration::from_secs(20);

/// Why a tree stays.
#[derive(Debug, thiserror::Error)]
pub enum Stays {
    /// Somebody else may have put it there, or may own what is in it.
    #[error(
        "{0} belongs to another user, or others may write in it, and it is not empty; look at it, and \
         remove it by hand"
    )]
    Foreign(String),
    /// There was too much.
    #[error("there is too much to remove at once; the next run goes on, or remove it by hand")]
    Later,
    /// The kernel refused.
    #[error("{}", .0.desc())]
    Os(Errno),
}

impl From<Errno> for Stays {
    fn from(errno: Errno) -> Self {
        Stays::Os(errno)
    }
}

/// A run that removes things below a folder of versions.
pub(super) struct Removal {
    /// Who owns that folder.
    owner: u32,
    steps: usize,
    until: Instant,
}

impl Removal {
    pub(super) fn new(versions: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Removal { owner: fstat(versions)?.st_uid, steps: MAX_STEPS, until: Instant::now() + MAX_TIME })
    }

    /// Removes the file or tree `name`, all of it or nothing, as long as nobody changes it meanwhile.
    pub(super) fn remove(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Stays> {
        self.look(dir, name, Vec::new())?;
        self.take(dir, name, Vec::new())
    }

    /// Whether all of the tree may be removed. `above` is the path of what it lies in.
    pub(super) fn look(&mut self, dir: BorrowedFd<'_>, name: &CStr, above: Vec<u8>) -> Result<(), Stays> {
        self.step()?;
        let path = [above.as_slice(), name.to_bytes()].concat();
        let Some(inner) = folder(dir, name)? else { return Ok(()) };
        let names = beneath::list_in_order(&inner, MAX_ENTRIES)?;
        // An empty one goes, whoever owns it: who owns what it lies in could remove it as well.
        if names.is_empty() {
            return Ok(());
        }
        self.check(&inner, &path)?;
        let path = [path.as_slice(), b"/"].concat();
        names.iter().try_for_each(|(name, _)| self.look(inner.as_fd(), name, path.clone()))
    }

    /// Removes what was looked at.
    pub(super) fn take(&mut self, dir: BorrowedFd<'_>, name: &CStr, above: Vec<u8>) -> Result<(), Stays> {
        self.step()?;
        match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        let path = [above.as_slice(), name.to_bytes()].concat();
        let inner = beneath::open_dir(dir, name)?;
        self.check(&inner, &path)?;
        // A finished folder is 0555, in which not even its owner may remove anything (root may).
        fchmod(&inner, Mode::S_IRWXU)?;
        let path = [path.as_slice(), b"/"].concat();
        for (name, _) in beneath::list_in_order(&inner, MAX_ENTRIES)? {
            self.take(inner.as_fd(), &name, path.clone())?;
        }
        Ok(unlinkat(dir, name, UnlinkatFlags::RemoveDir)?)
    }

    fn check(&self, dir: &OwnedFd, path: &[u8]) -> Result<(), Stays> {
        let stat = fstat(dir)?;
        let ours = stat.st_uid == geteuid().as_raw() || stat.st_uid == self.owner;
        if !ours || beneath::permissions(&stat) & 0o022 != 0 {
            return Err(Stays::Foreign(shown(path, 200)));
        }
        if path.iter().filter(|b| **b == b'/').count() > MAX_DEPTH + 1 {
            return Err(Stays::Os(Errno::ENAMETOOLONG));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Stays> {
        self.steps = self.steps.checked_sub(1).ok_or(Stays::Later)?;
        if Instant::now() >= self.until { Err(Stays::Later) } else { Ok(()) }
    }
}

/// The directory `name`; none if it is something else or gone.
fn folder(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match beneath::open_dir(dir, name) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENOTDIR | Errno::ELOOP | Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}
