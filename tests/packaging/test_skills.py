"""The example skills outside a sandbox, against a broker of a few lines.

What they do with the real one is a matter of the tests that start it. Here it is the other way round: whether they notice
when the broker, or the sandbox, does *not* keep what it promises.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

SKILLS = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "skills"
# Nobody's: neither in the passwd file nor in the range of leases.
UID = 1899999077


def denied(reason):
    return {"error": {"code": -32603, "message": reason, "data": {"reason": reason}}}


class Memory:
    """A broker that keeps notes in a dict, within the scope it is given."""

    def __init__(self, scope, loses=False):
        self.scope, self.loses, self.kept, self.read = scope, loses, {}, {}

    def __call__(self, method, params):
        if method == "broker.status":
            return {"result": {"skill_id": "x"}}
        if method != "tool.call":
            return {"error": {"code": -32601, "message": "no such method"}}
        args = params["args"]
        if params["tool"] == "MemoryEmit":
            path = f"memories/{args['kind'].replace('.', '/')}/2026/11/{len(self.kept)}.md"
            self.kept[path] = "" if self.loses else args["payload"]
            return {"result": {"row_id": "r", "seq": len(self.kept), "path": path, "trace_id": "t"}}
        if params["tool"] == "MemoryRead":
            if not args["path"].startswith(self.scope):
                return denied("scope_violation")
            return {"result": {"body": self.kept.get(args["path"], ""), "content_hash": "h"}}
        if params["tool"] == "Read" and args["path"] in self.read:
            return {"result": self.read[args["path"]]}
        return denied("file_violation")


def anything(_method, _params):
    """A broker that refuses nothing."""
    return {"result": {"skill_id": "x", "path": "memories/x.md", "seq": 1, "body": ""}}


class Broker:
    """Serves `answer(method, params)` on a socket that everybody may connect to, any number of connections."""

    def __init__(self, answer):
        self.answer = answer
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        self.path = os.path.join(self.folder.name, "broker.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self.listener.listen(64)
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()

    def accept(self):
        threads = []
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                break
            threads.append(threading.Thread(target=self.serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            while header := stream.read(4):
                body = stream.read(int.from_bytes(header, "big"))
                try:
                    request = json.loads(body)
                    answer = {"jsonrpc": "2.0", "id": request.get("id")} | self.answer(request["method"], request.get("params"))
                except (ValueError, RecursionError, AttributeError):
                    answer = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "parse"}}
                text = json.dumps(answer).encode()
                try:
                    connection.sendall(len(text).to_bytes(4, "big") + text)
                except OSError:
                    return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(30)
        self.listener.close()
        self.folder.cleanup()


def run(skill, *arguments, broker, stdin="", extra=None):
    environment = {"PATH": os.environ["PATH"], "CYBEROS_BROKER_SOCKET": broker.path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [SKILLS / skill / "main", *arguments],
        input=stdin,
        env=environment | (extra or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class MemoryCapture(unittest.TestCase):
    def test_notes_of_arguments_and_of_standard_input_are_kept_and_read_back(self):
        for arguments, stdin in ((("one", "hai — đường"), ""), ((), "one\n\nhai — đường\n")):
            memory = Memory("memories/note/")
            with Broker(memory) as broker:
                done = run("memory-capture", *arguments, broker=broker, stdin=stdin)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(memory.kept.values()), ["hai — đường", "one"])
            self.assertIn("refused   memories/people/compensation.md", done.stdout)
            self.assertIn("2 notes kept", done.stdout)

    def test_a_note_that_does_not_come_back_is_a_failure(self):
        with Broker(Memory("memories/note/", loses=True)) as broker:
            done = run("memory-capture", "one", broker=broker)
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not hold the note", done.stderr)

    def test_a_broker_that_lets_it_out_of_its_scope_is_a_failure(self):
        with Broker(Memory("memories/")) as broker:
            done = run("memory-capture", "one", broker=broker)
        self.assertEqual(done.returncode, 1)
        self.assertIn("outside my scope", done.stderr)

    def test_nothing_to_keep_is_wrong_usage(self):
        with Broker(Memory("memories/note/")) as broker:
            self.assertEqual(run("memory-capture", broker=broker).returncode, 2)


# Speaks for cyberos-call [7.7] where the project's own has not been built: same arguments, same output, same exits.
CALL = """#!/usr/bin/env python3
import json, sys
sys.path.insert(0, {sdk!r})
import cyberos
text = sys.stdin.read() if sys.argv[2] == "-" else sys.argv[2]
with cyberos.connect() as broker:
    try:
        print(json.dumps(broker.call(sys.argv[1], json.loads(text))))
    except cyberos.RpcError as error:
        print(json.dumps({{"code": error.code, "message": error.message, "data": error.data}}), file=sys.stderr)
        sys.exit(1)
