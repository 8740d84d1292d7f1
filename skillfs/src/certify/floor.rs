//! What the provider remembers of a skill outside the skill's folder: the newest signed version that it has seen (`[9.10]`).
//! Whoever can write the source can put an older, well-signed version back; this record is what gives him away. It knows
//! no signatures: `resolve` hands it only what was verified.
//!
//! One small file a skill, named by the SHA-256 of the folder's absolute path as SkillFS spells it. The path and not the
//! inode, nor the path with links resolved: those two are the source's owner's to change.

use super::manifest::{Version, VersionRef};
use crate::beneath;
use cyberos_proto::tree::{is_written, written};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where records are kept unless `--state` says otherwise.
pub const DEFAULT_STATE: &str = "/var/lib/cyberos-skillfs/ledger";

const MAX_RECORD: u64 = 8 << 10;
const LOCK: &str = ".lock";
/// How long another run is waited for; each holds the lock for one small file.
const PATIENCE: Duration = Duration::from_secs(10);

/// The newest signed version seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Floor {
    /// Its number.
    pub newest: Version,
    /// SHA-256 of its manifest, written: a second manifest of the same number is no less a replay.
    pub manifest: String,
    /// The version that it says to trust.
    pub trusted: Option<VersionRef>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// For people who look into the file.
    skill: String,
    floor: Floor,
}

