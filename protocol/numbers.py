"""Read numbers from text, strictly: each number has a single spelling. Pure.

Python's `int` accepts `+7`, ` 7`, `007`, `1_000` and every alphabet's digits: different texts for a
cache, a log or an access rule.
"""

from __future__ import annotations

import hashlib
import re

WHOLE_MAX = 2**63 - 1
"""The largest offset, ledger id, entry id and producer id."""
AMOUNT = r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?"
"""A number before its unit: `30`, `1.5`; without a sign."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")


def whole(text: str, most: int = WHOLE_MAX, least: int = 0) -> int | None:
    """Return None unless the number is from `least` to `most`."""
    if _WHOLE.fullmatch(text) is None:
        return None
    found = int(text)
    return found if least <= found <= most else None


def producer_number(name: str) -> int:
    """Return a producer's 63-bit id.

    A number stands for itself; other names become the first 63 bits of their SHA-256.
    """
    found = whole(name)
    if found is not None:
        return found
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
