//! FUSE mounts on the ceiling's mount points, for SkillFS alone. No path of a peer's, none into a view: a mount is
//! made and ended by descriptor. It knows nothing of what a view shows.

use crate::ceiling::MountPoint;
use crate::policy::ceiling::CeilingText;
use crate::policy::lease::mount_lock;
use crate::policy::mounts::{is_view, view_options};
use crate::{lease, prelude::*, table::Table};
use nix::mount::{MntFlags, umount2};
use std::thread::sleep;

/// How long who served a mount point before may take to let it go.
const LOCK_LIMIT: Duration = Duration::from_secs(2);

/// Makes a mount to be attached `at` a point from which dead views of ours are taken off, served by `peer`. Answers the
/// server's end, INIT not yet read; and the mount, with the lock of its point.
pub(crate) fn prepare(c: &Ceiling, at: &MountPoint, peer: Peer) -> Step<(OwnedFd, [OwnedFd; 2])> {
    let lock = lock(&c.text, &at.name).ok_or(Refusal::Phase)?;
    step("take the old view off", take_off(&at.name))?;
    let server = step("/dev/fuse", sys::open("/dev/fuse", OFlag::O_RDWR))?;
    let options = view_options(server.as_raw_fd(), peer.uid, peer.gid, at.read_only);
    let flags = if at.read_only { sys::READ_ONLY } else { sys::WRITABLE };
    let mount = step("mount FUSE", sys::new_mount(c"fuse", &options, flags))?;
    Ok((server, [mount, lock]))
}

/// Takes `mount` off, whatever its server does: requests in flight are aborted first. The path is a link to the
/// mount's root in our own /proc, where this process is, and goes through no file system's server.
pub(crate) fn unmount(mount: BorrowedFd<'_>) -> Sys<()> {
    let path = format!("self/fd/{}", mount.as_raw_fd());
    umount2(path.as_str(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
}

/// The lock of a mount point. Whoever is just ending has a moment to let it go.
fn lock(ceiling: &CeilingText, point: &Path) -> Option<OwnedFd> {
    let (name, until) = (mount_lock(point)?, Instant::now() + LOCK_LIMIT);
    loop {
        match lease::lock(ceiling, &name) {
            None if Instant::now() < until => sleep(Duration::from_millis(2)),
            locked => return locked.map(Into::into),
        }
    }
}

/// The directory at `name`, after what is left of a view of ours has been taken off.
pub(crate) fn uncover(ceiling: &CeilingText, name: &Path) -> Result<OwnedFd, String> {
    let shown = &name.display();
    let _lock = named(shown, lock(ceiling, name).ok_or("another helper serves a view there"))?;
    let count = named(shown, take_off(name))?;
    if count > 0 {
        log(&format!("took {count} dead views off {shown}"));
    }
    named(shown, sys::open(name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY))
}

/// Takes views of ours off `name`, topmost first; how many. Opening the path alone asks no server of a dead view.
fn take_off(name: &Path) -> Sys<usize> {
    let top = sys::open_path(name)?;
    if !is_view(&Table::read()?.mounts, sys::identity(&top)?.mount) {
        return Ok(0);
    }
    unmount(top.as_fd())?;
    Ok(1 + take_off(name)?)
}
