//! Files, names, modes and types come through the view as they are at the source.

use crate::support::machine::mountinfo;
use crate::support::skillfs::{Bench, SKILLFS_UID, errno, list, read, until};
use nix::libc;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
    nix::unistd::chown(&bench.source("s/private"), Some(SKILLFS_UID.into()), None).unwrap();
    fs::set_permissions(bench.source("s/private"), fs::Permissions::from_mode(0o600)).unwrap();
    bench.mount_current(&["s"], &[]);
    let as_other = |path: &Path| {
        use std::os::unix::process::CommandExt;
        Command::new("/bin/cat").arg(path).uid(61_999).gid(61_999).output().unwrap()
    };
    assert_eq!(as_other(&bench.view("s/SKILL.md")).stdout, b"x");
    assert!(!as_other(&bench.view("s/private")).status.success());
    let flags = mountinfo();
    let line = flags.lines().find(|l| l.contains(bench.path("mnt").to_str().unwrap())).unwrap();
    for flag in ["ro", "nosuid", "nodev", "default_permissions", "allow_other"] {
        assert!(line.contains(flag), "{flag}: {line}");
    }
    drop(bench);
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.mount_current(&["s"], &["--owner", "61999:61998"]);
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
    bench.mount_current(&["s", "t"], &[]);
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
    bench.mount_current(&["s"], &[]);
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
        let table = mountinfo();
        let line = table.lines().find(|l| l.contains(bench.path("mnt").to_str().unwrap())).unwrap();
        assert!(
            line.contains("nosuid") && line.contains("nodev") && !line.contains("allow_other,suid"),
            "{line}"
        );
    }
}
