"""Refuse to serve if Python runs without assertions, which help to keep acknowledged data safe.

The client library does not need them: any program may import it.
"""

from __future__ import annotations

import sys

MISSING = (
    "octavo: this process runs without assertions, and they are part of what keeps "
    "acknowledged data safe: start it without -O and without PYTHONOPTIMIZE"
)


def require_assertions() -> None:
    if not __debug__:
        sys.exit(MISSING)
