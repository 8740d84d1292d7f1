//! What the kernel knows of the view, by node id: an O_PATH descriptor an inode, held until FORGET.
//!
//! - The root and each skill's top directory have ids that never change, whatever is shown of the skill, so that a
//!   working directory there survives every flip.
//! - Any other id is made of (tree, device, inode), so that live file and snapshot file differ, and a file keeps
//!   its number when the kernel forgets it and asks again. As long as the kernel knows an id, our descriptor keeps
//!   the source's inode from being used for another file, so one id is never two files at a time; and a tree's
//!   number is never used again.
//! - With zero-message opens the kernel opens files by itself; that an id still answers is what keeps an open
//!   handle on what it was opened on.
//!
//! It knows neither decisions nor FUSE messages. `lookup.rs` fills it, `notify.rs` walks it.

use crate::beneath;
use crate::decision::SkillId;
use crate::listing::Listing;
use crate::stamps::{Stamp, stamp};
use crate::tree::Tree;
use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Id of the mount's root.
pub const ROOT: u64 = 1;
const FIRST_TOP: u64 = 2;
const FIRST_NODE: u64 = 1 << 40;

/// The id of a skill's top directory.
pub fn top_id(skill: SkillId) -> u64 {
    FIRST_TOP + u64::from(skill.0)
}

/// The id that an inode of a tree has, unless it collides with another one.
pub fn node_id(tree: u64, device: u64, inode: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (tree, device, inode).hash(&mut hasher);
    // Positive also as a signed number, which some programs take it for.
    FIRST_NODE + hasher.finish() % (1 << 62)
}

/// What the kernel was told of a directory.
#[derive(Debug, Default)]
pub struct Directory {
    /// Names that it may have cached.
    noted: Mutex<HashSet<OsString>>,
    /// Order and offsets of its entries.
    pub listing: Mutex<Listing>,
}

impl Directory {
    /// Must be called before the state is read that an answer about `names` rests on: then either the answer is of
    /// the new state, or the flip finds the names here.
    pub fn note<'a>(&self, names: impl IntoIterator<Item = &'a OsStr>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if !noted.contains(name) {
                noted.insert(name.to_owned());
            }
        }
    }

    /// Gives the noted names and forgets them.
    pub fn take_noted(&self) -> HashSet<OsString> {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A skill's top directory.
#[derive(Debug)]
pub struct Top {
    /// Which skill.
    pub skill: SkillId,
    /// What the kernel was told of it.
    pub directory: Directory,
}

#[derive(Debug)]
struct Held {
    fd: Arc<OwnedFd>,
    readable: bool,
}

/// An inode below a top directory.
#[derive(Debug)]
pub struct Node {
    /// Its id.
    pub id: u64,
    /// Its skill.
    pub skill: SkillId,
    /// Number of its tree.
    pub tree: u64,
    /// Whether that is the live folder.
    pub live: bool,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// What the kernel was told of it, if it is a directory.
    pub directory: Directory,
    key: Key,
    /// Levels between the tree's top and the directory that it lies in; the smallest that was seen.
    depth: AtomicUsize,
    held: RwLock<Held>,
    /// What it was when it was last shown as decided, and whether it had a name then.
    stamp: Mutex<(Stamp, bool)>,
}

impl Node {
    /// The held descriptor.
    pub fn fd(&self) -> Arc<OwnedFd> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).fd.clone()
    }

    /// A descriptor to read from. The first reader exchanges the O_PATH descriptor for a readable one of the same
    /// inode, so that there is still one an inode; that is told to `opened`.
    pub fn readable(&self, opened: impl FnOnce()) -> Result<Arc<OwnedFd>, Errno> {
        {
            let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
            if held.readable {
                return Ok(held.fd.clone());
            }
        }
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if !held.readable {
            let fd = beneath::reopen_file(&*held.fd)?;
            opened();
            *held = Held { fd: Arc::new(fd), readable: true };
        }
        Ok(held.fd.clone())
    }

    /// Levels between the tree's top and the directory that it lies in.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Whether the file is still what it was when it was shown as decided.
    ///
    /// A file that has lost its last name changes by that, and stays what it was opened on. That is taken once, as soon as
    /// it is looked at, and only if its owner is no stranger (`ours`): it may have been written meanwhile, and nobody but its
    /// owner can set its time back to what it was.
    pub fn is_as_shown(&self, st: &FileStat, ours: bool) -> bool {
        let mut held = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(st);
        let (before, named) = *held;
        if ours && named && st.st_nlink == 0 && before.differs_in_change_alone(&now) {
            *held = (now, false);
        }
        held.0 == now
    }
}

