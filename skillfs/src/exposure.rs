//! The pure part of the view: from what is known of a skill to what is shown, and from what an entry is to how it
//! appears. No descriptor, no lock, no FUSE: `mapping.rs`, `tree.rs` and `snapshot.rs` call it, tests need nothing
//! else.

use cyberos_proto::control::Verdict;
use cyberos_proto::tree::{META_DIR, VCS_DIR};
use fuser::FileType;
use nix::sys::stat::SFlag;

/// What readers see of a skill with a change that is not decided yet (`[9.3]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnChange {
    /// The trusted snapshot that the provider last named, or nothing.
    #[default]
    Snapshot,
    /// Nothing.
    Hide,
    /// What was shown before: the live folder goes on being served while it is edited.
    Keep,
}

/// What a failed or rejected resolve does (`[9.1]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnFailure {
    /// The skill is hidden until a resolve succeeds.
    #[default]
    Hide,
    /// The mapping of before stays.
    KeepPrevious,
}

/// Which tree of a skill is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// None.
    Nothing,
    /// The live folder.
    Live,
    /// The trusted snapshot.
    Snapshot,
}

/// All that decides what is shown.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The last decision that was installed.
    pub decided: Option<Verdict>,
    /// A change has been seen that is not decided.
    pub undecided: bool,
    /// The live folder was changed since it was decided.
    pub live_touched: bool,
    /// The trusted snapshot was changed since it was checked.
    pub snapshot_touched: bool,
    /// There is a checked trusted snapshot.
    pub snapshot: bool,
}

/// What is shown. A snapshot that was touched is never shown, whatever the policy, and nothing is shown that was
/// never decided.
pub fn shown(facts: Facts, policy: OnChange) -> Shown {
    let snapshot = if facts.snapshot && !facts.snapshot_touched { Shown::Snapshot } else { Shown::Nothing };
    let decided = match facts.decided {
        None | Some(Verdict::Hidden) => return Shown::Nothing,
        Some(Verdict::Current) => Shown::Live,
        Some(Verdict::Fallback) => snapshot,
    };
    match policy {
        _ if !facts.undecided => decided,
        OnChange::Keep => decided,
        OnChange::Hide => Shown::Nothing,
        // What was decided is shown as long as it is untouched: a change of metadata alone makes no flicker.
        OnChange::Snapshot if facts.live_touched => snapshot,
        OnChange::Snapshot => decided,
    }
}

/// Whether a name at the top of a skill is the provider's private folder, which agents never see. In any letter
/// case, since a source may lie on a file system that does not tell them apart.
pub fn is_private(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(META_DIR)
}

/// Whether a name at the top of a skill is version control, which is no part of what is decided (`[0.1]`): a folder, or the
/// file that a work tree or submodule has instead. In any letter case, as above.
pub fn is_version_control(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(VCS_DIR)
}

/// Whether a name at the top of a skill is on no path of the view. Version control is served only where it is the author
/// who decides what readers see (`keeps`: `--on-change keep` and `--unprotected`).
pub fn is_left_out(name: &[u8], keeps: bool) -> bool {
    is_private(name) || (!keeps && is_version_control(name))
}

/// The type under which an entry is shown. Device nodes are not shown at all.
pub fn kind(mode: u32) -> Option<FileType> {
    Some(match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => FileType::RegularFile,
        SFlag::S_IFDIR => FileType::Directory,
        SFlag::S_IFLNK => FileType::Symlink,
        SFlag::S_IFIFO => FileType::NamedPipe,
        SFlag::S_IFSOCK => FileType::Socket,
        _ => return None,
    })
}

/// The permission bits that are shown: never set-id or sticky ones, and never write bits on a FIFO or socket, which
/// would make it a channel between those who read the view.
pub fn permissions(kind: FileType, mode: u32) -> u16 {
    let mask = match kind {
        FileType::NamedPipe | FileType::Socket => 0o555,
        _ => 0o777,
    };
    u16::try_from(mode & mask).unwrap_or(0)
}

