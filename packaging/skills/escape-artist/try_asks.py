"""What calls that every program makes can be asked for besides: room on a disk past every limit, memory of the kernel's
that nothing counts, pages shared with others. Each asks for little, and gives it back.

Refused is what a kernel answers that has no such thing (ENOTTY, EINVAL, ENOTSUP), or the door's own EPERM.
"""

import errno
import fcntl
import mmap
import os
import struct

import syscalls
from probe import Attempt, escaped, each_must_fail, must_fail, refused, skipped

DOOR = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.ENOTSUP}
PR_SET_MEMORY_MERGE, PR_SET_VMA, PR_FUTEX_HASH, PR_SCHED_CORE = 67, 0x53564D41, 78, 62
MADV_REMOVE, MADV_MERGEABLE, MADV_PAGEOUT = 9, 12, 21
F_NOTIFY, F_OFD_SETLK = 1026, 37
RESERVE = {
    "FS_IOC_RESVSP": 0x40305828,
    "FS_IOC_RESVSP64": 0x4030582A,
    "FS_IOC_ZERO_RANGE": 0x40305839,
    "XFS_IOC_ALLOCSP64": 0x40305824,
    "FICLONE": 0x40049409,
    "FICLONERANGE": 0x4020940D,
    "FIDEDUPERANGE": 0xC0189436,
    "FS_IOC_SETFLAGS": 0x40086602,
    "FS_IOC_FSSETXATTR": 0x401C5820,
}


def _file(action, place="/tmp"):
    """With a file of its own, that is gone afterwards."""

    def run():
        path = f"{place}/escape-artist-{os.getpid()}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            return action(file, path)
        finally:
            os.close(file)
            os.unlink(path)

    return run


def _reserve(file, _path):
    """A MiB past the end of an empty file. A disk's file system gives it at once, whatever the limit for files."""
    room = struct.pack("hhqqiI16x", 0, 0, 0, 1 << 20, 0, 0)
    through = []
    for name, request in RESERVE.items():
        try:
            fcntl.ioctl(file, request, room)
        except OSError as error:
            # EBADF, EXDEV or EFAULT: the kernel has begun to think about it.
            if error.errno in DOOR:
                continue
        through.append(name)
    return escaped(", ".join(through)) if through else refused(f"{len(RESERVE)} tried")


def _commands(file, _path):
    commands = {"F_OFD_SETLK": F_OFD_SETLK, "F_NOTIFY": F_NOTIFY, "F_SETLEASE": fcntl.F_SETLEASE}
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
    return each_must_fail(commands, lambda name: fcntl.fcntl(file, commands[name], lock if "OFD" in name else 1), DOOR)


def _attributes(place):
    """An access control list of 16 KiB, and an attribute as large."""
    entries = [(1, 7)] + [(2, 7)] * 2000 + [(4, 7), (16, 7), (32, 7)]
    who = os.getuid()
    text = b"".join(struct.pack("<HHI", tag, bits, who if tag == 2 else 0xFFFFFFFF) for tag, bits in entries)
    values = {
        "system.posix_acl_access": struct.pack("<I", 2) + text,
        "user.escape-artist": bytes(16 << 10),
    }
    return _file(lambda _, path: each_must_fail(values, lambda name: os.setxattr(path, name, values[name]), DOOR), place)


def _prctl(option, *arguments):
    def ask():
        if syscalls.LIBC.prctl(option, *arguments, 0, 0, 0) < 0:
            number = syscalls.ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return lambda: must_fail(ask, DOOR)


def _advice(advice):
    def ask():
        with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            page.madvise(advice)

    return lambda: must_fail(ask, DOOR)


def attempts():
    found = [
        Attempt("room on a disk by ioctl", "ENOTTY", _file(_reserve)),
        Attempt("locks of a descriptor, leases and notes", "EINVAL or EPERM", _file(_commands)),
        Attempt("attributes of 16 KiB in /tmp", "ENOTSUP", _attributes("/tmp")),
        Attempt("attributes of 16 KiB in /dev/shm", "ENOTSUP", _attributes("/dev/shm")),
    ]
    for name, advice in (("MERGEABLE", MADV_MERGEABLE), ("PAGEOUT", MADV_PAGEOUT), ("REMOVE", MADV_REMOVE)):
        found.append(Attempt(f"madvise MADV_{name}", "EINVAL", _advice(advice)))
    prctls = {
        "prctl PR_SET_MEMORY_MERGE": _prctl(PR_SET_MEMORY_MERGE, 1),
        "prctl PR_SCHED_CORE": _prctl(PR_SCHED_CORE, 0, 0),
        "prctl PR_FUTEX_HASH": _prctl(PR_FUTEX_HASH, 1, 1024),
        "prctl PR_SET_VMA": _prctl(PR_SET_VMA, 0),
    }
    for name, action in prctls.items():
        missing = lambda: skipped("no ctypes in this Python")  # noqa: E731
        found.append(Attempt(name, "EINVAL or EPERM", action if syscalls.LIBC else missing))
    return found