type Key = (u64, u64, u64);

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    by_key: HashMap<Key, u64>,
    by_skill: HashMap<SkillId, HashSet<u64>>,
    tops: HashMap<SkillId, Arc<Top>>,
}

/// What a node id stands for.
#[derive(Debug)]
pub enum Object {
    /// The mount's root.
    Root,
    /// A skill's top directory.
    Top(Arc<Top>),
    /// Anything below.
    Node(Arc<Node>),
}

/// All inodes that the kernel knows in one mount.
#[derive(Debug, Default)]
pub struct Inodes {
    table: Mutex<Table>,
}

impl Inodes {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel means by `id`.
    pub fn get(&self, id: u64) -> Result<Object, Errno> {
        if id == ROOT {
            return Ok(Object::Root);
        }
        let table = self.lock();
        if let Some((node, _)) = table.nodes.get(&id) {
            return Ok(Object::Node(node.clone()));
        }
        let skill = id.checked_sub(FIRST_TOP).and_then(|n| u32::try_from(n).ok()).map(SkillId);
        match skill.and_then(|s| table.tops.get(&s)) {
            Some(top) => Ok(Object::Top(top.clone())),
            None => Err(Errno::ESTALE),
        }
    }

    /// The top directory of a skill. Kept for the mount's life: there are no more of them than skills.
    pub fn top(&self, skill: SkillId) -> Arc<Top> {
        let new = || Arc::new(Top { skill, directory: Directory::default() });
        self.lock().tops.entry(skill).or_insert_with(new).clone()
    }

    /// The id of an entry that the kernel may not know yet.
    pub fn id_of(&self, tree: u64, device: u64, inode: u64) -> u64 {
        let known = self.lock().by_key.get(&(tree, device, inode)).copied();
        known.unwrap_or_else(|| node_id(tree, device, inode))
    }

    /// To take in what was found, all of it under one lock.
    pub fn interning(&self) -> Interning<'_> {
        Interning(self.lock())
    }

    /// The kernel gives back `lookups` of `id`; the last one closes the descriptor.
    pub fn forget(&self, id: u64, lookups: u64) {
        let mut guard = self.lock();
        let table = &mut *guard;
        let Some((node, count)) = table.nodes.get_mut(&id) else { return };
        *count = count.saturating_sub(lookups);
        if *count > 0 {
            return;
        }
        let node = node.clone();
        table.nodes.remove(&id);
        if table.by_key.get(&node.key) == Some(&id) {
            table.by_key.remove(&node.key);
        }
        if let Some(ids) = table.by_skill.get_mut(&node.skill) {
            ids.remove(&id);
        }
    }

    /// All nodes of a skill that the kernel knows.
    pub fn of_skill(&self, skill: SkillId) -> Vec<Arc<Node>> {
        let table = self.lock();
        let ids = table.by_skill.get(&skill).into_iter().flatten();
        ids.filter_map(|id| table.nodes.get(id)).map(|(node, _)| node.clone()).collect()
    }

    /// Whether nothing but tops is known.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let table = self.lock();
        table.nodes.is_empty() && table.by_key.is_empty()
    }
}

/// Takes in what was found.
pub struct Interning<'a>(std::sync::MutexGuard<'a, Table>);

impl Interning<'_> {
    /// Counts one more lookup of the inode behind `fd`, which is in `tree`, `depth` levels below its top. With `retire`, a
    /// file that is another than when it was shown before gets another id: handles on what it was stay with that, and
    /// find it stale, also after it was shown to others as what it is now.
    pub fn intern(
        &mut self,
        skill: SkillId,
        tree: &Tree,
        depth: usize,
        retire: bool,
        fd: OwnedFd,
        st: &FileStat,
    ) -> Arc<Node> {
        let key = (tree.number, st.st_dev, st.st_ino);
        let table = &mut *self.0;
        if let Some((node, lookups)) = table.by_key.get(&key).and_then(|id| table.nodes.get_mut(id)) {
            let mut held = node.stamp.lock().unwrap_or_else(PoisonError::into_inner);
            if !retire || node.is_directory || held.0 == stamp(st) {
                *held = (stamp(st), st.st_nlink > 0);
                drop(held);
                *lookups += 1;
                node.depth.fetch_min(depth, Ordering::Relaxed);
                return node.clone();
            }
        }
        let mut id = node_id(key.0, key.1, key.2);
        while table.nodes.contains_key(&id) {
            id += 1;
        }
        let node = Arc::new(Node {
            id,
            skill,
            tree: tree.number,
            live: tree.live,
            is_directory: crate::exposure::kind(st.st_mode) == Some(fuser::FileType::Directory),
            directory: Directory::default(),
            key,
            depth: AtomicUsize::new(depth),
            held: RwLock::new(Held { fd: Arc::new(fd), readable: false }),
            stamp: Mutex::new((stamp(st), st.st_nlink > 0)),
        });
        table.nodes.insert(id, (node.clone(), 1));
        table.by_key.insert(key, id);
        table.by_skill.entry(skill).or_default().insert(id);
        node
    }
}

