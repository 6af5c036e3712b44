"""How much work it is to read some JSON, before it is read: by its parts, not its bytes. Pure.

A decoder takes a nanosecond for a character of text and a hundred for an empty list, and it holds
the loop until it is done. So the marks that begin or divide parts are counted first, those inside
of text as well: to leave them out would cost more than to read it all.
"""

from __future__ import annotations

MESSAGE_PARTS_MAX = 500_000
"""Parts in one message of JSON: reading them takes about 25 ms."""
BODY_PARTS_MAX = 300_000
"""Parts in a body with several messages, which are only told apart at first."""
_MARKS = (b",", b"[", b"{")


def has_more_parts(text: bytes, most: int) -> bool:
    """Whether `text` has more than `most` commas, opening brackets and opening braces."""
    return len(text) > most and sum(map(text.count, _MARKS)) > most
