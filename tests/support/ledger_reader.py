#!/usr/bin/env python3
"""A second reader of the audit ledger, written from the format alone ([6.3]); it shares no code with the broker.

    ledger_reader.py STORE          one line of JSON: {"rows", "first_bad_seq", "what", "open_calls", "open_invocations"}
    ledger_reader.py STORE --rows   each row's payload on a line before that

Exit status 0 when the ledger is whole, 3 when it is broken. The store must be at rest.
"""

import hashlib
import json
import os
import re
import struct
import sys

FIELDS = {"actor", "chain", "content_sha256", "extra", "op", "path", "prev_chain", "ts_ns"}


def crc32c_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283, "the check value that defines CRC-32C"


def canonical(value):
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


class Broken(Exception):
    pass


def segments(store):
    names = os.listdir(os.path.join(store, "audit"))
    months = sorted(n for n in names if re.fullmatch(r"\d{4}-\d{2}\.binlog", n))
    return months + [n for n in names if n == "current.binlog"]


def frames(store):
    for name in segments(store):
        with open(os.path.join(store, "audit", name), "rb") as f:
            while header := f.read(24):
                if len(header) < 24:
                    raise Broken(f"{name}: header cut short")
                length, crc, seq, ts = struct.unpack(">IIQQ", header)
                payload = f.read(length)
                if len(payload) < length or not payload:
                    raise Broken(f"{name}: payload cut short")
                if crc32c(payload) != crc:
                    raise Broken(f"{name}: CRC of a payload is wrong")
                yield seq, ts, payload


def check(row, payload, ts, prev):
    if canonical(row) != payload:
        raise Broken("payload is not canonical")
    if set(row) != FIELDS or not isinstance(row["extra"], dict):
        raise Broken("fields are not the eight")
    if row["ts_ns"] != ts:
        raise Broken("header and payload disagree about the time")
    if row["prev_chain"] != prev:
        raise Broken("chain is cut")
    unchained = canonical(dict(row, chain=""))
    if hashlib.sha256(unchained + bytes.fromhex(prev)).hexdigest() != row["chain"]:
        raise Broken("chain is not the hash of the row")


def pair(row, calls, runs, early):
    extra = row["extra"]
    run, call = extra.get("invocation_id"), extra.get("call")
    if row["op"] == "skill.tool_call_started" and call is not None:
        if (run, call) in calls:
            raise Broken("a call starts twice")
        calls.add((run, call))
    elif row["op"] == "skill.tool_call_completed":
        if (run, call) not in calls | early:
            raise Broken("a call is completed that had not started")
        calls.discard((run, call))
        early.discard((run, call))
    elif row["op"] == "skill.tool_denied" and (run, call) in calls:
        # Refused for a quota once it ran: this row closes the call. Without a duration_ms it is an old one, and a
        # completed row may follow.
        calls.remove((run, call))
        if "duration_ms" not in extra:
            early.add((run, call))
    elif row["op"] == "skill.tool_denied" and "duration_ms" in extra:
        raise Broken("a call ends refused that had not started")
    elif row["op"] == "skill.invoked_started":
        runs.add(run)
    elif row["op"] == "skill.invoked_completed":
        if run not in runs:
            raise Broken("a run is completed that had not begun")
        runs.remove(run)


def main():
    store = sys.argv[1]
    show = "--rows" in sys.argv[2:]
    rows, prev, what = 0, "0" * 64, None
    calls, runs, early = set(), set(), set()
    try:
        for seq, ts, payload in frames(store):
            if seq != rows + 1:
                raise Broken(f"seq {seq}")
            try:
                row = json.loads(payload)
            except ValueError as e:
                raise Broken(f"payload is not JSON: {e}") from e
            try:
                check(row, payload, ts, prev)
            except UnicodeEncodeError as e:
                raise Broken(f"payload is not UTF-8: {e}") from e
            pair(row, calls, runs, early)
            rows, prev = seq, row["chain"]
            if show:
                sys.stdout.buffer.write(payload + b"\n")
        with open(os.path.join(store, "HEAD"), "rb") as f:
            (head,) = struct.unpack("<Q", f.read())
        if head != rows:
            raise Broken(f"HEAD says {head}")
    except Broken as e:
        what = str(e)
    sys.stdout.buffer.flush()
    report = {
        "rows": rows,
        "first_bad_seq": None if what is None else rows + 1,
        "what": what,
        "open_calls": len(calls),
        "open_invocations": len(runs),
    }
    print(json.dumps(report))
    return 0 if what is None else 3


if __name__ == "__main__":
    sys.exit(main())
