//! The ceiling on this machine: everything that its text names, opened once at start; what *inside a root* means; and
//! what is never granted. `main` reads it; `link`, `spawn` and `fuse` compare with it.

use crate::cgroup::Groups;
use crate::fuse::MountPoint;
use crate::log::log;
use crate::policy::ceiling::{CeilingText, Faults, MAX_FILE, RootKind};
use crate::policy::identity::Key;
use crate::policy::mounts::{hindrance, hindrance_below, may_back, waiting};
use crate::policy::never::Never;
use crate::policy::outcome::{fit, must, named};
use crate::sys::{self, Sys};
use crate::table::Table;
use cyberos_proto::beneath::{self, Stay};
use cyberos_proto::ids::MountId;
use cyberos_proto::message::{Refusal, step};
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::libc::{S_IFDIR, S_IFREG};
use nix::sys::stat::Mode;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// O_LARGEFILE, which is on every file, though libc calls it 0.
const LARGE_FILE: OFlag =
    OFlag::from_bits_retain(if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 });
/// What an opening may be said to be, besides its access: how it was looked up, not what may be done with it. Of these
/// are not O_PATH, O_APPEND, O_DIRECT, O_SYNC, O_NOATIME.
const PLAIN: OFlag = OFlag::O_ACCMODE
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC)
    .union(LARGE_FILE);

/// What root allows.
pub(crate) struct Ceiling {
    pub(crate) text: CeilingText,
    roots: Vec<Root>,
    never: Vec<HeldNever>,
    pub(crate) mounts: BTreeMap<MountId, MountPoint>,
    /// Directory shown at /opt/cyberos/bin.
    pub(crate) bin: Option<OwnedFd>,
    pub(crate) groups: Groups,
    /// Landlock's ABI, or 0.
    pub(crate) landlock: u8,
}

/// A directory below which descriptors of a kind must lie.
struct Root {
    kind: RootKind,
    /// What the kernel calls it.
    name: PathBuf,
    dir: OwnedFd,
}

/// A directory that is never granted, with a descriptor that keeps its inode number from being used again.
struct HeldNever {
    never: Never,
    held: OwnedFd,
}

/// What a descriptor must be to be taken for one of a kind.
struct Rule {
    /// One of `S_IF…`, and the word for it.
    file_type: u32,
    what: &'static str,
    /// Which way may lead from the root to it.
    way: Stay,
    /// Whether it may be the root itself.
    root_itself: bool,
}

impl Rule {
    fn of(kind: RootKind) -> Rule {
        match kind {
            RootKind::Sealed => {
                Rule { file_type: S_IFDIR, what: "directory", way: Stay::HERE, root_itself: false }
            }
            RootKind::Backing => {
                Rule { file_type: S_IFREG, what: "regular file", way: Stay::HERE, root_itself: false }
            }
            // It may be on another mount than the root that it is in: which one was looked at before.
            RootKind::Grant => {
                Rule { file_type: S_IFDIR, what: "directory", way: Stay::MOUNTS, root_itself: true }
            }
        }
    }
}

impl Root {
    fn open(kind: RootKind, path: &Path) -> Result<Root, String> {
        let dir = named(path.display(), sys::open(path, DIRECTORY))?;
        Ok(Root { kind, name: name_of(dir.as_fd())?, dir })
    }

    /// The type of its file system, if no file from there can back a view.
    fn backs_nothing(&self) -> Result<Option<String>, String> {
        let table = named("mounts", Table::read())?;
        let mount = named(self.name.display(), sys::identity(&self.dir))?.mount;
        Ok(may_back(&table.mounts, mount).err())
    }

    /// What is called `name` and lies below this directory, opened by path alone.
    fn find(&self, name: &Path, rule: &Rule) -> Option<OwnedFd> {
        let below = name.strip_prefix(&self.name).ok()?;
        let below = match below.as_os_str().is_empty() {
            false => below,
            true if rule.root_itself => Path::new("."),
            true => return None,
        };
        beneath::open(&self.dir, below, OFlag::O_PATH, rule.way).ok()
    }
}

