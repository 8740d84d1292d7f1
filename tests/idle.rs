//! A SkillFS that has nothing to do does nothing: no thread of it wakes up to look whether there is something.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;
#[path = "idle/waits.rs"]
mod waits;
