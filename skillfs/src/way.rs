//! The way to a source: every directory from / to it, and every symlink on the way (`[9.3]`).
//!
//! A provider is given a path, so whoever can exchange a directory on that path decides what it looks at. The way is
//! therefore looked at before and after: each step must be the same inode, and must not have been moved in between, which
//! its own watch tells. Moving it there and back leaves the same inodes but not the same number of moves. A directory that
//! cannot be watched (no read permission) must have the same ctime, which a rename changes too, and so does much else.
//! Where others can exchange a step, mounts count like moves, since users may have a program that mounts for them.
//!
//! It judges nothing and keeps no directory open. `source.rs` calls it.

use crate::bell::Bell;
use crate::beneath::proc_path;
use crate::stamps::Time;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most symlinks on one way, as in the kernel.
const MAX_LINKS: usize = 40;
/// Most steps, links' included.
const MAX_STEPS: usize = 1024;
/// Becomes ready, for who waits for what is urgent, when something is mounted or unmounted.
pub const MOUNTS: &str = "/proc/self/mountinfo";
/// Reads of one look: so many empty a queue of the kernel's usual length.
const READS: usize = 80;

/// Device and inode of a step, and its ctime where it is not watched.
type Step = (u64, u64, Option<Time>);

/// What a look found. Two that are equal: nothing on the way was exchanged between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    steps: Result<Vec<Step>, Errno>,
    moves: u64,
    mounts: u64,
}

impl Look {
    /// Whether two ways, if there are any, lead to the same place and nothing on them was moved, as far as one can tell
    /// from outside: somebody mounts something all the time, and a ctime changes for many reasons.
    pub fn alike(one: &Option<Look>, other: &Option<Look>) -> bool {
        let place = |look: &Look| (look.moves, ids(&look.steps));
        one.as_ref().map(place) == other.as_ref().map(place)
    }
}

fn ids(steps: &Result<Vec<Step>, Errno>) -> Result<Vec<(u64, u64)>, Errno> {
    steps.as_ref().map(|steps| steps.iter().map(|step| (step.0, step.1)).collect()).map_err(|e| *e)
}

/// The way to one source.
#[derive(Debug)]
pub struct Way {
    path: PathBuf,
    /// Rung when a look finds that something was moved: what it was told of, nobody else is.
    moved: Arc<Bell>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None if the user has no more of them: then no step is watched.
    inotify: Option<Inotify>,
    mounts: Option<File>,
    watched: HashSet<WatchDescriptor>,
    /// Whether it led somewhere when it was last looked at, and every step is watched.
    sure: bool,
    /// Where it led then.
    led: Result<Vec<(u64, u64)>, Errno>,
    /// How often something on the way was moved.
    moves: u64,
    /// How often something was mounted anywhere while others could exchange a step.
    mounted: u64,
    shared: Option<String>,
}

impl Way {
    /// The way of that absolute path, which may lead nowhere yet. `moved` is rung by a look that finds it another.
    pub fn new(path: PathBuf, moved: Arc<Bell>) -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        let mounts = File::open(MOUNTS).ok();
        let led = Err(Errno::ENOENT);
        let state = State {
            inotify,
            mounts,
            watched: HashSet::new(),
            sure: false,
            led,
            moves: 0,
            mounted: 0,
            shared: None,
        };
        Way { path, moved, state: Mutex::new(state) }
    }

    /// The path, as configured.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who besides root and SkillFS can put another folder in the source's place, or write it; none if nobody can.
    pub fn shared(&self) -> Option<String> {
        self.state().shared.clone()
    }

    /// Whether it leads somewhere, and whoever moves a step of it makes an event.
    pub fn is_sure(&self) -> bool {
        self.state().sure
    }

    /// Has `add` wait for what happens to the steps, if they are watched.
    pub fn wait_by<T>(&self, add: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        self.state().inotify.as_ref().map(|inotify| add(inotify.as_fd()))
    }

    /// Looks at every step, and watches it.
    pub fn look(&self) -> Look {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut watched = HashSet::new();
        let found = walk(&self.path, |fd, st| {
            let wd = state.inotify.as_ref().and_then(|inotify| {
                let wd = inotify.add_watch(&proc_path(fd), events(st)).ok()?;
                watched.insert(wd);
                Some(wd)
            });
            let changed = wd.is_none().then_some((st.st_ctime, st.st_ctime_nsec));
            (st.st_dev, st.st_ino, changed)
        });
        for gone in state.watched.difference(&watched) {
            let _ = state.inotify.as_ref().map(|inotify| inotify.rm_watch(*gone));
        }
        let before = std::mem::replace(&mut state.watched, watched);
        let shared = found.as_ref().ok().and_then(|walked| walked.shared.clone());
        let steps = found.map(|walked| walked.steps);
        let led = std::mem::replace(&mut state.led, ids(&steps));
        let sure = steps.as_ref().is_ok_and(|steps| steps.iter().all(|(_, _, changed)| changed.is_none()));
        let moved = state.moved(&before) || led != state.led;
        if moved || sure != std::mem::replace(&mut state.sure, sure) {
            self.moved.ring();
        }
        state.moves += u64::from(moved);
        state.mounted += u64::from(state.mounts_changed() && shared.is_some());
        if shared.is_some() && shared != state.shared {
            let why = shared.as_deref().unwrap_or_default();
            tracing::warn!(code = "source_shared", source = %self.path.display(), why,
                "others can change what this source is; what they store through a mapping is not seen");
        }
        // A way that leads nowhere at this moment is no better than before.
        if steps.is_ok() {
            state.shared = shared;
        }
        Look { steps, moves: state.moves, mounts: state.mounted }
    }
}

