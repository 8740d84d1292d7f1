//! The folders that skills come from, and which entry of them is a skill (`[9.1]`).
//!
//! A skill is an entry with a valid [`SkillName`] that is a directory, not a symlink, and has something named SKILL.md.
//! With several sources the first that has the skill gives the whole of it. Sources are known by identity (device and inode), not by
//! spelling; the spelling is kept for the provider. It knows no decisions; `resolver.rs` and `watch.rs` call it.

use crate::bell::Bell;
use crate::beneath::identity;
use crate::way::{Look, Way};
use crate::{beneath, skill_file};
use cyberos_proto::ids::SkillName;
use cyberos_proto::tree::META_DIR;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Sources that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Not an accessible directory.
    #[error("source {0}: {1}")]
    Open(PathBuf, Errno),
    /// Lies in, or holds, the mount point or another source.
    #[error("{0} and {1} overlap: a source, another source and the mount point must not contain each other")]
    Overlap(PathBuf, PathBuf),
    /// A path that cannot be made absolute.
    #[error("{0}: {1}")]
    Path(PathBuf, std::io::Error),
    /// Nothing to be woken by.
    #[error("no eventfd: {0}")]
    Bell(Errno),
}

/// A skill that was found.
#[derive(Debug)]
pub struct Found {
    /// Its directory's absolute path, spelt as the source was.
    pub path: PathBuf,
    /// The directory, O_PATH.
    pub directory: OwnedFd,
    /// Whether it is a skill, and not just a folder beside skills.
    pub is_skill: bool,
    /// Folders of that name in sources before it, which are no skills. One that becomes one takes its place.
    pub passed_over: Vec<OwnedFd>,
    /// Number of its source.
    pub source: usize,
}

/// A folder without SKILL.md is no skill: version control, an editor's settings and installed packages lie beside skills
/// too. One that a provider has taken note of is a skill that lost it, and the provider says what is shown of it.
fn is_skill(directory: &OwnedFd) -> bool {
    use nix::fcntl::AtFlags;
    skill_file::kind(directory).is_some()
        || nix::sys::stat::fstatat(directory, OsStr::from_bytes(META_DIR), AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok()
}

/// The configured sources, in order.
#[derive(Debug)]
pub struct Sources {
    paths: Vec<PathBuf>,
    ways: Vec<Way>,
    moved: Arc<Bell>,
    /// Names that were reported as no skill's, so that each is reported once.
    reported: Mutex<BTreeSet<PathBuf>>,
}

/// Opens a source as configured; a symlink in its path is the operator's choice and is followed.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    use nix::fcntl::OFlag;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())
}

/// Absolute, without a trailing slash or `.`; symlinks and `..` are left as they are spelt.
pub fn absolute(path: &Path) -> Result<PathBuf, SourceError> {
    let path = std::path::absolute(path).map_err(|e| SourceError::Path(path.to_owned(), e))?;
    Ok(path.components().filter(|c| *c != Component::CurDir).collect())
}

