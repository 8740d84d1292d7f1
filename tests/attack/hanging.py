"""A hostile peer of the helper with a file system of its own, whose server takes requests and never answers them.

Started as root: mounts, forks the server, opens what it will send, becomes the user, connects. Then it does what stdin
says, a line each, and answers with a line. Arguments: SOCKET MOUNTPOINT UID. With "-" for SOCKET it is no peer but only
the server; its mount then takes idmaps, which the kernel lets it since Linux 6.12.
"""
import ctypes, mmap, os, socket, struct, sys

path, point, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
idmapped = path == "-"
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
if idmapped:
    options += ",default_permissions"
NOSUID_NODEV = 2 | 4
if libc.mount(b"hanging", point.encode(), b"fuse.hanging", NOSUID_NODEV, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
swallowed = mmap.mmap(-1, 4096)
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR, DESTROY, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 29, 38, 42)
NAMES = {k: v for k, v in globals().items() if k.isupper() and isinstance(v, int)}


def attributes(node):
    mode = 0o100666 if node == 2 else 0o40777
    return struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node, body):
    if opcode == INIT and idmapped:
        # FUSE_INIT_EXT, and FUSE_ALLOW_IDMAP among the flags that it adds.
        return struct.pack("<IIIIHHIIHHII", 7, 41, 1 << 17, 1 << 30, 0, 0, 1 << 17, 1, 1, 0, 1 << 8, 0).ljust(64, b"\0")
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHH", 7, 31, 1 << 17, 0, 0, 0, 1 << 17, 1, 1, 0).ljust(64, b"\0")
    if opcode == LOOKUP and body.rstrip(b"\0") in (b"file", b"dir"):
        found = 2 if body.startswith(b"file") else 3
        return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + attributes(found)
    if opcode == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return bytes(16)
    if opcode == STATFS:
        return bytes(80)
    if opcode in (FLUSH, RELEASE, RELEASEDIR):
        return b""
    return None


def serve():
    while True:
        try:
            request = os.read(fuse, 1 << 18)
        except OSError:
            os._exit(0)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if swallowed[opcode] or opcode in (FORGET, BATCH_FORGET):
            continue
        body = answer(opcode, node, request[40:])
        error = 0 if body is not None else -38 if opcode != LOOKUP else -2
        body = body or b""
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


if os.fork() == 0:
    serve()
os.close(fuse)

# The link's number is the lower one: when this process ends, the link is closed before a file that hangs.
os.setegid(uid)
os.seteuid(uid)
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if not idmapped:
    link.connect(path)
link.settimeout(2)
os.seteuid(0)
files = {
    "file": os.open(point + "/file", os.O_RDWR),
    "reader": os.open(point + "/file", os.O_RDONLY),
    "path": os.open(point + "/file", os.O_PATH),
    "dir": os.open(point + "/dir", os.O_RDONLY | os.O_DIRECTORY),
    "dirpath": os.open(point + "/dir", os.O_PATH | os.O_DIRECTORY),
}
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "swallow":
        for name in rest:
            swallowed[NAMES[name]] = 1
        print("swallowed", flush=True)
    elif word == "send":
        try:
            socket.send_fds(link, [bytes.fromhex(rest[0])], [files[n] for n in rest[1:]])
            print("sent", flush=True)
        except (BrokenPipeError, ConnectionResetError):
            print("closed", flush=True)
    elif word == "receive":
        try:
            # Whatever comes with it is kept: a view of the helper's, say, that nobody will ever serve.
            print(socket.recv_fds(link, 65536, 3)[0].hex() or "closed", flush=True)
        except TimeoutError:
            print("silent", flush=True)
        except ConnectionResetError:
            print("closed", flush=True)
    elif word == "leave":
        link.close()
        print("left", flush=True)
