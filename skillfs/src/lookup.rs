//! What the view answers, without FUSE: one lookup is one straight line.
//!
//! ```text
//! kernel → fs → child(parent, name) → open beneath the shown tree → catch up with the watch → note the name
//!        → is that tree still shown, unchanged? → is the file as it was decided? → intern → entry
//! ```
//!
//! The order matters twice. The watch is drained after the source was read, so that an edit which had ended before
//! is known before we answer. The name is noted before the state is read that the answer rests on, so that a flip
//! in between finds it; names that are not there are not noted, since the kernel never keeps those.

use crate::inode::{self, Directory, Inodes, Node, Object, Top};
use crate::listing::Entry;
use crate::mapping::{Mapping, Showing, SkillId, Touch, Tree};
use crate::watch::Watch;
use crate::{attributes, beneath, view};
use fuser::{FileAttr, FileType};
use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat, fstatat};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// How often a lookup is tried anew when what is shown changes under it.
const TRIES: usize = 8;
/// Entries of a directory that are prepared for one answer; an answer of the kernel's size holds fewer.
const PAGE: usize = 2048;

/// The view of one mount.
#[derive(Debug)]
pub struct View {
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    inodes: Arc<Inodes>,
    /// Owner of everything, if configured.
    owner: Option<(u32, u32)>,
}

/// A directory with what is read of it now.
enum Place {
    Top(Arc<Top>),
    Node(Arc<Node>),
}

impl Place {
    fn skill(&self) -> SkillId {
        match self {
            Place::Top(top) => top.skill,
            Place::Node(node) => node.skill,
        }
    }

    fn directory(&self) -> &Directory {
        match self {
            Place::Top(top) => &top.directory,
            Place::Node(node) => &node.directory,
        }
    }

    /// Levels below the tree's top.
    fn level(&self) -> usize {
        match self {
            Place::Top(_) => 0,
            Place::Node(node) => node.depth() + 1,
        }
    }

    fn is_top(&self) -> bool {
        matches!(self, Place::Top(_))
    }

    /// Whether a directory that was opened inside the tree still is: one that was moved out, or to where nobody looks, is
    /// watched no more.
    fn is_inside(&self, tree: &Tree, keeps: bool) -> bool {
        match self {
            Place::Top(_) => true,
            Place::Node(node) => {
                beneath::is_below(&tree.root, &*node.fd(), |top| view::is_left_out(top, keeps))
            }
        }
    }

    fn with_fd<T>(&self, tree: &Tree, f: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> T) -> T {
        match self {
            Place::Top(_) => f(tree.root.as_fd()),
            Place::Node(node) => f(node.fd().as_fd()),
        }
    }
}

impl View {
    /// A view for a new mount.
    pub fn new(
        mapping: Arc<Mapping>,
        watch: Arc<Watch>,
        inodes: Arc<Inodes>,
        owner: Option<(u32, u32)>,
    ) -> Self {
        View { mapping, watch, inodes, owner }
    }

