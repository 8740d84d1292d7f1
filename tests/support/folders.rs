//! Folders of a test's own, which are gone when it has ended, well or not.

use super::machine::mount_points;
use nix::mount::{MntFlags, umount2};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder. What cannot be removed fails the test, since it is something that was left behind: a mount, mostly.
pub struct Folder(PathBuf);

impl Folder {
    /// In `parent`.
    pub fn below(parent: &str, prefix: &str) -> Folder {
        Folder(tempfile::Builder::new().prefix(prefix).tempdir_in(parent).unwrap().keep())
    }
}

/// A folder that every user can reach and only root can change. /tmp has sandboxes' own things, so it is not there.
pub fn reachable_dir(prefix: &str) -> Folder {
    let dir = Folder::below("/var/tmp", prefix);
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

impl Drop for Folder {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound && !std::thread::panicking() => {
                panic!("{} is left behind: {e}", self.0.display());
            }
            _ => {}
        }
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

/// A folder in /tmp of a test that starts daemons. Whoever is killed leaves it behind, and the next one that is made takes
/// it away: a lock on it says that its test still lives.
pub struct Held {
    dir: tempfile::TempDir,
    _lock: File,
}

/// Others have had time to lock what they have just made.
const SETTLED: Duration = Duration::from_secs(60);

impl Held {
    /// Makes one, and takes away those of the same prefix that nobody holds.
    pub fn new(prefix: &str) -> Held {
        let prefix = format!("{prefix}held-");
        Held::sweep(&std::env::temp_dir(), &prefix, SETTLED);
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let lock = File::open(dir.path()).unwrap();
        lock.lock().unwrap();
        Held { dir, _lock: lock }
    }

    /// Takes away what nobody holds, unless it has just been made.
    pub fn sweep(parent: &Path, prefix: &str, settled: Duration) {
        for entry in std::fs::read_dir(parent).unwrap().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let old = |m: std::fs::Metadata| {
                m.is_dir() && m.modified().unwrap().elapsed().is_ok_and(|age| age >= settled)
            };
            if !name.to_string_lossy().starts_with(prefix) || !entry.metadata().is_ok_and(old) {
                continue;
            }
            if File::open(&path).is_ok_and(|dir| dir.try_lock().is_ok()) {
                // A view whose server has gone cannot be looked into.
                for mounted in mount_points().iter().rev().filter(|mounted| mounted.starts_with(&path)) {
                    let _ = umount2(mounted, MntFlags::MNT_DETACH);
                }
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}
