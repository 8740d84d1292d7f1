//! Root's limits: what no request can exceed, read once at start. Also what *inside a root* means.
//!
//! It knows plans and descriptors, not who asks. `main` reads it; `link`, `spawn` and `fuse` compare with it.

use crate::{fuse, must, named, sys};
use cyberos_proto::ids::{MAX_MOUNTS, MountId};
use cyberos_proto::message::Refusal;
use cyberos_proto::plan::Limits;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlink};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK, S_IFDIR, S_IFREG};
use nix::sys::stat::Mode;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest ceiling file, in bytes.
const MAX_FILE: u64 = 4096;
/// Uids of one block; its first serves the block's inits.
pub(crate) const BLOCK: u32 = 256;
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// The keys that bound a plan's limits, and what holds without them; in the order of `values`.
#[rustfmt::skip]
const LIMITS: [(&str, u32); 6] = [
    ("max_memory_mb", 8192), ("max_processes", 512), ("max_tmp_mb", 1024),
    ("max_cpu_s", 86_400), ("max_file_mb", 4096), ("max_open_files", 4096),
];

fn values(l: &Limits) -> [u32; 6] {
    [l.memory_mb, l.processes, l.tmp_mb, l.cpu_s, l.file_mb, l.open_files]
}

/// Who is on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Broker,
    SkillFs,
}

/// A place where a view may be mounted; `dir` is the directory under any view.
pub(crate) struct MountPoint {
    pub(crate) name: PathBuf,
    pub(crate) dir: OwnedFd,
    pub(crate) read_only: bool,
}

#[derive(Default)]
pub(crate) struct Ceiling {
    /// First and last uid of the range.
    pub(crate) uids: (u32, u32),
    broker_uid: Option<u32>,
    skillfs_uid: Option<u32>,
    /// Directory of the lock files of blocks and mount points, common to all instances.
    pub(crate) locks: PathBuf,
    /// Directories below which sealed copies must lie, with their names.
    sealed: Vec<(PathBuf, OwnedFd)>,
    pub(crate) mounts: BTreeMap<MountId, MountPoint>,
    /// Directory shown at /opt/cyberos/bin.
    pub(crate) bin: Option<OwnedFd>,
    max: [u32; 6],
    pub(crate) max_sandboxes: usize,
}

impl Ceiling {
    /// Reads and checks the file, and opens everything that it names. The error says where and what.
    pub(crate) fn read(path: &Path) -> Result<Ceiling, String> {
        let shown = format!("ceiling {}", path.display());
        let text = named(&shown, read_guarded(path))?;
        let mut ceiling = Ceiling {
            uids: (1_900_000_000, 1_900_065_535),
            locks: "/run/cyberos-uid".into(),
            max: LIMITS.map(|(_, max)| max),
            max_sandboxes: 64,
            ..Ceiling::default()
        };
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
        let lines: Vec<_> = lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#')).collect();
        let mut seen = Vec::new();
        // Mount points are locked while they are looked at, so they come when the directory of locks is known.
        for mounts in [false, true] {
            for (n, line) in lines.iter().filter(|(_, l)| l.starts_with("mount") == mounts) {
                named(format!("{shown}, line {n}"), ceiling.line(line, &mut seen))?;
            }
            if !mounts {
                named(&shown, ceiling.check())?;
            }
        }
        Ok(ceiling)
    }

