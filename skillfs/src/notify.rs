//! Tells the kernel what it must forget when what is shown of a skill changes (`[9.4]`). It runs on a thread of its
//! own and holds no lock that a handler takes, since the kernel makes a notification wait for the requests that
//! are on their way in the same directory.
//!
//! The order was found by trying, and each step has its case:
//!
//! 1. A skill that appears or disappears: its name at the root, then the root's cached listing.
//! 2. Its top directory keeps its inode: every name noted there (one that does not exist if there is none: that
//!    waits for listings on their way), then its attributes and listing.
//! 3. The same for every directory below, since a process may work in one, whose names the kernel would otherwise
//!    go on finding without asking.
//! 4. Cached content of live files, which may have been edited in place.

use crate::counters::Counters;
use crate::decision::SkillId;
use crate::flips::{Flip, Flips};
use crate::inode::{self, Directory, Inodes, ROOT};
use crate::mapping::Mapping;
use crate::watch::Watch;
use fuser::{INodeNo, Notifier};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A name that no directory needs to hold.
const NO_NAME: &str = ".cyberos-no-such-name";

/// A mount that is served now.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// Where notifications go.
    pub notifier: Notifier,
    /// What its kernel side knows.
    pub inodes: Arc<Inodes>,
}

/// Tells the kernel.
#[derive(Debug)]
pub struct Notify {
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    flips: Arc<Flips>,
    counters: Arc<Counters>,
    mounted: Mutex<Option<Mounted>>,
}

impl Notify {
    /// For the flips of `mapping`.
    pub fn new(mapping: Arc<Mapping>, watch: Arc<Watch>, flips: Arc<Flips>, counters: Arc<Counters>) -> Self {
        Notify { mapping, watch, flips, counters, mounted: Mutex::new(None) }
    }

    /// From now on notifications go there.
    pub fn set(&self, mounted: Option<Mounted>) {
        *self.mounted.lock().unwrap_or_else(PoisonError::into_inner) = mounted;
    }

    /// Whether something is mounted.
    pub fn is_mounted(&self) -> bool {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Tells each flip, until the queue is closed.
    pub fn run(&self) {
        while let Some((id, flip)) = self.flips.take() {
            let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(mounted) = mounted
                && let Err(e) = self.tell(&mounted, id, flip)
            {
                // The mount is on its way out: what comes next starts with an empty cache.
                tracing::debug!(error = %e, "the kernel did not take a notification");
            }
            self.mapping.settled(id, flip.ticket);
        }
    }

    /// Goes on after an error: what can be told is told. Answers the first one.
    fn tell(&self, mounted: &Mounted, id: SkillId, flip: Flip) -> io::Result<()> {
        let kernel = Kernel { notifier: &mounted.notifier, counters: &self.counters };
        let mut first = Ok(());
        if flip.name
            && let Some(name) = self.mapping.name(id)
        {
            first = first.and(kernel.forget_name(ROOT, OsStr::new(name.as_str())));
            first = first.and(kernel.forget_content(ROOT));
        }
        first = first.and(kernel.forget_all(inode::top_id(id), &mounted.inodes.top(id).directory));
        for node in mounted.inodes.of_skill(id) {
            first = first.and(if node.is_directory {
                kernel.forget_all(node.id, &node.directory)
            } else if node.live {
                // One that was removed is taken as it is now, before it can be written to any more.
                let ours = |uid| self.watch.is_our_uid(uid);
                let _ = inode::status(&node.fd()).map(|st| node.is_as_shown(&st, ours(st.st_uid)));
                kernel.forget_content(node.id)
            } else {
                Ok(())
            });
        }
        first
    }
}

/// The kernel's side of a mount.
struct Kernel<'a> {
    notifier: &'a Notifier,
    counters: &'a Counters,
}

impl Kernel<'_> {
    fn forget_name(&self, directory: u64, name: &OsStr) -> io::Result<()> {
        self.counters.invalidations.add(1);
        self.notifier.inval_entry(INodeNo(directory), name)
    }

    /// And the attributes.
    fn forget_content(&self, id: u64) -> io::Result<()> {
        self.counters.invalidations.add(1);
        self.notifier.inval_inode(INodeNo(id), 0, 0)
    }

    fn forget_all(&self, id: u64, directory: &Directory) -> io::Result<()> {
        let mut names = directory.take_noted();
        if names.is_empty() {
            names.insert(OsString::from(NO_NAME));
        }
        let mut first = Ok(());
        for name in names {
            first = first.and(self.forget_name(id, &name));
        }
        first.and(self.forget_content(id))
    }
}
