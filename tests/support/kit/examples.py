"""How many examples a property test tries: a quarter, other examples each time; with
`THOROUGH=1` (`make test-long`) all."""

from __future__ import annotations

import os

DEFAULT = 100
_SHARE = 4
_FEWEST = 10


def examples(count: int = DEFAULT) -> int:
    return count if os.environ.get("THOROUGH") else min(count, max(_FEWEST, count // _SHARE))
