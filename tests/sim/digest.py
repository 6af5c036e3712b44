"""What many seeds told, in a few hex digits: two versions of the code that tell the same agree.

A move or a rename must not change a story. Whoever makes one notes `make sim-digest` before it and
compares after it. Nothing of a seed that the digest takes in names a module or a file: its trace
(docs/simulation.md), how long it was, which faults were injected, which situations it reached, and
whether it failed. Why it failed may quote a traceback, and is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tests.sim.run import SeedResult

ALL = "all"


def digests(results: Iterable[SeedResult]) -> dict[str, str]:
    """16 hex digits for each profile, by name, and last for `ALL`. The order of seeds counts."""
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
