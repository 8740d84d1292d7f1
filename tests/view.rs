//! What readers of the view see, on a real mount: no moment in which an undecided edit, a stale name or a private
//! file is served. SEMANTICS.md says in words what is checked here; each file in tests/view is one promise of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

#[path = "view/as_it_is.rs"]
mod as_it_is;
#[path = "view/closed.rs"]
mod closed;
#[path = "view/edits.rs"]
mod edits;
#[path = "view/flips.rs"]
mod flips;
#[path = "view/mounts.rs"]
mod mounts;
#[path = "view/neighbours.rs"]
mod neighbours;
mod support;
