//! The capability broker: decides, dispatches, records. One tool call is one straight line:
//!
//! ```text
//! skill → rpc (bytes ↔ Call) → session (which invocation, deadline) → dispatch (conducts; judges nothing)
//!       → catalogue: the tool, once → Tool::plan(args) → Plan { accesses, writes, rows owed, work }
//!       → grants::admit(state, Call) → Permit { call, one handle an access, work } | Refused
//!       → audit::started(Permit) → Started → the plan's work runs with its handles → beneath | memory | helper
//!       → audit::completed → rpc
//! ```
//!
//! A `Permit` is made only in [`grants`], a `Started` only from a `Permit` in [`audit`], and what is run takes it by
//! value: a tool that runs undecided, unaudited, or twice on one decision does not compile.
//!
//! One run is one straight line too:
//!
//! ```text
//! cyberos → control → run::start → skillfs await → seal → skill::load → grants::compile
//!         → sandbox: socket, prepare → audit: invoked_started → sandbox: go → session serves → deadline → audit::completed → release
//! ```
//!
//! The modules, each below those that use it; none imports one that imports it:
//!
//! ```text
//! cli             the operator's commands (cyberos); scaffold: a new skill; terminal: what may reach a terminal
//! control         the operators' socket; operator: the words on it
//! overview        what status and show say
//! run, invocation one invocation from verdict to end; service: the parts put together
//! session         a skill's socket: connections and frames; rpc: JSON-RPC
//! dispatch        conducts one request; memory_budget: the memory that an invocation may hold
//! tools           the tools: plans, and what they become; diagnosis: which limit a program met; locks: record locks
//! audit           the ledger
//! grants          the one room that refuses; beneath: from a permitted path to a descriptor
//! memory          the notes of a tenant; disk_guard: when the disk is low; blocking_pool: threads that may wait
//! sandbox         one life for every sandbox: prepared, started, released; helper: client of the root helper
//! seal            the sealed copy; skillfs_client: client of SkillFS; capture: what a run prints
//! approvals       consents
//! config, skill   cyberos.yaml and SKILL.md; glob: their patterns
//! catalogue       the tools by name; call: the words of one call
//! exit            exit statuses, and the error that carries one to an operator
//! yaml            texts as trees of nodes that know their lines; words: others' words in messages
//! ```
//!
//! Where to look, if you look for where
//!
//! - a call is refused: `grants/decide.rs` has the rules and their sentences, `grants/admit.rs` the order in which they
//!   are asked, `grants/memory.rs` what the path of a note may look like, `grants/never.rs` what nobody can grant;
//! - a path is opened: `beneath.rs`;
//! - a run is ended by its deadline, its operator or its provider: `invocation.rs`; how that is told: `cli/run.rs`;
//! - a skill is copied, and the copy is found to differ: `seal.rs`;
//! - what a sandbox is given: `run/plan.rs` for a skill, `tools/bash.rs` for Bash;
//! - a refusal is explained to the operator: `cli/why.rs`, from what `audit/replay.rs` reads.

pub mod approvals;
pub mod audit;
pub mod beneath;
pub mod blocking_pool;
pub mod call;
pub mod capture;
pub mod catalogue;
pub mod cli;
pub mod config;
pub mod control;
pub mod diagnosis;
pub mod disk_guard;
pub mod dispatch;
pub mod exit;
pub mod glob;
pub mod grants;
pub mod helper;
pub mod invocation;
pub(crate) mod locks;
pub mod memory;
pub mod memory_budget;
pub mod operator;
pub mod overview;
pub mod rpc;
pub mod run;
pub mod sandbox;
pub mod scaffold;
pub mod seal;
pub mod service;
pub mod session;
pub mod skill;
pub mod skillfs_client;
pub mod terminal;
pub mod tools;
pub(crate) mod words;
pub(crate) mod yaml;
