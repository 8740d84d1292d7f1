//! A directory in the view, with what is read of it now: a skill's top, of which the tree that is shown is read, or one
//! further down, which stays in the tree that it was opened in. `lookup.rs` and `page.rs` read it.

use crate::decision::SkillId;
use crate::inode::{Directory, Node, Top};
use crate::tree::Tree;
use crate::{beneath, exposure};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A directory in the view.
pub(crate) enum Folder {
    /// A skill's top.
    Top(Arc<Top>),
    /// Any other.
    Node(Arc<Node>),
}

impl Folder {
    /// Whose it is.
    pub(crate) fn skill(&self) -> SkillId {
        match self {
            Folder::Top(top) => top.skill,
            Folder::Node(node) => node.skill,
        }
    }

    /// What the kernel was told of it.
    pub(crate) fn directory(&self) -> &Directory {
        match self {
            Folder::Top(top) => &top.directory,
            Folder::Node(node) => &node.directory,
        }
    }

    /// Levels below the tree's top.
    pub(crate) fn level(&self) -> usize {
        match self {
            Folder::Top(_) => 0,
            Folder::Node(node) => node.depth() + 1,
        }
    }

    /// Whether it is a skill's top.
    pub(crate) fn is_top(&self) -> bool {
        matches!(self, Folder::Top(_))
    }

    /// Whether it can be read as a part of that tree.
    pub(crate) fn is_of(&self, tree: &Tree) -> bool {
        match self {
            Folder::Top(_) => true,
            Folder::Node(node) => node.tree == tree.number,
        }
    }

    /// Whether a directory that was opened inside the tree still is: one that was moved out, or to where nobody looks, is
    /// watched no more.
    pub(crate) fn is_inside(&self, tree: &Tree, keeps: bool) -> bool {
        match self {
            Folder::Top(_) => true,
            Folder::Node(node) => {
                beneath::is_below(&tree.root, &*node.fd(), |top| exposure::is_left_out(top, keeps))
            }
        }
    }

    /// Reads it as a part of that tree.
    pub(crate) fn with_fd<T>(&self, tree: &Tree, f: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Folder::Top(_) => f(tree.root.as_fd()),
            Folder::Node(node) => f(node.fd().as_fd()),
        }
    }
}
