//! Nobody reads what was not decided: by whatever way a file was changed, however little of it can be seen, and whoever
//! held what before (`[9.3]`, `[9.4]`, threat A22).
#![allow(clippy::unwrap_used)]

mod support;

use cyberos_proto::control::Verdict;
use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use support::skillfs::{Bench, SKILLFS_UID, errno, read, until};

/// Writes in place, without another size, and puts the time back.
fn overwrite(path: &Path, text: &str) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0).unwrap();
    file.set_modified(modified).unwrap();
}

/// The kernel forgets what it knows of the view and nobody holds.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn threat_a22_an_edit_in_place_whose_time_is_put_back_is_never_read() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "good");
    bench.write("storm/SKILL.md", "x");
    bench.snapshot("s", "v1", "safe");
    bench.mount_current(&["s"], &[]);
    let (live, shown) = (bench.source("s/SKILL.md"), bench.view("s/SKILL.md"));
    let stop = AtomicBool::new(false);
    let mut read_evil = 0;
    std::thread::scope(|scope| {
        // So much happens elsewhere that events wait, and more than the kernel keeps.
        for n in 0..2 {
            let busy = bench.source("storm").join(format!("f{n}"));
            let stop = &stop;
            scope.spawn(move || {
                fs::write(&busy, "").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for mode in [0o600, 0o644] {
                        fs::set_permissions(&busy, fs::Permissions::from_mode(mode)).unwrap();
                    }
                }
            });
        }
        for turn in 0..60 {
            until("shown", || read(&shown).is_ok_and(|t| t == "good"));
            // Known to the kernel by name, and nothing of its content.
            until("looked up", || fs::metadata(&shown).is_ok());
            drop_pages(&shown);
            bench.says_fallback("s", "v1");
            overwrite(&live, "EVIL");
            read_evil += u32::from(read(&shown).is_ok_and(|t| t == "EVIL"));
            if turn % 2 == 0 {
                drop_caches();
                read_evil += u32::from(read(&shown).is_ok_and(|t| t == "EVIL"));
            }
            until("decided", || read(&shown).is_ok_and(|t| t == "safe"));
            overwrite(&live, "good");
            bench.says_current("s");
            bench.refresh("s");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(read_evil, 0, "of 60 edits");
}

/// Drops the cached pages of a file, but not what is known of it.
fn drop_pages(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

#[test]
fn threat_a22_an_edit_through_a_hard_link_in_another_skill_is_never_read() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "good");
    bench.write("s/d/f", "good");
    bench.write("t/SKILL.md", "x");
    fs::hard_link(bench.source("s/d/f"), bench.source("t/twin")).unwrap();
    bench.snapshot("s", "v1", "safe");
    bench.says_current("s");
    bench.says_hidden("t");
    bench.mount(&[]);
    bench.settle();
    let shown = bench.view("s/d/f");
    for forgotten in [false, true] {
        assert_eq!(read(&shown).unwrap(), "good");
        bench.says_fallback("s", "v1");
        overwrite(&bench.source("t/twin"), "EVIL");
        if forgotten {
            drop_caches();
        }
        // Nobody tells of it, but whoever opens it is the one who finds out.
        for _ in 0..50 {
            assert!(!read(&shown).is_ok_and(|t| t == "EVIL"));
        }
        until("decided anew", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "safe"));
        assert_eq!(bench.state("s").verdict, Verdict::Fallback);
        overwrite(&bench.source("t/twin"), "good");
        bench.says_current("s");
        bench.refresh("s");
    }
}

