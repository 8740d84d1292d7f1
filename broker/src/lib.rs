//! The capability broker: decides, dispatches, records. One tool call is one straight line:
//!
//! ```text
//! skill → rpc (bytes ↔ Call) → session (which invocation, deadline) → dispatch
//!       → grants::decide(Call) → Permit → audit::started(Permit) → Started
//!       → tools::X::invoke(Started) → beneath | store
//!       → audit::completed → rpc
//! ```
//!
//! A `Permit` is made only in [`grants`], a `Started` only from a `Permit` in [`audit`], and a tool takes it by
//! value: a tool that runs undecided, unaudited, or twice on one decision does not compile.
//!
//! One run is one straight line too:
//!
//! ```text
//! cyberos → control → run::start → skillfs await → seal → skill::load → grants::compile
//!         → helper: socket, spawn → session serves → deadline → audit::completed → release
//! ```

pub mod approvals;
pub mod audit;
pub mod beneath;
pub mod call;
pub mod capture;
pub mod cli;
pub mod config;
pub mod control;
pub mod diagnosis;
pub mod dispatch;
pub mod glob;
pub mod grants;
pub mod helper;
pub(crate) mod locks;
pub mod memory;
pub mod operator;
pub mod rooms;
pub mod rpc;
pub mod run;
pub mod running;
pub mod scaffold;
pub mod seal;
pub mod service;
pub mod session;
pub mod skill;
pub mod space;
pub mod terminal;
pub mod tools;
pub mod view;
pub mod workers;