/// Whether a symlink in a directory `depth` levels below the tree's top stays inside it, whoever follows it.
///
/// The reader's kernel resolves links, in its own mount namespace, so a link that leaves must not be given out at
/// all. `..` counts only in front: behind a name it may climb from wherever another symlink led, so that such a
/// link cannot be judged by its text and does not resolve.
pub fn link_stays(depth: usize, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return false;
    }
    let mut climbed = 0;
    let mut named = false;
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return false,
            b".." => climbed += 1,
            _ => named = true,
        }
    }
    climbed <= depth
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(decided: Option<Verdict>) -> Facts {
        Facts { decided, undecided: false, live_touched: false, snapshot_touched: false, snapshot: false }
    }

    #[test]
    fn nothing_is_shown_before_the_first_decision() {
        for policy in [OnChange::Snapshot, OnChange::Hide, OnChange::Keep] {
            let f = Facts { undecided: true, snapshot: true, ..facts(None) };
            assert_eq!(shown(f, policy), Shown::Nothing);
        }
    }

    #[test]
    fn a_touched_live_folder_is_shown_only_by_keep() {
        let f =
            Facts { undecided: true, live_touched: true, snapshot: true, ..facts(Some(Verdict::Current)) };
        assert_eq!(shown(f, OnChange::Snapshot), Shown::Snapshot);
        assert_eq!(shown(Facts { snapshot: false, ..f }, OnChange::Snapshot), Shown::Nothing);
        assert_eq!(shown(f, OnChange::Hide), Shown::Nothing);
        assert_eq!(shown(f, OnChange::Keep), Shown::Live);
    }

    #[test]
    fn metadata_alone_makes_no_flicker() {
        let f = Facts { undecided: true, snapshot: true, ..facts(Some(Verdict::Current)) };
        assert_eq!(shown(f, OnChange::Snapshot), Shown::Live);
        assert_eq!(shown(f, OnChange::Hide), Shown::Nothing);
    }

    fn verdicts() -> impl Strategy<Value = Option<Verdict>> {
        prop_oneof![
            Just(None),
            Just(Some(Verdict::Current)),
            Just(Some(Verdict::Fallback)),
            Just(Some(Verdict::Hidden))
        ]
    }

    proptest! {
        #[test]
        fn a_touched_snapshot_and_an_undecided_edit_are_never_shown(
            decided in verdicts(), undecided: bool, live_touched: bool, snapshot_touched: bool, snapshot: bool,
        ) {
            let f = Facts { decided, undecided, live_touched, snapshot_touched, snapshot };
            for policy in [OnChange::Snapshot, OnChange::Hide, OnChange::Keep] {
                let s = shown(f, policy);
                prop_assert!(!(s == Shown::Snapshot && (snapshot_touched || !snapshot)));
                prop_assert!(!(s == Shown::Live && undecided && live_touched && policy != OnChange::Keep));
                prop_assert!(!(s == Shown::Live && decided != Some(Verdict::Current)));
                prop_assert!(!(decided == Some(Verdict::Hidden) && s != Shown::Nothing));
            }
        }

        #[test]
        fn a_link_that_stays_resolves_inside(depth in 0usize..4, parts in proptest::collection::vec("\\.\\.|\\.|a|b|", 0..7)) {
            let target = parts.join("/");
            if link_stays(depth, target.as_bytes()) {
                let mut at = i64::try_from(depth).unwrap();
                for part in target.split('/') {
                    match part { "" | "." => {}, ".." => at -= 1, _ => at += 1 }
                    prop_assert!(at >= 0);
                }
            }
        }
    }

    #[test]
    fn links_are_judged_by_where_they_can_lead() {
        for (depth, target) in [(0, "a"), (0, "./a/b"), (1, "../a"), (2, "../../a"), (1, "..")] {
            assert!(link_stays(depth, target.as_bytes()), "{depth} {target}");
        }
        for (depth, target) in [(0, ""), (0, "/a"), (0, ".."), (1, "../../a"), (3, "a/../b"), (0, "a/..")] {
            assert!(!link_stays(depth, target.as_bytes()), "{depth} {target}");
        }
        assert!(is_private(b".Skill-Meta") && !is_private(b"skill-meta"));
        assert!(
            is_left_out(b".Git", false) && !is_left_out(b".git", true) && !is_left_out(b".gitignore", false)
        );
        assert!(is_left_out(b".skill-meta", true));
    }

    #[test]
    fn modes_lose_set_id_bits_and_fifos_their_write_bits() {
        assert_eq!(permissions(FileType::RegularFile, 0o107755), 0o755);
        assert_eq!(permissions(FileType::NamedPipe, 0o010666), 0o444);
        assert_eq!(kind(0o020666), None);
    }
}
