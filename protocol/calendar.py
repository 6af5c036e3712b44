"""Decide which stored times are calendar dates, and format them. Pure. Decision 63.

A record batch may carry any 64-bit number as a time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from octavo.protocol.limits import TIMESTAMP_MS_MAX

NO_TIME_MS = -1
"""A message without a time, as in Kafka."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_calendar(time_ms: int) -> bool:
    """Whether the time is in the years 1970 to 9999."""
    return 0 <= time_ms <= TIMESTAMP_MS_MAX


def iso_of(time_ms: int) -> str | None:
    if not in_calendar(time_ms):
        return None
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat()


def unit_hint(time_ms: int) -> str:
    """Guess the unit of a number that is not a time in milliseconds."""
    for name, factor in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
        if time_ms > TIMESTAMP_MS_MAX and time_ms // factor <= TIMESTAMP_MS_MAX:
            return f"it looks like {name}; send milliseconds"
    return "send milliseconds since 1970, or -1 where there is no time"
