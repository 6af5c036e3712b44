"""What the head of a publish request says: type of the body, producer, expected offset.

Everything is checked before the body is read, and nothing that is not understood is ignored.
"""

from __future__ import annotations

import hashlib
import re

from octavo.broker.http.api.publishing import Producer
from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH, Call
from octavo.broker.http.problems import Problem
from octavo.broker.types import TopicName
from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    NO_PRODUCER,
    BatchHeader,
)
from octavo.protocol.compression import compression_of

UNDERSTOOD_TYPES = (
    f"{JSON}, {NDJSON}, {RECORD_BATCH}, or any other type but multipart/* for one raw message"
)
_REFUSED_TYPES = re.compile(r"multipart/.*|application/vnd\.kafka\..*|application/json-seq")
_PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")


def check_content_type(call: Call) -> None:
    """Raises a 415 with what is understood."""
    kind = call.content_type
    if kind != RECORD_BATCH and _REFUSED_TYPES.fullmatch(kind):
        raise Problem(
            415,
            "unsupported-media-type",
            f"{kind} is not understood here; understood are {UNDERSTOOD_TYPES}",
            headers={"Accept": f"{JSON}, {NDJSON}, {RECORD_BATCH}, */*;q=0.1"},
        )


def producer_of(call: Call) -> Producer | None:
    """The producer that the request names. All three headers, or none."""
    values = [call.headers.get(name) for name in _PRODUCER_HEADERS]
    if all(value is None for value in values):
        return None
    missing = [n for n, value in zip(_PRODUCER_HEADERS, values, strict=True) if value is None]
    if missing:
        raise Problem(
            400,
            "incomplete-producer",
            f"{', '.join(_PRODUCER_HEADERS)} are given together or not at all; missing: "
            + ", ".join(missing),
        )
    name, epoch, sequence = (value or "" for value in values)
    if not name:
        raise _bad_header("Producer-Id", name, "a number or a name")
    return Producer(
        producer_number(name),
        _header_number("Producer-Epoch", epoch, 2**15 - 1),
        _header_number("Producer-Seq", sequence, 2**31 - 1),
    )


def producer_number(name: str) -> int:
    """A producer's 63-bit id: its decimal digits, or the first 63 bits of its name's SHA-256."""
    if name.isascii() and name.isdigit() and len(name) < 20 and int(name) < 2**63:
        return int(name)
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _header_number(name: str, text: str, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most:
        return int(text)
    raise _bad_header(name, text, f"a whole number from 0 to {most}")


def _bad_header(name: str, text: str, expected: str) -> Problem:
    return Problem(400, "invalid-header", f"{name} is {text[:40]!r}; it must be {expected}")


def refuse_producer_headers(call: Call) -> None:
    """A record batch says itself who made it. Raises a 422."""
    headers = call.headers
    if any(name in headers for name in _PRODUCER_HEADERS):
        raise Problem(
            422,
            "producer-in-batch",
            "a record batch carries its producer id, epoch and sequence in its own header and is "
            f"stored as it is (no producer: id {NO_PRODUCER}); leave the Producer-* headers away",
        )


def refuse_unsupported(header: BatchHeader) -> None:
    """What a batch may say of itself but this version does not keep is refused, not ignored.

    Raises a 422 `Problem`, or `UnsupportedCompression`.
    """
    compression_of(header.attributes & ATTRIBUTE_COMPRESSION)
    if header.attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL):
        raise Problem(
            422, "not-supported-yet", "transactional and control batches are not supported yet"
        )
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise Problem(
            422,
            "invalid-batch",
            f"record batch names producer {header.producer_id} but epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}: all three are 0 or more, or all three are -1",
        )


def expected_offset(call: Call) -> int | None:
    """`If-Match: "<next offset>"`."""
    text = call.headers.get("If-Match")
    if text is None:
        return None
    found = text.strip().strip('"')
    if found.isascii() and found.isdigit() and len(found) < 20:
        return int(found)
    raise _bad_header("If-Match", text, 'the next offset in quotes, such as "42"')


def wants_places(call: Call) -> bool:
    """Whether the answer is to say where each message is."""
    return call.choice("results", "summary", "summary", "all", "batches") == "all"


def partition_required(topic: TopicName, partitions: int, why: str) -> Problem:
    """The 422 for a request that is for one partition but names none."""
    return Problem(
        422,
        "partition-required",
        f"{topic} has {partitions} partitions, and {why}: name one in the path, as in "
        f"/v1/topics/{topic}/partitions/0/messages",
        extra={"partitions": partitions},
    )
