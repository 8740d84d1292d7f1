//! A tree that is, or can be, shown, and what is shown at one moment: what a look into the view compares before and after
//! it has looked. `mapping.rs` makes both, `lookup.rs` compares; neither of them is changed once it is made.

use crate::stamps::Stamps;
use nix::sys::stat::FileStat;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that can be shown as a skill: the live folder, or a snapshot. Its number is never used again.
#[derive(Debug)]
pub struct Tree {
    /// Unique in this process.
    pub number: u64,
    /// Whether it is the live folder.
    pub live: bool,
    /// Its top, O_PATH.
    pub root: OwnedFd,
    /// What a snapshot's files were when it was checked. A live folder's are known with each decision.
    pub stamps: Stamps,
}

impl Tree {
    fn new(root: OwnedFd, live: bool, stamps: Stamps) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Tree { number: NEXT.fetch_add(1, Ordering::Relaxed), live, root, stamps })
    }

    /// Gives a live folder a number of its own.
    pub fn live(root: OwnedFd) -> Arc<Self> {
        Tree::new(root, true, Stamps::default())
    }

    /// Gives a snapshot a number of its own.
    pub fn snapshot(root: OwnedFd, stamps: Stamps) -> Arc<Self> {
        Tree::new(root, false, stamps)
    }
}

/// What is shown of a skill at one moment.
#[derive(Clone, Debug)]
pub struct Showing {
    /// The tree.
    pub tree: Arc<Tree>,
    /// How many changes of the skill have been seen.
    pub(crate) changes: u64,
    /// What a live folder's files were when it was decided; none where it is shown as it is.
    pub(crate) stamps: Option<Arc<Stamps>>,
    /// Whether readers get the live folder while it is edited.
    pub(crate) keeps: bool,
}

impl Showing {
    /// Whether it is the same, and nothing changed between the two.
    pub fn is_still(&self, before: &Showing) -> bool {
        self.version() == before.version()
    }

    /// Equal versions of a tree hold the same entries.
    pub fn version(&self) -> (u64, u64) {
        // A snapshot that changes is another tree; and who wants to see edits at once wants no other promise.
        (self.tree.number, if self.tree.live && !self.keeps { self.changes } else { 0 })
    }

    /// Whether the regular file is what it was when it was decided.
    pub fn is_as_decided(&self, st: &FileStat) -> bool {
        self.keeps
            || if self.tree.live {
                self.stamps.as_ref().is_some_and(|stamps| stamps.has(st))
            } else {
                self.tree.stamps.has(st)
            }
    }
}
