//! What sandboxes see in common: a mount namespace with the system's directories in a read-only root, built once and
//! kept by its descriptor. Each sandbox gets a copy of it, which is much cheaper than building one (`child`). The first
//! that needs one has its init build it, and the link keeps it for the others. It knows nothing of skills but the names
//! that their directories will have.
//!
//! A bind of a single file goes stale when the file is replaced by a rename, and links and lists are only copied, so the
//! directories that hold those names are looked at before each use: they change when a name in them does.

use super::attach::{Attach, attach};
use super::process::namespace;
use crate::ceiling::Ceiling;
use crate::policy::recent::Recent;
use crate::policy::rootfs::{Entry, LOOKED_AT, entries};
use crate::sys::{self, Sys};
use cyberos_proto::message::{Refusal, step};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, umask};
use nix::unistd;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Which template: the first uid of the block of its sandboxes, and the directories that are ready in its root besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) init_uid: u32,
    pub(crate) ready: Vec<PathBuf>,
}

/// What the directories were that are looked at, when a template was asked for.
pub(crate) type Host = Vec<Sys<sys::Identity>>;

/// What they are now.
pub(crate) fn host() -> Host {
    LOOKED_AT.iter().map(|name| sys::identity_at(Path::new(name))).collect()
}

/// The templates of one link, at most 32, as long as the host's directories are as they were.
#[derive(Default)]
pub(crate) struct Templates(Recent<Host, Which, OwnedFd, 32>);

impl Templates {
    /// The mount namespace to copy for a sandbox, if there is one of `which`.
    pub(crate) fn get(&mut self, host: &Host, which: &Which) -> Option<BorrowedFd<'_>> {
        self.0.get(host, which).map(AsFd::as_fd)
    }

    /// Keeps one that was built after `host` was looked at.
    pub(crate) fn put(&mut self, host: Host, which: Which, template: OwnedFd) {
        self.0.put(host, which, template);
    }
}

/// Builds one, in a process of its own; the caller is in the host's mount namespace.
pub(crate) fn build(ceiling: &Ceiling, which: &Which) -> Result<OwnedFd, Refusal> {
    // While its mount is still in this process's namespace.
    let bin = ceiling.bin.as_ref().map(|bin| sys::clone_tree(bin.as_fd(), sys::READ_ONLY)).transpose();
    let bin = step("copy bin", bin)?;
    namespace(libc::CLONE_NEWNS, "mnt", || root(bin, which), |_| Ok(()))
}

/// Builds the root in a new mount namespace and moves into it. On return nothing of the host is reachable but what was
/// attached.
fn root(bin: Option<OwnedFd>, which: &Which) -> Result<(), Refusal> {
    umask(Mode::from_bits_truncate(0o022));
    let none: Option<&str> = None;
    step("private mounts", mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))?;
    let root = step("root", sys::new_mount(c"tmpfs", "size=4m,nr_inodes=2048,mode=0755", sys::WRITABLE))?;
    // It must be attached somewhere before anything can be attached to it; only this namespace sees where.
    let at = step("attach the root", sys::open_path(Path::new("/tmp")))?;
    step("attach the root", sys::attach(root.as_fd(), at.as_fd()))?;
    step("enter the root", unistd::fchdir(&root))?;

    // All names come before anything of the host's.
    which.ready.iter().try_for_each(|target| step("targets", fs::create_dir_all(target)))?;
    let of_etc = fs::read_dir("/etc").into_iter().flatten().flatten();
    let bin = bin.map(|tree| Attach { target: "opt/cyberos/bin".into(), tree, nested: false });
    let mut trees: Vec<_> = bin.into_iter().collect();
    for (name, entry) in
        entries(which.init_uid, of_etc.filter_map(|entry| entry.file_name().into_string().ok()))
    {
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
fn of_host(name: &str, device: Option<(u32, u32)>) -> Result<Option<Attach>, Refusal> {
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
