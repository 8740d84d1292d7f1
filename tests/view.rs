//! What readers of the view see, on a real mount: no moment in which an undecided edit, a stale name or a private
//! file is served. SEMANTICS.md says in words what is checked here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

#[path = "support/binaries.rs"]
mod binaries;
#[allow(dead_code)]
#[path = "support/skillfs.rs"]
mod skillfs;

use cyberos_proto::control::{ControlReply, ControlRequest, MAX_PAGE, Verdict};
use cyberos_proto::link::Wait;
use nix::libc;
use nix::sys::signal::Signal;
use skillfs::{Bench, answer, name, read, until};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

fn list(path: impl AsRef<Path>) -> BTreeSet<OsString> {
    fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect()
}

/// A bench with one current skill `s`.
fn one(options: &[&str]) -> Bench {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "live");
    bench.snapshot("s", "v1", "trusted");
    bench.says_current("s");
    bench.mount(options);
    bench.settle();
    bench
}

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
fn names_sizes_and_modes_come_through_as_they_are() {
    let mut bench = Bench::new();
    let long = "l".repeat(64);
    let skills =
        ["ünï-ÇödÉ-日本", "🦀", "-rf", "--help", "a b", "trailing ", "new\nline", long.as_str(), "empty"];
    for skill in skills {
        bench.write(&format!("{skill}/SKILL.md"), format!("---\r\nid: {skill}\r\n---\r\nCRLF\r\n"));
        bench.says_current(skill);
    }
    fs::write(bench.source("empty/SKILL.md"), "").unwrap();
    let asset: Vec<u8> = (0..2u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bench.write("a b/assets/big.bin", &asset);
    bench.write("a b/run", "#!/bin/sh\necho ran\n");
    fs::set_permissions(bench.source("a b/run"), fs::Permissions::from_mode(0o6755)).unwrap();
    let odd = OsString::from_vec(b"bad\xff\xfename".to_vec());
    let longest = OsString::from("f".repeat(255));
    fs::write(bench.source("a b").join(&odd), "odd").unwrap();
    fs::write(bench.source("a b").join(&longest), "longest").unwrap();
    fs::create_dir(bench.source(&"x".repeat(65))).unwrap();
    fs::create_dir(bench.path("src").join(OsStr::from_bytes(b"bad\xff"))).unwrap();
    bench.mount(&[]);
    bench.settle();
    let expected: BTreeSet<OsString> = skills.iter().map(OsString::from).collect();
    assert_eq!(list(bench.path("mnt")), expected);
    for skill in skills.iter().filter(|s| **s != "empty") {
        let text = read(bench.view(&format!("{skill}/SKILL.md"))).unwrap();
        assert_eq!(text, format!("---\r\nid: {skill}\r\n---\r\nCRLF\r\n"));
    }
    assert_eq!(read(bench.view("empty/SKILL.md")).unwrap(), "");
    assert_eq!(fs::read(bench.view("a b/assets/big.bin")).unwrap(), asset);
    assert_eq!(read(bench.view("a b").join(&odd)).unwrap(), "odd");
    assert_eq!(read(bench.view("a b").join(&longest)).unwrap(), "longest");
    let too_long = bench.view("a b").join("f".repeat(256));
    assert_eq!(errno(fs::metadata(too_long)), Some(libc::ENAMETOOLONG));
    let run = bench.view("a b/run");
    assert_eq!(fs::metadata(&run).unwrap().mode() & 0o7777, 0o755, "set-id bits are not shown");
    assert_eq!(Command::new(&run).output().unwrap().stdout, b"ran\n");
    let (live, view) =
        (fs::metadata(bench.source("a b/run")).unwrap(), fs::metadata(bench.view("a b/run")).unwrap());
    assert_eq!(
        (live.mtime(), live.mtime_nsec(), live.uid(), live.len()),
        (view.mtime(), view.mtime_nsec(), view.uid(), view.len())
    );
    assert_eq!(errno(fs::metadata(bench.view(&"x".repeat(65)))), Some(libc::ENOENT));
    assert!(bench.log().contains("not shown"), "names that are no skill's are logged");
}

#[test]
fn case_048_access_is_the_kernels_and_owner_can_be_set() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.write("s/private", "owner's");
    nix::unistd::chown(&bench.source("s/private"), Some(skillfs::SKILLFS_UID.into()), None).unwrap();
    fs::set_permissions(bench.source("s/private"), fs::Permissions::from_mode(0o600)).unwrap();
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
    let as_other = |path: &Path| {
        use std::os::unix::process::CommandExt;
        Command::new("/bin/cat").arg(path).uid(61_999).gid(61_999).output().unwrap()
    };
    assert_eq!(as_other(&bench.view("s/SKILL.md")).stdout, b"x");
    assert!(!as_other(&bench.view("s/private")).status.success());
    let flags = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
    let line = flags.lines().find(|l| l.contains(bench.path("mnt").to_str().unwrap())).unwrap();
    for flag in ["ro", "nosuid", "nodev", "default_permissions", "allow_other"] {
        assert!(line.contains(flag), "{flag}: {line}");
    }
    drop(bench);
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says_current("s");
    bench.mount(&["--owner", "61999:61998"]);
    bench.settle();
    for path in ["", "s", "s/SKILL.md"] {
        let m = fs::metadata(bench.view(path)).unwrap();
        assert_eq!((m.uid(), m.gid()), (61_999, 61_998), "{path}");
    }
}

