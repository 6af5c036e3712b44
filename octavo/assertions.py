"""Refuse to serve where Python runs without assertions.

Assertions are part of what keeps acknowledged data safe, in brokers, bookies and whoever writes
ledgers. The client library needs none: it may be imported into any program.
"""

from __future__ import annotations

import sys

MISSING = (
    "octavo: this process runs without assertions, and they are part of what keeps "
    "acknowledged data safe: start it without -O and without PYTHONOPTIMIZE"
)


def require_assertions() -> None:
    """End this process with one line, if it has no assertions."""
    if not __debug__:
        sys.exit(MISSING)
