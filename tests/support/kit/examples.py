"""How many examples a property test tries.

`make test` and `make test-medium` try a quarter of them, other ones each time, to stay short.
`make test-long` runs the same tests again with `THOROUGH=1` and tries all.
"""

from __future__ import annotations

import os

DEFAULT = 100
_SHARE = 4
_FEWEST = 10


def examples(count: int = DEFAULT) -> int:
    """Return how many of `count` examples to try."""
    return count if os.environ.get("THOROUGH") else min(count, max(_FEWEST, count // _SHARE))
