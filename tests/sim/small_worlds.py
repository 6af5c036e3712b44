"""Small worlds without a cluster: one part of the product, seed after seed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from tests.sim.guard import forbid_real_world
from tests.sim.mutants.planting import Edit, planted_edits
from tests.sim.quiet import quiet


@dataclass
class Result:
    failure: str | None
    changes: int
    probes: dict[str, int]


class SmallWorld(Protocol):
    def run(self) -> Result: ...


def run_seed(world: Callable[[int], SmallWorld], seed: int, edits: Sequence[Edit] = ()) -> Result:
    """Run one seed, with a bug planted or without."""
    with planted_edits(edits) if edits else nullcontext(), quiet(), forbid_real_world():
        return world(seed).run()


def main(world: Callable[[int], SmallWorld]) -> int:
    """Run as many seeds as the command line says, or 100. Return the exit code."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    changes, probes, failed = 0, Counter[str](), 0
    for seed in range(count):
        result = run_seed(world, seed)
        changes += result.changes
        probes.update(result.probes)
        if result.failure is not None:
            failed += 1
            print(f"SEED {seed} FAILED {result.failure}")
    print(f"{count} seeds, {changes} changes, {failed} failed; probes {dict(probes)}")
    return 1 if failed else 0
