//! Offsets of directory entries that hold whatever happens to the directory: an entry's offset stays with its name
//! as long as the name is there, and a new name comes last. So a reader that goes on at an offset sees each entry
//! that was there all the time exactly once, without any open handle on our side.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

/// Offsets 1 and 2 are `.` and `..`.
const FIRST: u64 = 3;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its offset: where a reader goes on behind it.
    pub offset: u64,
    /// Its name.
    pub name: OsString,
    /// Its inode in the source.
    pub inode: u64,
    /// Its type.
    pub kind: fuser::FileType,
}

/// The entries of one directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Version of the tree that it was read from; none before the first time.
    tree: Option<(u64, u64)>,
    offsets: HashMap<OsString, u64>,
    order: BTreeMap<u64, Entry>,
    next: u64,
}

impl Listing {
    /// Whether it must be read before it can be continued at `offset`.
    pub fn is_stale(&self, tree: (u64, u64), offset: u64) -> bool {
        offset == 0 || self.tree != Some(tree)
    }

    /// Takes what the directory holds now.
    pub fn replace(
        &mut self,
        tree: (u64, u64),
        now: impl IntoIterator<Item = (OsString, u64, fuser::FileType)>,
    ) {
        self.tree = Some(tree);
        self.order.clear();
        let before = std::mem::take(&mut self.offsets);
        let mut new = Vec::new();
        for (name, inode, kind) in now {
            match before.get(&name) {
                Some(offset) => self.put(*offset, name, inode, kind),
                None => new.push((name, inode, kind)),
            }
        }
        self.next = self.next.max(FIRST);
        for (name, inode, kind) in new {
            let offset = self.next;
            self.next += 1;
            self.put(offset, name, inode, kind);
        }
    }

    fn put(&mut self, offset: u64, name: OsString, inode: u64, kind: fuser::FileType) {
        self.offsets.insert(name.clone(), offset);
        self.order.insert(offset, Entry { offset, name, inode, kind });
    }

    /// Up to `most` entries behind `offset`.
    pub fn after(&self, offset: u64, most: usize) -> Vec<Entry> {
        self.order.range(offset.saturating_add(1)..).take(most).map(|(_, e)| e.clone()).collect()
    }

    /// Whether the name is listed.
    pub fn contains(&self, name: &OsStr) -> bool {
        self.offsets.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn fill(l: &mut Listing, names: &BTreeSet<u8>) {
        l.replace(
            (1, 0),
            names.iter().map(|n| (n.to_string().into(), u64::from(*n), fuser::FileType::RegularFile)),
        );
    }

    proptest! {
        #[test]
        fn what_was_there_all_the_time_is_seen_once(
            steps in proptest::collection::vec(proptest::collection::btree_set(any::<u8>(), 0..30), 1..8),
            page in 1usize..7,
        ) {
            let mut l = Listing::default();
            fill(&mut l, &steps[0]);
            let (mut offset, mut seen) = (0, Vec::new());
            for turn in 0.. {
                let names = &steps[turn.min(steps.len() - 1)];
                fill(&mut l, names);
                let got = l.after(offset, page);
                let Some(last) = got.last() else { break };
                offset = last.offset;
                seen.extend(got.into_iter().map(|e| e.name.into_string().unwrap().parse::<u8>().unwrap()));
            }
            let always: BTreeSet<u8> =
                steps.iter().skip(1).fold(steps[0].clone(), |a, s| a.intersection(s).copied().collect());
            for name in always {
                prop_assert_eq!(seen.iter().filter(|n| **n == name).count(), 1, "{}", name);
            }
        }
    }

    #[test]
    fn case_033_offsets_stay_when_an_earlier_entry_goes() {
        let mut l = Listing::default();
        fill(&mut l, &(0..10).collect());
        let before = l.after(0, 99);
        fill(&mut l, &(3..12).collect());
        for e in l.after(0, 99).iter().filter(|e| before.iter().any(|b| b.name == e.name)) {
            assert!(before.contains(e));
        }
        assert_eq!(l.after(before[5].offset, 1)[0].name, before[6].name);
    }
}