#[test]
fn case_023_types_agree_and_a_fifo_blocks_nobody_else() {
    let mut bench = Bench::new();
    bench.write("s/d/x", "x");
    bench.write("t/SKILL.md", "other");
    nix::unistd::mkfifo(&bench.source("s/SKILL.md"), nix::sys::stat::Mode::from_bits_truncate(0o666))
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.source("s/sk")).unwrap();
    let device = nix::sys::stat::makedev(1, 3);
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::sys::stat::mknod(&bench.source("s/null"), nix::sys::stat::SFlag::S_IFCHR, mode, device).unwrap();
    symlink("d", bench.source("s/l")).unwrap();
    bench.says_current("s");
    bench.says_current("t");
    bench.mount(&[]);
    bench.settle();
    let s = bench.view("s");
    for _ in 0..2 {
        for entry in fs::read_dir(&s).unwrap().map(Result::unwrap) {
            let (listed, looked) = (entry.file_type().unwrap(), fs::symlink_metadata(entry.path()).unwrap());
            assert_eq!(listed, looked.file_type(), "{entry:?}");
            assert_eq!(nix::sys::stat::lstat(&entry.path()).unwrap().st_ino, looked.ino());
        }
    }
    assert_eq!(list(&s), ["SKILL.md", "d", "l", "sk"].map(OsString::from).into());
    assert_eq!(errno(fs::symlink_metadata(s.join("null"))), Some(libc::ENOENT), "device nodes are not shown");
    let fifo = fs::symlink_metadata(s.join("SKILL.md")).unwrap();
    assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o222 == 0, "{:o}", fifo.mode());
    assert!(fs::symlink_metadata(s.join("sk")).unwrap().file_type().is_socket());
    assert!(std::os::unix::net::UnixStream::connect(s.join("sk")).is_err(), "a socket leads nowhere");
    let mut reader = Command::new("/bin/cat").arg(s.join("SKILL.md")).spawn().unwrap();
    let began = Instant::now();
    assert_eq!(read(bench.view("t/SKILL.md")).unwrap(), "other");
    assert_eq!(read(s.join("l/x")).unwrap(), "x");
    assert!(began.elapsed() < Duration::from_secs(1));
    reader.kill().unwrap();
    reader.wait().unwrap();
}

#[test]
fn case_031_and_033_large_directories_keep_their_offsets() {
    use std::os::fd::AsRawFd;
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    fs::create_dir(bench.source("s/many")).unwrap();
    for n in 0..5000 {
        fs::write(bench.source(&format!("s/many/f{n}")), "").unwrap();
    }
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
    let many = bench.view("s/many");
    assert_eq!(list(&many).len(), 5000);
    let script = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Dirent(ctypes.Structure):
    _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('len', ctypes.c_uint16), ('type', ctypes.c_uint8), ('name', ctypes.c_char * 256)]
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Dirent)
libc.telldir.restype = ctypes.c_long
for f in (libc.readdir, libc.telldir, libc.rewinddir): f.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
d = libc.opendir(sys.argv[1].encode())
seen = []
while True:
    at = libc.telldir(d)
    e = libc.readdir(d)
    if not e: break
    seen.append((at, e.contents.name))
names = [n for _, n in seen]
assert len(names) == 5002 and len(set(names)) == 5002, len(names)
libc.rewinddir(d)
assert libc.readdir(d).contents.name == names[0]
for at, name in seen[::37] + seen[::-41]:
    libc.seekdir(d, at)
    assert libc.readdir(d).contents.name == name, (at, name)
