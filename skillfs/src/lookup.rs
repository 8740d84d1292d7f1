//! What the view answers, without FUSE: one lookup is one straight line.
//!
//! ```text
//! kernel → fs → child(parent, name) → open beneath the shown tree → catch up with the watch → note the name
//!        → is that tree still shown, unchanged? → is the file as it was decided? → intern → entry
//! ```
//!
//! A page of a directory (`page.rs`) is the same line for all its names at once: it is taken once for them.
//!
//! The order matters twice. The watch is drained after the source was read, so that an edit which had ended before
//! is known before we answer. The name is noted before the state is read that the answer rests on, so that a flip
//! in between finds it; names that are not there are not noted, since the kernel never keeps those.

use crate::counters::Counters;
use crate::decision::{SkillId, Touch};
use crate::folder::Folder;
use crate::inode::{self, Inodes, Node, Object, Top};
use crate::mapping::Mapping;
use crate::tree::{Showing, Tree};
use crate::watch::Watch;
use crate::{attributes, beneath, exposure};
use fuser::{FileAttr, FileType};
use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// How often a lookup is tried anew when what is shown changes under it.
const TRIES: usize = 8;

/// The view of one mount.
#[derive(Debug)]
pub struct ViewFs {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) inodes: Arc<Inodes>,
    /// Owner of everything, if configured.
    owner: Option<(u32, u32)>,
    pub(crate) counters: Arc<Counters>,
}

/// What was found under one name.
pub(crate) struct Found {
    pub(crate) name: OsString,
    fd: OwnedFd,
    st: FileStat,
}

impl Found {
    /// Looks under that name, without following it.
    pub(crate) fn under(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Self, Errno> {
        // A mount point inside the source is not entered, and looks as if it were not there.
        let fd =
            beneath::pin(directory, name).map_err(|e| if e == Errno::EXDEV { Errno::ENOENT } else { e })?;
        let st = fstat(&fd)?;
        Ok(Found { name: name.to_owned(), fd, st })
    }

    fn kind(&self) -> Option<FileType> {
        exposure::kind(self.st.st_mode)
    }
}

impl ViewFs {
    /// A view for a new mount.
    pub fn new(
        mapping: Arc<Mapping>,
        watch: Arc<Watch>,
        inodes: Arc<Inodes>,
        owner: Option<(u32, u32)>,
        counters: Arc<Counters>,
    ) -> Self {
        ViewFs { mapping, watch, inodes, owner, counters }
    }

    /// The entry of that name in the directory `parent`, counted as one lookup.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        self.counters.lookups.add(1);
        match self.inodes.get(parent)? {
            Object::Root => {
                self.watch.catch_up_roots();
                let skill = name.to_str().and_then(|n| self.mapping.find(n)).ok_or(Errno::ENOENT)?;
                self.watch.catch_up(skill);
                let tree = self.mapping.shown(skill).ok_or(Errno::ENOENT)?;
                self.top_attributes(&self.inodes.top(skill), &tree)
            }
            Object::Top(top) => self.child(&Folder::Top(top), name),
            Object::Node(node) if node.is_directory => self.child(&Folder::Node(node), name),
            Object::Node(_) => Err(Errno::ENOTDIR),
        }
    }

    /// What is shown of the directory's skill; nothing if the directory lies in another tree. Who works in a tree that is
    /// not shown any more finds nothing new there.
    fn shown_in(&self, folder: &Folder) -> Result<Showing, Errno> {
        let showing = self.mapping.showing(folder.skill()).ok_or(Errno::ENOENT)?;
        if folder.is_of(&showing.tree) { Ok(showing) } else { Err(Errno::ENOENT) }
    }

    /// What `read` gives of a directory as it is shown, with what it has found under names in it. It is done anew until
    /// nothing has changed under it: one look at the watch, and one at the mapping before and after, for all of it.
    pub(crate) fn steady<T>(
        &self,
        folder: &Folder,
        mut read: impl FnMut(&Showing, &mut Vec<Found>) -> Result<T, Errno>,
    ) -> Result<(T, Showing, Vec<Found>), Errno> {
        for _ in 0..TRIES {
            let before = self.shown_in(folder)?;
            let mut found = Vec::new();
            let got = read(&before, &mut found);
            let inside = folder.is_inside(&before.tree, self.mapping.keeps_live());
            self.watch.catch_up(folder.skill());
            folder.directory().note(found.iter().map(|f| f.name.as_os_str()));
            let now = self.shown_in(folder)?;
            if !now.is_still(&before) {
                continue;
            }
            if !inside {
                return Err(Errno::ENOENT);
            }
            let is_changed = |f: &Found| f.kind() == Some(FileType::RegularFile) && !now.is_as_decided(&f.st);
            if found.iter().any(is_changed) {
                self.changed_unseen(folder.skill(), &now.tree);
                continue;
            }
            return Ok((got?, now, found));
        }
        Err(Errno::EAGAIN)
    }