/// The state of a held descriptor's inode.
pub fn status(fd: &OwnedFd) -> Result<FileStat, Errno> {
    fstat(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Arc<Tree>) {
        let t = tempfile::tempdir().unwrap();
        std::fs::write(t.path().join("f"), "1").unwrap();
        let root = std::fs::File::open(t.path()).unwrap();
        (t, Tree::live(root.into()))
    }

    fn look(inodes: &Inodes, tree: &Tree) -> Arc<Node> {
        let fd = beneath::pin(&tree.root, OsStr::new("f")).unwrap();
        let st = fstat(&fd).unwrap();
        inodes.interning().intern(SkillId(0), tree, 0, true, fd, &st)
    }

    #[test]
    fn case_034_lookups_are_counted_and_the_last_forget_closes() {
        let (_t, tree) = tree();
        let inodes = Inodes::default();
        let first = look(&inodes, &tree);
        let again = look(&inodes, &tree);
        assert_eq!(first.id, again.id);
        inodes.forget(first.id, 1);
        assert!(matches!(inodes.get(first.id), Ok(Object::Node(_))));
        inodes.forget(first.id, 1);
        assert!(matches!(inodes.get(first.id), Err(Errno::ESTALE)));
        assert!(inodes.is_empty());
        let id = first.id;
        drop((first, again));
        assert_eq!(look(&inodes, &tree).id, id, "a file keeps its number");
    }

    #[test]
    fn a_file_that_was_edited_in_place_is_another_one_to_whoever_looks_anew() {
        let (t, tree) = tree();
        let inodes = Inodes::default();
        let first = look(&inodes, &tree);
        std::fs::write(t.path().join("f"), "longer").unwrap();
        let second = look(&inodes, &tree);
        assert_ne!(first.id, second.id);
        assert!(!first.is_as_shown(&status(&first.fd()).unwrap(), true));
        assert!(second.is_as_shown(&status(&second.fd()).unwrap(), true));
        assert_eq!(inodes.id_of(tree.number, first.key.1, first.key.2), second.id);
        inodes.forget(first.id, 1);
        assert_eq!(look(&inodes, &tree).id, second.id, "what is forgotten is the old one");
    }

    #[test]
    fn a_file_that_lost_its_name_is_what_it_was_until_it_is_written() {
        use std::os::unix::fs::FileExt;
        let (t, tree) = tree();
        let node = look(&Inodes::default(), &tree);
        let writer = std::fs::File::options().write(true).open(t.path().join("f")).unwrap();
        let modified = writer.metadata().unwrap().modified().unwrap();
        std::fs::remove_file(t.path().join("f")).unwrap();
        let before = status(&node.fd()).unwrap();
        assert!(!node.is_as_shown(&before, false), "a stranger may have written it");
        assert!(node.is_as_shown(&before, true));
        let now = || status(&node.fd()).unwrap();
        while stamp(&now()) == stamp(&before) {
            writer.write_all_at(b"2", 0).unwrap();
            writer.set_modified(modified).unwrap();
        }
        assert!(!node.is_as_shown(&now(), true));
    }

    #[test]
    fn live_and_snapshot_are_different_inodes() {
        let (t, live) = tree();
        let other = Tree::snapshot(std::fs::File::open(t.path()).unwrap().into(), Default::default());
        let inodes = Inodes::default();
        assert_ne!(look(&inodes, &live).id, look(&inodes, &other).id);
    }

    #[test]
    fn one_descriptor_serves_stat_and_read() {
        let (t, tree) = tree();
        let inodes = Inodes::default();
        let node = look(&inodes, &tree);
        std::fs::remove_file(t.path().join("f")).unwrap();
        let fd = node.readable(|| ()).unwrap();
        let mut buffer = [0; 4];
        assert_eq!(nix::sys::uio::pread(&*fd, &mut buffer, 0), Ok(1));
        assert_eq!(status(&node.fd()).unwrap().st_nlink, 0);
    }
}