";
    let python = Command::new("python3").arg("-c").arg(script).arg(&many).output().unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    // An open listing goes on correctly although entries before and behind it go: `--on-change keep` is not needed,
    // since the descriptor's position is what is tested, on a mount that keeps showing the folder.
    drop(bench);
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    fs::create_dir(bench.source("s/many")).unwrap();
    for n in 0..3000 {
        fs::write(bench.source(&format!("s/many/f{n}")), "").unwrap();
    }
    bench.mount(&["--unprotected"]);
    bench.settle();
    let open = fs::File::open(bench.view("s/many")).unwrap();
    let mut reading = fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
    let mut seen: Vec<OsString> = reading.by_ref().take(500).map(|e| e.unwrap().file_name()).collect();
    let gone: BTreeSet<OsString> = seen.iter().take(100).cloned().collect();
    for name in &gone {
        fs::remove_file(bench.source("s/many").join(name)).unwrap();
    }
    fs::write(bench.source("s/many/new"), "").unwrap();
    seen.extend(reading.map(|e| e.unwrap().file_name()));
    let set: BTreeSet<&OsString> = seen.iter().collect();
    assert_eq!(set.len(), seen.len(), "an entry came twice");
    for n in 0..3000 {
        let name = OsString::from(format!("f{n}"));
        assert!(gone.contains(&name) || set.contains(&name), "{name:?} was lost");
    }
}

