"""Header fields on their way from one broker to another, byte for byte. Pure.

A header value may hold any bytes (a producer's name, a key in Latin-1). aiohttp gives those that
are not UTF-8 as lone surrogates, and leaves them out when it writes them. So such values travel
percent-encoded, in their places, and one more header names which ones those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes

from multidict import CIMultiDict

from octavo.broker.http.broker_proof import ESCAPED_HEADER


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
