"""The client against a server that speaks the wire by hand, so that both sides are not wrong in the same way."""

import json
import os
import socket
import struct
import tempfile
import threading
import unittest

import cyberos


class Server:
    """Accepts one connection; `script(connection)` plays the broker."""

    def __init__(self, script):
        self._directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._directory.name, "broker.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self.failure = None
        self._thread = threading.Thread(target=self._run, args=(script,))
        self._thread.start()

    def _run(self, script):
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(10)
            try:
                script(connection)
            except Exception as failure:  # shown by __exit__, in the thread of the test
                self.failure = failure

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(20)
        self._listener.close()
        self._directory.cleanup()
        if self.failure:
            raise self.failure


def read_exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the client went away"
        data += part
    return data


def read_request(connection):
    length = int.from_bytes(read_exactly(connection, 4), "big")
    return json.loads(read_exactly(connection, length))


def answer(connection, body):
    body = json.dumps(body).encode()
    connection.sendall(len(body).to_bytes(4, "big") + body)


class Client(unittest.TestCase):
    def talk(self, script):
        server = Server(script)
        self.addCleanup(server.__exit__)
        broker = cyberos.connect(server.path, timeout=10)
        self.addCleanup(broker.close)
        return broker

    def test_a_call_is_one_frame_of_json_rpc(self):
        def script(connection):
            request = read_request(connection)
            assert request == {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tool.call",
                "params": {"tool": "MemoryRead", "args": {"path": "memories/đường.md"}, "traceparent": "00-a-b-01"},
            }, request
            answer(connection, {"jsonrpc": "2.0", "id": 1, "result": {"body": "x"}})

        broker = self.talk(script)
        result = broker.call("MemoryRead", {"path": "memories/đường.md"}, traceparent="00-a-b-01")
        self.assertEqual(result, {"body": "x"})

    def test_the_length_counts_bytes_not_characters(self):
        def script(connection):
            header = read_exactly(connection, 4)
            body = read_exactly(connection, struct.unpack(">I", header)[0])
            assert body.endswith(b"}}}"), body
            assert "đ".encode() in body, body
            answer(connection, {"jsonrpc": "2.0", "id": 1, "result": {}})

        self.talk(script).call("MemoryRead", {"path": "memories/đ.md"})

    def test_an_answer_in_crumbs_is_put_together(self):
        def script(connection):
            read_request(connection)
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"body": "y" * 300_000}}).encode()
            frame = len(body).to_bytes(4, "big") + body
            for piece in (frame[:1], frame[1:3], frame[3:5], frame[5:]):
                connection.sendall(piece)

        self.assertEqual(len(self.talk(script).call("MemoryRead", {"path": "memories/y"})["body"]), 300_000)

    def test_several_calls_share_the_connection(self):
        def script(connection):
            for _ in range(3):
                request = read_request(connection)
                answer(connection, {"jsonrpc": "2.0", "id": request["id"], "result": {"n": request["id"]}})

        broker = self.talk(script)
        self.assertEqual([broker.call("MemoryRead")["n"] for _ in range(3)], [1, 2, 3])

    def test_a_refusal_is_denied_with_its_reason(self):
        def script(connection):
            read_request(connection)
            data = {"reason": "tool_not_in_allowed_tools", "tool": "Bash", "skill_id": "x"}
            answer(connection, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "tool_not_allowed", "data": data}})

        with self.assertRaises(cyberos.Denied) as caught:
            self.talk(script).call("Bash", {"cmd": "id"})
        self.assertEqual(caught.exception.message, "tool_not_allowed")
        self.assertEqual(caught.exception.reason, "tool_not_in_allowed_tools")
        self.assertIn("tool_not_in_allowed_tools", str(caught.exception))

    def test_a_failed_tool_and_another_error_are_told_apart(self):
        def script(connection):
            read_request(connection)
            data = {"tool": "Read", "reason": "not_found", "message": "no such file"}
            answer(connection, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "tool_error", "data": data}})
            read_request(connection)
            answer(connection, {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "bad params"}})

        broker = self.talk(script)
        self.assertRaises(cyberos.ToolFailed, broker.call, "Read", {"path": "/x"})
        with self.assertRaises(cyberos.RpcError) as caught:
            broker.call("Read", {})
        self.assertNotIsInstance(caught.exception, (cyberos.Denied, cyberos.ToolFailed))
        self.assertEqual(caught.exception.code, -32602)

    def test_an_error_with_id_null_belongs_to_the_call_that_waits(self):
        def script(connection):
            length = int.from_bytes(read_exactly(connection, 4), "big")
            assert length > cyberos.MAX_REQUEST
            read_exactly(connection, length)
            answer(connection, {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "request_too_large"}})
            request = read_request(connection)
            answer(connection, {"jsonrpc": "2.0", "id": request["id"], "result": {}})

        broker = self.talk(script)
        with self.assertRaises(cyberos.Denied) as caught:
            broker.call("MemoryRead", {"path": "memories/" + "x" * (2 << 20)})
        self.assertEqual(caught.exception.message, "request_too_large")
        self.assertEqual(broker.call("MemoryRead"), {})

    def test_what_is_no_answer_is_a_protocol_error(self):
        frames = {
            "closed": b"",
            "cut short": b"\0\0\0\x05ab",
            "length 0": b"\0\0\0\0",
            "too long": b"\xff\xff\xff\xff",
            "not JSON": b"\0\0\0\x02{]",
            "not an object": b"\0\0\0\x02[]",
            "neither": b'\0\0\0\x08{"id":1}',
            "another id": b'\0\0\0\x14{"id":7,"result":{}}',
        }
        for name, frame in frames.items():
            with self.subTest(name):

                def script(connection, frame=frame):
                    read_request(connection)
                    connection.sendall(frame)

                with Server(script) as server, cyberos.connect(server.path, timeout=10) as broker:
                    self.assertRaises(cyberos.ProtocolError, broker.call, "MemoryRead")

    def test_outside_a_sandbox_it_says_so(self):
        saved = os.environ.pop("CYBEROS_BROKER_SOCKET", None)
        try:
            self.assertRaisesRegex(cyberos.ProtocolError, "CYBEROS_BROKER_SOCKET", cyberos.connect)
        finally:
            if saved is not None:
                os.environ["CYBEROS_BROKER_SOCKET"] = saved


if __name__ == "__main__":
    unittest.main()
