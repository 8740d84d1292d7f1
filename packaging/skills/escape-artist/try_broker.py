"""Through the front door: tools, paths and methods that this skill was not granted, and requests that are none."""

import cyberos
from probe import Attempt, escaped, refused, unclear

SECONDS = 20
CONNECTIONS = 16


def _request(send):
    """A connection that answers, and what `send` got from it."""
    with cyberos.connect(timeout=SECONDS) as broker:
        if broker.status().get("skill_id") is None:
            return unclear("the broker does not answer broker.status")
        return send(broker)


def _denied(tool, args, classes):
    def action():
        def send(broker):
            try:
                result = broker.call(tool, args)
            except cyberos.Denied as denial:
                told = f"{denial.message}: {denial.reason}"
                return refused(told) if denial.message in classes else unclear(told)
            except cyberos.RpcError as error:
                # Anything but a denial means that the question was considered.
                return escaped(f"{error.code} {error}")
            return escaped(f"answered: {sorted(result)}")

        return _request(send)

    return action


def _rejected(code, body):
    def action():
        def send(broker):
            broker.send_frame(body)
            answer = broker.receive()
            got = answer.get("error", {}).get("code")
            if got == code:
                return refused(f"{got} {answer['error'].get('message', '')}")
            return escaped("answered with a result") if "result" in answer else unclear(f"{got}")

        return _request(send)

    return action


def _too_large():
    def send(broker):
        try:
            broker.call("MemoryRead", {"path": "memories/escape/" + "x" * (2 << 20)})
        except cyberos.Denied as denial:
            told = denial.message
        else:
            return escaped("a request of 2 MiB was served")
        broker.status()
        return refused(told + ", and the connection goes on") if told == "request_too_large" else unclear(told)

    return _request(send)


def _bad_length(header):
    def action():
        def send(broker):
            broker._socket.sendall(header)
            try:
                broker.receive()
            except cyberos.ProtocolError:
                return refused("the connection was closed")
            return escaped("it was answered")

        return _request(send)

    return action


def _many_connections():
    """More connections than one invocation may have: those beyond are not served."""
    held, served = [], 0
    try:
        for _ in range(CONNECTIONS * 2):
            try:
                held.append(cyberos.connect(timeout=1))
                held[-1].status()
                served += 1
            except (cyberos.ProtocolError, OSError):
                pass
    finally:
        for broker in held:
            broker.close()
    if not served:
        return unclear("not one of them was served")
    if served > CONNECTIONS:
        return escaped(f"{served} were served at once")
    return refused(f"{served} of {CONNECTIONS * 2} were served")


def attempts():
    tool = ("tool_not_allowed", "unknown_tool")
    scope = ("scope_violation",)
    outside = "memories/people/compensation.md"
    return [
        Attempt("Bash, not granted", "tool_not_allowed", _denied("Bash", {"cmd": "id"}, tool), SECONDS),
        Attempt("Read /etc/passwd, not granted", "tool_not_allowed", _denied("Read", {"path": "/etc/passwd"}, tool), SECONDS),
        Attempt(
            "MemoryEmit, not granted",
            "tool_not_allowed",
            _denied("MemoryEmit", {"kind": "escape.note", "payload": "x"}, tool),
            SECONDS,
        ),
        Attempt("a tool that nobody has", "refused", _denied("RunAsRoot", {}, tool), SECONDS),
        Attempt("a tool's name with another's letters", "refused", _denied("memoryread", {"path": outside}, tool), SECONDS),
        Attempt("memory of another scope", "scope_violation", _denied("MemoryRead", {"path": outside}, scope), SECONDS),
        Attempt(
            "memory by way of ..",
            "scope_violation",
            _denied("MemoryRead", {"path": "memories/escape/../people/compensation.md"}, scope),
            SECONDS,
        ),
        Attempt(
            "memory above its root",
            "scope_violation",
            _denied("MemoryRead", {"path": "memories/../../../../etc/passwd"}, scope),
            SECONDS,
        ),
        Attempt(
            "memory by an absolute path",
            "scope_violation",
            _denied("MemoryRead", {"path": "/memories/escape/x.md"}, scope),
            SECONDS,
        ),
        Attempt(
            "memory by a backslash",
            "scope_violation",
            _denied("MemoryRead", {"path": "memories/escape\\..\\people\\x.md"}, scope),
            SECONDS,
        ),
        Attempt(
            "memory of a scope with a longer name",
            "scope_violation",
            _denied("MemoryRead", {"path": "memories/escape-2/x.md"}, scope),
            SECONDS,
        ),
        Attempt(
            "a method that is none",
            "-32601",
            _rejected(-32601, b'{"jsonrpc":"2.0","id":1,"method":"broker.shutdown"}'),
            SECONDS,
        ),
        Attempt(
            "a request with the same key twice",
            "-32700 or -32600",
            _either((-32700, -32600), b'{"jsonrpc":"2.0","id":1,"method":"broker.status","method":"tool.list"}'),
            SECONDS,
        ),
        Attempt(
            "an id that is an object",
            "-32600",
            _rejected(-32600, b'{"jsonrpc":"2.0","id":{},"method":"broker.status"}'),
            SECONDS,
        ),
        Attempt(
            "200,000 nested arrays",
            "-32603, or less",
            _either((-32700, -32600, -32603), b"[" * 200_000),
            SECONDS,
        ),
        Attempt("a request of 2 MiB", "request_too_large", _too_large, SECONDS),
        Attempt("a frame of length 0", "closed", _bad_length(b"\0\0\0\0"), SECONDS),
        Attempt("32 connections at once", f"at most {CONNECTIONS}", _many_connections, 3 * SECONDS),
    ]


def _either(codes, body):
    def action():
        results = [_rejected(code, body)() for code in codes]
        if any(verdict == "ESCAPED" for verdict, _ in results):
            return escaped("answered with a result")
        return next((result for result in results if result[0] == "refused"), results[0])

    return action
