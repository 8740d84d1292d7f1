//! Copies the example skills into an `up`'s own folder (`[7.5]`). It runs as root, and a checkout may be anybody's: nothing
//! is opened but below the folder's descriptor, no link is followed, and a file that is somebody's secret under another name
//! is not made readable for all.

use anyhow::{Context, Result, anyhow, bail};
use cyberos_proto::beneath::{Stay, kind, open};
use cyberos_proto::folder::may_be_published;
use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::symlinkat;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Deepest folder.
const MAX_DEPTH: usize = 32;
const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Copies the tree of regular files, directories and symlinks below `from` to `to`, which is made; everything becomes
/// root's. What is neither is left out.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let source = nix::fcntl::open(from, FOLDER, Mode::empty());
    let source = source.with_context(|| format!("cannot open {}", from.display()))?;
    let mode = Mode::from_bits_truncate(0o755);
    let made = || -> nix::Result<OwnedFd> {
        nix::unistd::mkdir(to, mode)?;
        nix::fcntl::open(to, FOLDER, Mode::empty())
    };
    let target = made().with_context(|| format!("cannot make {}", to.display()))?;
    let top = fstat(&source)?.st_uid;
    folder(&source, &target, from, top, 0)
}

/// `top` owns the folder that is copied.
fn folder(source: &OwnedFd, target: &OwnedFd, path: &Path, top: u32, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        bail!("{} lies more than {MAX_DEPTH} folders deep", path.display());
    }
    for name in names(source).with_context(|| format!("cannot read {}", path.display()))? {
        let path = path.join(name.to_string_lossy().as_ref());
        entry(source, target, &name, &path, top, depth)
            .with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

fn entry(source: &OwnedFd, target: &OwnedFd, name: &CStr, path: &Path, top: u32, depth: usize) -> Result<()> {
    match kind(&fstatat(source, name, AtFlags::AT_SYMLINK_NOFOLLOW)?) {
        SFlag::S_IFDIR => {
            let inner = open(source, name, FOLDER, Stay::HERE)?;
            public(&fstat(&inner)?, top)?;
            mkdirat(target, name, Mode::from_bits_truncate(0o755))?;
            let copy = openat(target, name, FOLDER, Mode::empty())?;
            folder(&inner, &copy, path, top, depth + 1)
        }
        SFlag::S_IFREG => {
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut from = File::from(open(source, name, flags, Stay::HERE)?);
            let stat = fstat(&from)?;
            if kind(&stat) != SFlag::S_IFREG {
                bail!("it changed while it was read");
            }
            public(&stat, top)?;
            let flags =
                OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut to = File::from(openat(target, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
            std::io::copy(&mut from, &mut to)?;
            let mode = if stat.st_mode & 0o111 != 0 { 0o755 } else { 0o644 };
            Ok(fchmod(&to, Mode::from_bits_truncate(mode))?)
        }
        SFlag::S_IFLNK => Ok(symlinkat(readlinkat(source, name)?.as_os_str(), target, name)?),
        _ => Ok(()),
    }
}

fn public(stat: &FileStat, top: u32) -> Result<()> {
    may_be_published(stat, top).map_err(|why| anyhow!("it {why}"))
}

fn names(dir: &OwnedFd) -> nix::Result<Vec<CString>> {
    let again = openat(dir, ".", FOLDER, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(again)?.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_copied_is_the_tree_and_nothing_that_a_name_in_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to, secret) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("secret"));
        std::fs::create_dir_all(from.join("skill/lib")).unwrap();
        std::fs::write(from.join("skill/main"), "m").unwrap();
        std::fs::set_permissions(from.join("skill/main"), PermissionsExt::from_mode(0o4711)).unwrap();
        std::fs::write(from.join("skill/lib/data"), "d").unwrap();
        std::fs::write(&secret, "s3cret").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&secret, from.join("skill/link")).unwrap();
        nix::unistd::mkfifo(&from.join("skill/fifo"), Mode::S_IRWXU).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(std::fs::read(to.join("skill/lib/data")).unwrap(), b"d");
        assert_eq!(std::fs::metadata(to.join("skill/main")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(std::fs::read_link(to.join("skill/link")).unwrap(), secret);
        assert!(!to.join("skill/fifo").exists());
        // A secret under another name is not published.
        std::fs::hard_link(&secret, from.join("skill/lib/twin")).unwrap();
        let refused = format!("{:#}", copy_tree(&from, &dir.path().join("again")).unwrap_err());
        assert!(refused.contains("lib/twin") && refused.contains("hard link"), "{refused}");
        // Nor is the folder itself a link.
        symlink(&from, dir.path().join("linked")).unwrap();
        assert!(copy_tree(&dir.path().join("linked"), &dir.path().join("third")).is_err());
    }
}
