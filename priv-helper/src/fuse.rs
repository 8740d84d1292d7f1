//! FUSE mounts on the ceiling's mount points, for SkillFS alone. No path of a peer's, none into a view: a mount is
//! made and ended by descriptor. It knows nothing of what a view shows.

use crate::log::log;
use crate::policy::ceiling::CeilingText;
use crate::policy::lease::mount_lock;
use crate::policy::mounts::{is_view, view_options};
use crate::policy::outcome::named;
use crate::sys::{self, Sys};
use crate::{lease, table::Table};
use cyberos_proto::link::Peer;
use cyberos_proto::message::{Refusal, step};
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, umount2};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long who served a mount point before may take to let it go, and how often it is looked.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// A place where a view may be mounted.
pub(crate) struct MountPoint {
    pub(crate) name: PathBuf,
    /// The directory under any view.
    pub(crate) dir: OwnedFd,
    pub(crate) read_only: bool,
}

impl MountPoint {
    /// The place of that name, after what is left of a view of ours has been taken off it.
    pub(crate) fn uncover(ceiling: &CeilingText, name: &Path, read_only: bool) -> Result<Self, String> {
        let shown = name.display();
        let _lock = named(&shown, lock(ceiling, name).ok_or("another helper serves a view there"))?;
        let count = named(&shown, take_off(name))?;
        if count > 0 {
            log(&format!("took {count} dead views off {shown}"));
        }
        let dir = sys::open(name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY);
        Ok(MountPoint { name: name.to_owned(), dir: named(&shown, dir)?, read_only })
    }
}

/// Makes a mount to be attached `at` a point from which dead views of ours are taken off, served by `peer`. Answers the
/// server's end, INIT not yet read; and the mount, with the lock of its point.
pub(crate) fn prepare(
    ceiling: &CeilingText,
    at: &MountPoint,
    peer: Peer,
) -> Result<(OwnedFd, [OwnedFd; 2]), Refusal> {
    let lock = lock(ceiling, &at.name).ok_or(Refusal::Phase)?;
    step("take the old view off", take_off(&at.name))?;
    let server = step("/dev/fuse", sys::open("/dev/fuse", OFlag::O_RDWR))?;
    let options = view_options(server.as_raw_fd(), peer.uid, peer.gid, at.read_only);
    let flags = if at.read_only { sys::READ_ONLY } else { sys::WRITABLE };
    let mount = step("mount FUSE", sys::new_mount(c"fuse", &options, flags))?;
    Ok((server, [mount, lock.into()]))
}

/// Takes `mount` off, whatever its server does: requests in flight are aborted first. The path is a link to the
/// mount's root in our own /proc, where this process is, and goes through no file system's server.
pub(crate) fn unmount(mount: BorrowedFd<'_>) -> Sys<()> {
    let path = format!("self/fd/{}", mount.as_raw_fd());
    umount2(path.as_str(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
}

/// The lock of a mount point. Whoever is just ending has a moment to let it go.
fn lock(ceiling: &CeilingText, point: &Path) -> Option<File> {
    let name = mount_lock(point)?;
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        let locked = lease::lock(ceiling, &name);
        if locked.is_some() || Instant::now() >= until {
            return locked;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Takes views of ours off `name`, topmost first; how many. Opening the path alone asks no server of a dead view.
fn take_off(name: &Path) -> Sys<usize> {
    let mut count = 0;
    loop {
        let top = sys::open_path(name)?;
        if !is_view(&Table::read()?.mounts, sys::identity(&top)?.mount) {
            return Ok(count);
        }
        unmount(top.as_fd())?;
        count += 1;
    }
}
