//! What sandboxes see in common: a mount namespace with the system's directories in a read-only root, built once and
//! kept by its descriptor. Each sandbox gets a copy of it, which is much cheaper than building one (`child`). It
//! knows nothing of skills but the names that their directories will have.
//!
//! A bind of a single file goes stale when the file is replaced by a rename, and links and lists are only copied, so the
//! directories that hold those names are looked at before each use: they change when a name in them does.

use crate::child::Attach;
use crate::policy::recent::Recent;
use crate::policy::rootfs::{Entry, LOOKED_AT, entries};
use crate::prelude::*;
use crate::spawn::{KILL_LIMIT, ready, reap};
use cyberos_proto::message::namespaces;
use nix::fcntl::ResolveFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};

/// Which template: the block of its sandboxes, and the directories that are ready in its root besides.
type Which = (u32, Vec<PathBuf>);

/// The templates of one link, at most 32, as long as the host's directories are as they were.
#[derive(Default)]
pub(crate) struct Templates(Recent<Vec<Sys<sys::Identity>>, Which, OwnedFd, 32>);

impl Templates {
    /// The mount namespace to copy for a sandbox.
    pub(crate) fn get(&mut self, ceiling: &Ceiling, which: Which) -> Step<BorrowedFd<'_>> {
        let now = LOOKED_AT.iter().map(|name| sys::identity_at(Path::new(name))).collect();
        let template = self.0.get(now, which, |which| {
            // While its mount is still in this process's namespace.
            let bin =
                ceiling.bin.as_ref().map(|bin| sys::clone_tree(bin.as_fd(), sys::READ_ONLY)).transpose();
            let bin = step("copy bin", bin)?;
            namespace(libc::CLONE_NEWNS, "mnt", || build(bin, which), |_| Ok(()))
        })?;
        Ok(template.as_fd())
    }
}

/// A namespace that outlives the process in which `make` makes something of it. `finish` is given the pid of that
/// process, which has ended or is about to, and is reaped afterwards.
pub(crate) fn namespace(
    flag: libc::c_int,
    kind: &str,
    make: impl FnOnce() -> Step<()>,
    finish: impl FnOnce(Pid) -> Step<()>,
) -> Step<OwnedFd> {
    let (ours, theirs) = step("link to a new namespace", pair::<Note, Note>())?;
    let child = || {
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        let own = step("own namespace", sys::open(format!("self/ns/{kind}"), OFlag::O_RDONLY));
        let _ = match own.and_then(|own| make().map(|()| own)) {
            Ok(own) => theirs.send(&Note::Namespace, &[own.as_fd()], Wait::Block),
            Err(refusal) => theirs.send(&Note::Failed(refusal), &[], Wait::Block),
        };
        0
    };
    let (pid, pidfd) = namespaces(sys::fork(flag, None, child))?;
    drop(theirs);
    let made = ready(&ours, &mut None).map(|[namespace]| namespace);
    let finished = finish(pid);
    let _ = sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    reap(pidfd.as_fd(), KILL_LIMIT);
    finished.and(made)
}

/// Builds the root in a new mount namespace and moves into it. On return nothing of the host is reachable but what was
/// attached.
fn build(bin: Option<OwnedFd>, (first, targets): &Which) -> Step<()> {
    umask(Mode::from_bits_truncate(0o022));
    let none: Option<&str> = None;
    step("private mounts", mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))?;
    let root = step("root", sys::new_mount(c"tmpfs", "size=4m,nr_inodes=2048,mode=0755", sys::WRITABLE))?;
    // It must be attached somewhere before anything can be attached to it; only this namespace sees where.
    let at = step("attach the root", sys::open_path(Path::new("/tmp")))?;
    step("attach the root", sys::attach(root.as_fd(), at.as_fd()))?;
    step("enter the root", unistd::fchdir(&root))?;

    // All names come before anything of the host's.
    targets.iter().try_for_each(|target| step("targets", fs::create_dir_all(target)))?;
    let of_etc = fs::read_dir("/etc").into_iter().flatten().flatten();
    let bin = bin.map(|tree| Attach { target: "opt/cyberos/bin".into(), tree, nested: false });
    let mut trees: Vec<_> = bin.into_iter().collect();
    for (name, entry) in entries(*first, of_etc.filter_map(|entry| entry.file_name().into_string().ok())) {
        match entry {
            Entry::Directory => step(&name, fs::create_dir_all(&name))?,
            Entry::Link(to) => step(&name, symlink(to, &name))?,
            Entry::Host => trees.extend(of_host(&name, None)?),
            Entry::Device(number) => trees.extend(of_host(&name, Some(number))?),
            Entry::File(text) => {
                let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(&name);
                step(&name, file.and_then(|mut file| file.write_all(text.as_bytes())))?;
            }
        }
    }
    attach(&trees, |_| true)?;
    step("read-only root", sys::set_mount(&root, sys::READ_ONLY, None, 0))?;
    step("pivot_root", unistd::pivot_root(".", "."))?;
    step("leave the host's root", umount2(".", MntFlags::MNT_DETACH))?;
    step("enter the root", unistd::chdir("/"))
}

/// A name of the host's: a link is made at once, a directory, file or device of that number is a tree to attach, and
/// nothing, unless it is a device of major number 1, which no program does without, is nothing.
fn of_host(name: &str, device: Option<(u32, u32)>) -> Step<Option<Attach>> {
    let host = Path::new("/").join(name);
    let found = match sys::open_path(&host) {
        Err(Errno::ENOENT | Errno::ENOTDIR) if device.is_none_or(|(major, _)| major != 1) => return Ok(None),
        other => step(name, other)?,
    };
    let id = step(name, sys::identity(&found))?;
    let flags = match device {
        Some(number) if id.is_device(number) => sys::DEVICE,
        Some(_) => return step(name, Err(Errno::ENODEV)),
        None if id.is(libc::S_IFDIR) || id.is(libc::S_IFREG) => sys::READ_ONLY,
        None if id.is(libc::S_IFLNK) => {
            return step(name, fs::read_link(&host).and_then(|to| symlink(to, name))).map(|()| None);
        }
        None => return Ok(None),
    };
    let tree = step(name, sys::clone_tree(found.as_fd(), flags))?;
    Ok(Some(Attach { target: name.into(), tree, nested: false }))
}

/// Attaches trees below the working directory, after the names that are `missing` have been made there: first all names,
/// in file systems of our own, and only then anything of the host's.
pub(crate) fn attach(trees: &[Attach], missing: impl Fn(&Attach) -> bool) -> Step<()> {
    for a in trees.iter().filter(|a| missing(a)) {
        let name = a.target.to_string_lossy();
        if step(&name, sys::identity(&a.tree))?.is(libc::S_IFDIR) {
            step(&name, fs::create_dir_all(&a.target))?;
        } else {
            step(&name, fs::File::create_new(&a.target))?;
        }
    }
    for a in trees {
        let name = a.target.to_string_lossy();
        let at = step(&name, sys::open_below(None, &a.target, ResolveFlag::empty()))?;
        if a.nested {
            let (at, tree) = (step(&name, sys::identity(&at))?, step(&name, sys::identity(&a.tree))?);
            let same = if at.key == tree.key { Ok(()) } else { Err(Errno::ESTALE) };
            step("a nested grant is elsewhere", same)?;
        }
        step(&name, sys::attach(a.tree.as_fd(), at.as_fd()))?;
    }
    Ok(())
}
