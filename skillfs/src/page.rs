//! A page of a directory: names alone, or names with what a lookup of each would say. `fs.rs` gives it an answer to fill.
//!
//! However many names it has, a page is read, looked at for changes, and checked again once (`lookup.rs` says in which
//! order). What the kernel had no room for is given back.

use crate::decision::SkillId;
use crate::folder::Folder;
use crate::inode::{self, Object};
use crate::listing::Entry;
use crate::lookup::{Found, ViewFs};
use crate::tree::{Showing, Tree};
use crate::{attributes, beneath, exposure};
use cyberos_proto::ids::SkillName;
use fuser::{FileAttr, FileType};
use nix::errno::Errno;
use nix::sys::stat::{fstat, fstatat};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};

/// Names that are prepared for one answer; an answer of the kernel's size holds fewer.
const NAMES: usize = 2048;
/// The same where each is looked up, for which something is held open: first about as many as an answer of 4 KiB holds, then,
/// while there is more room, twice as many each time.
const LOOKED_UP: usize = 32;
const MOST_LOOKED_UP: usize = 256;

/// One line of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where a reader goes on behind it.
    pub offset: u64,
    /// Its inode number.
    pub id: u64,
    /// Its type.
    pub kind: FileType,
    /// Its name.
    pub name: OsString,
}

/// A line with what the kernel is to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookedUp {
    /// Where a reader goes on behind it.
    pub offset: u64,
    /// Its name.
    pub name: OsString,
    /// What a lookup answers.
    pub attr: FileAttr,
    /// Whether it counts as a lookup: `.` and `..` do not.
    pub counted: bool,
}

/// A skill with what is shown of it.
type ShownSkill = (SkillId, SkillName, Arc<Tree>);

fn offset_behind(skill: SkillId) -> u64 {
    u64::from(skill.0) + 3
}

impl ViewFs {
    /// Gives `add` the lines of a directory behind `offset`, until it says that there is no more room. Offsets 1 and 2 are `.`
    /// and `..`.
    pub fn list(&self, id: u64, offset: u64, mut add: impl FnMut(&Line) -> bool) -> Result<(), Errno> {
        let dots = dots(offset).map(|(offset, name)| Line { offset, id, kind: FileType::Directory, name });
        let lines = match self.inodes.get(id)? {
            Object::Root => self.names_of_root(offset)?,
            Object::Top(top) => self.names_in(&Folder::Top(top), offset)?,
            Object::Node(node) if node.is_directory => self.names_in(&Folder::Node(node), offset)?,
            Object::Node(_) => return Err(Errno::ENOTDIR),
        };
        let _full = dots.chain(lines).any(|line| add(&line));
        Ok(())
    }

    /// The same with each line looked up.
    pub fn list_looked_up(
        &self,
        id: u64,
        offset: u64,
        mut add: impl FnMut(&LookedUp) -> bool,
    ) -> Result<(), Errno> {
        let folder = match self.inodes.get(id)? {
            Object::Root => None,
            Object::Top(top) => Some(Folder::Top(top)),
            Object::Node(node) if node.is_directory => Some(Folder::Node(node)),
            Object::Node(_) => return Err(Errno::ENOTDIR),
        };
        // Of these the kernel takes nothing but name, number and type.
        let attr = attributes::directory(id);
        let mut page: Vec<_> =
            dots(offset).map(|(offset, name)| LookedUp { offset, name, attr, counted: false }).collect();
        let mut add = |line: &LookedUp| {
            let full = add(line);
            self.counters.lookups.add(u64::from(line.counted && !full));
            full
        };
        let (mut at, mut most, mut filled) = (offset, LOOKED_UP, false);
        loop {
            let read = match &folder {
                None => self.page_of_root(at, most),
                Some(folder) => self.page_in(folder, at, most),
            };
            let next = match read {
                Ok((lines, next)) => {
                    page.extend(lines);
                    next
                }
                // What is there already is true; the rest is asked for again.
                Err(_) if filled => return Ok(()),
                Err(e) => return Err(e),
            };
            filled |= !page.is_empty();
            let mut lines = page.drain(..);
            let full = lines.by_ref().find(|line| add(line));
            if let Some(full) = full {
                let unsent = std::iter::once(full).chain(lines).filter(|line| line.counted);
                unsent.for_each(|line| self.forget(line.attr.ino.0, 1));
                return Ok(());
            }
            drop(lines);
            let Some(next) = next else { return Ok(()) };
            (at, most) = (next, (most * 2).min(MOST_LOOKED_UP));
        }
    }