#[test]
fn an_edit_behind_the_view_is_never_served_undecided() {
    let bench = one(&[]);
    // The provider takes its time, so that what is undecided stays so for a while.
    fs::write(bench.path("stub/s.scan"), "sleep 0.05").unwrap();
    let file = bench.view("s/SKILL.md");
    let stop = AtomicBool::new(false);
    let good = |text: &str| matches!(text, "live" | "trusted");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match read(&file) {
                        Ok(text) => assert!(good(&text), "served {text:?} undecided"),
                        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => {}
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
                    }
                }
            });
        }
        for turn in 0..30 {
            // Decided as drifted: the folder must not be seen between the edit and this.
            bench.says_fallback("s", "v1");
            let began = Instant::now();
            let live = bench.source("s/SKILL.md");
            if turn % 2 == 0 {
                fs::write(&live, "EVIL").unwrap();
            } else {
                fs::write(bench.path("new"), "EVIL").unwrap();
                fs::rename(bench.path("new"), &live).unwrap();
            }
            // A new open after the edit has ended never finds it, nor the cached text of before.
            let text = read(&file);
            assert!(!text.as_deref().is_ok_and(|t| t == "EVIL"), "turn {turn}");
            let ControlReply::Skill(state) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
                panic!()
            };
            assert!(state.pending, "turn {turn}: {state:?}");
            until("the snapshot is shown", || read(&file).is_ok_and(|t| t == "trusted"));
            assert!(began.elapsed() < Duration::from_secs(1), "turn {turn}");
            let state = bench.state("s");
            assert_eq!((state.verdict, state.pending), (Verdict::Fallback, false), "turn {turn}");
            // And back: what is written is good, and then it is decided as current.
            fs::write(bench.path("new"), "live").unwrap();
            fs::rename(bench.path("new"), &live).unwrap();
            bench.says_current("s");
            bench.refresh("s");
            assert_eq!(read(&file).unwrap(), "live", "turn {turn}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_folder_that_cannot_be_watched_hides_its_skill_and_says_so() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.write("s/closed/f", "x");
    bench.write("t/SKILL.md", "t");
    fs::set_permissions(bench.source("s/closed"), fs::Permissions::from_mode(0o711)).unwrap();
    bench.says_current("s");
    bench.says_current("t");
    bench.mount(&[]);
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Hidden);
    assert!(state.reason.unwrap().contains("closed"));
    assert_eq!(bench.state("t").verdict, Verdict::Current);
    fs::set_permissions(bench.source("s/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    until("shown when repaired", || read(bench.view("s/closed/f")).is_ok());
}

#[test]
fn a_store_through_a_mapping_is_noticed_when_it_is_read() {
    let bench = one(&[]);
    let mut mapper = Command::new("python3");
    mapper
        .args(["-c", "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),4)\nopen(sys.argv[2],'w').close()\nsys.stdin.read()\nm[:4]=b'EVIL'\nm.flush()\nprint('stored',flush=True)\nopen(sys.argv[3]).read()"])
        .arg(bench.source("s/SKILL.md"))
        .arg(bench.path("mapped"))
        .arg(bench.path("hold"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut mapper = mapper.spawn().unwrap();
    nix::unistd::mkfifo(&bench.path("hold"), nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
        .unwrap();
    until("mapped", || bench.path("mapped").exists());
    bench.settle();
    assert_eq!(fs::metadata(bench.view("s/SKILL.md")).unwrap().len(), 4);
    bench.says_fallback("s", "v1");
    drop(mapper.stdin.take());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(mapper.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "stored\n");
    let text = read(bench.view("s/SKILL.md"));
    assert!(!text.is_ok_and(|t| t == "EVIL"), "a stored byte was served");
    until("decided anew", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "trusted"));
    fs::write(bench.path("hold"), "").unwrap();
    mapper.wait().unwrap();
}

#[test]
fn a_helper_that_is_not_root_is_asked_nothing() {
    use std::os::unix::process::CommandExt;
    let bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    let open = bench.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let socket = open.join("helper.sock");
    let script = "import os,socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\nos.umask(0)\ns.bind(sys.argv[1])\ns.listen(1)\nc,_=s.accept()\nsys.stdout.write(repr(c.recv(100)))";
    let mut false_helper = Command::new("python3")
        .args(["-c", script])
        .arg(&socket)
        .uid(61_999)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("the false helper listens", || fs::symlink_metadata(&socket).is_ok());
    let mut arguments = bench.arguments(&["--unprotected"]);
    let at = arguments.iter().position(|a| a == "--helper").unwrap();
    arguments[at + 1] = socket.display().to_string();
    let output = bench.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("not by root"), "{said}");
    let mut heard = String::new();
    false_helper.stdout.take().unwrap().read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "b''");
    false_helper.wait().unwrap();
}

#[test]
fn what_is_shown_while_a_change_is_undecided_is_the_policy() {
    for (policy, version, pending) in [
        ("snapshot", Some("v1"), Some("trusted")),
        ("snapshot", None, None),
        ("hide", Some("v1"), None),
        ("keep", Some("v1"), Some("edited")),
    ] {
        let mut bench = Bench::new();
        bench.write("s/SKILL.md", "live");
        bench.snapshot("s", "v1", "trusted");
        let mut said: serde_json::Value =
            serde_json::from_str(&answer("s", "pass", "current", None)).unwrap();
        said["trustedVersion"] = version.into();
        bench.says("s", &said.to_string());
        bench.mount(&["--on-change", policy]);
        bench.settle();
        let file = bench.view("s/SKILL.md");
        assert_eq!(read(&file).unwrap(), "live");
        // While the gate is shut, the provider does not answer.
        let gate = bench.path("stub/gate");
        fs::write(&gate, "").unwrap();
        let wait = format!("while [ -e {} ]; do sleep 0.01; done", gate.display());
        fs::write(bench.path("stub/s.scan"), wait).unwrap();
        fs::write(bench.source("s/SKILL.md"), "edited").unwrap();
        let what = format!("--on-change {policy} with {version:?}");
        until(&what, || read(&file).ok().as_deref() == pending);
        let ControlReply::Skill(state) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
            panic!()
        };
        assert!(state.pending, "{what}");
        fs::remove_file(gate).unwrap();
        until("decided", || read(&file).ok().as_deref() == Some("edited"));
        assert!(!bench.state("s").pending);
    }
}

#[test]
fn epochs_rise_with_every_change_and_are_equal_otherwise() {
    let bench = one(&[]);
    let first = bench.state("s").epoch;
    read(bench.view("s/SKILL.md")).unwrap();
    assert_eq!(bench.state("s").epoch, first, "reading changes nothing");
    bench.write("s/new", "x");
    let second = bench.state("s").epoch;
    assert!(second.start == first.start && second.count > first.count);
    bench.refresh("s");
    assert!(bench.state("s").epoch.count > second.count, "a decision counts");
    // A change that is made and asked about at once is seen: no answer is older than the question.
    for n in 0..50 {
        let before = bench.state("s").epoch;
        bench.write("s/new", n.to_string());
        let ControlReply::Skill(now) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
            panic!()
        };
        assert!(now.pending && now.epoch.count > before.count, "{n}: {before:?} {now:?}");
    }
}

