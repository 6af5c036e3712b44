"""A call from one broker to another: its headers, byte for byte, and the proof of it. Pure.

    Octavo-Forwarded-By       who calls
    Octavo-Forwarded-To       whom it means to call
    Octavo-Forwarded-Proof    HMAC-SHA256 over both, method, path with query, and the headers that
                              count between brokers only
    Octavo-Forwarded-Escaped  which headers are percent-encoded

The key is made of the cluster's secret, which only those have who may read its metadata. There is
no time in it, so no clock can break a cluster. Who reads the traffic between brokers may thus
repeat a call to the same broker, with another body. That is what any client may do; beyond it, the
broker may serve a partition that nobody serves, as it did when it was asked first, and a topic is
let go only when the metadata says that it is being deleted.

A header value may hold any bytes (a producer's name, a key in Latin-1). aiohttp gives those that
are not UTF-8 as lone surrogates, and leaves them out when it writes them. So such values travel
percent-encoded, in their places.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, MutableMapping
from urllib.parse import quote_from_bytes, unquote_to_bytes

from multidict import CIMultiDict

FORWARDED_HEADER = "Octavo-Forwarded-By"
"""Set by the broker that passes a call on: the one that gets it never passes it on again."""
TARGET_HEADER = "Octavo-Forwarded-To"
PROOF_HEADER = "Octavo-Forwarded-Proof"
INCARNATION_HEADER = "Octavo-Incarnation"
"""Which topic of that name: in answers, and in calls that shall be about no other one."""
ESCAPED_HEADER = "Octavo-Forwarded-Escaped"
"""Names the headers whose values are percent-encoded."""
KEY_USE = "calls between brokers"
"""What the cluster's secret makes the key for."""
INNER_HEADERS = frozenset(
    name.lower() for name in (FORWARDED_HEADER, TARGET_HEADER, PROOF_HEADER, ESCAPED_HEADER)
)
"""Of no meaning from anybody but a broker."""

_COVERED = (FORWARDED_HEADER, TARGET_HEADER, INCARNATION_HEADER, ESCAPED_HEADER)


class BrokerProof:
    """Makes and checks proofs with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def enter(
        self, headers: MutableMapping[str, str], caller: str, target: str, method: str, path: str
    ) -> None:
        """Prove that `caller` calls `target`; nothing of `headers` that counts changes after it.

        `path` as it is sent, with its query.
        """
        headers[FORWARDED_HEADER], headers[TARGET_HEADER] = caller, target
        headers[PROOF_HEADER] = self._proof(headers, method, path)

    def holds(self, headers: Mapping[str, str], method: str, path: str) -> bool:
        """Whether a broker made this call, for whomever it meant it."""
        found = headers.get(PROOF_HEADER)
        if found is None or FORWARDED_HEADER not in headers or not found.isascii():
            return False
        return hmac.compare_digest(found, self._proof(headers, method, path))

    def _proof(self, headers: Mapping[str, str], method: str, path: str) -> str:
        # No field can hold a zero byte, so nothing of one can pass for a part of another.
        fields = (method, path, *(headers.get(name, "") for name in _COVERED))
        text = "\0".join(fields).encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256).hex()


def escaped(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """`headers` in a form that survives being sent, in the same order."""
    names = {name.lower() for name, value in headers.items() if not _is_sendable(value)}
    if not names:
        return headers
    sent = CIMultiDict(
        (name, _quoted(value) if name.lower() in names else value)
        for name, value in headers.items()
    )
    sent[ESCAPED_HEADER] = ",".join(sorted(names))
    return sent


def restored(headers: Mapping[str, str]) -> Mapping[str, str]:
    """What the first broker was given, from what it sent."""
    names = set(headers.get(ESCAPED_HEADER, "").lower().split(","))
    if names == {""}:
        return headers
    return CIMultiDict(
        (name, _unquoted(value) if name.lower() in names else value)
        for name, value in headers.items()
        if name.lower() != ESCAPED_HEADER.lower()
    )


def _is_sendable(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _quoted(value: str) -> str:
    return quote_from_bytes(value.encode("utf-8", "surrogateescape"))


def _unquoted(value: str) -> str:
    return unquote_to_bytes(value).decode("utf-8", "surrogateescape")
