"""Ack ids: text that names a message under a lease, or a range of messages. Pure.

0-41-8-3         partition 0, offset 41, epoch 8, lease 3
0-41:57-8-3      the same for offsets 41 to 56
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_EPOCH = r"(?:0|[1-9][0-9]{0,19})"
"""32 bits of the subscription, 32 bits of its owner."""
_ACK_ID = re.compile(rf"({_NUMBER})-({_NUMBER}(?::{_NUMBER})?)-({_EPOCH})-({_NUMBER})")


def one(partition: int, offset: int, lease: str) -> str:
    return f"{partition}-{offset}-{lease}"


def parts_of(text: str) -> tuple[str, str, str, str]:
    """Split an ack id. Raises `ValueError`.

    Each number has one spelling, so a message has one text.
    """
    found = _ACK_ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:50]!r} is no ack id")
    partition, offsets, epoch, lease = found.groups()
    return partition, offsets, epoch, lease


def span_of(text: str) -> tuple[int, int]:
    """Return start and end (exclusive). Raises `ValueError`."""
    start, is_range, end = text.partition(":")
    found = int(start), int(end) if is_range else int(start) + 1
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"{text[:50]} is no range of offsets")
    return found


def in_ranges(ack_ids: Iterable[str]) -> list[str]:
    found: list[str] = []
    at: tuple[str, str] | None = None
    start = end = 0
    for ack_id in ack_ids:
        partition, offset_text, lease = ack_id.split("-", 2)
        offset = int(offset_text)
        if offset == end and at == (partition, lease):
            end += 1
            continue
        if at is not None:
            found.append(_shown(at[0], start, end, at[1]))
        at, start, end = (partition, lease), offset, offset + 1
    if at is not None:
        found.append(_shown(at[0], start, end, at[1]))
    return found


def each(ack_ids: Iterable[str]) -> Iterator[str]:
    for ack_id in ack_ids:
        if ":" not in ack_id:
            yield ack_id
            continue
        partition, offsets, lease = ack_id.split("-", 2)
        for offset in range(*span_of(offsets)):
            yield f"{partition}-{offset}-{lease}"


def in_steps(ack_ids: Iterable[str], most: int) -> Iterator[list[str]]:
    """Split ack ids into lists of at most `most` messages. Raises `ValueError`."""
    found: list[str] = []
    room = most
    for ack_id in ack_ids:
        if ":" not in ack_id:
            found.append(ack_id)
            room -= 1
        else:
            partition, offsets, lease = ack_id.split("-", 2)
            start, end = span_of(offsets)
            while start < end:
                stop = min(end, start + room)
                found.append(shown(int(partition), start, stop, lease))
                room -= stop - start
                start = stop
                if not room:
                    yield found
                    found, room = [], most
            continue
        if not room:
            yield found
            found, room = [], most
    if found:
        yield found


def shown(partition: int, start: int, end: int, lease: str) -> str:
    return _shown(str(partition), start, end, lease)


def _shown(partition: str, start: int, end: int, lease: str) -> str:
    offsets = str(start) if end - start == 1 else f"{start}:{end}"
    return f"{partition}-{offsets}-{lease}"
