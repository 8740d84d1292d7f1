//! A skill's folder, opened once: its name, what lies in `.skill-meta/versions`, and the name that its SKILL.md declares.
//! It judges nothing; `resolve` and `certify` do.

use super::keys::TrustedKeys;
use super::manifest::{Flaw, MAX_MANIFEST, Verified, Version, verify};
use super::tree::{self, Rules, TreeError};
use super::words::shown;
use crate::beneath;
use cyberos_proto::folder::{self, FolderError};
use cyberos_proto::ids::SkillName;
use cyberos_proto::invoker;
use cyberos_proto::tree::META_DIR;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Name of the folder of versions below `.skill-meta`.
pub const VERSIONS_DIR: &str = "versions";

/// How many manifests are read, from the newest down, in search of one.
const MAX_LOOKED_AT: usize = 64;
/// After how many bytes of them such a search ends: enough for the largest honest ones, too few to spend a provider's time on
/// planted ones.
const MAX_SEARCHED: u64 = 2 * MAX_MANIFEST;

const MAX_NAMES: usize = 20_000;
/// How much of SKILL.md is looked at for a declared name; no frontmatter may be longer (`[1.1]`).
const MAX_FRONTMATTER: usize = 64 << 10;

/// Why a folder is no skill that can be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// Its name cannot be a skill's.
    #[error("{}: the folder's name is no skill name: {why}", path.display())]
    Name {
        /// The folder.
        path: PathBuf,
        /// What is wrong with its name.
        why: String,
    },
    /// A symlink where a folder is needed, or something else that is no folder.
    #[error("{} {why}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What it is.
        why: FolderError,
    },
    /// The kernel refused.
    #[error("{}: {doing}: {}", path.display(), errno.desc())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// An open skill.
pub struct Skill {
    /// Its name: that of its folder.
    pub name: SkillName,
    /// Its absolute path, spelt as it was given.
    pub path: PathBuf,
    root: OwnedFd,
}

/// Which files of a version are there, by name alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// `vNNNNNN.json`.
    pub manifest: bool,
    /// `vNNNNNN.snapshot`.
    pub snapshot: bool,
}

/// Why a version cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// It is well signed, for its number, and for a skill of another name.
    #[error("{file} was made for the skill {from:?}")]
    Renamed {
        /// The manifest.
        file: String,
        /// The number.
        version: Version,
        /// The other name.
        from: String,
    },
    /// Somebody changed it: the text says what.
    #[error("{0}")]
    Tampered(String),
    /// This process could not read it.
    #[error("{0}")]
    Unreadable(String),
}

/// `path` absolute, without `.` and repeated or trailing slashes; links are kept as they are spelt.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if path.components().any(|c| c == Component::ParentDir) {
        // What `..` means depends on links, so only the kernel can say what folder is meant. SkillFS never sends one.
        return path.canonicalize();
    }
    Ok(path.components().collect())
}

/// The last component of `path`, for an answer about a folder that cannot even be opened.
pub fn base_name(path: &Path) -> String {
    shown(path.file_name().unwrap_or_default().as_encoded_bytes(), 64)
}

impl Skill {
    /// Opens the folder at `path` to look at it, with the rights of who looks. It must not be a symlink; SkillFS shows none
    /// either. What lies on the way there is its configuration.
    pub fn open(path: &Path) -> Result<Self, SkillError> {
        Self::open_with(path, |path| {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
            opened.map(OwnedFd::from).map_err(|e| match beneath::errno(&e) {
                Errno::ENOTDIR if path.is_symlink() => FolderError::Linked,
                e => FolderError::Os(e),
            })
        })
    }

    /// Opens the folder at `path` to publish a copy of it, or to remove versions of it. Whoever can write the source could
    /// plant a symlink there or on the way, and have root copy `/etc` to where everyone may read it.
    pub fn open_unlinked(path: &Path) -> Result<Self, SkillError> {
        Self::open_with(path, |path| folder::open(path, invoker::uid()))
    }