    /// The entry of that name in the directory `parent`, counted as one lookup.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        match self.inodes.get(parent)? {
            Object::Root => {
                self.watch.catch_up_roots();
                let skill = name.to_str().and_then(|n| self.mapping.find(n)).ok_or(Errno::ENOENT)?;
                self.watch.catch_up(skill);
                let tree = self.mapping.shown(skill).ok_or(Errno::ENOENT)?;
                self.top_attributes(&self.inodes.top(skill), &tree)
            }
            Object::Top(top) => self.child(&Place::Top(top), name),
            Object::Node(node) if node.is_directory => self.child(&Place::Node(node), name),
            Object::Node(_) => Err(Errno::ENOTDIR),
        }
    }

    /// What is shown of the directory's skill; nothing if the directory lies in another tree. Who works in a tree that is
    /// not shown any more finds nothing new there.
    fn shown_in(&self, place: &Place) -> Result<Showing, Errno> {
        let showing = self.mapping.showing(place.skill()).ok_or(Errno::ENOENT)?;
        match place {
            Place::Node(node) if node.tree != showing.tree.number => Err(Errno::ENOENT),
            _ => Ok(showing),
        }
    }

    fn child(&self, place: &Place, name: &OsStr) -> Result<FileAttr, Errno> {
        let keeps = self.mapping.keeps_live();
        if place.is_top() && view::is_left_out(name.as_bytes(), keeps) {
            return Err(Errno::ENOENT);
        }
        for _ in 0..TRIES {
            let before = self.shown_in(place)?;
            let found = place.with_fd(&before.tree, |dir| {
                let fd = beneath::pin(dir, name)?;
                let st = fstat(&fd)?;
                Ok((fd, st))
            });
            let inside = place.is_inside(&before.tree, keeps);
            self.watch.catch_up(place.skill());
            if found.is_ok() {
                place.directory().note(name);
            }
            let now = self.shown_in(place)?;
            if !now.is_still(&before) {
                continue;
            }
            if !inside {
                return Err(Errno::ENOENT);
            }
            // A mount point inside the source is not entered, and looks as if it were not there.
            let (fd, st) = found.map_err(|e| if e == Errno::EXDEV { Errno::ENOENT } else { e })?;
            let kind = view::kind(st.st_mode).ok_or(Errno::ENOENT)?;
            if kind == FileType::RegularFile && !now.is_as_decided(&st) {
                self.changed_unseen(place.skill(), &now.tree);
                continue;
            }
            let node = self.inodes.intern(place.skill(), &now.tree, place.level(), !keeps, fd, &st);
            return Ok(attributes::of(node.id, kind, &st, self.owner));
        }
        Err(Errno::EAGAIN)
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
                let kind = view::kind(st.st_mode).ok_or(Errno::ENOENT)?;
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
        if view::link_stays(node.depth(), target.as_bytes()) { Ok(target) } else { Err(Errno::EACCES) }
    }

    /// Refuses a file that is not what it was when it was shown: it was edited in place under an open handle. What it was
    /// opened on is no more, and what is there now was not decided, or was decided for others: so it is neither (ESTALE).
    fn as_shown(&self, node: &Node, st: &FileStat) -> Result<(), Errno> {
        if self.mapping.keeps_live() || node.is_as_shown(st) {
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
        let fd = node.readable()?;
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

    /// A page of the directory behind `offset`; offsets 1 and 2 are `.` and `..`.
    pub fn list(&self, id: u64, offset: u64) -> Result<Vec<Listed>, Errno> {
        let mut page = Vec::new();
        for (at, name) in [(1, "."), (2, "..")] {
            if offset < at {
                page.push(Listed { offset: at, id, kind: FileType::Directory, name: name.into() });
            }
        }
        match self.inodes.get(id)? {
            Object::Root => page.extend(self.list_root(offset)?),
            Object::Top(top) => page.extend(self.list_in(&Place::Top(top), offset)?),
            Object::Node(node) if node.is_directory => page.extend(self.list_in(&Place::Node(node), offset)?),
            Object::Node(_) => return Err(Errno::ENOTDIR),
        }
        Ok(page)
    }

    /// Offsets at the root are a skill's number, which stays with its name.
    fn list_root(&self, offset: u64) -> Result<Vec<Listed>, Errno> {
        self.watch.catch_up_all();
        let first = u32::try_from(offset.saturating_sub(2)).map_err(|_| Errno::EINVAL)?;
        let shown = self.mapping.shown_from(first, PAGE).into_iter();
        Ok(shown
            .map(|(skill, name, _)| Listed {
                offset: u64::from(skill.0) + 3,
                id: inode::top_id(skill),
                kind: FileType::Directory,
                name: name.as_str().into(),
            })
            .collect())
    }

    fn list_in(&self, place: &Place, offset: u64) -> Result<Vec<Listed>, Errno> {
        let keeps = self.mapping.keeps_live();
        let left_out = |name: &OsStr| place.is_top() && view::is_left_out(name.as_bytes(), keeps);
        for _ in 0..TRIES {
            let before = self.shown_in(place)?;
            let tree = &before.tree;
            let mut listing =
                place.directory().listing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if listing.is_stale(before.version(), offset) {
                let now = place.with_fd(tree, |dir| visible(dir, &left_out))?;
                listing.replace(before.version(), now);
            }
            let entries = listing.after(offset.max(2), PAGE);
            drop(listing);
            let device = place.with_fd(tree, |dir| fstat(dir))?.st_dev;
            let inside = place.is_inside(tree, keeps);
            self.watch.catch_up(place.skill());
            if !self.shown_in(place)?.is_still(&before) {
                continue;
            }
            if !inside {
                return Err(Errno::ENOENT);
            }
            let listed = |e: Entry| Listed {
                offset: e.offset,
                id: self.inodes.id_of(tree.number, device, e.inode),
                kind: e.kind,
                name: e.name,
            };
            return Ok(entries.into_iter().map(listed).collect());
        }
        Err(Errno::EAGAIN)
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
    fn top_attributes(&self, top: &Top, tree: &Tree) -> Result<FileAttr, Errno> {
        let st = fstat(&tree.root)?;
        let id = inode::top_id(top.skill);
        Ok(FileAttr { nlink: 1, ..attributes::of(id, FileType::Directory, &st, self.owner) })
    }
}

/// One line of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where a reader goes on behind it.
    pub offset: u64,
    /// Its inode number.
    pub id: u64,
    /// Its type.
    pub kind: FileType,
    /// Its name.
    pub name: OsString,
}

/// What a directory holds that may be shown.
fn visible(
    directory: std::os::fd::BorrowedFd<'_>,
    left_out: &dyn Fn(&OsStr) -> bool,
) -> Result<Vec<(OsString, u64, FileType)>, Errno> {
    use nix::dir::Type;
    let mut out = Vec::new();
    for entry in beneath::list(directory)? {
        if left_out(&entry.name) {
            continue;
        }
        let kind = match entry.kind {
            Some(Type::File) => Some(FileType::RegularFile),
            Some(Type::Directory) => Some(FileType::Directory),
            Some(Type::Symlink) => Some(FileType::Symlink),
            Some(Type::Fifo) => Some(FileType::NamedPipe),
            Some(Type::Socket) => Some(FileType::Socket),
            Some(Type::BlockDevice | Type::CharacterDevice) => None,
            None => fstatat(directory, entry.name.as_os_str(), nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
                .ok()
                .and_then(|st| view::kind(st.st_mode)),
        };
        out.extend(kind.map(|kind| (entry.name, entry.inode, kind)));
    }
    Ok(out)
}
