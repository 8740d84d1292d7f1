//! What tests share, each thing in one place. A test file takes what it needs, so much of it is unused in any one of them.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used)]

pub mod activation;
pub mod asks;
pub mod binaries;
pub mod disk;
pub mod folders;
pub mod freezer;
pub mod helper;
pub mod ledger;
pub mod machine;
pub mod peer;
pub mod plans;
pub mod skillfs;
pub mod skills;
pub mod store;
pub mod up;
pub mod waiting;
