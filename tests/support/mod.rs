//! What tests share. Each test file takes what it needs, so much of it is unused in any one of them.
#![allow(dead_code)]

pub mod binaries;
pub mod disk;
pub mod up;
