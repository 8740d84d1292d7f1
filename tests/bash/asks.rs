//! What a command may ask of the kernel about a directory that it may write: nothing that takes room unseen, or stores what
//! nothing counts (threat A23, `[10.5]`).

use super::*;
use crate::support::up::{Skill, Up};

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

/// What archivers, git, install and Python do with set-id bits (`[10.5]`), in the working directory.
const SET_ID: &str = r#"set -e
umask 022
mkdir from made && echo x >from/f && chmod 750 from && chmod 640 from/f
tar cf a.tar --mode=u=rwx,g=rxs,o=rx from
tar cf b.tar --mode=4755 from/f
tar xpf a.tar -C made && tar xpf b.tar -C made
stat -c '%a %n' made/from made/from/f
git init -q --shared=group r && git -C r rev-parse --git-dir
install -m 4755 from/f i && cp -p FROM p && cp -a FROM a
stat -c '%a %n' i p
chmod 2750 from && chmod u+s,g+s from/f && stat -c '%a %n' from from/f
python3 -I - <<'PY'
import ctypes, errno, os, shutil, stat
libc = ctypes.CDLL(None, use_errno=True)
def mode(path): return oct(stat.S_IMODE(os.stat(path).st_mode))
def tried(what, *how, **more):
    try: what(*how, **more); return "ok"
    except OSError as e: return errno.errorcode[e.errno]
open("q", "w").close(); os.symlink("q", "link"); os.symlink("nothing", "broken"); os.mkdir("d"); open("d/q", "w").close()
fd, at, place = os.open("q", os.O_RDONLY), os.open("d", os.O_RDONLY), os.open("q", os.O_PATH)
os.chmod("q", 0o4711); print(mode("q"))
os.fchmod(fd, 0o6755); print(mode("q"))
os.chmod(os.path.abspath("q"), 0o2700); print(mode("q"))
os.chmod("link", 0o4750); print(mode("q"), os.path.islink("link"))
os.chmod("q", 0o7644, dir_fd=at); print(mode("d/q"), mode("q"))
os.chmod("../q", 0o2600, dir_fd=at); print(mode("q"))
os.chmod(f"/proc/self/fd/{fd}", 0o4640); print(mode("q"))
os.chmod(f"/dev/fd/{place}", 0o4660); print(mode("q"))
shutil.copystat("FROM", "q"); print(mode("q"))
print(tried(os.chmod, "none", 0o4755), tried(os.chmod, "broken", 0o4755), tried(os.chmod, "q/x", 0o4755), tried(os.chmod, "/usr/bin/env", 0o4755))
print(tried(os.chmod, "", 0o4755), tried(os.chmod, "x" * 300, 0o4755), tried(os.chmod, "x/" * 3000, 0o4755))
print(tried(os.fchmod, 99, 0o4755), tried(os.fchmod, place, 0o4755), tried(os.chmod, "q", 0o4755, dir_fd=99), tried(os.chmod, "q", 0o4755, dir_fd=fd))
def raw(address):
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(90), ctypes.c_void_p(address), ctypes.c_long(0o4755)), errno.errorcode.get(ctypes.get_errno())
print(raw(0), raw(1 << 63), raw(4096))
# At the very end of what is mapped.
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_long] + [ctypes.c_int] * 3 + [ctypes.c_long]
page = libc.mmap(None, 8192, 3, 0x22, -1, 0); libc.munmap(ctypes.c_void_p(page + 4096), ctypes.c_long(4096))
ctypes.memmove(page + 4094, b"q\0", 2); print(raw(page + 4094), mode("q"))
ctypes.memmove(page + 4094, b"qq", 2); print(raw(page + 4094))
print(tried(os.open, "o", os.O_CREAT | os.O_WRONLY, 0o4644), tried(os.mknod, "n", 0o102644), tried(os.mkfifo, "n", 0o2644))
libc.prctl(4, 0); print("hidden", tried(os.chmod, "q", 0o4755), tried(os.fchmod, fd, 0o4755))
PY
find . -perm /6000"#;

const SET_ID_SAYS: &str = "755 made/from
755 made/from/f
.git
755 i
755 p
750 from
640 from/f
0o711
0o755
0o700
0o750 True
0o1644 0o750
0o600
0o640
0o660
0o755
ENOENT ENOENT ENOTDIR EROFS
ENOENT ENAMETOOLONG ENAMETOOLONG
EBADF EBADF EBADF ENOTDIR
(-1, 'EFAULT') (-1, 'EFAULT') (-1, 'EFAULT')
(0, None) 0o755
(-1, 'EFAULT')
EPERM EPERM EPERM
hidden EPERM EPERM
";

/// The bits are left out and all else is set, as where no file has them; where that cannot be, the call is refused. Nothing
/// of it is on the host.
#[test]
fn case_189_set_id_bits_are_left_out_of_modes_that_are_set_in_bash() {
    use std::os::unix::fs::PermissionsExt;
    let bash = Bash::new();
    let dir = bash.directory("work");
    // As somebody outside has left it.
    let from = bash.dir.join("set-id");
    std::fs::copy("/bin/true", &from).unwrap();
    bash.give(&from);
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o6755)).unwrap();
    let script = SET_ID.replace("FROM", from.to_str().unwrap());
    assert_eq!(bash.prints("writer", &format!("cd {} && {script}", dir.display())), SET_ID_SAYS.trim_end());
    let set: Vec<_> =
        below(&dir).into_iter().filter(|(_, meta)| meta.permissions().mode() & 0o6000 != 0).collect();
    assert!(set.is_empty(), "{set:?}");
}

#[test]
fn case_189_set_id_bits_are_left_out_of_modes_that_are_set_in_a_skill() {
    let main =
        format!("#!/bin/sh\ncd /tmp && mkdir w && cd w\n{}", SET_ID.replace("FROM", "/usr/bin/passwd"));
    let up = Up::new(|source| {
        drop(Skill { id: "modes", main: &main, ..Skill::default() }.write(source));
    });
    let ran = up.run("modes", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, SET_ID_SAYS), "{ran}");
}
