"""Searches for planted bugs: seeds from 0 on, until one fails.

The seed that fails must pass without the bug, or it proves nothing. Seeds are run in blocks by
processes of their own, in order: what is reported is the first seed that fails, whatever the
number of processes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

from tests.sim.mutants import ABSENT, MUTANTS, Mutant

SEEDS_MAX = 20_000
_BLOCK = 20
"""Seeds that a process runs before it says how they went."""


@dataclass(frozen=True, slots=True)
class Found:
    """How one search ended."""

    name: str
    seeds: int
    """How many were run; the last of them is the one that failed, if any did."""
    wall_s: float
    seed: int | None
    caught_by: str
    """The first line of what failed."""
    clean: bool
    """Whether the same seed passes without the bug."""

    @property
    def proven(self) -> bool:
        """Found, and by nothing but the bug."""
        return self.seed is not None and self.clean


def run_block(name: str, start: int, stop: int) -> tuple[int, str, bool] | None:
    """The first of these seeds that fails: the seed, why, and whether it passes without the bug."""
    from tests.sim.run import run_seed

    for seed in range(start, stop):
        failure = run_seed(seed, mutant=name).failure
        if failure is not None:
            return seed, failure, run_seed(seed).failure is None
    return None


def search(mutant: Mutant, pool: ProcessPoolExecutor | None, jobs: int, seeds_max: int) -> Found:
    """Run seeds under the planted bug until one fails."""
    started = time.perf_counter()
    for result, stop in _blocks(mutant.name, pool, jobs, seeds_max):
        if result is not None:
            seed, failure, clean = result
            wall_s = time.perf_counter() - started
            return Found(mutant.name, seed + 1, wall_s, seed, _first_line(failure), clean)
        seeds_run = stop
    return Found(mutant.name, seeds_run, time.perf_counter() - started, None, "", True)


def _blocks(
    name: str, pool: ProcessPoolExecutor | None, jobs: int, seeds_max: int
) -> Iterator[tuple[tuple[int, str, bool] | None, int]]:
    """The outcome of each block and where it ends, in order."""
    bounds = [(a, min(a + _BLOCK, seeds_max)) for a in range(0, seeds_max, _BLOCK)]
    if pool is None:
        for start, stop in bounds:
            yield run_block(name, start, stop), stop
        return
    waiting: deque[tuple[Future[tuple[int, str, bool] | None], int]] = deque()
    try:
        for start, stop in bounds:
            waiting.append((pool.submit(run_block, name, start, stop), stop))
            if len(waiting) > jobs:
                future, its_stop = waiting.popleft()
                yield future.result(), its_stop
        while waiting:
            future, its_stop = waiting.popleft()
            yield future.result(), its_stop
    finally:
        for future, _ in waiting:
            future.cancel()


def find(
    mutants: Iterable[Mutant], *, seeds_max: int = SEEDS_MAX, jobs: int = 1
) -> Iterator[Found]:
    """Search for each."""
    if jobs <= 1:
        for mutant in mutants:
            yield search(mutant, None, 1, seeds_max)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for mutant in mutants:
            yield search(mutant, pool, jobs, seeds_max)


def _first_line(failure: str) -> str:
    return failure.strip().splitlines()[0]


def main(
    only: str | None = None, *, seeds_max: int = SEEDS_MAX, jobs: int = 1, as_json: bool = False
) -> int:
    """Search and print; 0 when every bug was found by a seed that passes without it."""
    import json

    if only is not None and only not in MUTANTS:
        print(f"no planted bug {only!r}; there are: {', '.join(MUTANTS)}")
        return 2
    wanted = [MUTANTS[only]] if only is not None else list(MUTANTS.values())
    missed: list[str] = []
    for found in find(wanted, seeds_max=seeds_max, jobs=jobs):
        if not found.proven:
            missed.append(found.name)
        print(json.dumps(asdict(found)) if as_json else _line(found), flush=True)
    if not as_json:
        for absent in ABSENT if only is None else ():
            print(f"{absent.canon:3}  does not apply yet: {absent.title}")
        print(f"{len(wanted) - len(missed)} of {len(wanted)} planted bugs found")
        if missed:
            print(f"NOT found: {', '.join(missed)}")
    return 1 if missed else 0


def _line(found: Found) -> str:
    canon = MUTANTS[found.name].canon or ""
    head = f"{canon:3}  {found.name:<40}"
    if found.seed is None:
        return f"{head} NOT FOUND in {found.seeds} seeds, {found.wall_s:.1f} s"
    if not found.clean:
        return f"{head} seed {found.seed} fails without it too: {found.caught_by}"
    caught_by = found.caught_by[:110]
    return f"{head} {found.seeds:6} seeds {found.wall_s:8.1f} s  seed {found.seed}: {caught_by}"