#[test]
fn case_041_flips_under_readers_leave_nothing_stale() {
    let mut bench = Bench::new();
    for (tree, text) in [("s", "live"), ("s/.skill-meta/versions/v1.snapshot", "trusted")] {
        bench.write(&format!("{tree}/SKILL.md"), text);
        bench.write(&format!("{tree}/d/deep/f"), text);
        bench.write(&format!("{tree}/only-{text}"), text);
    }
    bench.write("other/SKILL.md", "other");
    bench.says_current("s");
    bench.says_current("other");
    bench.mount(&["--jobs", "2"]);
    bench.settle();
    let held = fs::File::open(bench.view("s/d/deep/f")).unwrap();
    let root = bench.view("s");
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for path in ["SKILL.md", "d/deep/f", "only-live", "only-trusted"] {
                        let _ = read(root.join(path));
                        let _ = fs::metadata(root.join(path));
                    }
                    let _ = fs::read_dir(&root).map(Iterator::count);
                    let _ = fs::read_dir(root.join("d/deep")).map(Iterator::count);
                    assert_eq!(read(bench.view("other/SKILL.md")).unwrap(), "other");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for flip in 0..300 {
            let expected = match flip % 4 {
                0 => {
                    bench.says_fallback("s", "v1");
                    Some(("trusted", "live"))
                }
                1 | 3 => {
                    bench.says_current("s");
                    Some(("live", "trusted"))
                }
                _ => {
                    bench.says_hidden("s");
                    None
                }
            };
            bench.refresh("s");
            let Some((shown, absent)) = expected else {
                for path in ["", "SKILL.md", "d/deep/f"] {
                    assert_eq!(errno(fs::metadata(root.join(path))), Some(libc::ENOENT), "flip {flip}");
                }
                assert_eq!(list(bench.path("mnt")), BTreeSet::from([OsString::from("other")]), "flip {flip}");
                continue;
            };
            for path in ["SKILL.md", "d/deep/f", &format!("only-{shown}")] {
                assert_eq!(read(root.join(path)).unwrap(), shown, "flip {flip}: a stale open of {path}");
                assert_eq!(fs::metadata(root.join(path)).unwrap().len(), shown.len() as u64, "flip {flip}");
            }
            let gone = root.join(format!("only-{absent}"));
            assert_eq!(errno(fs::metadata(gone)), Some(libc::ENOENT), "flip {flip}: a stale name");
            let names = list(&root);
            assert!(
                names.contains(OsStr::new(&format!("only-{shown}"))) && names.len() == 3,
                "flip {flip}: {names:?}"
            );
            assert_eq!(list(bench.path("mnt")).len(), 2, "flip {flip}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 50);
    let mut text = String::new();
    (&held).read_to_string(&mut text).unwrap();
    assert_eq!(text, "live", "an open handle stays on what it was opened on");
    let began = Instant::now();
    bench.signal(Signal::SIGTERM);
    assert!(bench.wait().success());
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(bench.mounts(), 0);
}

#[test]
fn case_037_a_working_directory_survives_flips_of_its_skill() {
    let bench = one(&[]);
    // A process of its own, since a working directory is a process's.
    let script = "import os,sys\nos.chdir(sys.argv[1])\nprint('in',flush=True)\nfor line in sys.stdin:\n print(os.getcwd(), open('SKILL.md').read(), flush=True)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(bench.view("s"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    assert_eq!(lines.next().unwrap().unwrap(), "in");
    let here = bench.view("s").display().to_string();
    for turn in 0..40 {
        let (shown, _) = if turn % 2 == 0 {
            ("trusted", bench.says_fallback("s", "v1"))
        } else {
            ("live", bench.says_current("s"))
        };
        bench.refresh("s");
        std::io::Write::write_all(&mut stdin, b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("{here} {shown}"), "turn {turn}");
    }
    drop(stdin);
    child.wait().unwrap();
}

#[test]
fn a_hidden_skill_cannot_be_read_from_a_directory_held_below_it() {
    use nix::fcntl::{OFlag, openat};
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "live");
    bench.write("s/d/deep/f", "secret");
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
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

#[test]
fn case_004_an_open_handle_never_mixes_two_versions() {
    let mut bench = Bench::new();
    let size = 10 << 20;
    bench.write("s/SKILL.md", "x");
    bench.write("s/big", vec![b'A'; size]);
    bench.write("s/.skill-meta/versions/v1.snapshot/big", vec![b'C'; size]);
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
    let mut old = fs::File::open(bench.view("s/big")).unwrap();
    let mut start = vec![0; 1 << 20];
    old.read_exact(&mut start).unwrap();
    // Exchanged atomically, and decided anew as a fallback.
    bench.says_fallback("s", "v1");
    fs::write(bench.source("s/.new"), vec![b'B'; size]).unwrap();
    fs::rename(bench.source("s/.new"), bench.source("s/big")).unwrap();
    assert_eq!(bench.state("s").verdict, Verdict::Fallback);
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).unwrap();
    assert!(start.iter().chain(&rest).all(|b| *b == b'A') && start.len() + rest.len() == size);
    let new = fs::read(bench.view("s/big")).unwrap();
    assert!(new.len() == size && new.iter().all(|b| *b == b'C'));
    // Written in place: what was opened is no more, so the handle gives an error instead of a mixture.
    drop(bench);
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.write("s/big", vec![b'A'; size]);
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
    let mut old = fs::File::open(bench.view("s/big")).unwrap();
    old.read_exact(&mut start).unwrap();
    fs::write(bench.source("s/big"), vec![b'B'; size]).unwrap();
    bench.state("s");
    let mut rest = Vec::new();
    let end = old.read_to_end(&mut rest);
    assert!(rest.iter().all(|b| *b == b'A'), "old and new bytes in one handle");
    assert_eq!(errno(end), Some(libc::ESTALE));
    assert!(fs::read(bench.view("s/big")).unwrap().iter().all(|b| *b == b'B'));
    // An old handle that is read again and again does not keep the skill pending.
    let epoch = bench.state("s").epoch;
    for _ in 0..20 {
        let _ = old.read(&mut start);
    }
    assert!(bench.state("s").epoch.count <= epoch.count + 8);
    assert!(fs::read(bench.view("s/big")).is_ok());
}

#[test]
fn case_044_changes_at_the_source_are_seen_within_a_second() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "1");
    bench.write("s/d/e/f", "1");
    bench.mount(&["--unprotected"]);
    bench.settle();
    let s = bench.view("s");
    for text in ["22", "333", "4"] {
        assert!(!read(s.join("d/e/f")).unwrap().is_empty());
        let began = Instant::now();
        bench.write("s/d/e/f", text);
        until("the edit is seen", || {
            read(s.join("d/e/f")).is_ok_and(|t| t == text)
                && fs::metadata(s.join("d/e/f")).is_ok_and(|m| m.len() == text.len() as u64)
        });
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    fs::rename(bench.source("s/d/e"), bench.source("s/g")).unwrap();
    until("the rename is seen", || read(s.join("g/f")).is_ok() && fs::metadata(s.join("d/e")).is_err());
    // Changes below the renamed folder are seen as well.
    bench.write("s/g/f", "after the move");
    until("seen there too", || read(s.join("g/f")).is_ok_and(|t| t == "after the move"));
    fs::remove_dir_all(bench.source("s/g")).unwrap();
    until("the removal is seen", || list(&s) == ["SKILL.md", "d"].map(OsString::from).into());
    bench.write("s/new/deep/er/file", "x");
    until("the new folders are seen", || read(s.join("new/deep/er/file")).is_ok());
    bench.write("s/new/deep/er/file", "y");
    until("and watched", || read(s.join("new/deep/er/file")).is_ok_and(|t| t == "y"));
}

