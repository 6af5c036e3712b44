"""When a message is due: a header of the message itself, so that it travels with it. Pure.

`octavo-deliver-at` has the milliseconds since the epoch in decimal digits. Who builds a batch with
such a message sets a bit in the batch's attributes (`batch.ATTRIBUTE_DELAYED`): who hands batches
out need not look into those without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DELIVER_AT = "octavo-deliver-at"
DUE_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, as of timestamps."""
_DIGITS_MAX = 15


def due_header(due_ms: int) -> tuple[str, bytes]:
    """The header of a message that is due then."""
    return DELIVER_AT, b"%d" % due_ms


def due_of(headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """When a message with these headers is due; None: at once. The last such header counts.

    What is no such time is as if it were not there: a message must not be held for a typo.
    """
    found = None
    for name, value in headers:
        if name == DELIVER_AT and value and value.isdigit() and len(value) <= _DIGITS_MAX:
            found = min(int(value), DUE_MS_MAX)
    return found


def is_delayed(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether they say when the message is due."""
    return any(name == DELIVER_AT for name, _ in headers)