    fn open_with(
        path: &Path,
        open: impl FnOnce(&Path) -> Result<OwnedFd, FolderError>,
    ) -> Result<Self, SkillError> {
        let io = |doing, errno| SkillError::Io { path: path.to_owned(), doing, errno };
        let path = absolute(path).map_err(|e| io("working out where the folder is", beneath::errno(&e)))?;
        let name = path.file_name().unwrap_or_default();
        let bad = |why| SkillError::Name { path: path.clone(), why };
        let name = name.to_str().ok_or_else(|| bad("it is not UTF-8".to_owned()))?;
        let name = SkillName::new(name).map_err(|e| bad(e.to_string()))?;
        let root = open(&path).map_err(|why| match why {
            FolderError::Os(e) => io("opening the folder", e),
            why => SkillError::Folder { path: path.clone(), why },
        })?;
        Ok(Skill { name, path, root })
    }

    /// The folder.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Whether something called `name` lies beside the folder: for a message, so the path will do.
    pub fn has_neighbour(&self, name: &str) -> bool {
        self.path.with_file_name(name).symlink_metadata().is_ok()
    }

    /// The folder of versions; `None` when the skill never had one.
    pub fn versions(&self) -> Result<Option<Versions>, VersionError> {
        let meta = match beneath::open_dir(&self.root, META_DIR) {
            Ok(meta) => meta,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(strange(".skill-meta", e)),
        };
        match beneath::open_dir(&meta, VERSIONS_DIR) {
            Ok(dir) => Versions::new(dir).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(strange(".skill-meta/versions", e)),
        }
    }

    /// The `name:` (else the `id:`) of the frontmatter, where it stands plainly in a line of its own. This is an observation for
    /// people, not parsing: YAML is not read here, and nothing is decided by it.
    pub fn declared_name(&self) -> Option<String> {
        use std::io::Read;
        let (file, _) = beneath::open_file(&self.root, "SKILL.md").ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_FRONTMATTER as u64).read_to_end(&mut bytes).ok()?;
        declared(&String::from_utf8_lossy(&bytes))
    }
}

fn declared(text: &str) -> Option<String> {
    let mut lines = text.trim_start_matches('\u{feff}').lines().map(str::trim_end);
    if lines.next()? != "---" {
        return None;
    }
    let head: Vec<&str> = lines.take_while(|l| *l != "---").collect();
    let value = |key: &str| head.iter().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
    let value = value("name").or_else(|| value("id"))?;
    if !value.starts_with([' ', '\t']) {
        return None;
    }
    let value = value.trim();
    let inner = match value.chars().next()? {
        quote @ ('"' | '\'') => value.strip_prefix(quote)?.split(quote).next()?,
        '|' | '>' | '&' | '*' | '!' | '[' | '{' | '#' | '%' | '@' | '`' => return None,
        _ => value.split(" #").next()?.trim_end(),
    };
    (!inner.is_empty()).then(|| shown(inner.as_bytes(), 200))
}

/// The open folder of versions, and what it holds by name.
pub struct Versions {
    dir: OwnedFd,
    /// Every version of which a file is there.
    pub present: BTreeMap<Version, Present>,
    /// Bytes of manifests read so far.
    read: Cell<u64>,
}

impl Versions {
    /// Lists `dir`; names that are no version's are nobody's business.
    pub fn new(dir: OwnedFd) -> Result<Self, VersionError> {
        let names =
            beneath::list_in_order(&dir, MAX_NAMES).map_err(|e| strange(".skill-meta/versions", e))?;
        let mut present: BTreeMap<Version, Present> = BTreeMap::new();
        for (name, _) in names {
            let Ok(name) = name.to_str() else { continue };
            if let Some(v) = name.strip_suffix(".json").and_then(|v| v.parse().ok()) {
                present.entry(v).or_default().manifest = true;
            } else if let Some(v) = name.strip_suffix(".snapshot").and_then(|v| v.parse().ok()) {
                present.entry(v).or_default().snapshot = true;
            }
        }
        Ok(Versions { dir, present, read: Cell::new(0) })
    }

