"""What it was born with, and other processes."""

import errno
import glob
import os
import signal
import stat
import subprocess

from probe import Attempt, each_must_fail, escaped, refused, unclear

ENVIRONMENT = {
    "CYBEROS_BROKER_SOCKET",
    "CYBEROS_SKILL_ID",
    "CYBEROS_INVOCATION_ID",
    "CYBEROS_TENANT_ID",
    "RUST_LOG",
    "PATH",
    "HOME",
    "LANG",
}
FIXED = {"RUST_LOG": "warn", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
HIGHEST_PID = 4096


def _environment():
    # Not os.environ: Python may have added LC_CTYPE to it.
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    found = {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
    if set(found) != ENVIRONMENT:
        more, less = sorted(set(found) - ENVIRONMENT), sorted(ENVIRONMENT - set(found))
        return escaped(f"too many: {', '.join(more) or 'none'}; missing: {', '.join(less) or 'none'}")
    for name, value in FIXED.items():
        if found[name] != value:
            return escaped(f"{name}={found[name]}")
    return refused("exactly the six")


def _descriptors(inherited):
    def action():
        if inherited != {0, 1, 2}:
            return escaped("there are " + ", ".join(f"{n} ({_link(n)})" for n in sorted(inherited)))
        return refused("0, 1, 2")

    return action


def _link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return "closed by now"


def _terminal():
    for number in (0, 1, 2):
        if os.isatty(number):
            return escaped(f"descriptor {number} is a terminal")
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
            return escaped(f"descriptor {number} is a file of the host")
    return refused("pipes")


def _status():
    wanted = {"NoNewPrivs": "1", "Seccomp": "2"} | {f"Cap{which}": "0" * 16 for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        found = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wrong = [f"{key} is {found.get(key)}" for key, value in wanted.items() if found.get(key) != value]
    groups = found.get("Groups", "").split()
    if set(groups) - {str(os.getgid())}:
        wrong.append(f"groups {' '.join(groups)}")
    uids = set(found.get("Uid", "").split())
    if uids != {str(os.getuid())} or "0" in uids:
        wrong.append(f"uids {' '.join(sorted(uids))}")
    return escaped("; ".join(wrong)) if wrong else refused("none, and no_new_privs, seccomp")


def _family():
    return {os.getpid(), os.getppid()}


def _visible():
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - _family()
    return escaped(f"sees {sorted(others)[:8]}") if others else refused("only its own")


def _signal(pid):
    os.kill(pid, 0)


def _signals():
    family = _family()
    return each_must_fail([pid for pid in range(1, HIGHEST_PID) if pid not in family], _signal)


def _identity():
    changes = {
        "setuid(0)": lambda: os.setuid(0),
        "setgid(0)": lambda: os.setgid(0),
        "setreuid(0, 0)": lambda: os.setreuid(0, 0),
        "setresuid(0, 0, 0)": lambda: os.setresuid(0, 0, 0),
        "setgroups": lambda: os.setgroups([0]),
        "another uid": lambda: os.setuid(os.getuid() + 1),
        "the init's uid": lambda: os.setuid(os.getuid() // 256 * 256),
    }
    return each_must_fail(changes, lambda name: changes[name]())


def _set_id_programs():
    """Programs with a set-id bit: what they run as, when they are run."""
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/*", "/usr/libexec", "/usr/local/bin"):
        for path in glob.glob(f"{folder}/*"):
            try:
                if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID) and os.path.isfile(path):
                    found.append(path)
            except OSError:
                continue
    mount_point = f"/tmp/escape-artist-{os.getpid()}"
    os.mkdir(mount_point)
    tried = []
    try:
        for command in (
            ["su", "-c", "id -u", "root"],
            ["sudo", "-n", "id", "-u"],
            ["mount", "-t", "tmpfs", "none", mount_point],
            ["newgrp", "root"],
            ["pkexec", "id", "-u"],
        ):
            try:
                run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                tried.append(f"{command[0]} {error.strerror}")
                continue
            except subprocess.TimeoutExpired:
                return unclear(f"{command[0]} does not end")
            if run.stdout.strip() == b"0" or (command[0] == "mount" and run.returncode == 0):
                return escaped(f"{' '.join(command)} worked")
            tried.append(f"{command[0]} {run.returncode}")
    finally:
        try:
            os.rmdir(mount_point)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
    return refused(f"{', '.join(tried) or 'none there'}; {len(found)} set-id programs seen")


def _sandbox_init():
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(1, number)
            # A signal that an init does not want is dropped, but it was allowed to be sent.
            return escaped(f"signal {number} to process 1 was taken")
        except OSError as error:
            told = os.strerror(error.errno)
    return refused(told)


def attempts(inherited):
    return [
        Attempt("variables of the environment", "the eight of [2.3]", _environment),
        Attempt("descriptors beyond 0 to 2", "none", _descriptors(inherited)),
        Attempt("a terminal or a file on 0 to 2", "none", _terminal),
        Attempt("capabilities, groups, uids", "none", _status),
        Attempt("other processes in /proc", "only its own", _visible),
        Attempt("signals to other processes", "EPERM, no such process", _signals, 20),
        Attempt("end the sandbox's init", "EPERM", _sandbox_init),
        Attempt("become somebody else", "EPERM", _identity),
        Attempt("set-id programs (su, mount, …)", "no effect", _set_id_programs, 30),
    ]
