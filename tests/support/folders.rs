//! Folders of a test's own, which are gone when it has ended, well or not.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

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
