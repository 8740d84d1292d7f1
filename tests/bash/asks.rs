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

/// What a command of archivers and of git does with set-id bits (`[10.5]`): a new directory is made without them, as the
/// kernel makes it for everybody; where they would be stored, it is refused, since a filter cannot leave them out and
/// success would leave the rest of the mode unset. Nothing of it is on the host.
#[test]
fn case_189_set_id_bits_are_left_out_where_the_kernel_does_and_refused_elsewhere() {
    use std::os::unix::fs::PermissionsExt;
    let bash = Bash::new();
    let dir = bash.directory("work");
    let script = r#"cd DIR; umask 0
python3 -I -c "import os; os.mkdir('made', 0o2775); os.makedirs('a/b', 0o6775)" && echo made
mkdir from && echo x >from/f && chmod 750 from && tar cf a.tar --mode=g+s from && mkdir x y && tar xf a.tar -C x && echo unpacked
tar xpf a.tar -C y 2>&1; cp -p from/f g && install -m 755 from/f h && echo copied
for refused in "chmod g+s from" "chmod 4755 g" "install -m 4755 from/f i" "git init -q --shared=group r" "mkfifo -m 2666 p"; do
  $refused >/dev/null 2>&1; echo "$refused: $?"
done
stat -c '%a %n' made a a/b x/from from"#;
    let said = bash.prints("writer", &script.replace("DIR", dir.to_str().unwrap()));
    let (tar, rest) = said.split_once("copied\n").unwrap();
    assert!(tar.starts_with("made\nunpacked\n") && tar.contains("Operation not permitted"), "{said}");
    let refused = [
        "chmod g+s from: 1",
        "chmod 4755 g: 1",
        "install -m 4755 from/f i: 1",
        "git init -q --shared=group r: 128",
    ];
    let made = ["mkfifo -m 2666 p: 1", "775 made", "777 a", "775 a/b", "750 x/from", "750 from"];
    assert_eq!(rest.lines().collect::<Vec<_>>(), [&refused[..], &made].concat());
    let set: Vec<_> =
        below(&dir).into_iter().filter(|(_, meta)| meta.permissions().mode() & 0o6000 != 0).collect();
    assert!(set.is_empty(), "{set:?}");
}
