//! What a skill asks of the kernel that no limit counts (threat A23): refused, and programs that ask for it in good faith go
//! on without.

use crate::support::up::{Skill, Up};

/// A skill has nothing to keep an attribute on but memory.
const ATTRIBUTES: &str = r#"#!/bin/sh
set -e
cd /tmp
mkdir from && echo kept >from/file && chmod 640 from/file
cp -a from copied && cp -p from/file plain && install -m 640 from/file installed
tar --xattrs --acls -cf all.tar from && mkdir out && tar --xattrs --acls -xpf all.tar -C out
python3 -I -c "import shutil; shutil.copy2('from/file', 'py'); shutil.copystat('from/file', 'py'); shutil.copytree('from', 'tree')"
cat copied/file plain installed out/from/file py tree/file
stat -c %a copied/file plain installed out/from/file py tree/file | uniq
exec python3 -I - <<'PY'
import errno, os, struct
entries = [(1, 7, -1)] + [(2, 7, os.getuid())] * 8000 + [(4, 7, -1), (16, 7, -1), (32, 7, -1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)
for place in ("/tmp/d", "/dev/shm/d"):
    os.mkdir(place)
    for name, value in (("system.posix_acl_access", acl), ("system.posix_acl_default", acl), ("user.x", b"x")):
        try:
            os.setxattr(place, name, value)
            print(place, name, "stored")
        except OSError as e:
            print(errno.errorcode[e.errno])
PY
"#;

#[test]
fn threat_a23_a_skill_stores_no_attribute_in_memory_and_programs_go_on_without() {
    let up = Up::new(|source| drop(Skill { id: "acls", main: ATTRIBUTES, ..Skill::default() }.write(source)));
    let ran = up.run("acls", &[]);
    let refused = "ENOTSUP\n".repeat(6);
    assert_eq!(
        (ran.exit, ran.stdout.as_str()),
        (0, format!("{}640\n{refused}", "kept\n".repeat(6)).as_str()),
        "{ran}"
    );
}

/// Eight processes that take record locks as fast as they can.
const LOCKS: &str = r#"#!/usr/bin/python3 -I
import fcntl, os, struct, sys
os.chdir("/tmp")
for _ in range(7):
    if os.fork() == 0:
        break
files = [os.open(f"{os.getpid()}-{n}", os.O_CREAT | os.O_RDWR) for n in range(200)]
for i in range(10_000_000):
    kind = fcntl.F_RDLCK if i // 200 % 2 else fcntl.F_WRLCK
    fcntl.fcntl(files[i % 200], fcntl.F_SETLK, struct.pack("hhqqi4x", kind, 0, 2 * (i // 200), 1, 0))
print("took them all")
"#;

#[test]
fn threat_a23_who_takes_record_locks_without_end_is_ended_and_told_so_and_a_database_is_not() {
    let sqlite = "#!/usr/bin/python3 -I\nimport sqlite3\nd = sqlite3.connect('/tmp/d')\n\
                  d.execute('create table t (n)')\nd.executemany('insert into t values (?)', [(n,) for n in range(9999)])\n\
                  d.commit()\nprint(d.execute('select count(*) from t').fetchone()[0])\n";
    let up = Up::new(|source| {
        Skill { id: "locks", main: LOCKS, ..Skill::default() }.write(source);
        Skill { id: "database", main: sqlite, ..Skill::default() }.write(source);
    });
    let ran = up.run("locks", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (137, ""), "{ran}");
    assert!(ran.stderr.contains("record locks (fcntl F_SETLK), and 1000 are the most"), "{ran}");
    assert!(up.log().contains("SIGKILL: its processes held at least"), "{}", up.log());
    let ran = up.run("database", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, "9999\n"), "{ran}");
}

/// A child that shares its parent's table of files: its locks would stay, and name a process that is no more. Beside it,
/// every way in which programs do start processes and threads.
const SHARED_TABLE: &str = r#"#!/usr/bin/python3 -I
import ctypes, errno, os, platform, signal, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
FILES, FS, VM_AND_VFORK, HIGH = 0x400, 0x200, 0x4100, 1 << 32
def clone(flags):
    child = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags | signal.SIGCHLD), *[ctypes.c_long(0)] * 4)
    if child == 0:
        os._exit(0)
    if child < 0:
        return errno.errorcode[ctypes.get_errno()]
    return os.waitpid(child, 0)[1]
print(*[clone(flags) for flags in (FILES, FILES | FS, FILES | VM_AND_VFORK, FILES | HIGH, 0, FS)], flush=True)
child = os.fork()
if child == 0:
    os._exit(3)
print("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], {})
print("posix_spawn", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("vfork", subprocess.run(["/bin/sh", "-c", "exit 5"]).returncode)
thread = threading.Thread(target=lambda: print("thread", 6))
thread.start()
thread.join()
"#;

#[test]
fn threat_a23_no_child_shares_its_parents_table_of_files_and_threads_fork_and_posix_spawn_go_on() {
    let up =
        Up::new(|source| drop(Skill { id: "table", main: SHARED_TABLE, ..Skill::default() }.write(source)));
    let ran = up.run("table", &[]);
    let right = "EPERM EPERM EPERM EPERM 0 0\nfork 3\nposix_spawn 4\nvfork 5\nthread 6\n";
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, right), "{ran}");
}