impl Ceiling {
    /// Reads and checks the file, and opens everything that it names. The error says what is wrong.
    pub(crate) fn read(path: &Path) -> Result<Ceiling, String> {
        let text =
            read_guarded(path).and_then(|text| text.parse().map_err(|faults: Faults| faults.to_string()));
        named(format!("ceiling {}", path.display()), text.and_then(Ceiling::open_all))
    }

    fn open_all(text: CeilingText) -> Result<Ceiling, String> {
        check(&text)?;
        let mut mounts = BTreeMap::new();
        for (id, (name, read_only)) in &text.mounts {
            mounts.insert(*id, MountPoint::uncover(&text, name, *read_only)?);
        }
        let mut roots = Vec::new();
        for (kind, path) in &text.roots {
            let root = Root::open(*kind, path)?;
            match if *kind == RootKind::Backing { root.backs_nothing()? } else { None } {
                None => roots.push(root),
                Some(on) => {
                    log(&format!(
                        "WARN: {}: no backing files from a file system of type {on}",
                        path.display()
                    ));
                }
            }
        }
        let mut never = Vec::new();
        for (path, inner) in text.nevers() {
            // What does not exist yet is told by its name.
            let Ok(held) = sys::open(path, DIRECTORY) else { continue };
            let name = name_of(held.as_fd())?;
            let around = named(path.display(), around(held.as_fd()))?;
            never.push(HeldNever { never: Never { name, around, inner }, held });
        }
        let bin = match &text.bin {
            Some(bin) => Some(named(bin.display(), sys::open(bin, DIRECTORY))?),
            None => None,
        };
        let groups = Groups::find(text.cpu_percent);
        Ok(Ceiling { text, roots, never, mounts, bin, groups, landlock: sys::landlock_abi() })
    }

