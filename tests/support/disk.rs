//! Small file systems for tests that fill one. The real disk is never filled.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::path::{Path, PathBuf};

/// A tmpfs; gone when dropped.
pub struct Small(PathBuf);

impl Small {
    /// Mounts one of `size` (`64m`) at a directory.
    pub fn mount(at: &Path, size: &str) -> Small {
        let options = format!("size={size},mode=755");
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Small(at.to_owned())
    }

    /// Where the broker of an `up` with this source will have its state, on a small disk of its own.
    pub fn of_broker(source: &Path, size: &str) -> Small {
        let state = source.parent().unwrap().join("state");
        let broker = state.join("broker");
        std::fs::create_dir_all(&broker).unwrap();
        // Else `up` takes it for somebody else's.
        std::fs::write(state.join(cyberos_broker::grants::UP_MARK), "").unwrap();
        Small::mount(&broker, size)
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        let fs = nix::sys::statvfs::statvfs(&self.0).unwrap();
        fs.blocks_available() * fs.fragment_size()
    }

    /// Leaves so many bytes free, by a file that is removed to give them back.
    pub fn fill(&self, leave: u64) -> PathBuf {
        let filler = self.0.join("filler");
        let bytes = vec![0u8; usize::try_from(self.free().saturating_sub(leave)).unwrap()];
        std::fs::write(&filler, bytes).unwrap();
        filler
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // What is still open on it goes with whoever holds it.
        if let Err(e) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("{}: {e}", self.0.display());
        }
    }
}
