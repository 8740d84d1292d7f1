//! Free space (`[2.8]`): below 5 % of the state's file system nothing is written but the ledger, and Bash is ended. The
//! memory store, the captures, the sealed copies and Bash ask here; it knows none of them.

use cyberos_proto::beneath::name_of;
use cyberos_proto::mounts::mounts;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How much of a file system stays free, in percent.
pub const KEPT_FREE: u64 = 5;

/// The longest time between two looks at a file system that is being written to, and the shortest.
const LOOK: Duration = Duration::from_millis(250);
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
/// What may be written between two looks, in bytes and in files, by who writes a lot of small things.
const AHEAD: (u64, u64) = (4 << 20, 64);
/// No disk is thought to be filled faster, in bytes a second.
const FASTEST: u64 = 8 << 30;

/// A file system that is nearly full, and what it lacks. Its text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// What is free of it.
    pub free: u64,
    /// What would have to be.
    pub needed: u64,
    /// Whether it is files that it lacks, and not bytes.
    pub files: bool,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Short { mount, free, needed, files } = self;
        let mount = mount.display();
        if *files {
            write!(f, "the disk at {mount} is nearly full: {free} more files fit, {needed} are needed ")?;
        } else {
            let (free, needed) = (Size(*free), Size(*needed));
            write!(f, "the disk at {mount} is nearly full: {free} are free, {needed} are needed ")?;
        }
        write!(f, "({KEPT_FREE} % stay free)")
    }
}

/// Bytes for a person.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self.0 {
            bytes if bytes < 10 * MIB => write!(f, "{} KiB", bytes.div_ceil(1024)),
            bytes => write!(f, "{} MiB", bytes.div_ceil(MIB)),
        }
    }
}

/// How long it takes at least to use up what is more than is kept free.
fn before_full(fs: &Statvfs) -> Duration {
    let kept = u128::from(fs.blocks()) * u128::from(KEPT_FREE) / 100;
    let left = u128::from(fs.blocks_available()).saturating_sub(kept) * u128::from(fs.fragment_size());
    let micros = left * 1_000_000 / u128::from(FASTEST);
    Duration::from_micros(micros.try_into().unwrap_or(u64::MAX)).clamp(SHORTEST_LOOK, LOOK)
}

/// What is needed of `all` so that enough stays free when `more` is used; none if it is there.
fn lacking(left: u64, all: u64, more: u64) -> Option<u64> {
    let kept = (u128::from(all) * u128::from(KEPT_FREE)).div_ceil(100);
    let needed = kept + u128::from(more);
    (all > 0 && u128::from(left) < needed).then(|| u64::try_from(needed).unwrap_or(u64::MAX))
}

/// What a file system lacks so that `more` bytes in `files` files can be written to it.
fn short(fd: &OwnedFd, fs: &Statvfs, more: u64, files: u64) -> Option<Short> {
    let unit = fs.fragment_size().max(1);
    let of = |free, needed, files| Short { mount: mount_point(fd), free, needed, files };
    let (left, bytes) = (fs.blocks_available(), |blocks: u64| blocks.saturating_mul(unit));
    let blocks = lacking(left, fs.blocks(), more.div_ceil(unit));
    // Without a count of files (some file systems make them as they go) there is none to run out of.
    let inodes = || lacking(fs.files_available(), fs.files(), files);
    match blocks {
        Some(needed) => Some(of(bytes(left), bytes(needed), false)),
        None => inodes().map(|needed| of(fs.files_available(), needed, true)),
    }
}

/// Where the file system of `fd` is mounted, as this process sees it.
fn mount_point(fd: &OwnedFd) -> PathBuf {
    let number = fd.as_raw_fd();
    let id = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok().and_then(|info| {
        info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok())
    });
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts(&table);
    match mounted.into_iter().find(|mount| Some(mount.id) == id) {
        Some(mount) => mount.point,
        None => name_of(fd).unwrap_or_default(),
    }
}

/// File systems that are written to, held.
#[derive(Clone, Debug)]
pub struct DiskGuard(Vec<Arc<OwnedFd>>);

impl DiskGuard {
    /// Holds the file system of `dir`.
    pub fn open(dir: &Path) -> io::Result<Self> {
        Ok(DiskGuard(vec![Arc::new(held(dir)?)]))
    }

    /// That of `dir` too, if it is another one.
    pub fn and(&self, dir: &Path) -> io::Result<Self> {
        let (mut all, more) = (self.0.clone(), held(dir)?);
        let one = one(&more)?;
        for fd in &all {
            if self::one(fd)? == one {
                return Ok(self.clone());
            }
        }
        all.push(Arc::new(more));
        Ok(DiskGuard(all))
    }

    /// Which of them has no room for `bytes` more in `files` new files; none if all have. May wait for a disk.
    pub fn lacks(&self, bytes: u64, files: u64) -> io::Result<Option<Short>> {
        for fd in &self.0 {
            if let Some(short) = short(fd, &fstatvfs(fd.as_fd())?, bytes, files) {
                return Ok(Some(short));
            }
        }
        Ok(None)
    }

