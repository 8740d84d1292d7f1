"""What somebody can reach: `connect KIND:PATH…` tries sockets, `look PID` tries to get into a process. A line a try:
what was tried, and `in` or the error.
"""
import ctypes, errno, os, socket, sys

libc = ctypes.CDLL(None, use_errno=True)


def said(what, act):
    try:
        print(what, act() or "in", flush=True)
    except OSError as e:
        print(what, errno.errorcode.get(e.errno, e), flush=True)


def called(*args):
    if libc.syscall(*map(ctypes.c_long, args)) < 0:
        raise OSError(ctypes.get_errno(), "")


def connect(kind, path):
    s = socket.socket(socket.AF_UNIX, int(kind))
    s.settimeout(10)
    s.connect(path)
    if path.endswith("helper.sock"):
        # It says at once when it takes nobody.
        return "in:" + s.recv(4096).hex()


def ptraced(request, pid):
    called(101, request, pid, 0, 0)
    os.waitpid(pid, 0x40000000)
    called(101, 17, pid, 0, 0)


def copied(number, pid):
    """From an address where nothing is: whoever may look learns that, and EFAULT is in."""
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_size_t * 2)(16, 8)
    try:
        called(number, pid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0)
    except OSError as e:
        if e.errno != errno.EFAULT:
            raise


def look(pid):
    proc = f"/proc/{pid}"
    PIDFD_OPEN, PIDFD_GETFD, VM_READV, KCMP, ATTACH = 434, 438, 310, 312, 16
    for name in ("mem", "environ", "maps", "auxv"):
        said(name, lambda: os.close(os.open(f"{proc}/{name}", os.O_RDONLY)))
    said("writing mem", lambda: os.close(os.open(f"{proc}/mem", os.O_RDWR)))
    said("fd", lambda: os.listdir(f"{proc}/fd") and None)
    for name in ("exe", "cwd", "root", "fd/0"):
        said(name, lambda: os.readlink(f"{proc}/{name}") and None)
    said("root's files", lambda: os.listdir(f"{proc}/root/") and None)
    pidfd = os.pidfd_open(pid)
    said("pidfd_getfd", lambda: called(PIDFD_GETFD, pidfd, 0, 0))
    said("process_vm_readv", lambda: copied(VM_READV, pid))
    said("kcmp", lambda: called(KCMP, pid, pid, 0, 0, 0))
    said("ptrace", lambda: ptraced(ATTACH, pid))


if sys.argv[1] == "connect":
    for door in sys.argv[2:]:
        said(door.split(":", 1)[1], lambda: connect(*door.split(":", 1)))
else:
    look(int(sys.argv[2]))
