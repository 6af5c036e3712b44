"""A message's due time: its header `octavo-deliver-at`, milliseconds since 1970. Pure.

`batch.ATTRIBUTE_DELAYED` marks its batch, so that dispatchers look into no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DELIVER_AT = "octavo-deliver-at"
DUE_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
_DIGITS_MAX = 15


def due_header(due_ms: int) -> tuple[str, bytes]:
    return DELIVER_AT, b"%d" % due_ms


def due_of(headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """Return when the message is due by its last such header; None: at once.

    An invalid time is ignored: a typo must not hold a message back.
    """
    found = None
    for name, value in headers:
        if name == DELIVER_AT and value and value.isdigit() and len(value) <= _DIGITS_MAX:
            found = min(int(value), DUE_MS_MAX)
    return found


def is_delayed(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    return any(name == DELIVER_AT for name, _ in headers)
