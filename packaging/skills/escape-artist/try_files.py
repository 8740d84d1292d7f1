"""Files that were not given: reading around, and writing where nothing may change."""

import errno
import os
import stat

from probe import Attempt, each_must_fail, escaped, must_fail, refused

SYSTEM = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "tmp", "usr"}
# [2.3]; java-* besides.
ETC = {"passwd", "group", "nsswitch.conf", "hosts", "localtime", "ld.so.cache", "ssl", "alternatives", "gitconfig"}
ETC |= {"fonts", "mime.types", "os-release", "protocols", "services"}
SECRET = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/ssh",
    "/etc/cyberos",
    "/etc/machine-id",
    "/root",
    "/home",
    "/var",
    "/var/lib/cyberos",
    "/srv",
    "/run",
    "/boot",
    "/sys",
    "/mnt",
    "/media",
    "/skills",
    "../../../../../../etc/shadow",
    "/proc/self/root/etc/shadow",
    "/proc/self/cwd/../../../../etc/shadow",
    "/opt/cyberos/skills/../../../root",
    "/usr/../root",
]
DEVICES = [
    *("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "loop-control", "mapper/control", "fuse", "kvm"),
    *("net/tun", "vhost-vsock", "uinput", "input/event0", "snd/seq", "dri/card0", "rtc0", "watchdog", "console", "tty", "tty0"),
]
PROC = [
    *("kcore", "kmsg", "kallsyms", "sysrq-trigger", "config.gz", "sched_debug", "timer_list", "keys", "iomem", "net/tcp"),
    *("sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/vm/drop_caches"),
    *("sys/fs/binfmt_misc/register", "bus/pci/devices", "acpi/wakeup", "irq", "1/environ", "1/root", "1/cwd", "1/exe"),
    *("1/fd", "1/mem", "1/maps", "1/ns/mnt", "1/map_files", "1/task/1/mem"),
]


def _peek(path):
    """Reads a byte of a file, or lists a folder; an empty folder holds nothing and counts as refused."""
    if os.path.isdir(path):
        entries = os.listdir(path)
        if not entries:
            raise OSError(errno.ENOENT, "")
        return entries[:3]
    with open(path, "rb", buffering=0) as file:
        return file.read(1)


def _write_proc(path):
    """Opens for writing, and writes nothing: the kernel checks at the opening."""
    os.close(os.open(path, os.O_WRONLY))


def _only(folder, allowed):
    """Whether the folder holds nothing but `allowed`; empty folders don't count."""

    def action():
        try:
            entries = set(os.listdir(folder))
        except OSError as error:
            return refused(f"cannot be listed: {error.strerror}")
        strange = sorted(e for e in entries if not allowed(e) and not _is_empty(os.path.join(folder, e)))
        return escaped(f"there are also {', '.join(strange)}") if strange else refused(", ".join(sorted(entries)))

    return action


def _is_empty(path):
    try:
        return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
    except OSError:
        return True


def _above_root():
    root = os.stat("/")
    above = os.stat("/../../..")
    if (root.st_dev, root.st_ino) == (above.st_dev, above.st_ino):
        return refused("/.. is /")
    return escaped("/.. is another folder")


def _create(folder):
    path = os.path.join(folder, f".escape-artist-{os.getpid()}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def _change(path):
    """Changes that change nothing where they work."""
    failures = []
    found = os.stat(path)
    for change in (
        lambda: os.close(os.open(path, os.O_RDWR)),
        lambda: os.chmod(path, stat.S_IMODE(found.st_mode)),
        lambda: os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns)),
    ):
        try:
            change()
            return "a change was taken"
        except OSError as error:
            failures.append(error)
    raise failures[0]


def _set_id(make):
    """Refused if it fails, or if the bits are not there afterwards."""

    def action():
        path = f"/tmp/escape-artist-{os.getpid()}"
        try:
            make(path)
            bits = os.lstat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)
            return escaped(f"a file of mode {os.lstat(path).st_mode:o}") if bits else refused("the bits were dropped")
        except OSError as error:
            return refused(os.strerror(error.errno))
        finally:
            for remove in (os.unlink, os.rmdir):
                try:
                    remove(path)
                except OSError:
                    pass

    return action


def _touch(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755))


def _chmod(mode):
    def make(path):
        _touch(path)
        os.chmod(path, mode)

    return make


def _fchmod(path):
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o755)
    try:
        os.fchmod(handle, 0o6755)
    finally:
        os.close(handle)


