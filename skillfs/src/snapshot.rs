//! Whether a snapshot that a provider names may be shown (`[9.6]`). Path safety is SkillFS's own: it does not judge
//! content, it looks whether the tree is really there, really inside, and nobody else's to change.
//!
//! `resolver.rs` calls it each time a snapshot is to be installed.

use crate::beneath;
use crate::exposure;
use crate::stamps::Stamps;
use crate::verdict::SnapshotName;
use nix::errno::Errno;
use nix::sys::stat::{SFlag, fstat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most entries of a snapshot: as many as a sealed copy may have (`[0.1]`).
const MAX_ENTRIES: usize = 20_000;
/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// Why a snapshot is not shown.
#[derive(Debug, thiserror::Error)]
pub enum Unsafe {
    /// Not there, not a directory, or reached through a symlink.
    #[error("snapshot {0} is not a directory inside the skill: {1}")]
    Absent(String, Errno),
    /// Something inside could not be read.
    #[error("snapshot entry {0:?}: {1}")]
    Unreadable(PathBuf, Errno),
    /// Writable by others.
    #[error("snapshot entry {0:?} can be written by its group or by others")]
    Writable(PathBuf),
    /// A second name of a file elsewhere.
    #[error("snapshot entry {0:?} has other hard links")]
    Linked(PathBuf),
    /// A symlink that leaves the snapshot.
    #[error("snapshot entry {0:?} is a symlink that leaves it")]
    Leaves(PathBuf),
    /// A FIFO, socket or device.
    #[error("snapshot entry {0:?} is neither file, directory nor symlink")]
    Kind(PathBuf),
    /// Too many entries or too deep.
    #[error("the snapshot has more than {MAX_ENTRIES} entries or is deeper than {MAX_DEPTH}")]
    TooLarge,
}

/// Opens and checks the snapshot of that name in the skill's directory, and takes its files' stamps.
pub fn open(skill: impl AsFd, name: &SnapshotName) -> Result<(OwnedFd, Stamps), Unsafe> {
    let target = name.target();
    let root = beneath::directory(skill, OsStr::new(&target)).map_err(|e| Unsafe::Absent(target, e))?;
    let mut seen = Seen { left: MAX_ENTRIES, stamps: Stamps::default() };
    check(&root, Path::new(""), 0, &mut seen)?;
    Ok((root, seen.stamps))
}

struct Seen {
    left: usize,
    stamps: Stamps,
}

fn check(directory: &OwnedFd, path: &Path, depth: usize, seen: &mut Seen) -> Result<(), Unsafe> {
    let unreadable = |p: &Path| {
        let p = p.to_owned();
        move |e| Unsafe::Unreadable(p, e)
    };
    if depth > MAX_DEPTH {
        return Err(Unsafe::TooLarge);
    }
    let st = fstat(directory).map_err(unreadable(path))?;
    if st.st_mode & 0o022 != 0 {
        return Err(Unsafe::Writable(path.to_owned()));
    }
    for listed in beneath::list(directory).map_err(unreadable(path))? {
        seen.left = seen.left.checked_sub(1).ok_or(Unsafe::TooLarge)?;
        entry(directory, &listed.name, path.join(&listed.name), depth, seen)?;
    }
    Ok(())
}

fn entry(
    parent: &OwnedFd,
    name: &OsString,
    path: PathBuf,
    depth: usize,
    seen: &mut Seen,
) -> Result<(), Unsafe> {
    let fd = beneath::pin(parent, name.as_os_str()).map_err(|e| Unsafe::Unreadable(path.clone(), e))?;
    let st = fstat(&fd).map_err(|e| Unsafe::Unreadable(path.clone(), e))?;
    match SFlag::from_bits_truncate(st.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => check(&fd, &path, depth + 1, seen),
        SFlag::S_IFLNK => {
            let target = nix::fcntl::readlinkat(&fd, "").map_err(|e| Unsafe::Unreadable(path.clone(), e))?;
            if exposure::link_stays(depth, target.as_bytes()) { Ok(()) } else { Err(Unsafe::Leaves(path)) }
        }
        SFlag::S_IFREG if st.st_mode & 0o022 != 0 => Err(Unsafe::Writable(path)),
        SFlag::S_IFREG if st.st_nlink != 1 => Err(Unsafe::Linked(path)),
        SFlag::S_IFREG => seen.stamps.add(&st).map_err(|_| Unsafe::TooLarge),
        _ => Err(Unsafe::Kind(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn skill() -> (tempfile::TempDir, PathBuf) {
        let t = tempfile::tempdir().unwrap();
        let snapshot = t.path().join(".skill-meta/versions/v1.snapshot");
        fs::create_dir_all(snapshot.join("d")).unwrap();
        fs::write(snapshot.join("d/f"), "x").unwrap();
        symlink("../d/f", snapshot.join("d/l")).unwrap();
        (t, snapshot)
    }

    fn verdict(t: &tempfile::TempDir) -> Result<(), Unsafe> {
        let dir = fs::File::open(t.path()).unwrap();
        open(&dir, &SnapshotName::of_version("v1").unwrap()).map(drop)
    }

    #[test]
    fn a_plain_snapshot_is_safe() {
        let (t, _) = skill();
        verdict(&t).unwrap();
    }

    #[test]
    fn case_013_what_is_not_a_tree_of_its_own_is_refused() {
        let (t, s) = skill();
        fs::set_permissions(s.join("d/f"), fs::Permissions::from_mode(0o664)).unwrap();
        assert!(matches!(verdict(&t), Err(Unsafe::Writable(_))));
        let (t, s) = skill();
        fs::set_permissions(s.join("d"), fs::Permissions::from_mode(0o757)).unwrap();
        assert!(matches!(verdict(&t), Err(Unsafe::Writable(_))));
        let (t, s) = skill();
        fs::hard_link(s.join("d/f"), t.path().join("second")).unwrap();
        assert!(matches!(verdict(&t), Err(Unsafe::Linked(_))));
        for target in ["/etc/passwd", "../../x", "d/../../x", ".."] {
            let (t, s) = skill();
            symlink(target, s.join("leaves")).unwrap();
            assert!(matches!(verdict(&t), Err(Unsafe::Leaves(_))), "{target}");
        }
        let (t, s) = skill();
        nix::unistd::mkfifo(&s.join("p"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(verdict(&t), Err(Unsafe::Kind(_))));
    }

    #[test]
    fn case_013_a_target_that_is_no_directory_inside_is_refused() {
        for plant in ["file", "fifo", "link", "absent", "versions-link", "meta-link"] {
            let (t, s) = skill();
            let versions = t.path().join(".skill-meta/versions");
            let elsewhere = t.path().join("elsewhere");
            match plant {
                "versions-link" => {
                    fs::rename(&versions, &elsewhere).unwrap();
                    symlink("../elsewhere", &versions).unwrap();
                }
                "meta-link" => {
                    fs::rename(t.path().join(".skill-meta"), &elsewhere).unwrap();
                    symlink("elsewhere", t.path().join(".skill-meta")).unwrap();
                }
                _ => fs::rename(&s, &elsewhere).unwrap(),
            }
            match plant {
                "file" => fs::write(&s, "x").unwrap(),
                "fifo" => nix::unistd::mkfifo(&s, nix::sys::stat::Mode::S_IRUSR).unwrap(),
                "link" => symlink("../../elsewhere", &s).unwrap(),
                _ => {}
            }
            assert!(matches!(verdict(&t), Err(Unsafe::Absent(..))), "{plant}");
        }
    }
}
