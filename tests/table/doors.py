#!/usr/bin/python3 -I
"""Every door that a skill can try, and what it answers: a line `door: result` each.

Run by the test as a skill. Nothing that differs from run to run is printed: no pid, no uid, no address; and nothing of the
machine's that a skill is meant to see, such as what is in /usr. What an answer means is not judged here.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import stat
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def word(error):
    return errno.errorcode.get(error.errno, str(error.errno)) if isinstance(error, OSError) else type(error).__name__


def door(name, action):
    """Tries it, in this process."""
    try:
        answer = action()
    except (OSError, ValueError, MemoryError, BufferError) as error:
        answer = word(error)
    print(f"{name}: {answer if isinstance(answer, str) else 'ok'}", flush=True)


def apart(name, action):
    """Tries it in a process of its own, which it may end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.close(reader)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        signal.alarm(20)
        door(name, action)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        dumped = ", core dumped" if os.WCOREDUMP(status) else ""
        said = f"{name}: {signal.Signals(os.WTERMSIG(status)).name}{dumped}\n"
    elif not said:
        said = f"{name}: executed\n" if status == 0 else f"{name}: another program, with status {status}\n"
    print(said, end="", flush=True)


def syscall(number, *arguments):
    ready = [a if isinstance(a, (bytes, ctypes.Array)) or hasattr(a, "contents") else ctypes.c_long(a) for a in arguments]
    ctypes.set_errno(0)
    answer = LIBC.syscall(ctypes.c_long(number), *ready)
    if answer < 0:
        raise OSError(ctypes.get_errno(), "")
    return answer


def opened(path, flags):
    def action():
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))

    return action