    /// The first of them, which has just refused a write for want of space, whatever its numbers say.
    pub fn full(&self) -> Short {
        let now = || {
            let fs = fstatvfs(self.0.first()?.as_fd()).ok()?;
            let free = fs.blocks_available().saturating_mul(fs.fragment_size());
            let kept = fs.blocks().saturating_mul(fs.fragment_size()) / 100 * KEPT_FREE;
            Some((free, kept.max(free.saturating_add(1))))
        };
        let (free, needed) = now().unwrap_or_default();
        let mount = self.0.first().map(|fd| mount_point(fd)).unwrap_or_default();
        Short { mount, free, needed, files: false }
    }

    /// For who writes many things one after the other.
    pub fn budget(&self) -> Budget<'_> {
        Budget { space: self, bytes: 0, files: 0 }
    }

    /// When these file systems, and those of `others`, are to be looked at again, or which is nearly full now. May wait
    /// for a disk.
    pub fn look_again(&self, others: &[Arc<OwnedFd>]) -> io::Result<Result<Duration, Short>> {
        let mut soonest = LOOK;
        for fd in self.0.iter().chain(others) {
            let fs = fstatvfs(fd.as_fd())?;
            if let Some(short) = short(fd, &fs, 0, 0) {
                return Ok(Err(short));
            }
            soonest = soonest.min(before_full(&fs));
        }
        Ok(Ok(soonest))
    }
}

/// What has been found free and is not used up yet, so that not every small file costs a look at each disk.
#[derive(Debug)]
pub struct Budget<'a> {
    space: &'a DiskGuard,
    bytes: u64,
    files: u64,
}

impl Budget<'_> {
    /// [`DiskGuard::lacks`] for one file of `bytes`; a disk that others fill meanwhile is noticed 64 files or 4 MiB later.
    pub fn lacks(&mut self, bytes: u64) -> io::Result<Option<Short>> {
        if bytes > self.bytes || self.files == 0 {
            let (more, files) = AHEAD;
            if self.space.lacks(bytes.saturating_add(more), 1 + files)?.is_some() {
                // So little is left that each is looked at by itself.
                (self.bytes, self.files) = (0, 0);
                return self.space.lacks(bytes, 1);
            }
            (self.bytes, self.files) = (bytes.saturating_add(more), 1 + files);
        }
        (self.bytes, self.files) = (self.bytes - bytes, self.files - 1);
        Ok(None)
    }
}

/// What tells file systems apart; a quota on a directory has numbers of its own on one device.
fn one(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    Ok((fstat(fd)?.st_dev, fstatvfs(fd)?.blocks()))
}

fn held(dir: &Path) -> Result<OwnedFd, Errno> {
    open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_of_a_hundred_stay_free_beside_what_is_written() {
        assert_eq!([lacking(5, 100, 0), lacking(4, 100, 0)], [None, Some(5)]);
        assert_eq!([lacking(7, 100, 2), lacking(6, 100, 2)], [None, Some(7)]);
        assert_eq!([lacking(5, 101, 0), lacking(6, 101, 0)], [Some(6), None], "rounded up");
        assert_eq!(lacking(0, 0, 9), None, "no count, none to run out of");
        assert!(lacking(u64::MAX, u64::MAX, u64::MAX).is_some());
    }

    fn mount(dir: &Path, options: &str) {
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, dir, tmpfs, nix::mount::MsFlags::empty(), Some(options))
            .expect("this test needs root, to mount a small file system");
    }

    #[test]
    fn many_small_files_cost_few_looks_and_a_disk_that_fills_up_is_noticed_soon() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), "size=32m");
        let space = DiskGuard::open(dir.path()).unwrap();
        let mut budget = space.budget();
        assert_eq!(budget.lacks(1 << 10).unwrap(), None);
        // By others. The next few go on by what was found, and no more than a few.
        std::fs::write(dir.path().join("filler"), vec![7; 31 << 20]).unwrap();
        let refused = (1..200).find(|_| budget.lacks(1 << 10).unwrap().is_some());
        assert_eq!(space.budget().lacks(40 << 20).unwrap().map(|short| short.files), Some(false));
        std::fs::remove_file(dir.path().join("filler")).unwrap();
        assert_eq!(budget.lacks(8 << 20).unwrap(), None, "and that there is room again");
        drop(space);
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!(refused, Some(AHEAD.1 + 1));
    }

    #[test]
    fn one_file_system_is_looked_at_once_and_another_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, other) = (dir.path().join("inside"), dir.path().join("other"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(&other).unwrap();
        mount(&other, "size=1m");
        let space = DiskGuard::open(dir.path()).unwrap();
        let counts = [&inside, &other].map(|dir| space.and(dir).unwrap().0.len());
        nix::mount::umount2(&other, nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!(counts, [1, 2]);
    }

    #[test]
    fn what_is_short_names_its_mount_point_what_is_free_and_what_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), "size=1m,nr_inodes=40");
        let inside = dir.path().join("a b");
        std::fs::create_dir(&inside).unwrap();
        let space = DiskGuard::open(&inside).unwrap();
        let (fits, bytes, files) = (
            space.lacks(900 << 10, 30).unwrap(),
            space.lacks(1 << 20, 1).unwrap(),
            space.lacks(1, 38).unwrap(),
        );
        drop(space);
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!(fits, None);
        let shown = dir.path().display();
        assert_eq!(
            bytes.unwrap().to_string(),
            format!(
                "the disk at {shown} is nearly full: 1024 KiB are free, 1076 KiB are needed (5 % stay free)"
            )
        );
        let files = files.unwrap();
        assert!(files.files && files.to_string().contains("38 more files fit, 40 are needed"), "{files}");
    }
}
