//! Deadlines (`[2.4]`), as long as they are.

mod support;
#[path = "deadline/waits.rs"]
mod waits;