#[test]
fn case_011_skills_that_come_are_asked_about_first_and_go_at_once() {
    let mut bench = Bench::new();
    bench.write("a/SKILL.md", "a");
    bench.says_current("a");
    bench.mount(&[]);
    bench.settle();
    bench.says_hidden("b");
    bench.says_current("c");
    for skill in ["b", "c"] {
        fs::create_dir(bench.path(skill)).unwrap();
        fs::write(bench.path(skill).join("SKILL.md"), skill).unwrap();
        fs::rename(bench.path(skill), bench.source(skill)).unwrap();
    }
    until("c is shown", || read(bench.view("c/SKILL.md")).is_ok_and(|t| t == "c"));
    assert_eq!(bench.state("b").verdict, Verdict::Hidden);
    assert_eq!(list(bench.path("mnt")), ["a", "c"].map(OsString::from).into());
    // A folder that takes the place of a decided one is another folder.
    bench.says_hidden("a");
    bench.write("../other/SKILL.md", "EVIL");
    fs::rename(bench.source("a"), bench.path("a.old")).unwrap();
    fs::rename(bench.path("other"), bench.source("a")).unwrap();
    assert!(!read(bench.view("a/SKILL.md")).is_ok_and(|t| t == "EVIL"), "served before it was asked about");
    assert_eq!(bench.state("a").verdict, Verdict::Hidden);
    fs::remove_dir_all(bench.source("c")).unwrap();
    until("c is gone", || fs::metadata(bench.view("c")).is_err());
    until("and forgotten", || {
        bench.ask(&ControlRequest::Explain { skill: name("c") }) == ControlReply::NoSuchSkill
    });
    // And it can come back.
    bench.write("c/SKILL.md", "c again");
    until("c is back", || read(bench.view("c/SKILL.md")).is_ok_and(|t| t == "c again"));
}

