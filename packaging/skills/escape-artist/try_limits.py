"""More than its share: memory in each of its forms, processes, files, core dumps."""

import errno
import mmap
import os
import resource
import signal
import threading

import syscalls
from probe import Attempt, escaped, must_fail, name_of, refused, skipped

GIGABYTE = 1 << 30
PIECE = 32 << 20
# The skill, with this attempt's process in it [10.5].
PROCESSES = 8
# /tmp and /dev/shm, with room to spare [10.5].
TMPFS = 256 << 20


def _touch(memory):
    for page in range(0, len(memory), 4096):
        memory[page] = 1


def _heap():
    try:
        memory = bytearray(GIGABYTE)
        _touch(memory)
    except MemoryError:
        return refused("MemoryError")
    return escaped("a gigabyte on the heap")


def _shared():
    try:
        with mmap.mmap(-1, GIGABYTE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as memory:
            _touch(memory)
    except OSError as error:
        return refused(name_of(error))
    return escaped("a gigabyte of shared memory")


def _memfd():
    """Memory that belongs to a file counts for no limit of a process."""
    held = 0
    # Where it counts for the whole skill, the largest process is ended: let that be this one.
    ballast = b"\1" * (2 * PIECE)
    try:
        while held < GIGABYTE:
            file = os.memfd_create("escape")
            piece = b"\1" * PIECE
            for _ in range(4):
                held += os.write(file, piece)
    except OSError as error:
        return refused(f"{name_of(error)} at {held >> 20} MiB")
    return escaped(f"a gigabyte of memfd, beside {len(ballast)} bytes")


def _segments():
    """Shared memory of the System V kind is nobody's and everybody's."""
    held, segments = 0, []
    try:
        while held < GIGABYTE:
            segments.append(syscalls.shared_segment(PIECE))
            held += PIECE
    except OSError as error:
        return refused(f"{name_of(error)} at {held >> 20} MiB")
    finally:
        for segment in segments:
            syscalls.remove_segment(segment)
    return escaped("a gigabyte of System V memory")


def _fill(folder):
    def action():
        names, held, piece = [], 0, b"\1" * (1 << 20)
        try:
            while held < GIGABYTE:
                names.append(os.path.join(folder, f"escape-artist-{os.getpid()}-{len(names)}"))
                file = os.open(names[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    for _ in range(PIECE >> 20):
                        held += os.write(file, piece)
                finally:
                    os.close(file)
        except OSError as error:
            told = f"{name_of(error)} at {held >> 20} MiB"
            return refused(told) if held <= TMPFS else escaped(told)
        finally:
            for name in names:
                try:
                    os.unlink(name)
                except OSError:
                    pass
        return escaped("a gigabyte")

    return action


def _file_size():
    """One sparse file beyond RLIMIT_FSIZE."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = f"/tmp/escape-artist-{os.getpid()}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(file, 2 * GIGABYTE)
    finally:
        os.close(file)
        os.unlink(path)


def _forks():
    """Children that wait until all have been counted."""
    read, write = os.pipe()
    children, told = [], ""
    while len(children) < 2 * PROCESSES:
        try:
            child = os.fork()
        except OSError as error:
            told = name_of(error)
            break
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        children.append(child)
    os.close(write)
    os.close(read)
    for child in children:
        os.waitpid(child, 0)
    alive = len(children) + 2
    if alive > PROCESSES:
        return escaped(f"{alive} processes at once")
    return refused(f"{told} after {alive} processes")


def _threads():
    """Threads count as processes do."""
    go, threads = threading.Event(), []
    told = ""
    try:
        for _ in range(2 * PROCESSES):
            thread = threading.Thread(target=go.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        told = str(error)
    go.set()
    alive = len(threads) + 2
    if alive > PROCESSES:
        return escaped(f"{alive} at once")
    return refused(f"{told} after {alive}")


def _descriptors():
    held = []
    try:
        while len(held) < 4096:
            held.append(os.dup(0))
    except OSError as error:
        told = name_of(error)
    else:
        return escaped(f"{len(held)} descriptors")
    return refused(f"{told} at {len(held)}") if len(held) <= 256 else escaped(f"{len(held)} descriptors")


def _raise_limits():
    names = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_MSGQUEUE")
    raised = []
    for name in names:
        which = getattr(resource, name, None)
        if which is None:
            continue
        before = resource.getrlimit(which)
        if before[1] == resource.RLIM_INFINITY:
            continue
        try:
            resource.setrlimit(which, (before[0], before[1] * 2 + 1))
        except (OSError, ValueError):
            continue
        if resource.getrlimit(which)[1] > before[1]:
            raised.append(name)
    return escaped(", ".join(raised)) if raised else refused("none was raised")


def _core_limit():
    """1 is the value that also keeps pipe handlers from running; 0 would not [10.5]."""
    seen = []
    for wanted in ((0, 0), (1, 1), (resource.RLIM_INFINITY, resource.RLIM_INFINITY), (0, 1)):
        seen.append(resource.getrlimit(resource.RLIMIT_CORE))
        try:
            resource.setrlimit(resource.RLIMIT_CORE, wanted)
        except (OSError, ValueError):
            pass
    seen.append(resource.getrlimit(resource.RLIMIT_CORE))
    if any(limit != (1, 1) for limit in seen):
        return escaped(f"it went {' → '.join(str(limit) for limit in seen)}")
    return refused("stays (1, 1)")


def _core_dump():
    child = os.fork()
    if child == 0:
        os.chdir("/tmp")
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGQUIT)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    left = [name for name in os.listdir("/tmp") if name.startswith("core")]
    if os.WIFSIGNALED(status) and os.WCOREDUMP(status) or left:
        return escaped(f"a core was dumped {left}")
    return refused("none")


def _priority():
    for action in (lambda: os.nice(-1), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
        verdict, result = must_fail(action)
        if verdict == "ESCAPED":
            return escaped(result)
    return refused(result)


def _oom_score():
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("-1000")


def attempts():
    system_v = _segments if syscalls.LIBC else lambda: skipped("no ctypes in this Python")
    return [
        Attempt("a gigabyte on the heap", "MemoryError", _heap, 20),
        Attempt("a gigabyte of shared memory", "ENOMEM", _shared, 20),
        Attempt("a gigabyte of memfd", "ENOSYS, or the limit", _memfd, 20),
        Attempt("a gigabyte of System V memory", "ENOSYS, or the limit", system_v, 20),
        Attempt("a gigabyte in /tmp", "ENOSPC at 64 MiB", _fill("/tmp"), 30),
        Attempt("a gigabyte in /dev/shm", "ENOSPC at 64 MiB", _fill("/dev/shm"), 30),
        Attempt("a file of 2 GiB", "EFBIG", lambda: must_fail(_file_size, {errno.EFBIG, errno.ENOSPC})),
        Attempt("more processes than 8", "EAGAIN", _forks, 20),
        Attempt("more threads than 8", "cannot start", _threads, 20),
        Attempt("more descriptors than 256", "EMFILE", _descriptors),
        Attempt("raise its limits", "EPERM", _raise_limits),
        Attempt("lower RLIMIT_CORE, and raise it", "no effect", _core_limit),
        Attempt("dump a core", "none", _core_dump),
        Attempt("run before others (nice, SCHED_FIFO)", "EPERM, EACCES", _priority),
        Attempt("be the last to be ended when memory runs out", "EACCES", lambda: must_fail(_oom_score)),
    ]
