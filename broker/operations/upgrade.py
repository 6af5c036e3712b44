"""How a connection between brokers begins: an HTTP/1.1 Upgrade on the port that brokers have. Pure.

    GET /v1/operations HTTP/1.1                   101 Switching Protocols
    Connection: Upgrade                           Connection: Upgrade
    Upgrade: octavo-operations/5                  Upgrade: octavo-operations/5
    Octavo-Operations-From: broker-1              Octavo-Operations-Nonce: …
    Octavo-Operations-To: broker-2
    Octavo-Operations-Nonce: …
    Octavo-Operations-Proof: …

The proof is an HMAC-SHA256 over protocol, both brokers' names and the nonce. It contains no time,
so a wrong clock cannot break a cluster. Then frames go both ways (frames.py), with keys that depend
on the nonces of both sides: a recorded request is of no use.

Refusals: 503 (starting, stopping, or another broker), 426 (another version), 403 (no proof).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.operations.frames import VERSION, BrokenChannel

PATH = "/v1/operations"
PROTOCOLS = "octavo-operations/"
PROTOCOL = f"{PROTOCOLS}{VERSION}"
FROM_HEADER = "Octavo-Operations-From"
TO_HEADER = "Octavo-Operations-To"
NONCE_HEADER = "Octavo-Operations-Nonce"
PROOF_HEADER = "Octavo-Operations-Proof"
KEY_USE = "calls between brokers"
HEAD_BYTES_MAX = 16 * 1024
NONCES_KEPT = 4096
"""The connections of days: a broker opens a connection at a start and after a failure."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*")
_USE = "octavo operations upgrade"


class Upgrade(NamedTuple):
    asking: str
    """The asking broker …"""
    answering: str
    nonce: str
    protocol: str = PROTOCOL


class Accepted(NamedTuple):
    status: int
    nonce: str
    """Empty if the upgrade was refused."""
    protocol: str


def request_head(host: str, upgrade: Upgrade, secret: bytes) -> bytes:
    lines = [
        f"GET {PATH} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        *(f"{name}: {value}" for name, value in headers_of(upgrade, secret).items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def headers_of(upgrade: Upgrade, secret: bytes) -> dict[str, str]:
    return {
        "Upgrade": upgrade.protocol,
        FROM_HEADER: upgrade.asking,
        TO_HEADER: upgrade.answering,
        NONCE_HEADER: upgrade.nonce,
        PROOF_HEADER: _proof_of(upgrade, secret),
    }


def read_upgrade(headers: Mapping[str, str], secret: bytes) -> Upgrade | None:
    found = Upgrade(
        headers.get(FROM_HEADER, ""),
        headers.get(TO_HEADER, ""),
        headers.get(NONCE_HEADER, ""),
        headers.get("Upgrade", ""),
    )
    proof = headers.get(PROOF_HEADER, "")
    if found.protocol != PROTOCOL or not is_nonce(found.nonce) or not proof.isascii():
        return None
    return found if hmac.compare_digest(proof, _proof_of(found, secret)) else None


def _proof_of(upgrade: Upgrade, secret: bytes) -> str:
    # No header contains a zero byte.
    text = "\0".join((_USE, upgrade.protocol, upgrade.asking, upgrade.answering, upgrade.nonce))
    return hmac.digest(secret, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hex()


class Nonces:
    """Nonces of other brokers' connections.

    Only proved nonces count, so that no stranger pushes others out.
    """

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_new(self, nonce: str) -> bool:
        if nonce in self._seen:
            return False
        self._seen[nonce] = None
        if len(self._seen) > NONCES_KEPT:
            del self._seen[next(iter(self._seen))]
        return True


def answer_head(nonce: str) -> bytes:
    return (
        "HTTP/1.1 101 Switching Protocols\r\n"
        "Connection: Upgrade\r\n"
        f"Upgrade: {PROTOCOL}\r\n"
        f"{NONCE_HEADER}: {nonce}\r\n\r\n"
    ).encode()


def is_nonce(text: str) -> bool:
    return bool(_NONCE.fullmatch(text))


def read_answer(data: bytes) -> tuple[Accepted, bytes] | None:
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
