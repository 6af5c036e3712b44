"""The stories of many seeds in a few hex digits, to compare two versions of the code.

A move or a rename must not change a story: run `make sim-digest` before and after it. The reason of
a failure is left out, because it may quote a traceback.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tests.sim.run import SeedResult

ALL = "all"


def digests(results: Iterable[SeedResult]) -> dict[str, str]:
    """Return 16 hex digits for each profile, by name, and last for `ALL`. The order of seeds
    counts."""
    parts: dict[str, hashlib.blake2b] = {}
    for result in results:
        part = parts.setdefault(result.profile, hashlib.blake2b(digest_size=8))
        part.update(_told(result).encode())
    found = {profile: parts[profile].hexdigest() for profile in sorted(parts)}
    return {**found, ALL: hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()}


def _told(result: SeedResult) -> str:
    return repr(
        (
            result.seed,
            result.trace_hash,
            result.steps,
            result.virtual_s,
            result.failure is None,
            sorted(result.faults.items()),
            sorted(result.probes.items()),
        )
    )
