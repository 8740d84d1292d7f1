"""SkillFS's side of the helper, hostile: mounts, serves a view of one file that may be passed through to a backing file, and
offers whatever it likes as one.

Started as SkillFS's user. Arguments: SOCKET MOUNTPOINT, and in hexadecimal the request that mounts. Then it does what stdin
says, a line each, and answers with a line.
"""
import os, socket, struct, sys, threading

path, point, request = sys.argv[1:4]
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(path)
link.settimeout(10)
link.send(bytes.fromhex(request))
said, fds, _, _ = socket.recv_fds(link, 65536, 1)
if len(fds) != 1:
    sys.exit(f"not mounted: {said.hex()}")
fuse = fds[0]
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, BATCH_FORGET, SETATTR = 1, 2, 3, 14, 15, 17, 18, 25, 26, 42, 4
INIT_EXT, PASSTHROUGH_2, FOPEN_PASSTHROUGH = 1 << 30, 1 << 5, 1 << 7
backing = 0
began = threading.Event()


def attributes(node):
    mode = 0o100666 if node == 2 else 0o40777
    return struct.pack("<QQQQQQIIIIIIIIII", node, 16, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node, body):
    if opcode == INIT:
        out = struct.pack("<IIIIHHIIHHII", 7, 40, 1 << 17, INIT_EXT, 0, 0, 1 << 17, 1, 1, 0, PASSTHROUGH_2, 1)
        return out.ljust(64, b"\0")
    if opcode == LOOKUP and body.rstrip(b"\0") == b"file":
        return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
    if opcode in (GETATTR, SETATTR):
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<QIi", 0, FOPEN_PASSTHROUGH if backing else 0, backing)
    if opcode == READ:
        return b"from the server\n"
    if opcode == STATFS:
        return bytes(80)
    if opcode in (FLUSH, RELEASE):
        return b""
    return None


def serve():
    while True:
        try:
            request = os.read(fuse, 1 << 18)
        except OSError:
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in (FORGET, BATCH_FORGET):
            continue
        body = answer(opcode, node, request[40:])
        error = 0 if body is not None else -2 if opcode == LOOKUP else -38
        body = body or b""
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        if opcode == INIT:
            began.set()


threading.Thread(target=serve, daemon=True).start()
began.wait()
files = {"fuse": fuse}
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.rstrip("\n").split("\t")
    if word == "open":
        name, flags, target = rest
        try:
            files[name] = os.memfd_create("x") if target == "memfd" else os.open(target, int(flags))
            print("opened", flush=True)
        except OSError as e:
            print(os.strerror(e.errno), flush=True)
    elif word == "ask":
        socket.send_fds(link, [bytes.fromhex(rest[0])], [files[n] for n in rest[1:]])
        print(socket.recv_fds(link, 65536, 3)[0].hex() or "closed", flush=True)
    elif word == "serve":
        backing = int(rest[0])
        print("serving", flush=True)
