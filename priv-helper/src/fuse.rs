//! FUSE mounts on the ceiling's mount points, for SkillFS alone. No path of a peer's, none into a view: a mount is
//! made, probed and ended by descriptor. It knows nothing of what a view shows.

use crate::ceiling::{Ceiling, MountPoint};
use crate::hold::ready;
use crate::sys::{self, Sys, flag};
use crate::{lease, log, must, named, step};
use cyberos_proto::{link::Peer, message::Refusal};
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::{prctl, signal::Signal, stat::Mode, statfs::fstatfs};
use nix::unistd::{pipe2, read, write};
use nix::{errno::Errno, libc::S_IFDIR, poll::PollFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{ffi::CString, fs, path::Path};

/// What our mounts are called in mountinfo.
const OURS: &str = " - fuse.skillfs skillfs ";
/// How often a view's server is asked whether it lives. A dead one is noticed within this time.
const PROBE_EVERY: Duration = Duration::from_millis(700);
/// A server that answers nothing for so long is given up (`[9.9]`).
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// How long who served a mount point before may take to let it go.
const LOCK_LIMIT: Duration = Duration::from_secs(2);

type Made = (OwnedFd, [OwnedFd; 2]);

/// Makes a mount for `point`, served by `peer`, not attached yet. Answers the server's end, INIT not yet read; and the
/// mount, with the lock of its point. No copy of the server's end is kept: while one were open, the mount would outlive
/// its server, and hang who looks at it. Whatever dead view of ours is on the point is taken off.
pub(crate) fn prepare(c: &Ceiling, point: &MountPoint, peer: Peer) -> Result<Made, Refusal> {
    let lock = lock(c, &point.name).ok_or(Refusal::Phase)?;
    step("take the old view off", take_off(&point.name))?;
    let server = step("/dev/fuse", open("/dev/fuse", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()))?;
    let text = |n: u32| CString::new(n.to_string()).unwrap_or_default();
    let (fd, uid, gid) = (text(server.as_raw_fd().cast_unsigned()), text(peer.uid), text(peer.gid));
    let mut options = vec![
        (c"source", Some(c"skillfs")),
        (c"subtype", Some(c"skillfs")),
        (c"fd", Some(fd.as_c_str())),
        (c"rootmode", Some(c"40000")),
        (c"user_id", Some(uid.as_c_str())),
        (c"group_id", Some(gid.as_c_str())),
        (c"allow_other", None),
        (c"default_permissions", None),
    ];
    options.extend(point.read_only.then_some((c"ro", None)));
    let flags = flag::NOSUID | flag::NODEV | if point.read_only { flag::RDONLY } else { 0 };
    let mount = step("mount FUSE", sys::new_mount(c"fuse", &options, flags))?;
    Ok((server, [mount, lock]))
}

/// Attaches the mount to its point. Answers a pidfd that ends when the server has gone or hangs.
pub(crate) fn attach(mount: BorrowedFd<'_>, point: &MountPoint) -> Result<OwnedFd, Refusal> {
    step("attach the view", sys::attach(mount, point.dir.as_fd()))?;
    step("watch the view", watch(mount))
}

/// Takes `mount` off, whatever its server does: requests in flight are aborted first. The path is a link to the
/// mount's root in our own /proc, where this process is, and goes through no file system's server.
pub(crate) fn unmount(mount: BorrowedFd<'_>) -> Sys<()> {
    let path = format!("self/fd/{}", mount.as_raw_fd());
    umount2(path.as_str(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
}

/// A process that ends when the view's server has gone, or has answered nothing for so long. It asks for statfs again
/// and again, in a process of its own, which alone can hang on the answer.
fn watch(mount: BorrowedFd<'_>) -> Sys<OwnedFd> {
    let watcher = sys::fork(0, || {
        sys::close_all_but(&mut [mount]);
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        let Ok((answers, answered)) = pipe2(OFlag::O_CLOEXEC) else { return 1 };
        let asking = sys::fork(0, || {
            sys::close_all_but(&mut [mount, answered.as_fd()]);
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            while fstatfs(mount).is_ok() && write(&answered, &[1]).is_ok() {
                std::thread::sleep(PROBE_EVERY);
            }
            0
        });
        drop(answered);
        let next =
            || ready(answers.as_fd(), PollFlags::POLLIN, SILENCE_LIMIT) && read(&answers, &mut [0]) == Ok(1);
        while asking.is_ok() && next() {}
        0
    })?;
    Ok(watcher.1)
}

/// The lock of a mount point. Whoever is just ending has a moment to let it go.
fn lock(ceiling: &Ceiling, name: &Path) -> Option<OwnedFd> {
    let file = format!("mount{}", name.to_str()?.replace('/', "+"));
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        let locked = lease::lock(ceiling, &file);
        if locked.is_some() || Instant::now() > until {
            return locked;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The directory at `name`, after what is left of a view of ours has been taken off.
pub(crate) fn uncover(ceiling: &Ceiling, name: &Path) -> Result<OwnedFd, String> {
    let shown = &name.display();
    let _lock = named(shown, lock(ceiling, name).ok_or("another helper serves a view there"))?;
    let count = named(shown, take_off(name))?;
    if count > 0 {
        log(&format!("took {count} dead views off {shown}"));
    }
    let dir = named(shown, sys::open_path(name))?;
    let is_directory = sys::identity(dir.as_fd()).is_ok_and(|i| i.is(S_IFDIR));
    must(is_directory, format!("{shown}: not a directory")).map(|()| dir)
}

/// Takes views of ours off `name`, topmost first, and answers how many. Opening only the path asks no server of a dead
/// view.
fn take_off(name: &Path) -> Sys<usize> {
    let top = sys::open_path(name)?;
    if !is_ours(top.as_fd())? {
        return Ok(0);
    }
    unmount(top.as_fd())?;
    Ok(1 + take_off(name)?)
}

/// Whether `fd` is on a FUSE mount of ours, by mountinfo.
fn is_ours(fd: BorrowedFd<'_>) -> Sys<bool> {
    let id = sys::identity(fd)?.0.stx_mnt_id.to_string();
    let table = fs::read_to_string("self/mountinfo").map_err(|_| Errno::EIO)?;
    Ok(table.lines().any(|l| l.split(' ').next() == Some(&id) && l.contains(OURS)))
}
