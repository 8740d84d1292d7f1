//! What is no part of a skill is on no path of the view: its private folder, what its links point to elsewhere, and
//! whatever somebody would like to write.

use crate::support::skillfs::{Bench, errno, list, one, read, until};
use nix::libc;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

#[test]
fn case_005_the_private_folder_is_on_no_path() {
    let bench = one(&[]);
    let s = bench.view("s");
    assert_eq!(list(&s), BTreeSet::from([OsString::from("SKILL.md")]));
    for probe in [
        ".skill-meta",
        "./.skill-meta",
        ".skill-meta/versions/v1.snapshot/SKILL.md",
        ".skill-meta/../.skill-meta",
        ".SKILL-META",
        "../s/.skill-meta",
    ] {
        assert_eq!(errno(fs::symlink_metadata(s.join(probe))), Some(libc::ENOENT), "{probe}");
        assert_eq!(errno(fs::File::open(s.join(probe))), Some(libc::ENOENT), "{probe}");
        assert_eq!(errno(std::env::set_current_dir(s.join(probe))), Some(libc::ENOENT), "{probe}");
    }
    let before = fs::read_dir(bench.source("s")).unwrap().count();
    let refused = [libc::EROFS, libc::EACCES, libc::EPERM, libc::ENOENT];
    assert!(refused.contains(&errno(fs::create_dir(s.join(".skill-meta"))).unwrap()));
    assert!(refused.contains(&errno(symlink("x", s.join(".skill-meta"))).unwrap()));
    assert!(refused.contains(&errno(fs::write(s.join(".skill-meta"), "x")).unwrap()));
    assert!(refused.contains(&errno(fs::hard_link(s.join("SKILL.md"), s.join(".skill-meta"))).unwrap()));
    assert!(refused.contains(&errno(fs::rename(s.join("SKILL.md"), s.join(".skill-meta"))).unwrap()));
    assert_eq!(fs::read_dir(bench.source("s")).unwrap().count(), before);
    // A link to it does not lead there, and a folder of that name further down is an ordinary one.
    bench.write("s/d/.skill-meta/note", "ordinary");
    symlink(".skill-meta/versions", bench.source("s/way")).unwrap();
    bench.settle();
    until("shown", || fs::symlink_metadata(s.join("way")).is_ok());
    assert_eq!(errno(fs::read_dir(s.join("way"))), Some(libc::ENOENT));
    assert_eq!(read(s.join("d/.skill-meta/note")).unwrap(), "ordinary");
}

#[test]
fn nothing_can_be_changed_through_a_read_only_view() {
    let bench = one(&[]);
    let file = bench.view("s/SKILL.md");
    let rofs = Some(libc::EROFS);
    assert_eq!(errno(fs::OpenOptions::new().write(true).open(&file)), rofs);
    assert_eq!(errno(fs::OpenOptions::new().append(true).open(&file)), rofs);
    assert_eq!(errno(fs::File::create(bench.view("s/new"))), rofs);
    assert_eq!(errno(fs::File::create(bench.view("new"))), rofs);
    assert_eq!(errno(fs::create_dir(bench.view("s/new"))), rofs);
    assert_eq!(errno(fs::remove_file(&file)), rofs);
    assert_eq!(errno(fs::remove_dir(bench.view("s"))), rofs);
    assert_eq!(errno(fs::rename(&file, bench.view("s/new"))), rofs);
    assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o777))), rofs);
    assert_eq!(errno(symlink("x", bench.view("s/new"))), rofs);
    assert_eq!(read(bench.source("s/SKILL.md")).unwrap(), "live");
}

#[test]
fn symlinks_that_leave_the_skill_do_not_resolve() {
    let mut bench = Bench::new();
    bench.write("s/d/deep/f", "inside");
    bench.write("s/SKILL.md", "x");
    bench.write("t/secret", "of another skill");
    for (link, target) in [
        ("s/abs", "/etc/passwd"),
        ("s/out", "../t/secret"),
        ("s/d/out", "../../t/secret"),
        ("s/d/deep/up", ".."),
        // By its text it stays inside; by way of `up` it would climb out.
        ("s/sly", "d/deep/up/../../t/secret"),
        ("s/proc", "/proc/self/root/etc/passwd"),
        ("s/self", "."),
        ("s/inside", "d/deep/f"),
        ("s/d/inside", "../d/deep/f"),
        ("s/dangling", "nowhere"),
    ] {
        symlink(target, bench.source(link)).unwrap();
    }
    bench.says_current("s");
    bench.says_hidden("t");
    bench.mount(&[]);
    bench.settle();
    for link in ["abs", "out", "d/out", "sly", "proc"] {
        let path = bench.view("s").join(link);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink(), "{link}");
        assert_eq!(errno(fs::read_link(&path)), Some(libc::EACCES), "{link}");
        assert_eq!(errno(fs::read(&path)), Some(libc::EACCES), "{link}");
    }
    assert_eq!(read(bench.view("s/inside")).unwrap(), "inside");
    assert_eq!(read(bench.view("s/d/inside")).unwrap(), "inside");
    assert_eq!(read(bench.view("s/d/deep/up/deep/f")).unwrap(), "inside");
    assert_eq!(read(bench.view("s/self/self/d/deep/f")).unwrap(), "inside");
    assert_eq!(fs::read_link(bench.view("s/dangling")).unwrap(), Path::new("nowhere"));
    // A skill that is itself a symlink is no skill.
    symlink("t", bench.source("alias")).unwrap();
    bench.refresh("s");
    assert_eq!(list(bench.path("mnt")), BTreeSet::from([OsString::from("s")]));
}

#[test]
fn a_hidden_skill_cannot_be_read_from_a_directory_held_below_it() {
    use nix::fcntl::{OFlag, openat};
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "live");
    bench.write("s/d/deep/f", "secret");
    bench.mount_current(&["s"], &[]);
    let deep = fs::File::open(bench.view("s/d/deep")).unwrap();
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let again = || openat(&deep, "f", flags, nix::sys::stat::Mode::empty()).map(drop);
    again().unwrap();
    bench.says_hidden("s");
    bench.refresh("s");
    assert_eq!(again(), Err(nix::errno::Errno::ENOENT));
    use std::os::fd::AsRawFd;
    let listed = fs::read_dir(format!("/proc/self/fd/{}", deep.as_raw_fd()));
    // The C library takes the kernel's ENOENT here for the end, as of a directory that was removed.
    assert_eq!(listed.unwrap().count(), 0);
    bench.says_current("s");
    bench.refresh("s");
    again().unwrap();
}
