"""A message's due time: a header of the message itself, so that it stays with the message. Pure.

`octavo-deliver-at` has the milliseconds since 1970 in decimal digits. A batch with such a message
has a bit set in its attributes (`batch.ATTRIBUTE_DELAYED`), so that dispatchers need not look into
batches without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DELIVER_AT = "octavo-deliver-at"
DUE_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, as for timestamps."""
_DIGITS_MAX = 15


def due_header(due_ms: int) -> tuple[str, bytes]:
    """Return the header of a message that is due then."""
    return DELIVER_AT, b"%d" % due_ms


def due_of(headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """Return when a message with these headers is due; None: at once. The last such header counts.

    An invalid time is ignored: a typo must not hold a message back.
    """
    found = None
    for name, value in headers:
        if name == DELIVER_AT and value and value.isdigit() and len(value) <= _DIGITS_MAX:
            found = min(int(value), DUE_MS_MAX)
    return found


def is_delayed(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether the headers give the message a due time."""
    return any(name == DELIVER_AT for name, _ in headers)
