"""One attempt: run in a process of its own, bounded in time, and judged. Knows nothing of what is attempted."""

import errno
import json
import os
import select
import signal
import time

import syscalls

VERDICTS = ("refused", "ESCAPED", "unclear", "skipped")
SECONDS = 8
# How a sandbox ends a process that asks for too much: by its system call filter, or by its memory limit.
FATAL = (signal.SIGSYS, signal.SIGKILL)


class Attempt:
    """What is tried; `action` runs in a child and returns one of the verdicts below, or raises."""

    def __init__(self, name, expectation, action, seconds=SECONDS, fatal=FATAL):
        self.name = name
        self.expectation = expectation
        self.action = action
        self.seconds = seconds
        self.fatal = fatal


def refused(result):
    return "refused", result


def escaped(result):
    return "ESCAPED", result


def unclear(result):
    return "unclear", result


def skipped(result):
    return "skipped", result


def name_of(error):
    """EPERM, ENOENT, …"""
    return errno.errorcode.get(error.errno, str(error.errno)) if error.errno is not None else str(error)


def must_fail(action, errnos=None):
    """Refused if `action` fails with an errno (of `errnos`, if given), escaped if not."""
    try:
        got = action()
    except OSError as error:
        if errnos is None or error.errno in errnos:
            return refused(name_of(error))
        return escaped(f"{name_of(error)}: it got past the refusal")
    return escaped("it worked" if got is None else f"it worked: {got!r}"[:100])


def each_must_fail(things, action, errnos=None):
    """`must_fail` for each of several things, as one verdict; names what got through, or the errors that there were."""
    through, errors, tried = [], set(), 0
    for thing in things:
        tried += 1
        verdict, result = must_fail(lambda: action(thing), errnos)
        if verdict == "ESCAPED":
            through.append(f"{thing} ({result})" if errnos else str(thing))
        else:
            errors.add(result)
    if through:
        return escaped(", ".join(through))
    return refused(f"{tried} tried: {', '.join(sorted(errors)) or 'there are none'}")


def open_descriptors():
    """The descriptors of this process, also those that /proc would not list."""
    found = set()
    try:
        listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        found = {int(name) for name in os.listdir(listing)} - {listing}
        os.close(listing)
    except OSError:
        pass
    for number in range(4096):
        try:
            os.fstat(number)
            found.add(number)
        except OSError:
            pass
    # listdir works on a duplicate, which is listed and gone by now.
    return {number for number in found if _is_open(number)}


def _is_open(number):
    try:
        os.fstat(number)
        return True
    except OSError:
        return False


def _child(attempt, write):
    os.setpgid(0, 0)
    try:
        # Should memory run out, this process is the one to be ended, not the one that counts.
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    except OSError:
        pass
    try:
        verdict, result = attempt.action()
    except BaseException as error:  # whatever it is, it is told, and counts as unclear
        verdict, result = unclear(f"{type(error).__name__}: {error}")
    os.write(write, json.dumps([verdict, result[:2000]]).encode())
    os._exit(0)


def _collect(read, until):
    """What the child wrote, until it (and whoever holds its pipe) is done, or the time is over."""
    data = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            return data, True
        part = os.read(read, 65536)
        if not part:
            return data, False
        data += part
        if _complete(data):
            return data, False


def _complete(data):
    try:
        json.loads(data)
        return True
    except ValueError:
        return False


def _clean(text):
    return "".join(c if c.isprintable() else "?" for c in text)[:160]


def _fork():
    """A fork that gives what the attempt before has left behind a moment to be reaped by the sandbox's init."""
    until = time.monotonic() + 5
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def run(attempt):
    """Runs the attempt and returns its row."""
    read, write = os.pipe()
    try:
        pid = _fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        return _row(attempt, *unclear(f"no process to try it in: {name_of(error)}"))
    if pid == 0:
        os.close(read)
        _child(attempt, write)
    os.close(write)
    data, late = _collect(read, time.monotonic() + attempt.seconds)
    os.close(read)
    for end in (lambda: os.killpg(pid, signal.SIGKILL), lambda: os.kill(pid, signal.SIGKILL)):
        # With a result the child is leaving by itself; what it may have left behind in its group goes as well.
        if late or data:
            try:
                end()
            except OSError:
                pass
    _, status = os.waitpid(pid, 0)
    # They outlive whoever made them, and would leave no memory for what is tried next.
    syscalls.remove_all_segments()
    try:
        verdict, result = json.loads(data)
    except ValueError:
        if late:
            verdict, result = unclear(f"no answer in {attempt.seconds} s")
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) in attempt.fatal:
            verdict, result = refused(f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
        else:
            verdict, result = unclear(f"ended with status {status:#x}")
    return _row(attempt, verdict, result)


def _row(attempt, verdict, result):
    return {
        "attempt": attempt.name,
        "expectation": attempt.expectation,
        "result": _clean(result),
        "verdict": verdict,
    }
