"""Estimate the work of reading JSON before it is read: by its parts, not its bytes. Pure.

A decoder needs a nanosecond for a character of text and a hundred for an empty list, and it blocks
the loop until it is done. So the marks that begin or divide parts are counted first. Marks inside
text count as well: leaving them out would cost more than reading it all.
"""

from __future__ import annotations

MESSAGE_PARTS_MAX = 500_000
"""Limit of parts in a message of JSON: reading them takes about 25 ms."""
BODY_PARTS_MAX = 300_000
"""Limit of parts in a body with several messages, which are first only separated."""
_MARKS = (b",", b"[", b"{")


def has_more_parts(text: bytes, most: int) -> bool:
    """Whether `text` has more than `most` commas, opening brackets and opening braces."""
    return len(text) > most and sum(map(text.count, _MARKS)) > most
