//! What a killed test leaves behind, folders and what is mounted in them, is taken away by the next one; that of a test
//! which still runs is not.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod support;

use nix::mount::{MsFlags, mount};
use std::time::Duration;
use support::folders::Held;
use support::machine::mount_points;

#[test]
fn a_folder_that_no_test_holds_any_more_is_taken_away_with_its_mounts() {
    let parent = tempfile::tempdir().unwrap();
    let (left, held) = (parent.path().join("x-left"), parent.path().join("x-held"));
    let other = parent.path().join("y");
    for dir in [&left, &held, &other] {
        std::fs::create_dir_all(dir.join("mnt")).unwrap();
    }
    let tmpfs = Some("tmpfs");
    mount(tmpfs, &left.join("mnt"), tmpfs, MsFlags::empty(), None::<&str>).expect("this test needs root");
    let lock = std::fs::File::open(&held).unwrap();
    lock.lock().unwrap();
    Held::sweep(parent.path(), "x-", Duration::from_secs(60));
    assert!(left.exists(), "it may have been made just now");
    Held::sweep(parent.path(), "x-", Duration::ZERO);
    assert!(!left.exists() && held.exists() && other.exists());
    assert!(!mount_points().iter().any(|point| point.starts_with(parent.path())));
}