/// Where the mount point really lies, without touching the mount point itself: what is mounted there may be dead.
fn real_mount_point(path: &Path) -> PathBuf {
    match (path.parent().map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

impl Sources {
    /// Checks that each is a directory, drops those that are the same directory as an earlier one, and refuses
    /// overlaps.
    pub fn open(paths: &[PathBuf], mount_point: &Path) -> Result<Self, SourceError> {
        let mut kept: Vec<(PathBuf, PathBuf, (u64, u64))> = Vec::new();
        let mount = (absolute(mount_point)?, real_mount_point(&absolute(mount_point)?));
        for path in paths {
            let path = absolute(path)?;
            let refuse = |e| SourceError::Open(path.clone(), e);
            let st = fstat(open(&path).map_err(refuse)?).map_err(refuse)?;
            let real = std::fs::canonicalize(&path).map_err(|e| SourceError::Path(path.clone(), e))?;
            if kept.iter().any(|(_, _, id)| *id == identity(&st)) {
                tracing::warn!(source = %path.display(), "the same directory as an earlier source; left out");
                continue;
            }
            let others = kept.iter().map(|(p, r, _)| (p, r)).chain([(&mount.0, &mount.1)]);
            for (other, other_real) in others {
                if real.starts_with(other_real) || other_real.starts_with(&real) {
                    return Err(SourceError::Overlap(path, other.clone()));
                }
            }
            kept.push((path, real, identity(&st)));
        }
        let paths: Vec<PathBuf> = kept.into_iter().map(|(p, _, _)| p).collect();
        let moved = Arc::new(Bell::new().map_err(SourceError::Bell)?);
        let ways: Vec<Way> = paths.iter().map(|path| Way::new(path.clone(), moved.clone())).collect();
        // Says by itself which are shared.
        ways.iter().for_each(|way| drop(way.look()));
        Ok(Sources { paths, ways, moved, reported: Mutex::default() })
    }

    /// The paths, absolute, spelt as configured.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The ways to them, in the same order.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Rung when a look finds that something on a way was moved.
    pub fn moved(&self) -> &Arc<Bell> {
        &self.moved
    }

    /// Which sources somebody besides root and SkillFS can write or exchange, and by what.
    pub fn shared(&self) -> Vec<String> {
        self.ways.iter().filter_map(shared).collect()
    }

    /// The same of the source that has the skill.
    pub fn shared_of(&self, name: &SkillName) -> Option<String> {
        self.ways.iter().find_map(Way::shared)?;
        self.ways.get(self.find(name)?.source).and_then(shared)
    }

    /// What the ways to all sources are now.
    pub fn looks(&self) -> Vec<Look> {
        self.ways.iter().map(Way::look).collect()
    }

    /// Whether the name still means that directory, and nothing on the ways to its source and those before it was
    /// exchanged since `before`.
    pub fn is_still(&self, name: &SkillName, before: &[Look], directory: &OwnedFd) -> bool {
        let Some(found) = self.find(name) else { return false };
        let mut ways = self.ways.iter().zip(before).take(found.source + 1);
        let same = |a: &OwnedFd, b: &OwnedFd| Some(identity(&fstat(a).ok()?) == identity(&fstat(b).ok()?));
        ways.all(|(way, before)| way.look() == *before) && same(&found.directory, directory) == Some(true)
    }

    /// Opens source number `index` as it is now.
    pub fn directory(&self, index: usize) -> Result<OwnedFd, Errno> {
        open(self.paths.get(index).ok_or(Errno::ENOENT)?)
    }

    /// What the way to source number `index` is now.
    pub fn look(&self, index: usize) -> Option<Look> {
        self.ways.get(index).map(Way::look)
    }

    /// The skill of that name in the first source that has it; else the first folder of that name, which is none.
    pub fn find(&self, name: &SkillName) -> Option<Found> {
        let mut passed_over = Vec::new();
        let mut folder = None;
        for (number, source) in self.paths.iter().enumerate() {
            let Ok(directory) = open(source).and_then(|s| beneath::directory(s, name.as_str())) else {
                continue;
            };
            let path = source.join(name.as_str());
            if is_skill(&directory) {
                return Some(Found { path, directory, is_skill: true, passed_over, source: number });
            }
            folder.get_or_insert((path, number));
            passed_over.push(directory);
        }
        let directory = passed_over.first()?.try_clone().ok()?;
        let (path, source) = folder?;
        Some(Found { path, directory, is_skill: false, passed_over, source })
    }

    /// Names of all that are skills now, and of the folders beside them.
    pub fn names(&self) -> (BTreeSet<SkillName>, BTreeSet<SkillName>) {
        let (mut skills, mut folders) = (BTreeSet::new(), BTreeSet::new());
        for source in &self.paths {
            let listed = open(source).and_then(|dir| Ok((beneath::list(&dir)?, dir)));
            let (entries, dir) = match listed {
                Ok(listed) => listed,
                Err(e) => {
                    tracing::error!(source = %source.display(), error = %e, "a source cannot be read");
                    continue;
                }
            };
            for listed in entries {
                let entry = listed.name;
                if listed.kind.is_some_and(|k| k != nix::dir::Type::Directory) {
                    continue;
                }
                // Not a directory, or a mount point: neither is a skill.
                let Ok(folder) = beneath::directory(&dir, entry.as_os_str()) else { continue };
                match entry.to_str().and_then(|n| SkillName::new(n).ok()) {
                    Some(name) if is_skill(&folder) => drop(skills.insert(name)),
                    Some(name) => drop(folders.insert(name)),
                    None => self.report(source.join(&entry)),
                }
            }
        }
        folders.retain(|name| !skills.contains(name));
        (skills, folders)
    }

    fn report(&self, path: PathBuf) {
        let mut reported = self.reported.lock().unwrap_or_else(|e| e.into_inner());
        if reported.len() < 1000 && reported.insert(path.clone()) {
            tracing::warn!(path = ?path, "not shown: its name is not UTF-8, too long, or has a backslash");
        }
    }
}

fn shared(way: &Way) -> Option<String> {
    way.shared().map(|why| format!("source_shared: {}: {why}", way.path().display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_skill_is_a_directory_with_a_good_name() {
        let t = tempfile::tempdir().unwrap();
        let src = t.path().join("src");
        for name in ["a", "ünï", "..a", &"x".repeat(64)] {
            std::fs::create_dir_all(src.join(name)).unwrap();
            std::fs::write(src.join(name).join("SKILL.md"), "").unwrap();
        }
        std::fs::create_dir(src.join(".git")).unwrap();
        std::fs::create_dir(src.join("x".repeat(65))).unwrap();
        std::fs::create_dir(src.join("back\\slash")).unwrap();
        std::fs::create_dir(src.join(std::ffi::OsStr::from_bytes(b"bad\xff"))).unwrap();
        std::fs::write(src.join("file"), "").unwrap();
        symlink("a", src.join("link")).unwrap();
        let sources = Sources::open(std::slice::from_ref(&src), &t.path().join("mnt")).unwrap();
        let (skills, folders) = sources.names();
        let names: Vec<String> = skills.into_iter().map(String::from).collect();
        assert_eq!(names, ["..a", "a", &"x".repeat(64), "ünï"]);
        assert_eq!(folders.into_iter().map(String::from).collect::<Vec<_>>(), [".git"]);
        assert!(!sources.find(&SkillName::new(".git").unwrap()).unwrap().is_skill);
        assert!(sources.find(&SkillName::new("link").unwrap()).is_none());
        assert!(sources.find(&SkillName::new("file").unwrap()).is_none());
        assert_eq!(sources.find(&SkillName::new("a").unwrap()).unwrap().path, src.join("a"));
    }

    #[test]
    fn case_026_the_first_source_wins_and_duplicates_go() {
        let t = tempfile::tempdir().unwrap();
        for d in ["one/demo", "two/demo", "two/other"] {
            std::fs::create_dir_all(t.path().join(d)).unwrap();
        }
        symlink("one", t.path().join("again")).unwrap();
        let paths = ["one", "again", "two"].map(|p| t.path().join(p));
        let sources = Sources::open(&paths, &t.path().join("mnt")).unwrap();
        assert_eq!(sources.paths(), [t.path().join("one"), t.path().join("two")]);
        let demo = sources.find(&SkillName::new("demo").unwrap()).unwrap();
        assert_eq!(demo.path, t.path().join("one/demo"));
    }

    #[test]
    fn case_021_overlaps_are_refused() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("src/in/deep")).unwrap();
        let p = |s: &str| t.path().join(s);
        for (sources, mount) in [
            (vec![p("src")], p("src")),
            (vec![p("src")], p("src/in/mnt")),
            (vec![p("src/in")], p("src")),
            (vec![p("src"), p("src/in")], p("mnt")),
            (vec![p("src/in/deep"), p("src")], p("mnt")),
            (vec![p("src/in/../in")], p("src/in")),
        ] {
            let got = Sources::open(&sources, &mount);
            assert!(matches!(got, Err(SourceError::Overlap(..))), "{sources:?} {mount:?} {got:?}");
        }
        // A common prefix of the spelling is no overlap.
        std::fs::create_dir(t.path().join("src-2")).unwrap();
        Sources::open(&[p("src"), p("src-2")], &p("src-3")).unwrap();
    }

    #[test]
    fn case_016_paths_stay_spelt_as_configured() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("real/demo")).unwrap();
        symlink("real", t.path().join("link")).unwrap();
        let given = PathBuf::from(format!("{}/link/", t.path().display()));
        let sources = Sources::open(&[given], &t.path().join("mnt")).unwrap();
        let found = sources.find(&SkillName::new("demo").unwrap()).unwrap();
        assert_eq!(found.path.to_str().unwrap(), format!("{}/link/demo", t.path().display()));
    }
}
