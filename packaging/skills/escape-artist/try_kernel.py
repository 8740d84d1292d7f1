"""The kernel's less travelled system calls, with arguments that do no harm where they work.

A call counts as refused when it is stopped at the door (EPERM, EACCES, ENOSYS, or the process is ended for it). Any
other error means that the kernel has begun to think about it, which is further than a skill should get.
"""

import errno
import fcntl
import mmap
import os
import signal

import syscalls
from probe import FATAL, Attempt, escaped, must_fail, name_of, refused, skipped

DOOR = {errno.EPERM, errno.EACCES, errno.ENOSYS}
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
AT_FDCWD = -100
TIOCSTI = 0x5412
TIOCLINUX = 0x541C


def _call(name, *arguments, more=()):
    return lambda: must_fail(lambda: syscalls.call(name, *arguments), DOOR | set(more))


def _clone_user_namespace():
    """A child in a user namespace of its own would have all capabilities there."""

    def clone():
        child = syscalls.call("clone", CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return must_fail(clone, DOOR)


def _memory_program(flags):
    """Code that is in no file system, and so in no list of what is there."""

    def run():
        program = os.memfd_create("program", flags)
        with open("/bin/true", "rb") as true:
            os.write(program, true.read())
        child = os.fork()
        if child == 0:
            try:
                os.execve(program, ["program"], {})
            except OSError as error:
                os._exit(error.errno)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            raise OSError(code, os.strerror(code))

    return lambda: must_fail(run, DOOR)


def _setns():
    try:
        handle = os.open("/proc/self/ns/net", os.O_RDONLY)
    except OSError as error:
        return refused(f"no namespace to name: {name_of(error)}")
    return must_fail(lambda: syscalls.call("setns", handle, 0), DOOR)


def _vm(name):
    """A byte at address 0 of process 1, where nothing is: the permission is checked first."""
    byte = syscalls.zeros(1)
    here = syscalls.words(syscalls.ctypes.addressof(byte), 1)
    there = syscalls.words(0, 1)
    return must_fail(lambda: syscalls.call(name, 1, here, 1, there, 1, 0), DOOR | {errno.ESRCH})


def _pidfd(action):
    def steal():
        handle = syscalls.call("pidfd_open", 1, 0)
        return action(handle)

    return lambda: must_fail(steal, DOOR | {errno.ESRCH})


def _personality():
    """READ_IMPLIES_EXEC, and asking what there is."""
    return must_fail(lambda: syscalls.call("personality", 0x0400000) and None, DOOR)


def _tiocsti(request):
    """Types into the terminal of whoever started it. The kernel looks at 32 bits; a filter may look at 64."""

    def push():
        failure = None
        for number in (0, 1, 2):
            try:
                return syscalls.call("ioctl", number, request, syscalls.zeros(8))
            except OSError as error:
                failure = error
        raise failure

    return lambda: must_fail(push, DOOR | {errno.ENOTTY, errno.EINVAL})


def _own_terminal():
    """The same on a terminal of its own, where the answer does not hang on there being one."""
    try:
        handle = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        return refused(f"no terminal to be had: {name_of(error)}")
    try:
        return must_fail(lambda: syscalls.call("ioctl", handle, TIOCSTI | 1 << 32, syscalls.zeros(8)), DOOR | {errno.EIO})
    finally:
        os.close(handle)


def _set_id_high_bits():
    """The kernel takes 16 bits of a mode; a filter that compares all 64 would be led astray."""
    path = f"/tmp/escape-artist-{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o755)
    try:
        try:
            syscalls.call("fchmod", file, 1 << 32 | 0o6755)
        except OSError as error:
            return refused(name_of(error))
        mode = os.fstat(file).st_mode
        return escaped(f"a file of mode {mode:o}") if mode & 0o6000 else refused("the bits were dropped")
    finally:
        os.close(file)
        os.unlink(path)


def _int80():
    """getpid by the gate of the 32-bit system calls, whose numbers mean something else to a 64-bit filter."""
    if syscalls.MACHINE != "x86_64":
        return skipped(f"{syscalls.MACHINE} has no such gate")
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
    try:
        page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        return refused(f"no executable memory: {name_of(error)}")
    page.write(code)
    ctypes = syscalls.ctypes
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    got = function()
    if got == -errno.ENOSYS:
        return refused("ENOSYS")
    return escaped(f"getpid answered {got}")


def _x32():
    """The third set of numbers, x32: bit 30, and the tables are the 64-bit ones."""
    if syscalls.MACHINE != "x86_64":
        return skipped(f"{syscalls.MACHINE} has no x32")
    return must_fail(lambda: syscalls.raw(0x4000_0000 | 39), DOOR)


def _message_queue():
    """It would outlive the sandbox, so it is removed if there is one."""

    def make():
        queue = syscalls.call("msgget", 0, 0o1600)
        syscalls.call("msgctl", queue, 0, None)

    return must_fail(make, DOOR)


def _posix_queue():
    def make():
        os.close(syscalls.call("mq_open", b"escape-artist\0", 0o102, 0o600, None))
        syscalls.call("mq_unlink", b"escape-artist\0")

    return must_fail(make, DOOR | {errno.EMFILE})


def _namespace_files():
    """Namespaces by ioctl on their files (NS_GET_USERNS, NS_GET_PARENT)."""
    try:
        handle = os.open("/proc/self/ns/pid", os.O_RDONLY)
    except OSError as error:
        return refused(f"no namespace to name: {name_of(error)}")
    try:
        return must_fail(lambda: fcntl.ioctl(handle, 0xB702), DOOR | {errno.ENOTTY})
    finally:
        os.close(handle)


def attempts():
    zeros = syscalls.zeros if syscalls.LIBC else lambda size: None
    root = b"/\0"
    tmp = b"/tmp\0"
    handle = zeros(136)
    rows = [
        ("mount a tmpfs", _call("mount", b"none\0", tmp, b"tmpfs\0", 0, None)),
        ("make mounts shared", _call("mount", None, root, None, 0x104000, None)),
        ("unmount /proc", _call("umount2", b"/proc\0", 2)),
        ("pivot_root", _call("pivot_root", tmp, tmp)),
        ("chroot", lambda: must_fail(lambda: os.chroot("/tmp"), DOOR)),
        ("fsopen", _call("fsopen", b"tmpfs\0", 0)),
        ("fspick", _call("fspick", AT_FDCWD, root, 0)),
        ("open_tree, cloning", _call("open_tree", AT_FDCWD, root, 1)),
        ("move_mount", _call("move_mount", AT_FDCWD, tmp, AT_FDCWD, tmp, 0)),
        ("mount_setattr", _call("mount_setattr", AT_FDCWD, root, 0, zeros(32), 32)),
        ("unshare a user namespace", _call("unshare", CLONE_NEWUSER)),
        ("unshare mounts", _call("unshare", CLONE_NEWNS)),
        ("unshare the network", _call("unshare", CLONE_NEWNET)),
        ("unshare processes", _call("unshare", CLONE_NEWPID)),
        ("clone into a user namespace", _clone_user_namespace),
        ("clone3, of no use", _call("clone3", zeros(88), 8)),
        ("setns", _setns),
        ("parents of a namespace", _namespace_files),
        ("ptrace process 1", _call("ptrace", 0x4206, 1, 0, 0, more=[errno.ESRCH])),
        ("process_vm_readv", lambda: _vm("process_vm_readv")),
        ("process_vm_writev", lambda: _vm("process_vm_writev")),
        ("pidfd_getfd of process 1", _pidfd(lambda handle: syscalls.call("pidfd_getfd", handle, 0, 0))),
        ("pidfd_send_signal to process 1", _pidfd(lambda handle: syscalls.call("pidfd_send_signal", handle, 0, None, 0))),
        ("kcmp", _call("kcmp", 1, 1, 0, 0, 0, more=[errno.ESRCH])),
        ("keyctl", _call("keyctl", 0, -3, 0, 0, 0)),
        ("add_key", _call("add_key", b"user\0", b"escape\0", b"x", 1, -2)),
        ("request_key", _call("request_key", b"user\0", b"escape\0", None, 0)),
        ("bpf", _call("bpf", 0, zeros(72), 72)),
        ("perf_event_open", _call("perf_event_open", zeros(136), 0, -1, -1, 0)),
        ("userfaultfd", _call("userfaultfd", 0)),
        ("userfaultfd of user mode only", _call("userfaultfd", 1)),
        ("io_uring_setup", _call("io_uring_setup", 1, zeros(120))),
        ("open_by_handle_at", _call("open_by_handle_at", AT_FDCWD, handle, 0)),
        ("name_to_handle_at", _call("name_to_handle_at", AT_FDCWD, root, handle, zeros(4), 0)),
        ("fanotify_init", _call("fanotify_init", 0, 0)),
        ("openat2", _call("openat2", AT_FDCWD, root, zeros(24), 24)),
        ("fchmodat2", _call("fchmodat2", AT_FDCWD, tmp, 0o4755, 0)),
        ("memfd_secret", _call("memfd_secret", 0)),
        ("a program from a memory file", _memory_program(0)),
        ("a program from an executable memory file", _memory_program(16)),
        ("init_module", _call("init_module", zeros(8), 8, b"\0")),
        ("finit_module", _call("finit_module", 0, b"\0", 0)),
        ("kexec_load", _call("kexec_load", 0, 0, None, 0)),
        ("kexec_file_load", _call("kexec_file_load", -1, -1, 0, None, 0)),
        ("reboot, with a wrong magic", _call("reboot", 0, 0, 0, None)),
        ("swapon", _call("swapon", b"/tmp/none\0", 0)),
        ("acct", _call("acct", None)),
        ("quotactl", _call("quotactl", 0x800003 << 8, None, 0, None)),
        ("syslog", _call("syslog", 3, zeros(64), 64)),
        ("clock_settime", _call("clock_settime", 0, None)),
        ("sethostname", _call("sethostname", b"escaped", 7)),
        ("iopl", _call("iopl", 3)),
        ("ioperm", _call("ioperm", 0x80, 1, 1)),
        ("a System V message queue", _message_queue),
        ("a POSIX message queue", _posix_queue),
        ("personality READ_IMPLIES_EXEC", _personality),
        ("TIOCSTI", _tiocsti(TIOCSTI)),
        ("TIOCSTI with high bits", _tiocsti(TIOCSTI | 1 << 32)),
        ("TIOCLINUX with high bits", _tiocsti(TIOCLINUX | 1 << 32)),
        ("TIOCSTI on a terminal of its own", _own_terminal),
        ("fchmod 6755 with high bits", _set_id_high_bits),
        ("a system call of x32", _x32),
    ]
    expectation = "EPERM, ENOSYS or ended"
    if not syscalls.LIBC:
        return [Attempt(name, expectation, lambda: skipped("no ctypes in this Python")) for name, _ in rows]
    found = [Attempt(name, expectation, action) for name, action in rows]
    found.append(Attempt("a system call by int 0x80", "ended", _int80, fatal=(*FATAL, signal.SIGSEGV)))
    return found
