//! `skill-ledger`, the decision provider that ships with the project (`[9.10]`): signed versions of skills, and the answer to
//! SkillFS's question what may be shown. The binary of that name is its only caller; SkillFS itself knows providers only as
//! programs (`[9.2]`), and any other is as good.
//!
//! Two users, two halves. An operator or root *certifies*: [`issue`] copies the skill into a snapshot and signs a
//! [`manifest`] with a key that SkillFS's user cannot read ([`keys`]). SkillFS's user *resolves*: [`resolve`] verifies what it
//! finds against trusted public keys and a record of its own ([`floor`]), because whoever can write the source may have edited
//! the skill, the snapshots and the manifests, or put older ones back.
//!
//! ```text
//! resolve DIR → skill (opened once) → floor, versions → manifest::verify → tree (live), tree (snapshot) → Resolution as JSON
//! certify DIR → findings → keys, locked → skill_md → tree + snapshot (copy) → manifest::sign → rename, rename → prune
//! ```

mod clock;
pub mod debris;
pub mod findings;
pub mod floor;
mod frontmatter;
pub mod issue;
pub mod keys;
pub mod manifest;
pub mod prune;
pub mod removal;
pub mod resolution;
pub mod resolve;
pub mod skill;
pub mod skill_md;
pub mod snapshot;
pub mod tree;
pub mod words;
