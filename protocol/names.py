"""What may name a namespace, a topic or a subscription: one rule for brokers and clients."""

from __future__ import annotations

import re

NAME_CHARS_MAX = 249
NAME_PATTERN = rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}"
NOT_NAMES = (".", "..")
"""They fit the pattern, and climb in a path."""
NAME_RULE = f"a name has 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ - and is not '.' or '..'"
"""For people."""

_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """Kafka's rule, as `NAME_RULE` tells it."""
    return _NAME.fullmatch(text) is not None and text not in NOT_NAMES
