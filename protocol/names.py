"""What may name a namespace, a topic or a subscription: one rule for brokers and clients."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_name(text: str) -> bool:
    """Kafka's rule: 1 to 249 of A-Z a-z 0-9 . _ -, but not `.` or `..`, which climb in a path."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")
