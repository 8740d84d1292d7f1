//! A mount lives as long as its SkillFS, holds no more than is in use, and comes back when it is taken away.

use crate::support::machine::descriptors;
use crate::support::skillfs::{Bench, list, one, read, until};
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn a_killed_skillfs_leaves_no_dead_mount() {
    let mut bench = one(&[]);
    let held = fs::File::open(bench.view("s")).unwrap();
    bench.signal(Signal::SIGKILL);
    bench.wait();
    until("the mount is gone", || bench.mounts() == 0);
    assert_eq!(list(bench.path("mnt")).len(), 0, "the bare mount point answers");
    drop(held);
    bench.mount(&[]);
    bench.settle();
    assert_eq!(bench.mounts(), 1);
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
}

#[test]
fn a_mount_that_is_taken_away_is_made_again() {
    let mut bench = one(&[]);
    let flags = nix::mount::MntFlags::MNT_DETACH | nix::mount::MntFlags::MNT_FORCE;
    nix::mount::umount2(&bench.path("mnt"), flags).unwrap();
    until("mounted again", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "live"));
    assert_eq!(bench.mounts(), 1);
    bench.restart_helper();
    until("mounted by the new helper", || bench.log().matches("mounted mount=").count() >= 3);
    until("readable", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "live"));
    assert_eq!(bench.mounts(), 1, "never two stacked");
    // What was decided before still holds, and flips reach the new mount.
    bench.says_fallback("s", "v1");
    bench.refresh("s");
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "trusted");
}

#[test]
fn case_036_descriptors_go_back_to_where_they_were() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    for n in 0..2000 {
        bench.write(&format!("s/d{}/f{n}", n % 40), n.to_string());
    }
    bench.mount_current(&["s"], &[]);
    let count = || descriptors(bench.pid());
    let before = count();
    for n in 0..2000 {
        assert_eq!(read(bench.view(&format!("s/d{}/f{n}", n % 40))).unwrap(), n.to_string());
    }
    assert!(count() >= before + 2000, "one a known inode");
    let ino = fs::metadata(bench.view("s/d1/f1")).unwrap().ino();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    until("forgotten inodes are closed", || count() < before + 200);
    assert_eq!(fs::metadata(bench.view("s/d1/f1")).unwrap().ino(), ino, "a file keeps its number");
}
