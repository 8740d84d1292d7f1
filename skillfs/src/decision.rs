//! The words in which decisions are spoken of: a skill's number, what was seen to change, what a provider's accepted answer
//! means here. Data and nothing else; `resolver.rs` makes decisions, `mapping.rs` keeps them.

use crate::tree::Tree;
use crate::verdict::SnapshotName;
use cyberos_proto::control::Verdict;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of a skill in this process; it stays with the name, also when a skill that was shown goes and comes back. None is
/// given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillId(pub u32);

/// What was seen to change.
#[derive(Clone, Debug)]
pub enum Touch {
    /// Something in the live folder.
    Live,
    /// Something in `.skill-meta`; the path is relative to that.
    Private(PathBuf),
    /// The skill's directory came, went, or was replaced.
    Place,
}

/// What a provider's accepted answer means here, snapshots opened and checked.
#[derive(Debug)]
pub struct Decision {
    /// What is to be shown.
    pub verdict: Verdict,
    /// The trusted snapshot, if there is a safe one.
    pub trusted: Option<(SnapshotName, Arc<Tree>)>,
    /// The provider's version of what is shown.
    pub version: Option<String>,
    /// The provider's status word.
    pub status: String,
    /// Why.
    pub reason: Option<String>,
    /// What the operator should know.
    pub warning: Option<String>,
    /// The provider's digest.
    pub content_digest: Option<String>,
}

/// What was touched in `.skill-meta` while a provider ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTouches {
    /// Paths below `.skill-meta`.
    pub paths: BTreeSet<PathBuf>,
}

/// Whether what was decided could be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// It holds now.
    Yes,
    /// The skill changed meanwhile; it is still pending.
    Changed,
}
