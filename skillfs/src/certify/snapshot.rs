//! Copies a skill into a snapshot while it is walked, so that what is signed is what was copied, and takes unfinished copies
//! away. It knows no manifests; `certify` calls it.
//!
//! Modes are normalised (0444; 0555 for folders and for files with any x bit), nothing is writable, every hard link becomes a
//! file of its own, links are kept as they are: what SkillFS asks of a snapshot (`[9.6]`). Owners, times and extended
//! attributes are not carried over.

use super::removal::{Removal, Stays};
use super::tree::{self, MAX_ENTRIES, Rules, TreeError, Visitor, c_path};
use super::words::shown;
use crate::beneath;
use cyberos_proto::tree::Entry;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::symlinkat;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// First bytes of the name of everything unfinished.
pub const TEMPORARY: &str = ".tmp-";

/// A finished copy that has not got its name yet. As long as it is held nobody takes it for a left-over.
pub struct Taken {
    /// What was copied.
    pub entries: Vec<Entry>,
    root: Flock<OwnedFd>,
}

impl Taken {
    /// The copy.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Copies the tree below `skill` into the folder `name`, which is made below `versions`, and returns its entries. After an
/// error the unfinished copy is gone.
pub fn take(skill: BorrowedFd<'_>, versions: BorrowedFd<'_>, name: &str) -> Result<Taken, TreeError> {
    let own = |e: Errno| TreeError::Visitor { path: name.to_owned(), error: e.into() };
    mkdirat(versions, name, Mode::S_IRWXU).map_err(own)?;
    let taken = beneath::open_dir(versions, name).map_err(own).and_then(|root| {
        // Its folder is 0700 until it is whole, so no stranger can have this lock.
        let root = Flock::lock(root, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| own(e))?;
        let mut copy = Copy { root, folders: Vec::new(), file: None };
        let entries = tree::walk(skill, Rules::Publish, &mut copy)?;
        let root = copy.close().map_err(|error| TreeError::Visitor { path: name.to_owned(), error })?;
        Ok(Taken { entries, root })
    });
    if taken.is_err() {
        discard(versions, name);
    }
    taken
}

/// Removes what earlier runs left unfinished. What another run is still at (one with another key, or a prune) it holds
/// locked, and that stays; so does what cannot be taken away safely or soon, of which the first is named.
pub fn discard_unfinished(versions: BorrowedFd<'_>) {
    let Ok(names) = beneath::list_in_order(versions, MAX_ENTRIES) else { return };
    let (mut first, mut left) = (None, 0);
    let Ok(mut removal) = Removal::new(versions) else { return };
    for (name, _) in names {
        let Some(text) = name.to_str().ok().filter(|n| n.starts_with(TEMPORARY)) else { continue };
        let held = beneath::open(versions, text, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
            .map(|fd| Flock::lock(fd, FlockArg::LockExclusiveNonblock));
        if matches!(held, Ok(Err((_, Errno::EAGAIN)))) {
            continue;
        }
        match removal.remove(versions, &name) {
            Ok(()) => {}
            // All that is left is for the next run.
            Err(Stays::Later) => {
                tracing::warn!(
                    "left behind in .skill-meta/versions: {}: {}",
                    shown(text.as_bytes(), 64),
                    Stays::Later
                );
                break;
            }
            Err(why) => {
                left += 1;
                first.get_or_insert((text.to_owned(), why));
            }
        }
    }
    if let Some((name, why)) = first {
        let more = if left > 1 { format!(" (and {} more)", left - 1) } else { String::new() };
        tracing::warn!("left behind in .skill-meta/versions: {}{more}: {why}", shown(name.as_bytes(), 64));
    }
}

/// A name of something unfinished that nothing has yet.
pub fn temporary_name() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    super::keys::draw(&mut bytes).map_err(|e| beneath::errno(&e))?;
    Ok(format!("{TEMPORARY}{:016x}", u64::from_be_bytes(bytes)))
}

/// Removes the file or folder `name`. What cannot be removed stays: nothing believes in a thing of such a name.
pub fn discard(versions: BorrowedFd<'_>, name: &str) {
    let Ok(path) = c_path(name.as_bytes()) else { return };
    if let Err(why) = Removal::new(versions).map_err(Stays::Os).and_then(|mut r| r.remove(versions, &path)) {
        tracing::warn!("left behind in .skill-meta/versions: {}: {why}", shown(name.as_bytes(), 64));
    }
}

/// Writes what the walk sees. Its folder is its owner's alone (0700) until it is closed, so the paths in it are safe.
struct Copy {
    root: Flock<OwnedFd>,
    folders: Vec<Vec<u8>>,
    file: Option<File>,
}

impl Copy {
    /// Gives the folders their final mode, the root last: until then nobody else gets in.
    fn close(self) -> io::Result<Flock<OwnedFd>> {
        let mode = Mode::from_bits_truncate(0o555);
        for path in &self.folders {
            fchmod(beneath::open_dir(&*self.root, path.as_slice())?, mode)?;
        }
        fchmod(&*self.root, mode)?;
        Ok(self.root)
    }

    /// The folder that `path` lies in, and its name there.
    fn place<'p>(&self, path: &'p [u8]) -> io::Result<(OwnedFd, &'p [u8])> {
        let (folder, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (path.get(..slash).unwrap_or_default(), path.get(slash + 1..).unwrap_or_default()),
            None => (b".".as_slice(), path),
        };
        Ok((beneath::open_dir(&*self.root, folder)?, name))
    }
}

impl Visitor for Copy {
    fn directory(&mut self, path: &[u8]) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        mkdirat(folder, name, Mode::S_IRWXU)?;
        self.folders.push(path.to_vec());
        Ok(())
    }

    fn file(&mut self, path: &[u8]) -> io::Result<()> {
        self.file = Some(beneath::create_file(&*self.root, path)?);
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn file_end(&mut self, executable: bool) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let mode = if executable { 0o555 } else { 0o444 };
        Ok(fchmod(&file, Mode::from_bits_truncate(mode))?)
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        Ok(symlinkat(std::ffi::OsStr::from_bytes(target), folder, name)?)
    }
}
