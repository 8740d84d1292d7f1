//! SkillFS: a FUSE view of a skills folder in which an external provider decides what is shown.
//!
//! One lookup is one straight line:
//!
//! ```text
//! kernel → fs (thin fuser adapter) → lookup::child(parent, name) → mapping::shown(skill)     [unknown = hidden]
//!        → inode::intern(O_PATH descriptor) → reply.entry(long time)
//! change → watch → queue → resolver (one run a skill) → provider → verdict::validate → mapping::install
//!        → flips → notify (the kernel forgets)
//! ```
//!
//! | module | says |
//! | --- | --- |
//! | [`cli`], [`client`], [`daemon`] | the command line, the operator's questions, the process that mounts |
//! | [`helper`] | what the root helper is asked: mount, unmount |
//! | [`way`] | whether a source is still what it was, and who can make it another |
//! | [`source`], `skill_file`, `beneath` | which entries are skills; the one way to what a source holds |
//! | [`provider`], [`spawn`], [`verdict`] | asks the provider, with bounds; validates the form of its answer |
//! | [`snapshot`] | whether a snapshot that a provider names may be shown |
//! | [`stamps`] | whether a file is still what it was when it was decided |
//! | [`queue`], [`resolver`], [`watch`] | when, how and why a skill is decided |
//! | [`bell`] | wakes who waits for descriptors |
//! | [`mapping`], `state` | what is shown of each skill, its epoch, whether it is pending |
//! | [`decision`], [`tree`] | the words of it: what was decided, what changed, what is shown |
//! | [`exposure`] | the pure rules: what is shown when, and how an entry appears |
//! | [`lookup`], [`page`], `folder`, `attributes` | what is answered about a name, and about a page of names |
//! | [`inode`], [`listing`], [`fs`] | what the kernel knows, in which order, and how it asks |
//! | [`flips`], [`notify`] | what the kernel must forget |
//! | [`control`], [`counters`] | what the broker and the operator ask; how often what has happened |
//! | [`certify`] | the provider that ships with the project, of which nothing else here knows |
//! | [`watchdog`] | the process that ends SkillFS when its view no longer answers |
//!
//! Where to look, if you look for where
//!
//! - it is chosen whether a skill's folder, its snapshot or nothing is shown: `exposure.rs`, from what the provider said
//!   last; which snapshot the provider that ships names: `certify/resolve.rs`, with its table in `certify/resolution.rs`;
//! - a snapshot that a provider names is refused: `snapshot.rs` for what lies there, `verdict.rs` for its name;
//! - a change is seen: `watch.rs` when the kernel tells, `stamps.rs` when it does not;
//! - the kernel is made to forget: `notify.rs`.
//!
//! SkillFS judges no content: security is the provider's judgement, path safety is SkillFS's (`[9.6]`).

mod attributes;
pub mod bell;
mod beneath;
pub mod certify;
pub mod cli;
pub mod client;
pub mod control;
pub mod counters;
pub mod daemon;
pub mod decision;
pub mod exposure;
pub mod flips;
mod folder;
pub mod fs;
pub mod helper;
pub mod inode;
pub mod listing;
pub mod lookup;
pub mod mapping;
pub mod notify;
pub mod page;
pub mod provider;
pub mod queue;
pub mod resolver;
mod skill_file;
pub mod snapshot;
pub mod source;
pub mod spawn;
pub mod stamps;
mod state;
pub mod tree;
pub mod verdict;
pub mod watch;
pub mod watchdog;
pub mod way;
