//! The ceiling on this machine: everything that its text names, opened once at start; what *inside a root* means; and
//! what is never granted. `main` reads it; `link`, `spawn` and `fuse` compare with it.

use crate::cgroup::Groups;
pub(crate) use crate::policy::ceiling::Role;
use crate::policy::ceiling::{CeilingText, MAX_FILE, RootKind};
use crate::policy::mounts::{hindrance, hindrance_below, may_back, waiting};
use crate::policy::{identity::Key, never::Never};
use crate::{fuse, prelude::*, table::Table};
use nix::fcntl::{FcntlArg, ResolveFlag, fcntl, openat};
use std::io::{ErrorKind, Read};
use std::{collections::BTreeMap, os::unix::fs::DirBuilderExt};

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// What an opening may be said to be, besides its access: how it was looked up, not what may be done with it. Of these
/// are not O_PATH, O_APPEND, O_DIRECT, O_SYNC, O_NOATIME. O_LARGEFILE is on every file, though libc calls it 0.
const PLAIN: OFlag = OFlag::O_ACCMODE
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::from_bits_retain(if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 }));

/// A place where a view may be mounted; `dir` is the directory under any view.
pub(crate) struct MountPoint {
    pub(crate) name: PathBuf,
    pub(crate) dir: OwnedFd,
    pub(crate) read_only: bool,
}

pub(crate) struct Ceiling {
    pub(crate) text: CeilingText,
    /// Directories below which descriptors must lie, with what the kernel calls them.
    roots: Vec<(RootKind, PathBuf, OwnedFd)>,
    /// Each with a descriptor that keeps its inode number from being used again.
    never: Vec<(Never, OwnedFd)>,
    pub(crate) mounts: BTreeMap<MountId, MountPoint>,
    /// Directory shown at /opt/cyberos/bin.
    pub(crate) bin: Option<OwnedFd>,
    pub(crate) groups: Groups,
    /// Landlock's ABI, or 0.
    pub(crate) landlock: u8,
}

impl Ceiling {
    /// Reads and checks the file, and opens everything that it names. The error says what is wrong.
    pub(crate) fn read(path: &Path) -> Result<Ceiling, String> {
        let text = read_guarded(path).and_then(|text| text.parse());
        named(format!("ceiling {}", path.display()), text.and_then(Ceiling::open_all))
    }

    fn open_all(text: CeilingText) -> Result<Ceiling, String> {
        check(&text)?;
        let (mut mounts, mut roots, mut never) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (id, (name, read_only)) in &text.mounts {
            let dir = fuse::uncover(&text, name)?;
            mounts.insert(*id, MountPoint { name: name.clone(), dir, read_only: *read_only });
        }
        for (kind, path) in &text.roots {
            let shown = path.display();
            let root = named(&shown, sys::open(path, DIRECTORY))?;
            let table = named("mounts", Table::read())?;
            let on = may_back(&table.mounts, named(&shown, sys::identity(&root))?.mount);
            if let (RootKind::Backing, Err(on)) = (kind, on) {
                log(&format!("WARN: {shown}: no backing files from a file system of type {on}"));
                continue;
            }
            roots.push((*kind, name_of(root.as_fd())?, root));
        }
        for (path, inner) in text.nevers() {
            // What does not exist yet is told by its name.
            let Ok(held) = sys::open(path, DIRECTORY) else { continue };
            let (name, around) = (name_of(held.as_fd())?, named(path.display(), around(held.as_fd()))?);
            never.push((Never { name, around, inner }, held));
        }
        let bin = text.bin.as_ref().map(|bin| named(bin.display(), sys::open(bin, DIRECTORY))).transpose()?;
        Ok(Ceiling { text, roots, never, mounts, bin, groups: Groups::find(), landlock: sys::landlock_abi() })
    }