    /// Everything that is held open, for a process that closes all else.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = Vec::new();
        all.extend(self.roots.iter().map(|root| root.dir.as_fd()));
        all.extend(self.never.iter().map(|never| never.held.as_fd()));
        all.extend(self.mounts.values().map(|point| point.dir.as_fd()));
        all.extend(self.bin.iter().map(AsFd::as_fd));
        all
    }

    /// Whether descriptors of that kind may be taken at all.
    pub(crate) fn has(&self, kind: RootKind) -> bool {
        self.roots.iter().any(|root| root.kind == kind)
    }

    /// What `fd` is, reopened by path alone below a root of that kind (`[10.2]`): its name is only a hint for finding
    /// it again; what is used is what was found again, if it is the same object on the same mount.
    pub(crate) fn inside(&self, kind: RootKind, fd: BorrowedFd<'_>) -> Result<OwnedFd, Refusal> {
        let rule = Rule::of(kind);
        let theirs = sys::identity(fd).map_err(|e| Refusal::Descriptor(e.to_string()))?;
        fit(theirs.is(rule.file_type), format!("not a {}", rule.what))?;
        let name = name_of(fd).map_err(Refusal::Descriptor)?;
        for root in self.roots.iter().filter(|root| root.kind == kind) {
            let Some(ours) = root.find(&name, &rule) else { continue };
            if sys::identity(&ours).is_ok_and(|found| found.same(&theirs)) {
                return Ok(ours);
            }
        }
        let (what, kind) = (rule.what, kind.as_str());
        Err(Refusal::Descriptor(format!("the {what} is not inside a root of kind {kind}")))
    }

    /// Whether the kernel may serve `fd` in place of a view's server. It will open the file again with the helper's
    /// rights and look at no permission, so the peer must have opened it for as much as the mount gives; and for no less:
    /// what else an opening was allowed for, as an append-only file's is for its end alone, is not kept either.
    pub(crate) fn backs(&self, fd: BorrowedFd<'_>, writable: bool) -> Result<(), Refusal> {
        let ours = self.inside(RootKind::Backing, fd)?;
        let kept = step("look at a backing file", sys::identity(ours))?.kept;
        fit(!(kept && writable), "the file is append-only or immutable")?;
        let flags = step("look at a backing file", fcntl(fd, FcntlArg::F_GETFL))?;
        let flags = OFlag::from_bits_retain(flags);
        let enough = match flags & OFlag::O_ACCMODE {
            OFlag::O_RDWR => true,
            OFlag::O_RDONLY => !writable,
            _ => false,
        };
        fit(enough && PLAIN.contains(flags), "the file is not open for just what the mount gives")
    }

    /// The directory that `fd` is, and its name, if it may be granted as the plan's bind `bind` (`[4.0]`, `[10.2]`) while
    /// `table` holds.
    pub(crate) fn granted(
        &self,
        fd: BorrowedFd<'_>,
        bind: u32,
        table: &Table,
    ) -> Result<(OwnedFd, PathBuf), Refusal> {
        let name = name_of(fd).map_err(Refusal::Descriptor)?;
        let unless = |hindrance: Option<String>| match hindrance {
            Some(fs) => Err(Refusal::GrantUnsupported { bind, fs }),
            None => Ok(()),
        };
        // Before anything is looked up: nothing on the way may be a file system that can keep us waiting.
        unless(waiting(&table.mounts, &name))?;
        let ours = self.inside(RootKind::Grant, fd)?;
        let chain = step("look around a grant", around(ours.as_fd()))?;
        self.text.grants(self.never.iter().map(|held| &held.never), &name, &chain)?;
        // Nor anything in it one that could keep the sandbox, which then could not be ended.
        let mount = step("look at a grant", sys::identity(&ours))?.mount;
        unless(hindrance(&table.mounts, mount, &name))?;
        Ok((ours, name))
    }

    /// The sealed copy that `fd` is, with nothing mounted in it that could keep a sandbox waiting, while `table` holds.
    pub(crate) fn sealed(&self, fd: BorrowedFd<'_>, table: &Table) -> Result<OwnedFd, Refusal> {
        let ours = self.inside(RootKind::Sealed, fd)?;
        let name = name_of(ours.as_fd()).map_err(Refusal::Descriptor)?;
        match hindrance_below(&table.mounts, &name) {
            None => Ok(ours),
            Some(kind) => {
                Err(Refusal::Descriptor(format!("a file system of type {kind} is mounted in a sealed copy")))
            }
        }
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

/// The keys of `dir` and of every directory around it, up to the root, above which is the root again.
fn around(dir: BorrowedFd<'_>) -> Sys<Vec<Key>> {
    let mut last = sys::identity(dir)?;
    let mut keys = vec![last.key];
    let mut above = openat(dir, "..", DIRECTORY, Mode::empty())?;
    loop {
        let next = sys::identity(&above)?;
        if next.same(&last) {
            return Ok(keys);
        }
        keys.push(next.key);
        last = next;
        above = openat(&above, "..", DIRECTORY, Mode::empty())?;
    }
}

/// Where the kernel says `fd` is. A name, not a proof.
fn name_of(fd: BorrowedFd<'_>) -> Result<PathBuf, String> {
    named("/proc/self/fd", fs::read_link(format!("self/fd/{}", fd.as_raw_fd())))
}

/// The text of a file that only root can have written.
fn read_guarded(path: &Path) -> Result<String, String> {
    let file = named("open", sys::open(path, OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK))?;
    let id = named("look at it", sys::identity(&file))?;
    let guarded = id.is(S_IFREG) && !id.is_open();
    must(guarded, "must be a regular file of root's that nobody else can write")?;
    let mut text = String::new();
    let mut file = File::from(file).take(MAX_FILE as u64 + 1);
    named("read", file.read_to_string(&mut text))?;
    Ok(text)
}
