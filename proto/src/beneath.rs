//! Opens things below a held directory, and nowhere else (`[0.1]`, `[4.4]`, `[9.6]`): every part of a path is looked up by the
//! kernel, which follows no magic link and goes no step above the start. It refuses to know what the things are for. Whoever
//! opens what others can rename, replace and link to meanwhile comes through here: broker, SkillFS and its provider alike,
//! so that there is one idea of what is followed, and one of how often a look-up is tried again.

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlink};
use nix::sys::stat::{FileStat, Mode, SFlag};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How often a look-up is tried that a rename disturbed, or a signal. Whoever renames without end gets an error then, and
/// keeps nobody.
const TRIES: usize = 16;

/// Which ways a look-up may take. None of them leaves the directory that it begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay(ResolveFlag);

impl Stay {
    /// No symlink (`ELOOP`) and no other mount (`EXDEV`). With `O_PATH | O_NOFOLLOW` the last part may be a link, which is
    /// opened itself.
    pub const HERE: Stay = Stay(BELOW.union(NO_LINKS).union(NO_MOUNTS));
    /// Also through symlinks that stay below; one that leaves is `EXDEV`.
    pub const LINKS: Stay = Stay(BELOW.union(NO_MOUNTS));
    /// No symlink, but into other mounts.
    pub const MOUNTS: Stay = Stay(BELOW.union(NO_LINKS));
    /// Through symlinks that stay below, and into other mounts.
    pub const LINKS_AND_MOUNTS: Stay = Stay(BELOW);
}

const BELOW: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);
const NO_LINKS: ResolveFlag = ResolveFlag::RESOLVE_NO_SYMLINKS;
const NO_MOUNTS: ResolveFlag = ResolveFlag::RESOLVE_NO_XDEV;

/// Opens `path` below `dir` with `flags`, and close-on-exec. `EAGAIN` after all tries means that somebody renames all the
/// time.
pub fn open<P: ?Sized + NixPath>(
    dir: impl AsFd,
    path: &P,
    flags: OFlag,
    stay: Stay,
) -> Result<OwnedFd, Errno> {
    open_as(dir, path, flags, Mode::empty(), stay)
}

/// [`open`] for a file that is made, with its mode.
pub fn open_as<P: ?Sized + NixPath>(
    dir: impl AsFd,
    path: &P,
    flags: OFlag,
    mode: Mode,
    stay: Stay,
) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(stay.0);
    tried(|| openat2(dir.as_fd(), path, how))
}

/// Opens a path of the operator's: from the root, wherever symlinks lead, but through no magic link, so that it is the same
/// for every process.
pub fn open_anywhere(path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    tried(|| openat2(AT_FDCWD, path, how))
}

fn tried<T>(mut look_up: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match look_up() {
            // The kernel is not sure any more that it stayed below.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            done => return done,
        }
    }
    look_up()
}

/// The name by which what `fd` holds can be opened again, whatever has become of its own; for as long as it is held.
pub fn again(fd: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// The name that the kernel has for what `fd` holds. One that was removed reads "… (deleted)".
pub fn name_of(fd: &impl AsFd) -> Result<PathBuf, Errno> {
    readlink(again(fd).as_path()).map(PathBuf::from)
}

/// The file type bits of `stat`.
pub fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::fstat;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    /// A tree with a secret beside it; removed with the value, since proto has no crate for that.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("cyberos-beneath-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("tree/a/b")).unwrap();
            fs::create_dir_all(dir.join("tree/mnt")).unwrap();
            fs::write(dir.join("secret"), "").unwrap();
            fs::write(dir.join("tree/a/x"), "").unwrap();
            for (to, at) in [
                ("a", "inside"),
                ("../secret", "out"),
                ("/", "root"),
                ("/proc/self/root", "magic"),
                ("loop", "loop"),
            ] {
                symlink(to, dir.join("tree").join(at)).unwrap();
            }
            Tree(dir)
        }

        fn open(&self, path: &str, stay: Stay) -> Result<OwnedFd, Errno> {
            open(File::open(self.0.join("tree")).unwrap(), path, OFlag::O_RDONLY, stay)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = nix::mount::umount2(&self.0.join("tree/mnt"), nix::mount::MntFlags::MNT_DETACH);
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn nothing_leads_out_and_links_and_mounts_only_where_they_may() {
        let tree = Tree::new("ways");
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, &tree.0.join("tree/mnt"), tmpfs, nix::mount::MsFlags::empty(), None::<&str>)
            .expect("only root can mount: run this as root");
        let all = [Stay::HERE, Stay::LINKS, Stay::MOUNTS, Stay::LINKS_AND_MOUNTS];
        for stay in all {
            assert!(tree.open("a/x", stay).is_ok() && tree.open("a/b/../x", stay).is_ok());
            for (path, errno) in [("..", Errno::EXDEV), ("/etc", Errno::EXDEV), ("a/none", Errno::ENOENT)] {
                assert_eq!(tree.open(path, stay).unwrap_err(), errno, "{path}, {stay:?}");
            }
            for path in ["out", "root", "root/etc", "magic", "magic/etc", "loop"] {
                let errno = tree.open(path, stay).unwrap_err();
                assert!(matches!(errno, Errno::EXDEV | Errno::ELOOP), "{path}, {stay:?}: {errno}");
            }
            let links = matches!(stay, Stay::LINKS | Stay::LINKS_AND_MOUNTS);
            assert_eq!(tree.open("inside/x", stay).map(drop), if links { Ok(()) } else { Err(Errno::ELOOP) });
            let mounts = matches!(stay, Stay::MOUNTS | Stay::LINKS_AND_MOUNTS);
            assert_eq!(tree.open("mnt", stay).map(drop), if mounts { Ok(()) } else { Err(Errno::EXDEV) });
        }
        let dir = File::open(tree.0.join("tree")).unwrap();
        let pin = open(&dir, "out", OFlag::O_PATH | OFlag::O_NOFOLLOW, Stay::HERE).unwrap();
        assert_eq!(kind(&fstat(&pin).unwrap()), SFlag::S_IFLNK, "the link itself");
        assert_eq!(name_of(&tree.open("inside", Stay::LINKS).unwrap()).unwrap(), tree.0.join("tree/a"));
        assert!(open_anywhere(&tree.0.join("tree/out"), OFlag::O_PATH).is_ok());
        assert_eq!(open_anywhere(Path::new("/proc/self/exe"), OFlag::O_PATH).unwrap_err(), Errno::ELOOP);
    }

    #[test]
    fn a_disturbed_look_up_is_tried_again_and_not_for_ever() {
        let after = |disturbed: usize, then: Result<(), Errno>| {
            let mut times = 0;
            let end = tried(|| {
                times += 1;
                match times {
                    n if n > disturbed => then,
                    n if n % 2 == 0 => Err(Errno::EINTR),
                    _ => Err(Errno::EAGAIN),
                }
            });
            (end, times)
        };
        assert_eq!(after(0, Ok(())), (Ok(()), 1));
        assert_eq!(after(TRIES - 1, Ok(())), (Ok(()), TRIES));
        assert_eq!(after(3, Err(Errno::ENOENT)), (Err(Errno::ENOENT), 4));
        assert_eq!(after(usize::MAX, Ok(())), (Err(Errno::EINTR), TRIES));
    }
}