    /// Everything that is held open, for a process that closes all else.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let roots = self.roots.iter().map(|(.., root)| root);
        let mounts = self.mounts.values().map(|point| &point.dir);
        let held = self.never.iter().map(|(_, held)| held);
        roots.chain(mounts).chain(held).chain(&self.bin).map(AsFd::as_fd).collect()
    }

    /// Whether descriptors of that kind may be taken at all.
    pub(crate) fn has(&self, kind: RootKind) -> bool {
        self.roots.iter().any(|(k, ..)| *k == kind)
    }

    /// What `fd` is, reopened by path alone below a root of that kind (`[10.2]`): its name is only a hint for finding
    /// it again; what is used is what was found again, if it is the same object on the same mount.
    pub(crate) fn inside(&self, kind: RootKind, fd: BorrowedFd<'_>) -> Step<OwnedFd> {
        // A grant may be on another mount than the root that it is in: which one was looked at before. And a root may
        // itself be granted, but is no copy, and no file.
        let links = ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let (of_type, what, more, itself) = match kind {
            RootKind::Sealed => (libc::S_IFDIR, "directory", links | ResolveFlag::RESOLVE_NO_XDEV, ""),
            RootKind::Backing => (libc::S_IFREG, "regular file", links | ResolveFlag::RESOLVE_NO_XDEV, ""),
            RootKind::Grant => (libc::S_IFDIR, "directory", links, "."),
        };
        let theirs = sys::identity(fd).map_err(|e| Refusal::Descriptor(e.to_string()))?;
        must(theirs.is(of_type), format!("not a {what}")).map_err(Refusal::Descriptor)?;
        let name = name_of(fd).map_err(Refusal::Descriptor)?;
        let mut found = self.roots.iter().filter(|(k, ..)| *k == kind).filter_map(|(_, root_name, root)| {
            let below = name.strip_prefix(root_name).ok()?;
            let below = if below.as_os_str().is_empty() { Path::new(itself) } else { below };
            let ours = sys::open_below(Some(root.as_fd()), below, more).ok()?;
            sys::identity(&ours).is_ok_and(|ours| ours.same(&theirs)).then_some(ours)
        });
        let outside = || format!("the {what} is not inside a root of kind {}", kind.as_str());
        found.next().ok_or_else(|| Refusal::Descriptor(outside()))
    }

    /// Whether the kernel may serve `fd` in place of a view's server. It will open the file again with the helper's
    /// rights and look at no permission, so the peer must have opened it for as much as the mount gives; and for no less:
    /// what else an opening was allowed for, as an append-only file's is for its end alone, is not kept either.
    pub(crate) fn backs(&self, fd: BorrowedFd<'_>, writable: bool) -> Step<()> {
        let kept = step("look at a backing file", sys::identity(self.inside(RootKind::Backing, fd)?))?.kept;
        must(!(kept && writable), "the file is append-only or immutable").map_err(Refusal::Descriptor)?;
        let flags = OFlag::from_bits_retain(step("look at a backing file", fcntl(fd, FcntlArg::F_GETFL))?);
        let access = flags & OFlag::O_ACCMODE;
        let enough = access == OFlag::O_RDWR || !writable && access == OFlag::O_RDONLY;
        must(enough && PLAIN.contains(flags), "the file is not open for just what the mount gives")
            .map_err(Refusal::Descriptor)
    }

    /// The directory that `fd` is, and its name, if it may be granted as the plan's bind `bind` (`[4.0]`, `[10.2]`) while
    /// `table` holds.
    pub(crate) fn granted(&self, fd: BorrowedFd<'_>, bind: u32, table: &Table) -> Step<(OwnedFd, PathBuf)> {
        let name = name_of(fd).map_err(Refusal::Descriptor)?;
        let unless =
            |hindrance: Option<_>| hindrance.map_or(Ok(()), |fs| Err(Refusal::GrantUnsupported { bind, fs }));
        // Before anything is looked up: nothing on the way may be a file system that can keep us waiting.
        unless(waiting(&table.mounts, &name))?;
        let ours = self.inside(RootKind::Grant, fd)?;
        let chain = step("look around a grant", around(ours.as_fd()))?;
        self.text.grants(self.never.iter().map(|(never, _)| never), &name, &chain)?;
        // Nor anything in it one that could keep the sandbox, which then could not be ended.
        let mount = step("look at a grant", sys::identity(&ours))?.mount;
        unless(hindrance(&table.mounts, mount, &name))?;
        Ok((ours, name))
    }

    /// The sealed copy that `fd` is, with nothing mounted in it that could keep a sandbox waiting, while `table` holds.
    pub(crate) fn sealed(&self, fd: BorrowedFd<'_>, table: &Table) -> Step<OwnedFd> {
        let ours = self.inside(RootKind::Sealed, fd)?;
        let name = name_of(ours.as_fd()).map_err(Refusal::Descriptor)?;
        let hindrance = hindrance_below(&table.mounts, &name);
        let mounted =
            |kind| Refusal::Descriptor(format!("a file system of type {kind} is mounted in a sealed copy"));
        hindrance.map_or(Ok(ours), |kind| Err(mounted(kind)))
    }
}

/// Whether the text fits this machine.
fn check(text: &CeilingText) -> Result<(), String> {
    text.unused(|name| fs::read(Path::new("/etc").join(name)))?;
    match fs::DirBuilder::new().mode(0o700).create(&text.locks) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        other => named(text.locks.display(), other)?,
    }
    let locks = named("lock_dir", sys::identity_at(&text.locks))?;
    must(!locks.is_open(), format!("{} must be root's alone", text.locks.display()))?;
    let tmp = named("/tmp", sys::identity_at(Path::new("/tmp")))?;
    must(tmp.is_sticky(), "/tmp must be root's, and sticky")
}

/// The keys of `dir` and of every directory around it, up to the root.
fn around(dir: BorrowedFd<'_>) -> Sys<Vec<Key>> {
    let (mut last, mut at) = (sys::identity(dir)?, openat(dir, "..", DIRECTORY, Mode::empty())?);
    let (mut keys, mut next) = (vec![last.key], sys::identity(&at)?);
    while !next.same(&last) {
        keys.push(next.key);
        at = openat(&at, "..", DIRECTORY, Mode::empty())?;
        (last, next) = (next, sys::identity(&at)?);
    }
    Ok(keys)
}

/// Where the kernel says `fd` is. A name, not a proof.
fn name_of(fd: BorrowedFd<'_>) -> Result<PathBuf, String> {
    named("/proc/self/fd", fs::read_link(format!("self/fd/{}", fd.as_raw_fd())))
}

/// The text of a file that only root can have written.
fn read_guarded(path: &Path) -> Result<String, String> {
    let file = named("open", sys::open(path, OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK))?;
    let id = named("look at it", sys::identity(&file))?;
    let guarded = id.is(libc::S_IFREG) && !id.is_open();
    must(guarded, "must be a regular file of root's that nobody else can write")?;
    let mut text = String::new();
    named("read", fs::File::from(file).take(MAX_FILE as u64 + 1).read_to_string(&mut text)).map(|_| text)
}