    /// What the kernel is told of what was found and is shown, each counted as one lookup; nothing of what is never shown.
    pub(crate) fn entries(
        &self,
        folder: &Folder,
        shown: &Showing,
        found: Vec<Found>,
    ) -> Vec<(OsString, FileAttr)> {
        let retire = !self.mapping.keeps_live();
        let mut inodes = self.inodes.interning();
        let entry = |f: Found| {
            let kind = f.kind()?;
            let node = inodes.intern(folder.skill(), &shown.tree, folder.level(), retire, f.fd, &f.st);
            Some((f.name, attributes::of(node.id, kind, &f.st, self.owner)))
        };
        found.into_iter().filter_map(entry).collect()
    }

    fn child(&self, folder: &Folder, name: &OsStr) -> Result<FileAttr, Errno> {
        if folder.is_top() && exposure::is_left_out(name.as_bytes(), self.mapping.keeps_live()) {
            return Err(Errno::ENOENT);
        }
        let ((), shown, found) = self.steady(folder, |shown, found| {
            found.push(folder.with_fd(&shown.tree, |dir| Found::under(dir, name))?);
            Ok(())
        })?;
        let entry = self.entries(folder, &shown, found).pop();
        entry.map(|(_, attr)| attr).ok_or(Errno::ENOENT)
    }

    /// A file is not what was decided, and nobody has told of it: so this is how it is seen.
    fn changed_unseen(&self, skill: SkillId, tree: &Tree) {
        tracing::info!(skill = ?self.mapping.name(skill), "a file was changed by a way that no watch tells of");
        self.watch.report(skill, if tree.live { &Touch::Live } else { &Touch::Place });
    }

    /// Attributes of what `id` stands for.
    pub fn getattr(&self, id: u64) -> Result<FileAttr, Errno> {
        match self.inodes.get(id)? {
            Object::Root => Ok(attributes::root(self.mapping.names_changed(), self.owner)),
            Object::Top(top) => {
                let tree = self.mapping.shown(top.skill).ok_or(Errno::ENOENT)?;
                self.top_attributes(&top, &tree)
            }
            Object::Node(node) => {
                let st = inode::status(&node.fd())?;
                let kind = exposure::kind(st.st_mode).ok_or(Errno::ENOENT)?;
                if kind == FileType::RegularFile {
                    self.as_shown(&node, &st)?;
                }
                Ok(attributes::of(id, kind, &st, self.owner))
            }
        }
    }

    /// The target of a symlink, if it stays inside the skill.
    pub fn readlink(&self, id: u64) -> Result<OsString, Errno> {
        let Object::Node(node) = self.inodes.get(id)? else { return Err(Errno::EINVAL) };
        let target = nix::fcntl::readlinkat(&*node.fd(), "")?;
        if exposure::link_stays(node.depth(), target.as_bytes()) { Ok(target) } else { Err(Errno::EACCES) }
    }

    /// Refuses a file that is not what it was when it was shown: it was edited in place under an open handle. What it was
    /// opened on is no more, and what is there now was not decided, or was decided for others: so it is neither (ESTALE).
    fn as_shown(&self, node: &Node, st: &FileStat) -> Result<(), Errno> {
        if self.mapping.keeps_live() || node.is_as_shown(st, self.watch.is_our_uid(st.st_uid)) {
            return Ok(());
        }
        self.watch.catch_up(node.skill);
        if let Some(now) = self.mapping.showing(node.skill)
            && now.tree.number == node.tree
            && st.st_nlink > 0
            && !now.is_as_decided(st)
        {
            self.changed_unseen(node.skill, &now.tree);
        }
        Err(Errno::ESTALE)
    }

    /// Up to `size` bytes of a file, if it is still as it was shown.
    pub fn read(&self, id: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let Object::Node(node) = self.inodes.get(id)? else { return Err(Errno::EISDIR) };
        let fd = node.readable(|| self.counters.opens.add(1))?;
        let mut buffer = vec![0; usize::try_from(size).map_err(|_| Errno::EINVAL)?];
        let mut got = 0;
        while got < buffer.len() {
            let at = offset.checked_add(u64::try_from(got).unwrap_or(u64::MAX)).ok_or(Errno::EINVAL)?;
            let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
            match nix::sys::uio::pread(&*fd, &mut buffer[got..], at) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        buffer.truncate(got);
        self.as_shown(&node, &fstat(&*fd)?)?;
        Ok(buffer)
    }

    /// The kernel gives lookups back.
    pub fn forget(&self, id: u64, lookups: u64) {
        self.inodes.forget(id, lookups);
    }

    /// Numbers of the file system that the shown tree of `id` lies on; of the first skill's at the root.
    pub fn statfs(&self, id: u64) -> Result<nix::sys::statvfs::Statvfs, Errno> {
        let tree = match self.inodes.get(id)? {
            Object::Node(node) => return nix::sys::statvfs::fstatvfs(&*node.fd()),
            Object::Top(top) => self.mapping.shown(top.skill),
            Object::Root => self.mapping.shown_from(0, 1).pop().map(|(_, _, tree)| tree),
        };
        nix::sys::statvfs::fstatvfs(&tree.ok_or(Errno::ENOENT)?.root)
    }

    /// A top's link count is 1, "not told": the source's would tell of the provider's folder.
    pub(crate) fn top_attributes(&self, top: &Top, tree: &Tree) -> Result<FileAttr, Errno> {
        let st = fstat(&tree.root)?;
        let id = inode::top_id(top.skill);
        Ok(FileAttr { nlink: 1, ..attributes::of(id, FileType::Directory, &st, self.owner) })
    }
}
