"""System calls by number, through ctypes where this Python has it."""

import errno
import os
import platform

try:
    import ctypes

    LIBC = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    ctypes = None
    LIBC = None

SHM_STAT, SHM_INFO = 13, 14

# Name: numbers on x86_64 and on the architectures that have the generic table (aarch64, riscv64).
NUMBERS = {
    "ioctl": (16, 29),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "clone": (56, 220),
    "shmdt": (67, 197),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "acct": (163, 89),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "quotactl": (179, 60),
    "clock_settime": (227, 112),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "memfd_secret": (447, 447),
    "fchmodat2": (452, 452),
    "lsm_get_self_attr": (459, 459),
}
MACHINE = platform.machine()


def number(name):
    """The number on this machine, or None where there is no such call or no table."""
    x86_64, generic = NUMBERS[name]
    return {"x86_64": x86_64, "aarch64": generic, "riscv64": generic}.get(MACHINE)


def call(name, *arguments):
    """Makes the call; raises OSError as the kernel says."""
    which = number(name)
    if which is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return raw(which, *arguments)


def raw(which, *arguments):
    """Makes the call of that number."""
    ready = [a if hasattr(a, "_type_") or isinstance(a, (bytes, ctypes.Array)) else _word(a) for a in arguments]
    ctypes.set_errno(0)
    LIBC.syscall.restype = ctypes.c_long
    result = LIBC.syscall(ctypes.c_long(which), *ready)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _word(value):
    return ctypes.c_void_p(None) if value is None else ctypes.c_ulong(value & 0xFFFF_FFFF_FFFF_FFFF)


def zeros(size):
    """A zeroed buffer."""
    return ctypes.create_string_buffer(size)


def words(*values):
    """A buffer of machine words, such as an iovec."""
    return (ctypes.c_ulong * len(values))(*values)


def shared_segment(size):
    """Makes a System V segment and fills it. It goes with this process, or what is left would end the whole skill."""
    segment = call("shmget", 0, size, 0o1600)
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(ctypes.c_int(segment), None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number_of_error = ctypes.get_errno()
        remove_segment(segment)
        raise OSError(number_of_error, os.strerror(number_of_error))
    remove_segment(segment)
    ctypes.memset(address, 1, size)
    return segment


def remove_segment(segment):
    """Removes it."""
    LIBC.shmctl(ctypes.c_int(segment), 0, None)


def remove_all_segments():
    """Removes what a process that was ended could not."""
    if LIBC is None:
        return
    answer = zeros(256)
    for index in range(LIBC.shmctl(ctypes.c_int(0), SHM_INFO, answer) + 1):
        segment = LIBC.shmctl(ctypes.c_int(index), SHM_STAT, answer)
        if segment >= 0:
            remove_segment(segment)