    /// Offsets at the root are a skill's number, which stays with its name.
    fn shown_behind(&self, offset: u64, most: usize) -> Result<Vec<ShownSkill>, Errno> {
        let first = u32::try_from(offset.saturating_sub(2)).map_err(|_| Errno::EINVAL)?;
        Ok(self.mapping.shown_from(first, most))
    }

    fn names_of_root(&self, offset: u64) -> Result<Vec<Line>, Errno> {
        self.watch.catch_up_all();
        let line = |(skill, name, _): ShownSkill| Line {
            offset: offset_behind(skill),
            id: inode::top_id(skill),
            kind: FileType::Directory,
            name: name.as_str().into(),
        };
        Ok(self.shown_behind(offset, NAMES)?.into_iter().map(line).collect())
    }

    /// A page of the skills that are shown, and where the next one begins, if there may be one.
    fn page_of_root(&self, offset: u64, most: usize) -> Result<(Vec<LookedUp>, Option<u64>), Errno> {
        self.watch.catch_up_roots();
        let before = self.shown_behind(offset, most)?;
        let ids: BTreeSet<SkillId> = before.iter().map(|(id, ..)| *id).collect();
        self.watch.catch_up_each(ids.iter().copied());
        // Those that came in place of others were not caught up with.
        let now = self.shown_behind(offset, most)?.into_iter().filter(|(id, ..)| ids.contains(id));
        let line = |(id, name, tree): ShownSkill| {
            let attr = self.top_attributes(&self.inodes.top(id), &tree).ok()?;
            Some(LookedUp { offset: offset_behind(id), name: name.as_str().into(), attr, counted: true })
        };
        let next = before.last().filter(|_| before.len() == most).map(|(id, ..)| offset_behind(*id));
        Ok((now.filter_map(line).collect(), next))
    }

    fn names_in(&self, folder: &Folder, offset: u64) -> Result<Vec<Line>, Errno> {
        let ((entries, device), shown, _) = self.steady(folder, |shown, _| {
            let entries = self.entries_behind(folder, shown, offset, NAMES)?;
            Ok((entries, folder.with_fd(&shown.tree, |dir| fstat(dir))?.st_dev))
        })?;
        let line = |e: Entry| {
            let id = self.inodes.id_of(shown.tree.number, device, e.inode);
            Line { offset: e.offset, id, kind: e.kind, name: e.name }
        };
        Ok(entries.into_iter().map(line).collect())
    }

    /// The same as `page_of_root`. What went since it was listed is left out.
    fn page_in(
        &self,
        folder: &Folder,
        offset: u64,
        most: usize,
    ) -> Result<(Vec<LookedUp>, Option<u64>), Errno> {
        let (entries, shown, found) = self.steady(folder, |shown, found| {
            let entries = self.entries_behind(folder, shown, offset, most)?;
            folder.with_fd(&shown.tree, |dir| {
                found.extend(entries.iter().filter_map(|e| Found::under(dir, &e.name).ok()));
            });
            Ok(entries)
        })?;
        let next = entries.last().filter(|_| entries.len() == most).map(|e| e.offset);
        let offsets: HashMap<OsString, u64> = entries.into_iter().map(|e| (e.name, e.offset)).collect();
        let told = self.entries(folder, &shown, found).into_iter();
        let line = |(name, attr)| {
            let offset = *offsets.get(&name)?;
            Some(LookedUp { offset, name, attr, counted: true })
        };
        Ok((told.filter_map(line).collect(), next))
    }

    /// What a directory holds behind `offset` that may be shown.
    fn entries_behind(
        &self,
        folder: &Folder,
        shown: &Showing,
        offset: u64,
        most: usize,
    ) -> Result<Vec<Entry>, Errno> {
        let keeps = self.mapping.keeps_live();
        let left_out = |name: &OsStr| folder.is_top() && exposure::is_left_out(name.as_bytes(), keeps);
        let mut listing = folder.directory().listing.lock().unwrap_or_else(PoisonError::into_inner);
        if listing.is_stale(shown.version(), offset) {
            let now = folder.with_fd(&shown.tree, |dir| visible(dir, &left_out))?;
            listing.replace(shown.version(), now);
        }
        Ok(listing.after(offset.max(2), most))
    }
}

fn dots(offset: u64) -> impl Iterator<Item = (u64, OsString)> {
    [(1, "."), (2, "..")].into_iter().filter(move |(at, _)| offset < *at).map(|(at, name)| (at, name.into()))
}

/// What a directory holds that may be shown.
fn visible(
    directory: BorrowedFd<'_>,
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
                .and_then(|st| exposure::kind(st.st_mode)),
        };
        out.extend(kind.map(|kind| (entry.name, entry.inode, kind)));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
