//! What a command may ask of the kernel about a directory that it may write: nothing that takes room unseen, or stores what
//! nothing counts (threat A23, `[10.5]`).

use super::*;

/// Each request with the errno that a command gets, on a file of its own in the granted directory.
const REQUESTS: &str = r#"
import errno, fcntl, os, struct, sys
os.chdir(sys.argv[1])
f = os.open("asked", os.O_CREAT | os.O_RDWR, 0o644)
room = struct.pack("hhqqiI16x", 0, 0, 0, 64 << 20, 0, 0)
for request in (0x40305828, 0x4030582a, 0x40305839, 0x40305824, 0x40086602, 0x401c5820, 0x40049409, 0x4020940d, 0xc0189436):
    try: print(hex(request), fcntl.ioctl(f, request, room))
    except OSError as e: print(errno.errorcode[e.errno])
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(*a):
    ctypes.set_errno(0)
    print(libc.syscall(*[ctypes.c_long(x) for x in a]), errno.errorcode.get(ctypes.get_errno(), "ok"))
at = libc.mmap; at.restype = ctypes.c_void_p
page = at(None, 8192, 3, 0x22, -1, 0)
raw(28, page, 8192, 12)
raw(28, page, 8192, 14)
raw(157, 67, 1, 0, 0, 0)
raw(157, 78, 1, 1 << 22, 0, 0)
for command in (37, 1024, 1026):
    raw(72, f, command, 0)
"#;

#[test]
fn threat_a23_no_request_of_a_command_takes_or_shares_room_on_a_disk() {
    let bash = Bash::new();
    let dir = bash.directory("work");
    std::fs::write(dir.join("ask.py"), REQUESTS).unwrap();
    let said = bash.prints("writer", &format!("python3 -I {0}/ask.py {0}", dir.display()));
    // Merging pages, a huge table, locks of a descriptor and notes are unknown; a lease is refused; huge pages are asked for
    // by many.
    let wanted = ["ENOTTY"; 9].into_iter().chain(["-1 EINVAL", "0 ok", "-1 EINVAL", "-1 EPERM"]);
    let wanted: Vec<_> = wanted.chain(["-1 EINVAL", "-1 EPERM", "-1 EINVAL"]).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
    let asked = std::fs::metadata(dir.join("asked")).unwrap();
    assert_eq!((asked.len(), asked.blocks()), (0, 0), "room was taken");
}

#[test]
fn threat_a23_an_attribute_is_small_and_programs_go_on_without_those_that_are_not() {
    let bash = Bash::new();
    let dir = bash.directory("work");
    let from = bash.directory("work/from");
    let file = from.join("file");
    std::fs::write(&file, "kept").unwrap();
    bash.give(&file);
    // As somebody outside has left it: attributes of both sizes, and a short access control list.
    let outside = format!(
        "import os, struct\nf = {file:?}\nos.setxattr(f, 'user.small', b's' * 100)\nos.setxattr(f, 'user.large', b'l' * 1000)\n\
         e = [(1, 6, -1), (2, 4, {}), (4, 4, -1), (16, 6, -1), (32, 4, -1)]\n\
         os.setxattr(f, 'system.posix_acl_access', struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *x) for x in e))",
        bash.broker().0
    );
    assert!(
        std::process::Command::new("/usr/bin/python3")
            .args(["-I", "-c", &outside])
            .status()
            .unwrap()
            .success()
    );
    let script = r#"cd DIR && set -e
cp -a from copied && cp -p from/file plain && install -m 640 from/file installed
tar --xattrs --acls -cf all.tar from 2>tar.log && mkdir out && tar --xattrs --acls -xpf all.tar -C out 2>>tar.log
python3 -I -c "import shutil; shutil.copy2('from/file', 'py'); shutil.copystat('from/file', 'py'); shutil.copytree('from', 'tree')"
cat copied/file plain installed out/from/file py tree/file
python3 -I - <<'PY'
import os
def size(n):
    try: os.setxattr("plain", "user.own", b"x" * n); return "ok"
    except OSError as e: return os.strerror(e.errno)
print(); print(size(256), "|", size(257), "|", size(60000), "|", os.getxattr("copied/file", "user.small").decode()[:3])
print(len(os.getxattr("plain", "system.posix_acl_access")), os.listxattr("copied/file"))
PY"#;
    let said = bash.prints("writer", &script.replace("DIR", dir.to_str().unwrap()));
    let (refused, kept) = ("Operation not supported", "['system.posix_acl_access', 'user.small']");
    assert_eq!(said, format!("{}\nok | {refused} | {refused} | sss\n44 {kept}", "kept".repeat(6)));
}