#[test]
fn case_026_of_two_sources_the_first_gives_the_whole_skill() {
    let mut bench = Bench::new();
    bench.write("demo/SKILL.md", "first");
    bench.write("../src2/demo/SKILL.md", "second");
    bench.write("../src2/demo/only-second", "x");
    bench.write("../src2/more/SKILL.md", "more");
    let arguments = bench.arguments(&["--unprotected"]);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let second = bench.path("src2").display().to_string();
    arguments.insert(2, &second);
    bench.mount_with(&arguments);
    until("both are shown", || list(bench.path("mnt")).len() == 2);
    assert_eq!(read(bench.view("demo/SKILL.md")).unwrap(), "first");
    assert_eq!(list(bench.view("demo")), BTreeSet::from([OsString::from("SKILL.md")]));
    assert_eq!(read(bench.view("more/SKILL.md")).unwrap(), "more");
    // When the first one goes, the second one's is another skill of that name, decided anew.
    fs::remove_dir_all(bench.source("demo")).unwrap();
    until("the second gives it", || read(bench.view("demo/SKILL.md")).is_ok_and(|t| t == "second"));
    assert_eq!(read(bench.view("demo/only-second")).unwrap(), "x");
}

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
    bench.says_current("s");
    bench.mount(&[]);
    bench.settle();
    let count = || fs::read_dir(format!("/proc/{}/fd", bench.pid())).unwrap().count();
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

#[test]
fn live_and_snapshot_files_have_different_inode_numbers() {
    let bench = one(&[]);
    let ino = || fs::metadata(bench.view("s/SKILL.md")).unwrap().ino();
    let top = || fs::metadata(bench.view("s")).unwrap().ino();
    let (live, first_top) = (ino(), top());
    bench.says_fallback("s", "v1");
    bench.refresh("s");
    assert_ne!(ino(), live);
    assert_eq!(top(), first_top, "the top directory keeps its number");
    bench.says_current("s");
    bench.refresh("s");
    assert_eq!(ino(), live);
}