/// Why the records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// Others could rewrite them.
    #[error("the state folder {} can be written by others, or belongs to neither root nor this user: make it \
             mode 0700 and this user's", .0.display())]
    Unsafe(PathBuf),
    /// A record is not as it was written.
    #[error("the record {} is damaged: remove it when you have looked at the skill's versions", .0.display())]
    Damaged(PathBuf),
    /// What stands for the lock is none.
    #[error("the lock {} is no empty file of its own (it is a link, has a second name, or holds something): \
             look at who put it there, then remove it", .0.display())]
    StrangeLock(PathBuf),
    /// The kernel refused.
    #[error("the state folder {}: {doing}: {}; it must be writable by this user (--state DIR names another)", path.display(), errno.desc())]
    Io {
        /// The folder or record.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// The folder of records.
pub struct Floors {
    path: PathBuf,
}

impl Floors {
    /// The folder at `path`; it is made when the first record is written.
    pub fn new(path: &Path) -> Self {
        Floors { path: path.to_owned() }
    }

    /// What is remembered of the skill at this absolute path.
    pub fn read(&self, skill: &Path) -> Result<Option<Floor>, FloorError> {
        let Some(dir) = self.open()? else { return Ok(None) };
        self.read_in(&dir, &file_name(skill))
    }

    /// Remembers `floor`, unless something newer is remembered already.
    pub fn raise(&self, skill: &Path, floor: &Floor) -> Result<(), FloorError> {
        let name = file_name(skill);
        let dir = match self.open()? {
            Some(dir) => dir,
            None => {
                self.make()?;
                self.open()?.ok_or_else(|| self.io("opening", Errno::ENOENT))?
            }
        };
        if self.read_in(&dir, &name)?.is_some_and(|known| known.newest >= floor.newest) {
            return Ok(());
        }
        // Held while reading again and writing: of two runs at once, the one with the older version must not win.
        let _alone = self.lock(&dir)?;
        if self.read_in(&dir, &name)?.is_some_and(|known| known.newest >= floor.newest) {
            return Ok(());
        }
        let record =
            Record { skill: super::words::shown(skill.as_os_str().as_bytes(), 1024), floor: floor.clone() };
        let mut bytes = serde_json::to_vec(&record).map_err(|_| self.io("writing", Errno::EINVAL))?;
        bytes.push(b'\n');
        let temporary = format!(".{name}.{}", std::process::id());
        let written = beneath::create_file(&dir, temporary.as_str()).and_then(|mut file| {
            // Root may have been here first; SkillFS's user must still be able to read it.
            nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(0o644))?;
            file.write_all(&bytes).map_err(|e| beneath::errno(&e))?;
            renameat(&dir, temporary.as_str(), &dir, name.as_str())
        });
        written.map_err(|e| {
            // A temporary file that stays is in nobody's way; the first error is the one to tell.
            let _ = unlinkat(&dir, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
            self.io("writing a record", e)
        })
    }

    /// The lock of the folder: itself, or where others may read it a file of its own, which its user alone (and root) can
    /// open. What a stranger can open he can lock, and hold for ever.
    fn lock(&self, dir: &OwnedFd) -> Result<Flock<File>, FloorError> {
        let mut file = self.lock_file(dir)?;
        let start = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EAGAIN | Errno::EINTR)) if start.elapsed() < PATIENCE => file = back,
                Err((_, e)) => return Err(self.io("locking", e)),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn lock_file(&self, dir: &OwnedFd) -> Result<File, FloorError> {
        let failed = |e: Errno| self.io("opening its lock", e);
        let folder = fstat(dir).map_err(failed)?;
        if beneath::permissions(&folder) & 0o077 == 0 {
            return dir.try_clone().map(File::from).map_err(|e| failed(beneath::errno(&e)));
        }
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let strange = || FloorError::StrangeLock(self.path.join(LOCK));
        let file = match openat(dir, LOCK, flags, private) {
            Ok(file) => File::from(file),
            Err(Errno::ELOOP | Errno::EISDIR | Errno::ENXIO) => return Err(strange()),
            Err(e) => return Err(failed(e)),
        };
        let stat = fstat(&file).map_err(failed)?;
        // The folder's user could have put another name of root's file here, to be given it.
        if cyberos_proto::beneath::kind(&stat) != SFlag::S_IFREG || stat.st_nlink != 1 || stat.st_size != 0 {
            return Err(strange());
        }
        if stat.st_uid != folder.st_uid && geteuid().is_root() {
            // Root was here first; the folder's user must be able to open it.
            let owner = (Uid::from_raw(folder.st_uid), Gid::from_raw(folder.st_gid));
            fchown(&file, Some(owner.0), Some(owner.1)).map_err(failed)?;
        }
        if beneath::permissions(&stat) & 0o077 != 0 {
            nix::sys::stat::fchmod(&file, private).map_err(failed)?;
        }
        Ok(file)
    }

    /// Whether a record could be written now.
    pub fn check_writable(&self) -> Result<(), FloorError> {
        let at = if self.open()?.is_some() { Some(self.path.as_path()) } else { self.path.parent() };
        let at = at.unwrap_or(Path::new("/"));
        nix::unistd::faccessat(
            nix::fcntl::AT_FDCWD,
            at,
            nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK,
            nix::fcntl::AtFlags::AT_EACCESS,
        )
        .map_err(|e| self.io("writing", e))
    }

    fn open(&self) -> Result<Option<OwnedFd>, FloorError> {
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(&self.path);
        let dir = match opened {
            Ok(dir) => dir,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.io("opening", beneath::errno(&e))),
        };
        let stat = fstat(&dir).map_err(|e| self.io("looking at it", e))?;
        let me = geteuid();
        let mine = me.is_root() || stat.st_uid == me.as_raw() || stat.st_uid == 0;
        if beneath::permissions(&stat) & 0o022 != 0 || !mine {
            return Err(FloorError::Unsafe(self.path.clone()));
        }
        Ok(Some(dir.into()))
    }

    /// Makes the folder, private to this user. Root does not make it below somebody else's: it would own a folder that
    /// SkillFS's user needs, and giving it away would mean to trust a place that others rearrange.
    fn make(&self) -> Result<(), FloorError> {
        let above = self.path.parent().and_then(|p| p.metadata().ok());
        if geteuid().is_root() && above.is_some_and(|above| above.uid() != 0) {
            return Err(self.io("making it is for the user of the folder above", Errno::EACCES));
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(self.io("making it", beneath::errno(&e)))
            }
            _ => Ok(()),
        }
    }

    fn read_in(&self, dir: &OwnedFd, name: &str) -> Result<Option<Floor>, FloorError> {
        let damaged = || FloorError::Damaged(self.path.join(name));
        let file = match beneath::open_file(dir, name) {
            Ok((file, _)) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) if beneath::is_unreadable(e) => return Err(self.io("reading a record", e)),
            Err(_) => return Err(damaged()),
        };
        let bytes = beneath::read_open(file, MAX_RECORD).map_err(|e| self.io("reading a record", e))?;
        if bytes.is_empty() {
            // Records are not flushed one by one, so a power failure soon after the first can leave this. Nobody else can:
            // the folder is private.
            tracing::warn!(record = %self.path.join(name).display(), "empty, as after a power failure; it starts anew");
            return Ok(None);
        }
        let record: Record = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        let floor = record.floor;
        let whole = is_written(&floor.manifest)
            && floor.trusted.as_ref().is_none_or(|t| is_written(&t.tree_digest) && t.version <= floor.newest);
        if whole { Ok(Some(floor)) } else { Err(damaged()) }
    }

    fn io(&self, doing: &'static str, errno: Errno) -> FloorError {
        FloorError::Io { path: self.path.clone(), doing, errno }
    }
}

fn file_name(skill: &Path) -> String {
    written(&Sha256::digest(skill.as_os_str().as_bytes()).into()).replace("sha256:", "") + ".json"
}

#[cfg(test)]
mod tests;