    /// The folder.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The manifests below number `below`, from the newest down, as far as a search for one goes.
    pub fn search<'a>(
        &'a self,
        below: u32,
        name: &'a SkillName,
        keys: &'a TrustedKeys,
    ) -> impl Iterator<Item = Result<Verified, VersionError>> + 'a {
        let end = self.read.get().saturating_add(MAX_SEARCHED);
        let versions = self.present.keys().rev().filter(move |v| v.get() < below).take(MAX_LOOKED_AT);
        versions.take_while(move |_| self.read.get() < end).map(|v| self.manifest(*v, name, keys))
    }

    /// Reads and verifies the manifest of `version`.
    pub fn manifest(
        &self,
        version: Version,
        name: &SkillName,
        keys: &TrustedKeys,
    ) -> Result<Verified, VersionError> {
        let file = version.manifest_name();
        let bytes = match beneath::read(&self.dir, file.as_str(), MAX_MANIFEST) {
            Ok(bytes) => bytes,
            Err(Errno::ENOENT) => {
                return Err(VersionError::Tampered(format!(
                    "{version} has a snapshot but no manifest: it was removed, or certify was interrupted"
                )));
            }
            Err(e) => return Err(strange(&format!(".skill-meta/versions/{file}"), e)),
        };
        self.read.set(self.read.get() + bytes.len() as u64);
        verify(&bytes, name, version, keys).map_err(|flaw| {
            if let Flaw::OtherSkill(from) = flaw {
                return VersionError::Renamed { file, version, from };
            }
            let ignored = match (&flaw, keys.ignored.is_empty()) {
                (Flaw::UnknownKey(_), false) => format!(" (passed over: {})", keys.ignored.join("; ")),
                _ => String::new(),
            };
            VersionError::Tampered(format!("{file} {flaw}{ignored}"))
        })
    }

    /// Checks that the snapshot of `version` is a folder with exactly the content of this digest, and safe to show (`[9.6]`).
    pub fn check_snapshot(&self, version: Version, tree_digest: &str) -> Result<(), VersionError> {
        let name = version.snapshot_name();
        let root = match beneath::open_dir(&self.dir, name.as_str()) {
            Ok(root) => root,
            Err(Errno::ENOENT) => {
                return Err(VersionError::Tampered(format!("{name} is missing")));
            }
            Err(e) => return Err(strange(&format!(".skill-meta/versions/{name}"), e)),
        };
        match tree::digest_of(root.as_fd(), Rules::Snapshot) {
            Ok(found) if found == tree_digest => Ok(()),
            Ok(_) => Err(VersionError::Tampered(format!("{name} holds other content than was certified"))),
            Err(e @ TreeError::Unreadable { .. }) => Err(VersionError::Unreadable(format!("{name}: {e}"))),
            Err(e) => Err(VersionError::Tampered(format!("{name}: {e}"))),
        }
    }
}

/// What an errno at a place of the provider's own folder means.
fn strange(place: &str, e: Errno) -> VersionError {
    if beneath::is_unreadable(e) {
        return VersionError::Unreadable(format!("{place}: cannot be read: {}", e.desc()));
    }
    let what = match e {
        Errno::ELOOP => "is a symlink",
        // What a symlink gives when a folder is asked for.
        Errno::ENOTDIR => "is no real folder",
        Errno::EXDEV => "is a mount point",
        Errno::E2BIG => "holds more than 20,000 names",
        Errno::EFBIG => "is larger than any manifest",
        Errno::EINVAL | Errno::ENXIO | Errno::EISDIR => "is no regular file",
        _ => "changed while it was read",
    };
    VersionError::Tampered(format!("{place} {what}"))
}

#[cfg(test)]
mod tests {
    use super::declared;

    #[test]
    fn a_plain_declared_name_is_observed_and_nothing_else() {
        for (text, want) in [
            ("---\nname: demo\n---\n", Some("demo")),
            ("\u{feff}---\r\nid: a\r\nname: \"b c\"\r\n---\r\n", Some("b c")),
            ("---\nid: 'x' # y\n---\n", Some("x")),
            ("---\nname: demo # the best\n---\n", Some("demo")),
            ("---\nmetadata:\n  name: inner\n---\nname: body\n", None),
            ("---\nname: |\n  demo\n---\n", None),
            ("---\nname: &a demo\n---\n", None),
            ("---\nname:\n---\n", None),
            ("name: demo\n", None),
            ("", None),
            ("---\nname: \x1b[31m\n---\n", Some("\\u{1b}[31m")),
        ] {
            assert_eq!(declared(text).as_deref(), want, "{text:?}");
        }
    }
}
