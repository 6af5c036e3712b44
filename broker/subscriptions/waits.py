"""Say which unacked messages of a subscription wait for what, and until when. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.protocol.calendar import iso_of

CONSUMERS_TOLD_MAX = 20
"""Consumers that are named, those with the most messages first; the rest are counted."""


class Leased(NamedTuple):
    consumer: str
    messages: int
    first: int
    last: int
    ends_ms: int
    """Steady time (ms) at which the first lease ends."""
    seen_ms: int
    """Steady time (ms) of the last call."""


class Waits(NamedTuple):
    leased: tuple[Leased, ...] = ()
    given_back: int = 0
    given_back_first: tuple[int, int] | None = None
    not_due: int = 0
    not_due_first_ms: int | None = None
    moving: int = 0


def told_of(waits: Waits, refused: int, now_ms: int, ahead_ms: int) -> list[str]:
    told = list(_leases(waits.leased, now_ms, ahead_ms))
    if waits.given_back and waits.given_back_first is not None:
        at_ms, offset = waits.given_back_first
        until = _until(at_ms - now_ms, at_ms + ahead_ms)
        are = _are(waits.given_back)
        told.append(f"{are} to be delivered again after a delay: offset {offset} first, {until}")
    if waits.not_due:
        due_ms, wall_ms = waits.not_due_first_ms, now_ms + ahead_ms
        if due_ms is None or due_ms <= wall_ms:
            until = "the first is due and waits for a consumer"
        else:
            until = f"the first is due {_until(due_ms - wall_ms, due_ms)}"
        told.append(f"{_are(waits.not_due)} not due yet: {until}")
    if waits.moving:
        told.append(f"{_are(waits.moving)} on the way to the dead-letter or the retry topic")
    if refused:
        message = "1 message" if refused == 1 else f"{refused:,} messages"
        told.append(
            f"the filter does not pass {message}: acked without a delivery since this broker "
            "opened the partition"
        )
    return told


def _leases(found: Iterable[Leased], now_ms: int, ahead_ms: int) -> Iterable[str]:
    ranked = sorted(found, key=lambda one: (-one.messages, one.consumer))
    for one in ranked[:CONSUMERS_TOLD_MAX]:
        is_one = one.messages == 1
        offsets = f"offset {one.first}" if is_one else f"offsets {one.first} to {one.last}"
        until = _until(one.ends_ms - now_ms, one.ends_ms + ahead_ms)
        idle_s = max(0, now_ms - one.seen_ms) / 1000
        which = "its lease ends" if is_one else "the first of its leases ends"
        out = f"{_are(one.messages)} leased to consumer {one.consumer!r} ({offsets})"
        yield (
            f"{out}, whose last call was {idle_s:.1f} s ago: {which} {until}, if it neither acks "
            "nor extends"
        )
    if rest := ranked[CONSUMERS_TOLD_MAX:]:
        yield f"{_are(sum(one.messages for one in rest))} leased to {len(rest)} more consumers"


def _are(count: int) -> str:
    return "1 message is" if count == 1 else f"{count:,} messages are"


def _until(left_ms: int, wall_ms: int) -> str:
    left = f"in {max(0, left_ms) / 1000:.1f} s"
    at = iso_of(wall_ms)
    return left if at is None else f"{left}, at {at}"
