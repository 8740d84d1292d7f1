//! What is mounted in this process's namespace, and whether that is still so. Reading it asks no file system anything. It
//! decides nothing about what it finds.

use crate::sys::{self, Sys};
use cyberos_proto::mounts::{Mount, mounts};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

/// All mounts at one moment, with the open file that tells when one has come or gone since.
pub(crate) struct Table {
    pub(crate) mounts: Vec<Mount>,
    file: File,
}

impl Table {
    /// As it is now. The helper is in /proc.
    pub(crate) fn read() -> Sys<Table> {
        let mut file = File::from(sys::open("self/mountinfo", OFlag::O_RDONLY)?);
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|_| Errno::EIO)?;
        Ok(Table { mounts: mounts(text), file })
    }

    /// Whether no mount has come or gone since: the kernel reports that as an error of the file.
    pub(crate) fn is_current(&self) -> bool {
        !sys::hung_up(self.file.as_fd())
    }
}
