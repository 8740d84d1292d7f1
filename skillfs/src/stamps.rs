//! What a file was when it was decided: size and times, its ctime among them, which nobody can set back (`[9.3]`).
//!
//! Events tell what changes, but not all of it: a write through a hard link elsewhere and a store through a mapping make
//! none, and some are lost when too many wait. So every file is looked at before the provider looks, and whatever is
//! answered about one later is answered only if it is still what it was then. A stamp is taken after the bytes were read:
//! a file system notes the time of a change before anybody can see it.
//!
//! It judges nothing and opens no file. `resolver.rs` and `snapshot.rs` have stamps taken, `lookup.rs` compares.

use crate::beneath;
use crate::exposure;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};
use nix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most files of a live folder, and deepest nesting: what is beyond cannot be known to be unchanged.
const MAX_FILES: usize = 200_000;
const MAX_DEPTH: usize = 256;

/// Seconds and nanoseconds.
pub type Time = (i64, i64);

/// What tells a file that was changed from one that was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    size: i64,
    modified: Time,
    changed: Time,
}

impl Stamp {
    /// Whether the two differ at most in the time of the last change of any kind.
    pub fn differs_in_change_alone(&self, other: &Stamp) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }
}

/// The stamp of a file.
pub fn stamp(st: &FileStat) -> Stamp {
    Stamp {
        size: st.st_size,
        modified: (st.st_mtime, st.st_mtime_nsec),
        changed: (st.st_ctime, st.st_ctime_nsec),
    }
}

/// Why a folder's files have no stamps.
#[derive(Debug, thiserror::Error)]
pub enum Unstamped {
    /// A directory or file that cannot be looked at.
    #[error("{0:?} cannot be looked at: {1}")]
    Unreadable(PathBuf, Errno),
    /// Too many files, or too deep.
    #[error("the skill has more than {MAX_FILES} files or is deeper than {MAX_DEPTH}")]
    TooLarge,
}

/// The stamps of all regular files of a tree, by device and inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps(HashMap<(u64, u64), Stamp>);

impl Stamps {
    /// Of what the view can show of a live folder when verdicts decide.
    pub fn of_live(root: &OwnedFd) -> Result<Self, Unstamped> {
        let mut stamps = Stamps::default();
        stamps.add_directory(root, Path::new(""), 0)?;
        Ok(stamps)
    }

    fn add_directory(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> Result<(), Unstamped> {
        if depth > MAX_DEPTH {
            return Err(Unstamped::TooLarge);
        }
        let unreadable = |path: &Path, e| Unstamped::Unreadable(path.to_owned(), e);
        for entry in beneath::list(directory).map_err(|e| unreadable(path, e))? {
            if depth == 0 && exposure::is_left_out(entry.name.as_bytes(), false) {
                continue;
            }
            let name: &OsStr = &entry.name;
            let st = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(st) => st,
                // Gone again, which makes an event.
                Err(Errno::ENOENT) => continue,
                Err(e) => return Err(unreadable(&path.join(name), e)),
            };
            match SFlag::from_bits_truncate(st.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFREG => self.add(&st)?,
                SFlag::S_IFDIR => match beneath::directory(directory, name) {
                    Ok(child) => self.add_directory(&child, &path.join(name), depth + 1)?,
                    // Gone again, no directory any more, or a mount point: never shown.
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {}
                    Err(e) => return Err(unreadable(&path.join(name), e)),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes note of one regular file.
    pub fn add(&mut self, st: &FileStat) -> Result<(), Unstamped> {
        if self.0.len() >= MAX_FILES {
            return Err(Unstamped::TooLarge);
        }
        self.0.insert((st.st_dev, st.st_ino), stamp(st));
        Ok(())
    }

    /// Whether the regular file is what it was.
    pub fn has(&self, st: &FileStat) -> bool {
        self.0.get(&(st.st_dev, st.st_ino)) == Some(&stamp(st))
    }

    /// Whether a file was changed since `begin`, which [`begin`] gave. A time to come is none of a change since: the clock
    /// was set back after it.
    pub fn changed_since(&self, begin: Time) -> bool {
        let now = time(ClockId::CLOCK_REALTIME);
        self.0.values().any(|s| begin <= s.changed && s.changed <= now)
    }
}

/// No change that is made from now on is noted with an earlier time than this: file systems take it from the last tick.
pub fn begin() -> Time {
    time(ClockId::CLOCK_REALTIME_COARSE)
}

/// A clock that cannot be read makes everything changed since.
fn time(clock: ClockId) -> Time {
    clock_gettime(clock).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::stat;
    use nix::sys::time::TimeSpec;
    use std::fs;

    fn of(path: &Path) -> Stamps {
        Stamps::of_live(&fs::File::open(path).unwrap().into()).unwrap()
    }

    #[test]
    fn a_time_that_is_put_back_does_not_hide_a_change() {
        let t = tempfile::tempdir().unwrap();
        let file = t.path().join("d/f");
        fs::create_dir(t.path().join("d")).unwrap();
        fs::write(&file, "good").unwrap();
        let stamps = of(t.path());
        let before = stat(&file).unwrap();
        assert!(stamps.has(&before));
        // Also within one tick of the clock, on kernels whose file systems tell finer times once they were asked.
        let second = fs::metadata(&file).unwrap().modified().unwrap();
        let mut changed = before;
        while stamp(&changed).changed == stamp(&before).changed {
            fs::write(&file, "EVIL").unwrap();
            fs::File::options().write(true).open(&file).unwrap().set_modified(second).unwrap();
            changed = stat(&file).unwrap();
        }
        assert_eq!(
            TimeSpec::new(changed.st_mtime, changed.st_mtime_nsec),
            TimeSpec::new(before.st_mtime, before.st_mtime_nsec)
        );
        assert!(!stamps.has(&changed));
    }

    #[test]
    fn what_is_on_no_path_has_no_stamp() {
        let t = tempfile::tempdir().unwrap();
        for folder in [".git", ".skill-meta", "d/.git"] {
            fs::create_dir_all(t.path().join(folder)).unwrap();
            fs::write(t.path().join(folder).join("f"), "x").unwrap();
        }
        let stamps = of(t.path());
        let has = |p: &str| stamps.has(&stat(&t.path().join(p)).unwrap());
        assert!(has("d/.git/f") && !has(".git/f") && !has(".skill-meta/f"));
    }

    #[test]
    fn changes_in_a_span_of_time_are_told_from_older_ones() {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("f"), "x").unwrap();
        let stamps = of(t.path());
        let st = stat(&t.path().join("f")).unwrap();
        assert!(stamps.changed_since((st.st_ctime, st.st_ctime_nsec)));
        assert!(!stamps.changed_since((st.st_ctime, st.st_ctime_nsec + 1)));
    }
}