#[test]
fn garbage_on_the_control_socket_hurts_nobody() {
    let bench = one(&[]);
    let raw = |bytes: &[u8]| {
        use nix::sys::socket::{MsgFlags, recv, send};
        use std::os::fd::{AsFd, AsRawFd};
        let link = bench.control();
        link.set_receive_timeout(Duration::from_secs(10)).unwrap();
        let fd = link.as_fd().as_raw_fd();
        send(fd, bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
        let mut answer = [0; 64];
        let got = recv(fd, &mut answer, MsgFlags::empty()).unwrap();
        let closed = recv(fd, &mut [0; 64], MsgFlags::empty());
        (answer[..got].to_vec(), closed)
    };
    let malformed = cyberos_proto::link::encode(&ControlReply::Malformed).unwrap();
    let long = vec![0xff; 70_000];
    for bytes in [
        &b"\x02"[..],
        b"\x01\x00\x00",
        b"\x02\xff\xff\xff",
        b"GET / HTTP/1.1\r\n",
        b"\x02\x00\x00trailing",
        &long,
    ] {
        assert_eq!(raw(bytes), (malformed.clone(), Ok(0)), "{:?}", &bytes[..bytes.len().min(20)]);
    }
    // Descriptors that nobody asked for are closed, and the link with them.
    let link = bench.control();
    let null = fs::File::open("/dev/null").unwrap();
    let packet = cyberos_proto::link::encode(&ControlRequest::Status { after: None }).unwrap();
    {
        use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
        use std::os::fd::{AsFd, AsRawFd};
        let fds = [null.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let parts = [std::io::IoSlice::new(&packet)];
        sendmsg::<UnixAddr>(link.as_fd().as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
    }
    assert_eq!(link.receive(Wait::Block).unwrap().0, ControlReply::Malformed);
    // Clients that only connect, up to the bound of one user, keep the view and other questions going: those beyond
    // are closed at once.
    let idle: Vec<_> = (0..300).map(|_| bench.control()).collect();
    // They are taken in order: when the last one has been closed, all others have been decided.
    assert!(matches!(idle[299].receive(Wait::Block), Err(cyberos_proto::link::LinkError::Closed)));
    let open = idle
        .iter()
        .filter(|l| matches!(l.receive(Wait::No), Err(cyberos_proto::link::LinkError::WouldBlock)));
    assert_eq!(open.count(), 256);
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
    drop(idle);
    until("there is room again", || {
        let link = bench.control();
        let sent = link.send(&ControlRequest::Status { after: None }, &[], Wait::Block);
        sent.is_ok() && matches!(link.receive(Wait::Block), Ok((ControlReply::Status(_), _)))
    });
}

#[test]
fn status_comes_in_pages_that_fit() {
    let mut bench = Bench::new();
    let count = MAX_PAGE * 2 + 5;
    for n in 0..count {
        let skill = format!("s{n:03}");
        bench.write(&format!("{skill}/SKILL.md"), "x");
        let mut said: serde_json::Value =
            serde_json::from_str(&answer(&skill, "deny", "current", None)).unwrap();
        said["reason"] = "r".repeat(5000).into();
        said["currentVersion"] = "v".repeat(5000).into();
        bench.says(&skill, &said.to_string());
    }
    bench.mount(&["--jobs", "4"]);
    bench.settle();
    let (mut after, mut names) = (None, Vec::new());
    loop {
        let ControlReply::Status(page) = bench.ask(&ControlRequest::Status { after: after.clone() }) else {
            panic!()
        };
        assert_eq!((page.total as usize, page.undecided, page.mounted), (count, 0, true));
        assert!(!page.skills.is_empty() && page.skills.len() <= MAX_PAGE);
        names.extend(page.skills.iter().map(|s| s.skill.to_string()));
        after = page.skills.last().map(|s| s.skill.clone());
        if !page.more {
            break;
        }
    }
    let expected: Vec<String> = (0..count).map(|n| format!("s{n:03}")).collect();
    assert_eq!(names, expected);
}

#[test]
fn the_control_socket_belongs_to_its_directorys_group() {
    let mut bench = one(&[]);
    let socket = fs::metadata(bench.path("run/control.sock")).unwrap();
    let directory = fs::metadata(bench.path("run")).unwrap();
    assert_eq!((socket.mode() & 0o777, socket.gid()), (0o660, directory.gid()));
    bench.signal(Signal::SIGTERM);
    assert!(bench.wait().success());
    assert!(fs::symlink_metadata(bench.path("run/control.sock")).is_err(), "a clean end removes it");
    // After a crash it is replaced; a file of another kind is left alone.
    bench.mount(&[]);
    bench.signal(Signal::SIGKILL);
    bench.wait();
    bench.mount(&[]);
    bench.signal(Signal::SIGTERM);
    bench.wait();
    fs::write(bench.path("run/control.sock"), "precious").unwrap();
    let arguments = bench.arguments(&[]);
    let output = bench.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("left alone"));
    assert_eq!(read(bench.path("run/control.sock")).unwrap(), "precious");
}

#[test]
fn a_provider_cannot_look_into_skillfs() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says_current("s");
    let probe = "P=$(awk '/^PPid/{print $2}' /proc/self/status); \
        { cat /proc/$PPID/environ /proc/$PPID/maps || ls /proc/$PPID/fd; } >$STUB/../run/loot 2>/dev/null; true";
    fs::write(bench.path("stub/s.scan"), probe).unwrap();
    bench.mount(&[]);
    bench.settle();
    assert_eq!(read(bench.path("run/loot")).unwrap(), "");
}

#[test]
fn case_049_a_source_with_a_strange_name_is_only_data() {
    for strange in ["a,allow_other,suid", "a\\,b", "x\ny", "--help", "rootmode=1"] {
        let mut bench = Bench::new();
        let source = bench.path(strange);
        fs::create_dir_all(source.join("s")).unwrap();
        fs::write(source.join("s/SKILL.md"), "x").unwrap();
        let arguments = bench.arguments(&["--unprotected"]);
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let source = source.display().to_string();
        arguments[1] = &source;
        bench.mount_with(&arguments);
        until(strange, || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "x"));
        let table = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
        let line = table.lines().find(|l| l.contains(bench.path("mnt").to_str().unwrap())).unwrap();
        assert!(
            line.contains("nosuid") && line.contains("nodev") && !line.contains("allow_other,suid"),
            "{line}"
        );
    }
}