#[test]
fn threat_a22_a_link_that_was_made_later_changes_nothing_that_is_read() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "good");
    bench.snapshot("s", "v1", "safe");
    bench.mount_current(&["s"], &[]);
    let shown = bench.view("s/SKILL.md");
    assert_eq!(read(&shown).unwrap(), "good");
    fs::hard_link(bench.source("s/SKILL.md"), bench.path("elsewhere")).unwrap();
    bench.says_fallback("s", "v1");
    overwrite(&bench.path("elsewhere"), "EVIL");
    for turn in 0..20 {
        assert!(!read(&shown).is_ok_and(|t| t == "EVIL"), "{turn}");
        drop_pages(&shown);
    }
    drop_caches();
    assert!(!read(&shown).is_ok_and(|t| t == "EVIL"));
    until("decided anew", || read(&shown).is_ok_and(|t| t == "safe"));
    // A link alone, as a backup makes it, and another mode do no harm that lasts.
    overwrite(&bench.path("elsewhere"), "good");
    bench.says_current("s");
    bench.refresh("s");
    fs::hard_link(bench.source("s/SKILL.md"), bench.path("backup")).unwrap();
    drop_caches();
    until("shown again", || read(&shown).is_ok_and(|t| t == "good"));
    fs::set_permissions(bench.source("s/SKILL.md"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(bench.source("s/SKILL.md"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    assert_eq!(read(&shown).unwrap(), "good");
}

#[test]
fn threat_a22_a_snapshot_that_changes_unseen_while_the_provider_looks_is_looked_at_again() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "live");
    bench.snapshot("s", "v1", "safe");
    let file = bench.source("s/.skill-meta/versions/v1.snapshot/SKILL.md");
    fs::create_dir(bench.path("out")).unwrap();
    fs::hard_link(&file, bench.path("out/twin")).unwrap();
    for owned in [file.as_path(), &bench.path("out"), &bench.path("out/twin")] {
        nix::unistd::chown(owned, Some(SKILLFS_UID.into()), None).unwrap();
    }
    bench.says_fallback("s", "v1");
    // What it has judged changes behind its back, and the link that was used is gone before SkillFS looks.
    let script = "echo asked >>$STUB/../run/asked\n\
        twin=$STUB/../out/twin\n\
        if [ -e $twin ]; then touch -r $twin $STUB/../run/time; printf EVIL >$twin; touch -r $STUB/../run/time $twin; rm $twin; fi";
    fs::write(bench.path("stub/s.sh"), script).unwrap();
    bench.mount(&[]);
    let state = bench.state("s");
    assert!(!bench.path("out/twin").exists());
    let asked = read(bench.path("run/asked")).unwrap().lines().count();
    assert!(asked >= 2, "its first answer was about other bytes: {state:?}");
}

#[test]
fn a_handle_on_a_file_that_was_edited_in_place_is_stale_for_ever() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says_current("s");
    bench.mount(&[]);
    for (what, later) in [("truncated", 0), ("shorter", 9), ("as long, at the same time", 3 << 20)] {
        let live = bench.source("s/big");
        fs::write(&live, vec![b'A'; 3 << 20]).unwrap();
        until("decided", || !bench.state("s").pending && File::open(bench.view("s/big")).is_ok());
        let mut old = File::open(bench.view("s/big")).unwrap();
        let mut start = [0; 4096];
        old.read_exact(&mut start).unwrap();
        let modified = fs::metadata(&live).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&live).unwrap();
        file.set_len(later).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'B'; later as usize], 0).unwrap();
        file.set_modified(modified).unwrap();
        bench.state("s");
        // Others open what it is now. To who opened what it was, that is nothing.
        until("decided", || !bench.state("s").pending && File::open(bench.view("s/big")).is_ok());
        assert_eq!(fs::read(bench.view("s/big")).unwrap(), vec![b'B'; later as usize], "{what}");
        for _ in 0..3 {
            let mut rest = Vec::new();
            let end = old.read_to_end(&mut rest);
            assert!(rest.iter().all(|b| *b == b'A'), "{what}: two versions in one handle");
            assert_eq!(errno(end), Some(libc::ESTALE), "{what}");
            assert_eq!(errno(old.metadata()), Some(libc::ESTALE), "{what}");
        }
        let number = fs::metadata(bench.view("s/big")).unwrap().ino();
        assert!(fs::read_dir(bench.view("s")).unwrap().any(|e| {
            let e = e.unwrap();
            e.file_name() == "big" && std::os::unix::fs::DirEntryExt::ino(&e) == number
        }));
    }
}

#[test]
fn a_directory_that_was_moved_out_gives_nothing_to_who_holds_it() {
    for destination in ["out", "src/s/.git", "src/s/.skill-meta", "src/t/d"] {
        let mut bench = Bench::new();
        bench.write("s/SKILL.md", "x");
        bench.write("s/d/deep/f", "decided");
        bench.write("t/SKILL.md", "x");
        bench.mount_current(&["s"], &[]);
        let held = File::open(bench.view("s/d/deep")).unwrap();
        let open = |name: &str| {
            let fd = openat(&held, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
            fd.map(|fd| std::io::read_to_string(File::from(fd)))
        };
        assert_eq!(open("f").unwrap().unwrap(), "decided");
        fs::rename(bench.source("s/d"), bench.path(destination)).unwrap();
        assert_eq!(bench.state("s").verdict, Verdict::Current);
        // Nobody watches it there, and nobody decides about it.
        fs::write(bench.path(destination).join("deep/f"), "EVIL 1").unwrap();
        fs::write(bench.path(destination).join("deep/new"), "EVIL 2").unwrap();
        bench.refresh("s");
        for name in ["f", "new"] {
            let text = open(name).map(|t| t.unwrap_or_default());
            assert_eq!(text, Err(nix::errno::Errno::ENOENT), "{destination}: {name}");
        }
        let listed = fs::read_dir(format!("/proc/self/fd/{}", held.as_raw_fd())).map_or(0, Iterator::count);
        assert_eq!(listed, 0, "{destination}");
        // What is moved back is read again.
        fs::rename(bench.path(destination), bench.source("s/e")).unwrap();
        assert_eq!(bench.state("s").verdict, Verdict::Current);
        assert_eq!(open("new").unwrap().unwrap(), "EVIL 2", "it is decided now");
    }
}

#[test]
fn deep_directories_are_read_like_others() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    let name = "n".repeat(200);
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let descend = |top: &Path, make: bool| {
        let mut at = nix::fcntl::open(top, flags, Mode::empty()).unwrap();
        for _ in 0..40 {
            if make {
                nix::sys::stat::mkdirat(&at, name.as_str(), Mode::from_bits_truncate(0o755)).unwrap();
            }
            at = openat(&at, name.as_str(), flags, Mode::empty()).unwrap();
        }
        at
    };
    let bottom = descend(&bench.source("s"), true);
    let new = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = openat(&bottom, "f", new, Mode::from_bits_truncate(0o644)).unwrap();
    nix::unistd::write(&file, b"deep").unwrap();
    bench.says_current("s");
    bench.mount(&[]);
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    let seen = descend(&bench.view("s"), false);
    let fd = openat(&seen, "f", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(std::io::read_to_string(File::from(fd)).unwrap(), "deep");
}