def files():
    """The root and what is around the skill; only what is the sandbox's own is listed."""
    expected = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "tmp", "usr"}
    door("/ shows", lambda: " ".join(sorted(set(os.listdir("/")) - expected)) or "nothing but the system's directories, dev, proc, tmp and opt")
    door("/etc shows", lambda: " ".join(sorted(n for n in os.listdir("/etc") if not n.startswith("java-"))))
    door("/etc/ssl shows", lambda: " ".join(sorted(os.listdir("/etc/ssl"))))
    door("/opt shows", lambda: " ".join(sorted(os.listdir("/opt"))))
    door("/opt/cyberos shows", lambda: " ".join(sorted(os.listdir("/opt/cyberos"))))
    door("/opt/cyberos/skills shows", lambda: " ".join(sorted(os.listdir("/opt/cyberos/skills"))))
    door("/tmp shows", lambda: " ".join(n if not n.startswith("cyberos-skill-broker.") else "its own socket" for n in sorted(os.listdir("/tmp"))) or "nothing")
    door("/dev/shm shows", lambda: " ".join(sorted(os.listdir("/dev/shm"))) or "nothing")
    for path in ("/sys /run /var /home /root /srv /mnt /media /boot /lost+found /skills /etc/shadow /etc/gshadow /etc/cyberos "
                 "/etc/ssh /etc/ssl/private /etc/resolv.conf /etc/hostname /etc/machine-id /var/run /var/tmp /opt/cyberos/sealed "
                 "/.dockerenv /usr/../root").split():
        door(f"{path} opened", opened(path, os.O_RDONLY))
    for path in "/ /usr /usr/bin /etc /etc/ssl /dev /proc /opt /opt/cyberos /opt/cyberos/bin /opt/cyberos/skills . /tmp /dev/shm".split():
        at = "its own folder" if path == "." else path
        door(f"{at} new file", opened(f"{path}/new-of-doors", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        door(f"{at} new directory", lambda path=path: os.mkdir(f"{path}/dir-of-doors"))
        door(f"{at} new link", lambda path=path: os.symlink("/etc/passwd", f"{path}/link-of-doors"))
        door(f"{at} times set", lambda path=path: os.utime(path))
    for path in "/etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf /etc/gitconfig /etc/ld.so.cache /usr/bin/env main SKILL.md".split():
        door(f"{path} read", opened(path, os.O_RDONLY))
        door(f"{path} written", opened(path, os.O_WRONLY))
        door(f"{path} truncated", lambda path=path: os.truncate(path, 0))
        door(f"{path} chmod", lambda path=path: os.chmod(path, 0o777))
        door(f"{path} removed", lambda path=path: os.unlink(path))
        door(f"{path} hard link of it in /tmp", lambda path=path: os.link(path, "/tmp/hard-link"))
    for path in ".. ../.. ../../.. ../../../.. ../../../../../../etc/shadow".split():
        door(f"parent {path}", lambda path=path: "ok, the root" if os.path.samestat(os.stat(path), os.stat("/")) else "ok, another directory")
    held = os.open(".", os.O_RDONLY)
    door("parent of the held folder, five up", lambda: "ok, the root" if os.path.samestat(os.stat("../../../../..", dir_fd=held), os.stat("/")) else "ok")
    os.close(held)
    door("chroot", lambda: os.chroot("/tmp"))
    for name in "new-of-doors dir-of-doors link-of-doors".split():
        for place in ("/tmp", "/dev/shm"):
            path = f"{place}/{name}"
            if os.path.lexists(path):
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    for place in ("/tmp", "/dev/shm"):
        def executed(place=place):
            with open(f"{place}/x", "wb") as file:
                file.write(b"#!/bin/sh\nexit 0\n")
            os.chmod(f"{place}/x", 0o755)
            os.execv(f"{place}/x", ["x"])
        apart(f"{place} a file of its own executed", executed)
        os.unlink(f"{place}/x")
    apart("main opened for writing by /proc/self/fd", lambda: os.open(f"/proc/self/fd/{os.open('main', os.O_RDONLY)}", os.O_WRONLY) and None)


def both_ways(name, path):
    """Reading (a byte of it, where it opens) and writing (opened only)."""

    def read():
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return f"{'read' if os.read(handle, 1) else 'empty'}"
        finally:
            os.close(handle)

    door(f"{name} read", read)
    door(f"{name} write", opened(path, os.O_WRONLY))


def proc():
    own = str(os.getpid())
    for name in sorted(os.listdir("/proc")):
        if name == own:
            continue
        if name.isdigit():
            print("/proc/ another process: SHOWN")
        elif os.path.islink(f"/proc/{name}"):
            door(f"/proc/{name} link", lambda name=name: os.readlink(f"/proc/{name}") and None)
        elif os.path.isdir(f"/proc/{name}"):
            door(f"/proc/{name} listed", lambda name=name: os.listdir(f"/proc/{name}") and None)
        else:
            both_ways(f"/proc/{name}", f"/proc/{name}")
    # Not shown by the listing is not yet out of reach.
    for name in ("1 1/root 1/cwd 1/exe 1/environ 1/mem 1/fd 1/ns/mnt 1/maps sys sys/kernel/core_pattern sys/kernel/ns_last_pid kcore kmsg "
                 "kallsyms keys key-users mounts net net/unix net/tcp sysrq-trigger config.gz cpuinfo meminfo stat uptime version modules "
                 "timer_list sched_debug latency_stats partitions cmdline iomem irq bus acpi scsi tty driver fs sysvipc").split():
        door(f"/proc/{name} opened", opened(f"/proc/{name}", os.O_RDONLY))
    walk_process("/proc/self", "/proc/self")
    # Written, not only opened.
    for name, text in (("oom_score_adj", "-1000"), ("oom_score_adj", "1000"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "deny"),
                       ("loginuid", "0"), ("attr/current", "x"), ("attr/exec", "x"), ("timens_offsets", "monotonic 1 0"), ("coredump_filter", "0x7f"),
                       ("mem", "x"), ("projid_map", "0 0 1")):
        def written(name=name, text=text):
            handle = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(handle, text.encode())
        apart(f"/proc/self/{name} written '{text}'", written)


def network(path):
    """Which files there are hangs on the host's modules; what matters is that all tell of an empty network of its own."""
    written = []
    for name in os.listdir(path):
        try:
            os.close(os.open(f"{path}/{name}", os.O_WRONLY))
            written.append(name)
        except OSError:
            pass
    door("/proc/self/net/* write", lambda: " ".join(sorted(written)) or "EACCES, each")

    def lines(name):
        with open(f"{path}/{name}", encoding="ascii") as file:
            return file.read().splitlines()

    def names():
        found = {line.split()[7] for line in lines("unix")[1:] if len(line.split()) > 7}
        return " ".join(sorted(found)) or "no names"
    door("/proc/self/net/unix shows", names)
    door("/proc/self/net/dev shows", lambda: " ".join(line.split(":")[0].strip() for line in lines("dev")[2:]))
    for name in "tcp tcp6 udp udp6 raw packet route if_inet6".split():
        door(f"/proc/self/net/{name} shows", lambda name=name: str(max(0, len(lines(name)) - (name not in ("if_inet6", "route")))) + " entries")


def walk_process(path, shown):
    for name in sorted(os.listdir(path)):
        at, said = f"{path}/{name}", f"{shown}/{name}"
        if said == "/proc/self/net":
            network(at)
        elif name in ("task", "map_files", "fd", "fdinfo") and shown == "/proc/self":
            door(f"{said} listed", lambda at=at: os.listdir(at) and None)
        elif os.path.islink(at):
            door(f"{said} link", lambda at=at: os.readlink(at) and None)
            door(f"{said} followed", opened(at, os.O_RDONLY))
        elif os.path.isdir(at):
            walk_process(at, said)
        else:
            both_ways(said, at)
    if shown == "/proc/self":
        # What the listing itself has open is gone by the time it is looked at.
        door("/proc/self/fd shows", lambda: " ".join(n for n in sorted(os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}")))
        for number in (0, 1, 2):
            door(f"/proc/self/fd/{number} is", lambda number=number: "a pipe" if stat.S_ISFIFO(os.fstat(number).st_mode) else "something else")
            door(f"/proc/self/fd/{number}/.. opened", opened(f"/proc/self/fd/{number}/..", os.O_RDONLY))


def devices():
    for name in sorted(os.listdir("/dev")):
        path = f"/dev/{name}"
        if os.path.islink(path):
            door(f"{path} link", lambda path=path: os.readlink(path))
        elif os.path.isdir(path):
            door(f"{path} listed", lambda path=path: os.listdir(path) and None)
        else:
            both_ways(path, path)
            door(f"{path} removed", lambda path=path: os.unlink(path))
            door(f"{path} chmod", lambda path=path: os.chmod(path, 0o777))
    for name in ("tty console ptmx pts pts/ptmx tty0 kmsg mem kmem port fuse kvm net/tun userfaultfd loop-control sda vda nvme0n1 dm-0 mapper "
                 "hpet rtc vsock vhost-net uinput input snd dri random/.. mqueue hugepages log").split():
        door(f"/dev/{name} opened", opened(f"/dev/{name}", os.O_RDONLY))
    for name in ("stdin", "stdout", "stderr"):
        door(f"/dev/{name} is a terminal", lambda name=name: "yes" if os.isatty(os.open(f"/dev/{name}", os.O_RDONLY if name == "stdin" else os.O_WRONLY)) else "no")


def sockets():
    own = os.environ["CYBEROS_BROKER_SOCKET"]
    with socket.socket(socket.AF_UNIX) as s:
        door("its own socket connected", lambda: s.connect(own))
    for kind, number in (("STREAM", 1), ("DGRAM", 2), ("SEQPACKET", 5)):
        def connected(path, number=number):
            def action():
                with socket.socket(socket.AF_UNIX, number) as s:
                    s.connect(path)
            return action

        for path in ("/run/systemd/journal/socket /run/dbus/system_bus_socket /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock "
                     "/dev/log /tmp/.X11-unix/X0 /run/cyberos/broker.sock /run/cyberos-helper/helper.sock /run/cyberos-skillfs/control.sock").split():
            door(f"AF_UNIX {kind} to {path}", connected(path))
        for name in ("/tmp/.X11-unix/X0", "/org/freedesktop/systemd1/notify", "cyberos", ""):
            door(f"AF_UNIX {kind} to abstract '{name}'", connected("\0" + name))

        def bound(number=number):
            a, b = socket.socket(1, number), socket.socket(1, number)
            a.bind(f"/tmp/bound-{number}")
            if number != 2:
                a.listen(1)
            b.connect(f"/tmp/bound-{number}")
            os.unlink(f"/tmp/bound-{number}")
        door(f"AF_UNIX {kind} bound in /tmp and connected", bound)

        def abstract(number=number):
            a, b = socket.socket(1, number), socket.socket(1, number)
            a.bind(f"\0doors-{number}")
            if number != 2:
                a.listen(1)
            b.connect(f"\0doors-{number}")
        door(f"AF_UNIX {kind} bound abstract and connected", abstract)
        door(f"AF_UNIX {kind} bound in /usr", lambda number=number: socket.socket(1, number).bind("/usr/bound"))

        def pair(number=number):
            a, b = socket.socketpair(1, number)
            a.send(b"x")
            b.recv(1)
        door(f"AF_UNIX {kind} pair", pair)
    for family in range(2, 47):
        name = next((f for f in dir(socket) if f.startswith("AF_") and getattr(socket, f) == family), f"AF {family}")
        door(f"{name} of any type", lambda family=family: [socket.socket(family, t) for t in (1, 2, 3, 5)] and None)
    door("getaddrinfo of a name", lambda: [socket.getaddrinfo("example.org", 80)] and None)
    door("getaddrinfo of localhost", lambda: [socket.getaddrinfo("localhost", 80)] and None)
    door("gethostname", lambda: socket.gethostname())
    door("if_nameindex", lambda: str(socket.if_nameindex()))


def clone(flags):
    def action():
        child = syscall(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return action


NAMESPACES = {"cgroup": 0x2000000, "ipc": 0x8000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "user": 0x10000000, "uts": 0x4000000}


def kernel():
    zeros = ctypes.create_string_buffer(256)
    for name, flag in NAMESPACES.items():
        apart(f"a nested {name} namespace by unshare", lambda flag=flag: syscall(272, flag))
        apart(f"a nested {name} namespace by clone", clone(flag))
        apart(f"a nested {name} namespace in a user namespace", clone(flag | NAMESPACES["user"]))

        def entered(name=name):
            handle = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
            syscall(308, handle, 0)
        apart(f"setns to its own {name} namespace", entered)
    apart("setns by a pidfd of itself", lambda: syscall(308, syscall(434, os.getpid(), 0), 0x20000))
    apart("mount a tmpfs", lambda: syscall(165, b"x\0", b"/tmp\0", b"tmpfs\0", 0, 0))
    apart("mount, bind", lambda: syscall(165, b"/usr\0", b"/tmp\0", 0, 4096, 0))
    apart("mount, remount / writable", lambda: syscall(165, 0, b"/\0", 0, 32 | 4096, 0))
    apart("umount /proc", lambda: syscall(166, b"/proc\0", 2))
    apart("pivot_root", lambda: syscall(155, b"/tmp\0", b"/tmp\0"))
    apart("open_tree, cloning", lambda: syscall(428, -100, b"/\0", 1))
    apart("move_mount", lambda: syscall(429, -100, b"/tmp\0", -100, b"/tmp\0", 0))
    apart("mount_setattr", lambda: syscall(442, -100, b"/\0", 0, zeros, 32))
    apart("fsopen", lambda: syscall(430, b"tmpfs\0", 0))
    apart("fspick", lambda: syscall(433, -100, b"/\0", 0))
    apart("statmount", lambda: syscall(457, zeros, zeros, 256, 0))
    apart("listmount", lambda: syscall(458, zeros, zeros, 1, 0))
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    for request, name in ((0, "TRACEME"), (16, "ATTACH"), (0x4206, "SEIZE")):
        apart(f"ptrace {name} of a child", lambda request=request: syscall(101, request, child, 0, 0))
        apart(f"ptrace {name} of process 1", lambda request=request: syscall(101, request, 1, 0, 0))
    one = (ctypes.c_ulong * 2)(ctypes.addressof(zeros), 1)
    for name, pid in (("itself", os.getpid()), ("a child", child), ("process 1", 1)):
        apart(f"process_vm_readv of {name}", lambda pid=pid: syscall(310, pid, one, 1, one, 1, 0))
        apart(f"process_vm_writev of {name}", lambda pid=pid: syscall(311, pid, one, 1, one, 1, 0))
        apart(f"pidfd_open of {name}", lambda pid=pid: syscall(434, pid, 0))
        apart(f"pidfd_getfd of {name}", lambda pid=pid: syscall(438, syscall(434, pid, 0), 0, 0))
        apart(f"kcmp with {name}", lambda pid=pid: syscall(312, pid, os.getpid(), 0, 0, 0))
        apart(f"/proc/PID/mem of {name}", opened(f"/proc/{pid}/mem", os.O_RDWR))
        apart(f"kill -0 of {name}", lambda pid=pid: os.kill(pid, 0))
        apart(f"sched_setaffinity of {name}", lambda pid=pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
    apart("kill -9 of process 1", lambda: os.kill(1, 9))
    os.kill(child, 9)
    os.waitpid(child, 0)
    apart("keyctl, session keyring", lambda: syscall(250, 0, -3, 0, 0, 0))
    apart("keyctl, join a session", lambda: syscall(250, 1, 0, 0, 0, 0))
    apart("add_key", lambda: syscall(248, b"user\0", b"doors\0", b"x", 1, -2))
    apart("request_key", lambda: syscall(249, b"user\0", b"doors\0", 0, 0))
    apart("userfaultfd", lambda: syscall(323, 0))
    apart("userfaultfd, user mode only", lambda: syscall(323, 1))
    apart("io_uring_setup", lambda: syscall(425, 1, zeros))
    apart("bpf, map create", lambda: syscall(321, 0, zeros, 128))
    apart("bpf, program load", lambda: syscall(321, 5, zeros, 128))
    apart("perf_event_open of itself", lambda: syscall(298, zeros, 0, -1, -1, 0))
    apart("name_to_handle_at", lambda: syscall(303, -100, b"/\0", zeros, zeros, 0))
    apart("open_by_handle_at", lambda: syscall(304, -100, zeros, 0))
    apart("fanotify_init", lambda: syscall(300, 0, 0))
    apart("seccomp, a filter of its own", lambda: syscall(317, 1, 0, 0))
    apart("seccomp, a listener", lambda: syscall(317, 1, 8, 0))
    apart("landlock_create_ruleset, asking the version", lambda: syscall(444, 0, 0, 1) and None)
    apart("memfd_secret", lambda: syscall(447, 0))
    apart("quotactl", lambda: syscall(179, 0x800003 << 8, 0, 0, 0))
    apart("syslog", lambda: syscall(103, 3, zeros, 64))
    apart("reboot with a wrong magic", lambda: syscall(169, 0, 0, 0, 0))
    apart("clock_settime", lambda: syscall(227, 0, zeros))
    apart("sethostname", lambda: syscall(170, b"doors", 5))
    apart("swapon", lambda: syscall(167, b"/tmp/none\0", 0))
    apart("init_module", lambda: syscall(175, zeros, 8, b"\0"))
    apart("kexec_load", lambda: syscall(246, 0, 0, 0, 0))
    apart("iopl", lambda: syscall(172, 3))
    apart("modify_ldt", lambda: syscall(154, 0, zeros, 16))


def nodes():
    """What must not appear in a directory of the host's, or hold up who works there."""

    def lease():
        handle = os.open("/tmp/leased", os.O_CREAT | os.O_RDONLY)
        fcntl.fcntl(handle, 1024, fcntl.F_RDLCK)

    apart("mknod of a fifo", lambda: os.mknod("/tmp/fifo", 0o600 | stat.S_IFIFO))
    apart("mknod of character device 0:0", lambda: os.mknod("/tmp/device", 0o600 | stat.S_IFCHR, 0))
    apart("mknod of character device 1:3", lambda: os.mknod("/tmp/null", 0o600 | stat.S_IFCHR, os.makedev(1, 3)))
    apart("mknod of a block device", lambda: os.mknod("/tmp/block", 0o600 | stat.S_IFBLK, os.makedev(7, 0)))
    apart("renameat2 with RENAME_WHITEOUT", lambda: syscall(316, -100, b"/tmp/fifo\0", -100, b"/tmp/fifo2\0", 4))
    apart("renameat2 with RENAME_NOREPLACE", lambda: syscall(316, -100, b"/tmp/fifo\0", -100, b"/tmp/fifo3\0", 1))
    apart("fcntl F_SETLEASE", lease)
    apart("utime of /dev/null", lambda: os.utime("/dev/null"))
    apart("a write to /dev/null", lambda: os.write(os.open("/dev/null", os.O_WRONLY), b"x") and None)


def memory():
    """Kinds of memory that no limit of a process's own counts."""

    def memfd(flags, then=None):
        def action():
            handle = syscall(319, b"doors\0", flags)
            if then:
                then(handle)
        return action

    def fill(handle):
        os.write(handle, bytes(1 << 20))

    def execute(handle):
        os.write(handle, b"#!/bin/sh\nexit 0\n")
        syscall(322, handle, b"\0", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000)

    def execute_by_name(handle):
        os.write(handle, b"#!/bin/sh\nexit 0\n")
        os.execv(f"/proc/self/fd/{handle}", ["x"])

    def made_executable(handle):
        os.fchmod(handle, 0o755)

    apart("memfd_create", memfd(0))
    apart("memfd_create, a MiB written", memfd(0, fill))
    apart("memfd_create, sealable", memfd(2))
    apart("memfd_create, huge pages", memfd(4))
    apart("memfd_create, executable", memfd(16))
    apart("memfd_create, huge pages and executable", memfd(20))
    apart("prctl PR_FUTEX_HASH, 4 Mi slots", lambda: syscall(157, 78, 1, 1 << 22, 0, 0))
    apart("memfd_create, flags + 2^32", memfd(1 << 32))
    apart("memfd_create and execveat", memfd(0, execute))
    apart("memfd_create and exec by /proc/self/fd", memfd(0, execute_by_name))
    apart("memfd_create and chmod 755", memfd(0, made_executable))
    apart("execveat of a file of its own", lambda: syscall(322, os.open("/usr/bin/true", os.O_PATH), b"\0", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000))
    apart("shmget, a page", lambda: syscall(31, syscall(29, 0, 4096, 0o1600), 0, 0))
    apart("shmget, a GiB", lambda: syscall(31, syscall(29, 0, 1 << 30, 0o1600), 0, 0))
    apart("shmget, size + 2^32", lambda: syscall(31, syscall(29, 0, (1 << 32) + 4096, 0o1600), 0, 0))
    apart("shmat of nothing", lambda: syscall(30, -1, 0, 0))
    apart("msgget", lambda: syscall(68, 0, 0o1600))
    apart("semget", lambda: syscall(64, 0, 1, 0o1600))
    apart("mq_open", lambda: syscall(240, b"doors\0", 0o102, 0o600, 0))
    apart("mlock of 16 MiB", lambda: syscall(149, ctypes.addressof(ctypes.create_string_buffer(16 << 20)), 16 << 20))
    apart("mmap, shared and anonymous, a GiB", lambda: mmap.mmap(-1, 1 << 30, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) and None)
    apart("mmap, huge pages", lambda: mmap.mmap(-1, 2 << 20, 0x40000 | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) and None)
    apart("a GiB on the heap", lambda: bytearray(1 << 30) and None)
    apart("F_SETPIPE_SZ of 16 MiB", lambda: fcntl.fcntl(os.pipe()[0], 1031, 16 << 20) and None)
    apart("a file of 300 MiB in /tmp", lambda: os.ftruncate(os.open("/tmp/large", os.O_RDWR | os.O_CREAT), 300 << 20))
    apart("fallocate of 65 MiB in /tmp", lambda: os.posix_fallocate(os.open("/tmp/large", os.O_RDWR | os.O_CREAT), 0, 65 << 20))
    apart("fallocate of 65 MiB in /dev/shm", lambda: os.posix_fallocate(os.open("/dev/shm/large", os.O_RDWR | os.O_CREAT), 0, 65 << 20))
    for path in ("/tmp/large", "/dev/shm/large"):
        if os.path.exists(path):
            os.unlink(path)


def cores():
    """A crash writes nothing and runs nobody's handler, whatever is done about the limit first."""
    limits = (1, 1)
    door("RLIMIT_CORE is", lambda: str(resource.getrlimit(resource.RLIMIT_CORE)))
    for value in (0, 1, -1):
        def crash(value=value):
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (value, value))
            except (OSError, ValueError):
                pass
            if resource.getrlimit(resource.RLIMIT_CORE) != limits:
                return "THE LIMIT HAS CHANGED"
            os.chdir("/tmp")
            os.kill(os.getpid(), signal.SIGSEGV)
            return None
        apart(f"a crash after RLIMIT_CORE {value}", crash)
    apart("a crash when dumpable again", lambda: (LIBC.prctl(4, 1, 0, 0, 0), os.abort()))
    door("cores left in /tmp", lambda: " ".join(n for n in os.listdir("/tmp") if "core" in n) or "none")


def identity():
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    for name in "CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Groups SigBlk TracerPid Umask".split():
        print(f"status {name}: {fields[name].strip() or 'none'}")
    door("setuid 0", lambda: os.setuid(0))
    door("setgid 0", lambda: os.setgid(0))
    door("setgroups", lambda: os.setgroups([0]))
    door("setuid of its own range", lambda: os.setuid(os.getuid() + 1))
    door("chown of a file of its own", lambda: os.chown("/tmp", 0, 0))
    door("a session of its own", lambda: "yes" if os.getsid(0) == os.getpid() else "no")
    door("the controlling terminal", opened("/dev/tty", os.O_RDWR))
    door("sudo, su, mount and their like keep their bit", lambda: str(bool(os.statvfs("/usr").f_flag & os.ST_NOSUID) is False))
    for path in ("/", "/usr", "/etc", "/dev", "/proc", "/tmp", "/dev/shm", "/dev/null", ".", "/opt/cyberos/bin"):
        def flags(path=path):
            found = os.statvfs(path).f_flag
            return " ".join(n for n in ("RDONLY", "NOSUID", "NODEV", "NOEXEC") if found & getattr(os, f"ST_{n}")) or "none"
        door(f"mount flags of {'its own folder' if path == '.' else path}", flags)


os.umask(0o022)
for part in (identity, files, proc, devices, nodes, sockets, kernel, memory, cores):
    part()