    fn line<'t>(&mut self, line: &'t str, seen: &mut Vec<&'t str>) -> Result<(), String> {
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        must(matches!(key, "root" | "mount") || !seen.contains(&key), format!("{key} is given twice"))?;
        seen.push(key);
        match key {
            "uid_range" => {
                let (first, last) = value.split_once('-').ok_or("expected uid_range FIRST-LAST")?;
                self.uids = (number(first)?, number(last)?);
            }
            "broker_uid" => self.broker_uid = Some(number(value)?),
            "skillfs_uid" => self.skillfs_uid = Some(number(value)?),
            "lock_dir" => self.locks = absolute(value)?,
            "root" => {
                let fd = directory(value.strip_prefix("sealed ").ok_or("expected root sealed PATH")?)?;
                self.sealed.push((name_of(fd.as_fd())?, fd));
            }
            "mount" => {
                let words: Vec<_> = value.splitn(3, char::is_whitespace).collect();
                let &[id, access @ ("ro" | "rw"), name] = words.as_slice() else {
                    return Err(format!("expected mount NUMBER ro|rw PATH, NUMBER below {MAX_MOUNTS}"));
                };
                let id = named(id, MountId::new(number(id)?))?;
                let name = absolute(name)?;
                let point = MountPoint { dir: fuse::uncover(self, &name)?, name, read_only: access == "ro" };
                must(self.mounts.insert(id, point).is_none(), "the mount number is given twice")?;
            }
            "bin" => self.bin = Some(directory(value)?),
            "max_sandboxes" => self.max_sandboxes = number(value)?,
            _ => match LIMITS.iter().position(|(name, _)| *name == key) {
                Some(i) => self.max[i] = number(value)?,
                None => return Err(format!("unknown key {key}")),
            },
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let (first, last) = self.uids;
        // The last uid of all means "no change" to the kernel.
        let whole =
            first >= 65_536 && last < u32::MAX && last > first && (last - first + 1).is_multiple_of(BLOCK);
        must(whole, format!("uid_range must lie above 65535 and be a multiple of {BLOCK} long"))?;
        for uid in [self.broker_uid, self.skillfs_uid].into_iter().flatten() {
            let peer = uid != 0 && !(first..=last).contains(&uid);
            must(peer, format!("uid {uid} cannot be a peer: it is root, or in uid_range"))?;
        }
        let differ = self.broker_uid.is_none() || self.broker_uid != self.skillfs_uid;
        must(differ, "broker_uid and skillfs_uid must differ")?;
        must((1..=1000).contains(&self.max_sandboxes), "max_sandboxes must be 1 to 1000")?;
        for (file, start, counted) in [("passwd", 2, false), ("subuid", 1, true), ("subgid", 1, true)] {
            if let Some(line) = named(file, overlap(file, start, counted, self.uids))? {
                return Err(format!("uid_range {first}-{last} is in use: /etc/{file}: {line}"));
            }
        }
        match fs::DirBuilder::new().mode(0o700).create(&self.locks) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            other => named(self.locks.display(), other)?,
        }
        let (locks, tmp) = (sys::identity_at(&self.locks), sys::identity_at(Path::new("/tmp")));
        must(!named("lock_dir", locks)?.is_open(), format!("{} must be root's alone", self.locks.display()))?;
        let tmp = named("/tmp", tmp)?.0;
        must(tmp.stx_uid == 0 && tmp.stx_mode & 0o1000 != 0, "/tmp must be root's, and sticky")
    }

    /// Everything that is held open, for a process that closes all else.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let sealed = self.sealed.iter().map(|(_, fd)| fd.as_fd());
        let mounts = self.mounts.values().map(|m| m.dir.as_fd());
        sealed.chain(mounts).chain(self.bin.iter().map(AsFd::as_fd)).collect()
    }

    /// Which role a user has, if any. Root has none.
    pub(crate) fn role(&self, uid: u32) -> Option<Role> {
        let skillfs = (self.skillfs_uid == Some(uid)).then_some(Role::SkillFs);
        if self.broker_uid == Some(uid) { Some(Role::Broker) } else { skillfs }
    }

    /// Refuses limits above the ceiling, naming the key.
    pub(crate) fn allows(&self, limits: &Limits) -> Result<(), Refusal> {
        for ((asked, max), (key, _)) in values(limits).into_iter().zip(self.max).zip(LIMITS) {
            if asked > max {
                return Err(Refusal::Ceiling(format!("{key} is {max}, asked for {asked}")));
            }
        }
        Ok(())
    }

    /// The directory that `fd` is, reopened below a sealed root (`[10.2]`): its name is only a hint for finding it
    /// again; what is used is what was found again, if it is the same object on the same mount.
    pub(crate) fn inside_sealed(&self, fd: BorrowedFd<'_>) -> Result<OwnedFd, Refusal> {
        let theirs = sys::identity(fd).map_err(|e| Refusal::Descriptor(e.to_string()))?;
        if !theirs.is(S_IFDIR) {
            return Err(Refusal::Descriptor("not a directory".into()));
        }
        let name = name_of(fd).map_err(Refusal::Descriptor)?;
        let resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV;
        for (root_name, root) in &self.sealed {
            let Ok(below) = name.strip_prefix(root_name) else { continue };
            if let Ok(ours) = openat2(root, below, OpenHow::new().flags(DIRECTORY).resolve(resolve))
                && sys::identity(ours.as_fd()).is_ok_and(|ours| ours.same(&theirs))
            {
                return Ok(ours);
            }
        }
        Err(Refusal::Descriptor("the directory is not inside a root of kind sealed".into()))
    }
}

/// Where the kernel says `fd` is. A name, not a proof.
fn name_of(fd: BorrowedFd<'_>) -> Result<PathBuf, String> {
    named("/proc/self/fd", readlink(format!("self/fd/{}", fd.as_raw_fd()).as_str())).map(PathBuf::from)
}

fn directory(path: &str) -> Result<OwnedFd, String> {
    named(path, open(&absolute(path)?, DIRECTORY, Mode::empty()))
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    must(text.trim().starts_with('/'), format!("expected an absolute path, not {text:?}"))?;
    Ok(PathBuf::from(text.trim()))
}

fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    named(text, text.trim().parse())
}

/// The text of a file that only root can have written.
fn read_guarded(path: &Path) -> Result<String, String> {
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file = named("open", file)?;
    let id = named("look at it", sys::identity(file.as_fd()))?;
    must(id.is(S_IFREG) && !id.is_open(), "must be a regular file of root's that nobody else can write")?;
    let mut text = String::new();
    named("read", file.take(MAX_FILE + 1).read_to_string(&mut text))?;
    must(text.len() as u64 <= MAX_FILE, format!("longer than {MAX_FILE} bytes")).map(|()| text)
}

/// The first line of a file of /etc whose uid, or `counted` uids, touch the range; they begin in column `start`.
fn overlap(file: &str, start: usize, counted: bool, uids: (u32, u32)) -> io::Result<Option<String>> {
    let bytes = match fs::read(Path::new("/etc").join(file)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let touches = |line: &&str| {
        let column = |n| line.split(':').nth(n).and_then(|c| c.trim().parse::<u64>().ok());
        let count = if counted { column(start + 1).unwrap_or(0) } else { 1 };
        column(start).is_some_and(|s| s <= uids.1.into() && s.saturating_add(count) > uids.0.into())
    };
    Ok(String::from_utf8_lossy(&bytes).lines().find(touches).map(str::to_owned))
}