"""


class RepoReport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.call = os.path.join(folder.name, "cyberos-call")
        with open(self.call, "w", encoding="utf-8") as file:
            file.write(CALL.format(sdk=str(SKILLS.parent / "sdk" / "python")))
        os.chmod(self.call, 0o755)
        self.memory = Memory("memories/report/")
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def report(self, *paths):
        with Broker(self.memory) as broker:
            extra = {"CYBEROS_CALL": self.call, "TMPDIR": self.temporary.name}
            done = run("repo-report", *paths, broker=broker, extra=extra)
        self.assertEqual(os.listdir(self.temporary.name), [], "it left something behind")
        return done

    def test_lines_and_todos_are_counted_and_kept(self):
        awkward = '/srv/cyberos/work/a "quoted" $(touch /tmp/no) \\ `x`\n.py'
        self.memory.read = {
            "/srv/cyberos/work/a.py": {"content": "x\n# TODO one\n# TODOS no\n# FIXME two\n", "truncated": False},
            awkward: {"content": "no line end TODO", "truncated": True},
            "/srv/cyberos/work/empty": {"content": "", "truncated": False},
        }
        done = self.report(*self.memory.read)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r" 4 lines +2 TODO +/srv/cyberos/work/a.py\n")
        self.assertRegex(done.stdout, r" 1 lines +1 TODO .*\(only its beginning\)")
        self.assertRegex(done.stdout, r" 0 lines +0 TODO +/srv/cyberos/work/empty\n")
        self.assertRegex(done.stdout, r" 5 lines +3 TODO +in 3 of 3 files\n")
        (kept,) = self.memory.kept.values()
        self.assertIn(awkward.replace("\n", "?"), kept)

    def test_a_file_that_is_refused_is_named_and_fails_the_report(self):
        self.memory.read = {"/srv/cyberos/work/a.py": {"content": "x\n", "truncated": False}}
        done = self.report("/srv/cyberos/work/a.py", "/etc/passwd")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"not read: file_violation.* /etc/passwd")
        self.assertRegex(done.stdout, r"in 1 of 2 files")
        self.assertEqual(len(self.memory.kept), 1)

    def test_no_path_is_wrong_usage(self):
        self.assertEqual(self.report().returncode, 2)


# Holds an abstract socket in the new network namespace, and runs the rest of the command line below it.
HOLD = """
import socket, subprocess, sys
held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
held.bind("\\0escape-artist-control"); held.listen(8)
sys.exit(subprocess.call(sys.argv[1:], close_fds=False))
"""


class EscapeArtist(unittest.TestCase):
    def test_where_nothing_is_refused_it_says_so(self):
        """The control experiment: an ordinary uid with no sandbox around it, and a broker that grants everything."""
        if os.geteuid() != 0:
            self.fail("needs root, to run the skill under another uid and away from the network")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        skill = shutil.copytree(SKILLS / "escape-artist", os.path.join(folder.name, "escape-artist"))
        secret = os.path.join(folder.name, "secret")
        pathlib.Path(secret).write_text("x", encoding="utf-8")
        extra = os.open(secret, os.O_RDONLY)
        self.addCleanup(os.close, extra)
        other = Broker(anything)
        self.addCleanup(other.__exit__)
        with Broker(anything) as broker:
            environment = {
                "PATH": os.environ["PATH"],
                "CYBEROS_BROKER_SOCKET": broker.path,
                "AWS_SECRET_ACCESS_KEY": "x",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            command = ["unshare", "--net", "--ipc", sys.executable, "-c", HOLD]
            command += ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
            command += [os.path.join(skill, "main"), "--json", secret, other.path, "@escape-artist-control"]
            done = subprocess.run(
                command,
                cwd=skill,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                pass_fds=[extra],
                check=False,
            )
        self.assertEqual(done.returncode, 1, done.stderr)
        rows = {row["attempt"]: row for row in json.loads(done.stdout)}
        seen = {name for name, row in rows.items() if row["verdict"] == "ESCAPED"}
        must_see = {
            "Bash, not granted",
            "Read /etc/passwd, not granted",
            "memory of another scope",
            "memory by way of ..",
            "a method that is none",
            "32 connections at once",
            "a request of 2 MiB",
            "variables of the environment",
            "descriptors beyond 0 to 2",
            "capabilities, groups, uids",
            "other processes in /proc",
            "other sockets by path",
            "other sockets by abstract name",
            "socket(AF_INET)",
            "socket(AF_INET6)",
            "socket(AF_NETLINK)",
            "connect to 127.0.0.1",
            "other folders of the root",
            "the folder above",
            "what else is in /etc",
            "secrets, homes, state of the host",
            "the kernel by /proc, and its first process",
            "the paths given as arguments",
            "chmod 4755",
            "fchmod 6755",
            "chmod 4755 by /proc/self/fd",
            "open with mode 4755",
            "mkdir and chmod 2777",
            "a gigabyte on the heap",
            "a gigabyte of shared memory",
            "more processes than 8",
            "more threads than 8",
            "lower RLIMIT_CORE, and raise it",
            "a System V message queue",
            "a program from a memory file",
            "room on a disk by ioctl",
            "locks of a descriptor, leases and notes",
            "attributes of 16 KiB in /tmp",
            "attributes of 16 KiB in /dev/shm",
            "madvise MADV_MERGEABLE",
            "prctl PR_SET_MEMORY_MERGE",
        }
        self.assertLessEqual(must_see, seen, f"not noticed: {sorted(must_see - seen)}")
        self.assertIn(secret, rows["the paths given as arguments"]["result"])
        self.assertIn(other.path, rows["other sockets by path"]["result"])
        self.assertIn("escape-artist-control", rows["other sockets by abstract name"]["result"])
        unclear = {name: row["result"] for name, row in rows.items() if row["verdict"] == "unclear"}
        # The broker of this test doesn't do those two as the real one does.
        for name in ("a frame of length 0", "a request with the same key twice"):
            unclear.pop(name, None)
        self.assertEqual(unclear, {})
        left = [name for name in os.listdir("/tmp") + os.listdir("/dev/shm") if re.match(r"(\.?escape-artist|core)", name)]
        self.assertEqual(left, [])

    def test_it_does_not_run_as_root(self):
        if os.geteuid() != 0:
            self.fail("needs root, to see that root is refused")
        with Broker(anything) as broker:
            done = run("escape-artist", broker=broker)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("as root", done.stderr)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    unittest.main()
