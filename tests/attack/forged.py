"""A hostile peer of the helper that is an ordinary user and forges names: in a user and mount namespace of its own, where
it may mount what it likes where it likes, files get the names that the helper's roots have.

Started as the peer's user. Arguments: SOCKET DIRECTORY CGROUP KIND, the directory being the parent of the helper's roots, and
KIND the one in which a good directory lies. Then it does what stdin says, a line each, and answers with a line.
"""
import ctypes, os, socket, sys

path, base, cgroup, kind = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    if result < 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
SYS_OPEN_TREE, OPEN_TREE_CLONE, AT_RECURSIVE, AT_EMPTY_PATH = 428, 1, 0x8000, 0x1000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def clone(of, flags=0):
    return must(libc.syscall(SYS_OPEN_TREE, -100, of.encode(), OPEN_TREE_CLONE | flags), f"open_tree {of}")


def mount(source, target, kind=None, flags=0):
    text = lambda t: t.encode() if t else None
    must(libc.mount(text(source), text(target), text(kind), flags, None), f"mount {target}")


link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(path)
link.settimeout(10)
good = f"{base}/{kind}/good"
files = {
    "good": os.open(good, DIRECTORY),
    "mem": os.open("/proc/self/mem", os.O_RDWR),
    "cgroup.procs": os.open(f"{cgroup}/cgroup.procs", os.O_RDWR),
    "cgroup": os.open(cgroup, DIRECTORY),
    "memfd": os.memfd_create("x"),
    "proc": os.open("/proc/self", DIRECTORY),
}
uid, gid = os.getuid(), os.getgid()
must(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as f:
        f.write(text)
mount(None, "/", None, MS_REC | MS_PRIVATE)
# The very directory, on this namespace's copy of its mount, and cut off from any namespace.
files["copy"] = os.open(good, DIRECTORY)
files["path"] = os.open(good, os.O_PATH | os.O_DIRECTORY)
files["tree"] = clone(good)
files["recursive tree"] = clone(good, AT_RECURSIVE)
mount("none", base, "tmpfs")
for name in ("sealed", "sealed/good", "sealed/new", "grant", "grant/good", "grant/new", "backing"):
    os.mkdir(f"{base}/{name}")
for name in ("sealed", "grant"):
    files[f"{name} forged"] = os.open(f"{base}/{name}/good", DIRECTORY)
    files[f"{name} new"] = os.open(f"{base}/{name}/new", DIRECTORY)
    files[f"{name} itself"] = os.open(f"{base}/{name}", DIRECTORY)
    files[f"{name} tree"] = clone(f"{base}/{name}/good")
for name, source in (("file", None), ("map", "/proc/self/uid_map"), ("procs", f"{cgroup}/cgroup.procs")):
    target = f"{base}/backing/{name}"
    with open(target, "w"):
        pass
    if source:
        mount(source, target, None, MS_BIND)
    files[f"backing {name}"] = os.open(target, os.O_RDWR)
files["backing mem"] = os.open("/proc/self/mem", os.O_RDWR)
# A bind of a real thing over a forged name, and a root that somebody else's namespace shows.
mount("/", f"{base}/sealed/new", None, MS_BIND | MS_REC)
files["the host's root"] = os.open(f"{base}/sealed/new", DIRECTORY)
files["the host's proc"] = os.open(f"{base}/sealed/new/proc", DIRECTORY)
files["namespace"] = os.open("/proc/self/ns/mnt", os.O_RDONLY)
print("ready", ",".join(files), flush=True)
for line in sys.stdin:
    request, *names = line.rstrip("\n").split(",")
    socket.send_fds(link, [bytes.fromhex(request)], [files[n] for n in names])
    print(socket.recv_fds(link, 65536, 3)[0].hex() or "closed", flush=True)
