"""How a connection between brokers begins: an HTTP/1.1 Upgrade on the port that brokers have. Pure.

    GET /v1/operations HTTP/1.1                   101 Switching Protocols
    Connection: Upgrade                           Connection: Upgrade
    Upgrade: octavo-operations/4                  Upgrade: octavo-operations/4
    Octavo-Operations-Nonce: …                    Octavo-Operations-Nonce: …

The request carries the proof of a call between brokers (broker/http/broker_calls.py). After the
answer, frames go both ways (frames.py). Another status means a refusal: 503 that the broker starts,
stops or is another broker; anything else that it has another version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.operations.frames import VERSION, BrokenChannel

PATH = "/v1/operations"
PROTOCOL = f"octavo-operations/{VERSION}"
NONCE_HEADER = "Octavo-Operations-Nonce"
HEAD_BYTES_MAX = 16 * 1024
_NONCE = re.compile(r"[0-9a-f]{32}")
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*")


class Accepted(NamedTuple):
    """The answer to an upgrade."""

    status: int
    nonce: str
    """Empty, unless it was accepted."""
    protocol: str


def request_head(host: str, headers: Mapping[str, str], nonce: str) -> bytes:
    """Return the asking side's request. `headers`: its proof."""
    lines = [
        f"GET {PATH} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        f"Upgrade: {PROTOCOL}",
        f"{NONCE_HEADER}: {nonce}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer_head(nonce: str) -> bytes:
    """Return the accepting side's answer."""
    return (
        "HTTP/1.1 101 Switching Protocols\r\n"
        "Connection: Upgrade\r\n"
        f"Upgrade: {PROTOCOL}\r\n"
        f"{NONCE_HEADER}: {nonce}\r\n\r\n"
    ).encode()


def is_nonce(text: str) -> bool:
    """Whether the text may be a nonce: 32 hexadecimal digits."""
    return bool(_NONCE.fullmatch(text))


def read_answer(data: bytes) -> tuple[Accepted, bytes] | None:
    """Return the answer and the bytes after it, once its head is complete; else None.

    Raises `BrokenChannel`.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES_MAX:
        raise BrokenChannel(f"the answer to the upgrade has a head of over {HEAD_BYTES_MAX} bytes")
    if not end:
        return None
    first, *lines = head.split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        raise BrokenChannel(f"the answer to the upgrade is no HTTP: {first[:40]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().decode("latin-1")
    status = int(found[1])
    nonce = headers.get(NONCE_HEADER.lower().encode(), "")
    if status == 101 and not is_nonce(nonce):
        raise BrokenChannel(f"the upgrade was accepted without a nonce: {nonce[:40]!r}")
    return Accepted(status, nonce, headers.get(b"upgrade", "")), rest