def _chmod_by_proc(path):
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o755)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o4755)
    finally:
        os.close(handle)


def _directory(path):
    os.mkdir(path, 0o2777)
    os.chmod(path, 0o2777)


def _device(kind, major, minor):
    def make():
        path = f"/tmp/escape-artist-{os.getpid()}"
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        os.unlink(path)

    return make


def _capability():
    path = f"/tmp/escape-artist-{os.getpid()}"
    _touch(path)
    try:
        os.setxattr(path, "security.capability", bytes.fromhex("0100000202000000" + "00" * 12))
    finally:
        os.unlink(path)


def attempts(more):
    own = os.environ.get("CYBEROS_SKILL_ID", "")
    here = os.path.dirname(os.path.abspath(__file__))
    code = os.path.join(here, "main")
    given = [target for target in more if target.startswith("/") and not target.endswith(".sock")]
    places = [here, "/", "/usr", "/usr/bin", "/usr/local/bin", "/etc", "/bin", "/lib", "/opt", "/opt/cyberos", "/opt/cyberos/bin"]
    places += ["/opt/cyberos/skills", "/dev", "/proc", "/var", "/run", "/home", "/root", "/srv"]
    found = [
        Attempt("other folders of the root", "system folders alone", _only("/", SYSTEM.__contains__)),
        Attempt("other skills beside this one", "this one alone", _only("/opt/cyberos/skills", lambda e: e == own)),
        Attempt("the folder above", "this skill alone", _only("..", lambda e: e == own)),
        Attempt("what else is in /opt/cyberos", "bin and skills", _only("/opt/cyberos", {"bin", "skills"}.__contains__)),
        Attempt("what else is in /opt", "cyberos alone", _only("/opt", lambda e: e == "cyberos")),
        Attempt("what else is in /etc", "what [2.3] lists", _only("/etc", lambda e: e in ETC or e.startswith("java-"))),
        Attempt("private keys beside the certificates", "certs alone", _only("/etc/ssl", lambda e: e in ("certs", "openssl.cnf"))),
        Attempt("above the root", "/.. is /", _above_root),
        Attempt("secrets, homes, state of the host", "no such file", lambda: each_must_fail(SECRET, _peek)),
        Attempt("devices", "no such file", lambda: each_must_fail([f"/dev/{name}" for name in DEVICES], _peek)),
        Attempt("the kernel by /proc, and its first process", "no such file", lambda: each_must_fail([f"/proc/{name}" for name in PROC], _peek)),
        Attempt(
            "settings of the kernel, for writing",
            "EACCES, EROFS, no such file",
            lambda: each_must_fail([f"/proc/{name}" for name in PROC if "/" not in name or name.startswith("sys/")], _write_proc),
        ),
        Attempt("write in its own folder, /usr, /etc, …", "read-only", lambda: each_must_fail(places, _create)),
        Attempt("change its own code", "read-only", lambda: must_fail(lambda: _change(code))),
        Attempt("change /usr/bin/env and /etc/passwd", "read-only", lambda: each_must_fail(["/usr/bin/env", "/etc/passwd"], _change)),
        Attempt("chmod 4755", "the bits are dropped", _set_id(_chmod(0o4755))),
        Attempt("chmod 2755", "the bits are dropped", _set_id(_chmod(0o2755))),
        Attempt("fchmod 6755", "the bits are dropped", _set_id(_fchmod)),
        Attempt("chmod 4755 by /proc/self/fd", "the bits are dropped", _set_id(_chmod_by_proc)),
        Attempt("open with mode 4755", "EPERM", _set_id(lambda p: os.close(os.open(p, os.O_WRONLY | os.O_CREAT, 0o4755)))),
        Attempt("mkdir and chmod 2777", "the bits are dropped", _set_id(_directory)),
        Attempt("mknod with mode 6755", "EPERM", _set_id(lambda p: os.mknod(p, stat.S_IFREG | 0o6755))),
        Attempt("mknod of a character device", "EPERM", lambda: must_fail(_device(stat.S_IFCHR, 1, 1))),
        Attempt("mknod of a block device", "EPERM", lambda: must_fail(_device(stat.S_IFBLK, 8, 0))),
        Attempt("a file with capabilities", "EPERM", lambda: must_fail(_capability)),
    ]
    if given:
        found.append(Attempt("the paths given as arguments", "no such file", lambda: each_must_fail(given, _peek)))
    return found
