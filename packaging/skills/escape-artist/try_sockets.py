"""Other sockets, and the network."""

import errno
import glob
import os
import socket

from probe import Attempt, each_must_fail, escaped, must_fail, refused

NO_SOCKET = {errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT, errno.ENOSYS, errno.EPROTONOSUPPORT}

GUESSES = [
    "/run/cyberos/*",
    "/run/cyberos-helper/*",
    "/run/cyberos-skillfs/*",
    "/tmp/cyberos-skill-broker.*",
    "/tmp/cyberos*",
    "/tmp/.X11-unix/*",
    "/tmp/ssh-*/*",
    "/run/user/*/*",
    "/run/*",
    "/run/*/*",
    "/var/run/*",
]
KNOWN = [
    "/run/cyberos/broker.sock",
    "/run/cyberos-helper/helper.sock",
    "/run/cyberos-skillfs/control.sock",
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/socket",
    "/run/systemd/journal/dev-log",
    "/run/systemd/userdb/io.systemd.Multiplexer",
    "/run/nscd/socket",
    "/run/snapd.socket",
    "/dev/log",
]
ABSTRACT = ["/tmp/.X11-unix/X0", "/tmp/.ICE-unix/1", "/tmp/dbus-1", "/containerd-shim/default.sock", "cyberos", "broker"]
TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)


def _connect(address):
    """Connects with any type of socket; the error is the last one that says more than 'wrong type'."""
    failure = OSError(errno.ENOENT, "")
    for kind in TYPES:
        with socket.socket(socket.AF_UNIX, kind) as attempt:
            attempt.settimeout(2)
            try:
                attempt.connect(address)
                return
            except socket.timeout:
                # A full queue is a socket that can be reached.
                return
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    failure = error
    raise failure


def _pathnames(more):
    own = os.environ.get("CYBEROS_BROKER_SOCKET")
    found = {path for pattern in GUESSES for path in glob.glob(pattern)}
    found |= {path for path in _listed() if path.startswith("/")}
    found |= set(KNOWN) | {target for target in more if target.startswith("/")}
    found.discard(own)
    return [path for path in sorted(found) if not os.path.isdir(path)]


def _listed():
    """What /proc/net/unix names, abstract names with their @."""
    for table in ("/proc/net/unix", "/proc/self/net/unix", "/proc/1/net/unix"):
        try:
            with open(table, encoding="utf-8", errors="replace") as lines:
                next(lines, None)
                names = [line.split(None, 7)[7].strip() for line in lines if len(line.split(None, 7)) == 8]
                return [name for name in names if name]
        except OSError:
            continue
    return []


def _abstract(more):
    names = {name[1:] for name in _listed() if name.startswith("@")} | set(ABSTRACT)
    names |= {target[1:] for target in more if target.startswith("@")}
    return sorted(name for name in names if name)


def _make(family, kinds=(socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)):
    """Makes a socket of that family; true of any type counts."""
    failure = OSError(errno.EAFNOSUPPORT, "")
    for kind in kinds:
        try:
            socket.socket(family, kind).close()
            return f"type {kind}"
        except OSError as error:
            failure = error
    raise failure


def _other_families():
    named = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40}
    return each_must_fail([n for n in range(46) if n not in named], lambda n: _make(n, TYPES[:1] + (2, 3)), NO_SOCKET)


def _loopback(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(("127.0.0.1", port))
        except ConnectionRefusedError as error:
            raise OSError(errno.ENOTRECOVERABLE, "loopback answers") from error


def _names():
    try:
        found = socket.getaddrinfo("example.com", 443, proto=socket.IPPROTO_TCP)
    except OSError as error:
        return refused(f"{type(error).__name__}: {error}")
    return escaped(f"example.com is {found[0][4][0]}")


def _pair():
    left, right = socket.socketpair(socket.AF_INET, socket.SOCK_STREAM)
    left.close()
    right.close()


def attempts(more):
    family = socket.AddressFamily
    found = [
        Attempt("other sockets by path", "no such file", lambda: each_must_fail(_pathnames(more), _connect), 30),
        Attempt(
            "other sockets by abstract name",
            "nobody there",
            lambda: each_must_fail(_abstract(more), lambda name: _connect("\0" + name)),
            30,
        ),
    ]
    for name in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
        number = getattr(family, name, getattr(socket, name, None))
        if number is not None:
            found.append(
                Attempt(f"socket({name})", "EACCES", lambda number=number: must_fail(lambda: _make(number), NO_SOCKET))
            )
    found += [
        Attempt("sockets of all other families", "EACCES", _other_families),
        Attempt("socketpair(AF_INET)", "EACCES or the like", lambda: must_fail(_pair)),
        Attempt(
            "connect to 127.0.0.1",
            "no socket to do it with",
            lambda: each_must_fail((22, 80, 443, 2375, 5432, 6379, 8080), _loopback, NO_SOCKET),
        ),
        Attempt("ask for the address of a name", "no answer", _names),
    ]
    return found
