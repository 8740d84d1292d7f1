"""Calls the CyberOS broker from a skill. Standard library only.

A skill cannot import from outside its own folder, so it brings a copy of this file along:

    import cyberos

    with cyberos.connect() as broker:
        row = broker.call("MemoryEmit", {"kind": "note.captured", "payload": "hello"})
        try:
            broker.call("Bash", {"cmd": "id"})
        except cyberos.Denied as denial:
            print(denial.message, denial.reason)

The wire is the one of SPEC.md section 3: frames of a 4-byte big-endian length and that many bytes of JSON, JSON-RPC 2.0.
One object is one connection; it makes one call at a time and is not meant to be shared between threads.
"""

import json
import os
import socket
import struct

MAX_REQUEST = 1 << 20
MAX_RESPONSE = 16 << 20


class Error(Exception):
    """Anything that went wrong with a call."""


class ProtocolError(Error):
    """The connection is of no further use: it ended, or what came is not an answer."""


class RpcError(Error):
    """The broker answered with an error object."""

    def __init__(self, error):
        self.code = error.get("code")
        self.message = error.get("message", "")
        data = error.get("data")
        self.data = data if isinstance(data, dict) else {}
        self.reason = self.data.get("reason", "")
        super().__init__(f"{self.message}: {self.reason}" if self.reason else str(self.message))


class Denied(RpcError):
    """Enforcement refused the call (-32603); `message` is the class, `reason` says why, as [3.4] lists them."""


class ToolFailed(RpcError):
    """The tool ran and failed (-32000)."""


def error_of(error):
    """The exception for a JSON-RPC error object."""
    kind = {-32603: Denied, -32000: ToolFailed}.get(error.get("code"), RpcError)
    return kind(error)


def connect(path=None, timeout=None):
    """A connection to the broker of this invocation; `timeout` bounds each wait, in seconds."""
    path = path or os.environ.get("CYBEROS_BROKER_SOCKET")
    if not path:
        raise ProtocolError("CYBEROS_BROKER_SOCKET is not set: this is not running as a skill")
    return Broker(path, timeout)


class Broker:
    """One connection to the broker."""

    def __init__(self, path, timeout=None):
        self._next_id = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the connection."""
        self._socket.close()

    def call(self, tool, args=None, traceparent=None):
        """Calls a tool and returns its result, a dict. Raises Denied, ToolFailed, RpcError or ProtocolError."""
        params = {"tool": tool, "args": {} if args is None else args}
        if traceparent is not None:
            params["traceparent"] = traceparent
        return self.request("tool.call", params)

    def tools(self):
        """What this skill may call: a list of {name, description, input_schema}."""
        return self.request("tool.list")

    def status(self):
        """{invocation_id, skill_id, remaining_ms, calls, denied} of this invocation."""
        return self.request("broker.status")

    def request(self, method, params=None):
        """Sends one JSON-RPC request and returns the result that answers it."""
        self._next_id += 1
        body = {"jsonrpc": "2.0", "id": self._next_id, "method": method}
        if params is not None:
            body["params"] = params
        self.send_frame(json.dumps(body, ensure_ascii=False).encode("utf-8"))
        answer = self.receive()
        # An error that the broker could not attribute has the id null [3.1]; with one call at a time it is ours.
        if answer.get("id") != self._next_id and not (answer.get("id") is None and "error" in answer):
            raise ProtocolError(f"an answer to request {answer.get('id')!r}, expected {self._next_id}")
        if "error" in answer:
            if not isinstance(answer["error"], dict):
                raise ProtocolError("the error in the answer is not an object")
            raise error_of(answer["error"])
        if "result" not in answer:
            raise ProtocolError("an answer with neither result nor error")
        return answer["result"]

    def send_frame(self, body):
        """Sends one frame. Longer ones than MAX_REQUEST are sent too: refusing them is the broker's part."""
        try:
            self._socket.sendall(struct.pack(">I", len(body)) + body)
        except OSError as error:
            raise ProtocolError(f"the broker is gone: {error}") from error

    def receive(self):
        """Receives one frame and returns the JSON object in it."""
        (length,) = struct.unpack(">I", self._exactly(4))
        if not 0 < length <= MAX_RESPONSE:
            raise ProtocolError(f"a frame of {length} bytes")
        try:
            answer = json.loads(self._exactly(length).decode("utf-8"))
        except ValueError as error:
            raise ProtocolError(f"a frame that is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ProtocolError("an answer that is not an object")
        return answer

    def _exactly(self, count):
        parts = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 16))
            except OSError as error:
                raise ProtocolError(f"no answer from the broker: {error}") from error
            if not part:
                raise ProtocolError("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