impl State {
    /// Whether anything has moved since the last look, when what is in `before` was watched. Too much to be told counts.
    fn moved(&self, before: &HashSet<WatchDescriptor>) -> bool {
        let counts = |e: &InotifyEvent| {
            e.mask.intersects(AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_Q_OVERFLOW)
                || before.contains(&e.wd)
                || self.watched.contains(&e.wd)
        };
        let mut moved = false;
        for _ in 0..READS {
            match self.inotify.as_ref().map(Inotify::read_events) {
                Some(Ok(events)) => moved |= events.iter().any(counts),
                Some(Err(Errno::EINTR)) => {}
                Some(Err(_)) | None => break,
            }
        }
        moved
    }

    fn mounts_changed(&self) -> bool {
        let Some(mounts) = &self.mounts else { return false };
        let mut fds = [PollFd::new(mounts.as_fd(), PollFlags::POLLPRI)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
    }
}

/// A directory has one name. A symlink may have several, and tells when it loses one.
fn events(st: &FileStat) -> AddWatchFlags {
    let moves = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF;
    if is(st, SFlag::S_IFLNK) { moves | AddWatchFlags::IN_ATTRIB } else { moves }
}

fn is(st: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(st.st_mode) & SFlag::S_IFMT == kind
}

struct Walked {
    steps: Vec<Step>,
    shared: Option<String>,
}

/// Goes from / to `path`, through symlinks, and lets `step` look at each inode on the way.
fn walk(path: &Path, mut step: impl FnMut(&OwnedFd, &FileStat) -> Step) -> Result<Walked, Errno> {
    let mut rest: VecDeque<OsString> = names(path).collect();
    let (mut at, mut at_path) = (pin(nix::fcntl::AT_FDCWD, "/")?, PathBuf::from("/"));
    let mut st = fstat(&at)?;
    let (mut steps, mut links, mut shared) = (vec![step(&at, &st)], 0, None);
    while let Some(name) = rest.pop_front() {
        if steps.len() >= MAX_STEPS {
            return Err(Errno::ENAMETOOLONG);
        }
        let next = pin(&at, name.as_os_str())?;
        let next_st = fstat(&next)?;
        let next_path = if name == ".." { at_path.join("..") } else { at_path.join(&name) };
        shared = shared.or_else(|| exchangeable(&at_path, &st, &next_path, &next_st));
        steps.push(step(&next, &next_st));
        if is(&next_st, SFlag::S_IFLNK) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::ELOOP);
            }
            let target = PathBuf::from(readlinkat(&next, "")?);
            if target.is_absolute() {
                (at, at_path) = (pin(nix::fcntl::AT_FDCWD, "/")?, PathBuf::from("/"));
                st = fstat(&at)?;
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                rest.push_front(name);
            }
            continue;
        }
        if !is(&next_st, SFlag::S_IFDIR) {
            return Err(Errno::ENOTDIR);
        }
        (at, at_path, st) = (next, next_path, next_st);
    }
    Ok(Walked { steps, shared: shared.or_else(|| writable(&at_path, &st)) })
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn pin(directory: impl AsFd, name: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name.as_ref(), flags, Mode::empty())
}

/// Root, and the user that SkillFS and its providers have.
fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

fn belongs(path: &Path, st: &FileStat) -> String {
    format!("{} belongs to uid {}", path.display(), st.st_uid)
}

/// Who can put another `entry` into `directory`. An access list shows in the group's bits.
fn exchangeable(path: &Path, directory: &FileStat, entry_path: &Path, entry: &FileStat) -> Option<String> {
    if !is_ours(directory.st_uid) {
        return Some(format!("{}, who can put another folder in its place", belongs(path, directory)));
    }
    if directory.st_mode & 0o022 == 0 {
        return None;
    }
    if directory.st_mode & 0o1000 == 0 {
        let mode = directory.st_mode & 0o7777;
        return Some(format!(
            "{} can be written by its group or others (mode {mode:o}), who can put another folder in its place",
            path.display()
        ));
    }
    // In a sticky directory an entry is its owner's to exchange.
    (!is_ours(entry.st_uid)).then(|| format!("{}, who can exchange it", belongs(entry_path, entry)))
}

/// Who can write the source itself.
fn writable(path: &Path, st: &FileStat) -> Option<String> {
    if !is_ours(st.st_uid) {
        return Some(belongs(path, st));
    }
    let mode = st.st_mode & 0o7777;
    let open = mode & 0o022 != 0;
    open.then(|| format!("{} can be written by its group or others (mode {mode:o})", path.display()))
}

#[cfg(test)]
mod tests;
