"""Which stored times a calendar has, and how they are shown. Pure. Decision 63.

A record batch may carry any 64-bit number as a time: microseconds, nanoseconds, a negative one, or
Kafka's -1 for none. Whatever makes a date of a stored time asks here first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from octavo.protocol.limits import TIMESTAMP_MS_MAX

NO_TIME_MS = -1
"""The timestamp of a message that has none, as Kafka has it."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_calendar(time_ms: int) -> bool:
    """Whether it lies in the years 1970 to 9999."""
    return 0 <= time_ms <= TIMESTAMP_MS_MAX


def iso_of(time_ms: int) -> str | None:
    """The time as ISO 8601 in UTC; None where no calendar has it."""
    if not in_calendar(time_ms):
        return None
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat()


def unit_hint(time_ms: int) -> str:
    """What a number that is no time in milliseconds probably is."""
    for name, factor in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
        if time_ms > TIMESTAMP_MS_MAX and time_ms // factor <= TIMESTAMP_MS_MAX:
            return f"it looks like {name}; send milliseconds"
    return "send milliseconds since 1970, or -1 where there is no time"
