"""Searches for planted bugs: the last seed that found the bug, then seeds from 0 on, until one
fails.

The failing seed must pass without the bug, or it proves nothing. Separate processes run seeds in
blocks, in order: a search from 0 reports the first failing seed, whatever the number of processes.
The last seed (measured.json) shows in a second that the bug is still found, where a search takes
minutes. `--afresh` skips it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

from tests.sim.mutants import ABSENT, MUTANTS, TESTED, Mutant
from tests.sim.mutants.measured import last_seeds
from tests.sim.mutants.tested import judge

SEEDS_MAX = 20_000
_BLOCK = 20
"""Seeds that a process runs before it reports."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    name: str
    seeds: int
    """The number of seeds that ran; if a seed failed, it was the last."""
    wall_s: float
    seed: int | None
    caught_by: str
    """The first line of what failed."""
    unclean: tuple[int, ...]
    """Seeds that fail without the bug too: they prove nothing, and should not exist."""

    @property
    def proven(self) -> bool:
        """Whether it was found, and only because of the bug."""
        return self.seed is not None


@dataclass(frozen=True, slots=True)
class Block:
    """The result of some seeds."""

    stop: int
    seed: int | None
    failure: str
    unclean: tuple[int, ...]


def run_block(name: str, start: int, stop: int) -> Block:
    """Run these seeds up to the first that fails with the bug and passes without it."""
    from tests.sim.run import run_seed

    unclean: list[int] = []
    profile = MUTANTS[name].profile
    for seed in range(start, stop):
        failure = run_seed(seed, mutant=name, profile=profile).failure
        if failure is None:
            continue
        if run_seed(seed, profile=profile).failure is None:
            return Block(seed + 1, seed, failure, tuple(unclean))
        unclean.append(seed)
    return Block(stop, None, "", tuple(unclean))


def search(mutant: Mutant, pool: ProcessPoolExecutor | None, jobs: int, seeds_max: int) -> Found:
    """Run seeds under the planted bug until one fails."""
    started = time.perf_counter()
    seeds, seed, failure = 0, None, ""
    unclean: list[int] = []
    for block in _blocks(mutant.name, pool, jobs, seeds_max):
        seeds, seed, failure = block.stop, block.seed, block.failure
        unclean += block.unclean
        if seed is not None:
            break
    wall_s = time.perf_counter() - started
    return Found(mutant.name, seeds, wall_s, seed, _first_line(failure), tuple(unclean))


def _blocks(
    name: str, pool: ProcessPoolExecutor | None, jobs: int, seeds_max: int
) -> Iterator[Block]:
    """Yield the outcome of each block, in order."""
    bounds = [(a, min(a + _BLOCK, seeds_max)) for a in range(0, seeds_max, _BLOCK)]
    if pool is None:
        for start, stop in bounds:
            yield run_block(name, start, stop)
        return
    waiting: deque[Future[Block]] = deque()
    try:
        for start, stop in bounds:
            waiting.append(pool.submit(run_block, name, start, stop))
            if len(waiting) > jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def again(mutant: Mutant, seed: int | None) -> Found | None:
    """Whether the last seed still finds it; None when it does not, or there is none."""
    if seed is None:
        return None
    started = time.perf_counter()
    block = run_block(mutant.name, seed, seed + 1)
    if block.seed is None:
        return None
    wall_s = time.perf_counter() - started
    return Found(mutant.name, block.stop, wall_s, seed, _first_line(block.failure), ())


def find(
    mutants: Iterable[Mutant],
    last: Mapping[str, int],
    *,
    seeds_max: int = SEEDS_MAX,
    jobs: int = 1,
) -> Iterator[Found]:
    """Search for each bug; `last` has the last seeds."""
    if jobs <= 1:
        for mutant in mutants:
            found = again(mutant, last.get(mutant.name))
            yield found or search(mutant, None, 1, seeds_max)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tried = [(each, pool.submit(again, each, last.get(each.name))) for each in mutants]
        for mutant, known in tried:
            yield known.result() or search(mutant, pool, jobs, seeds_max)


def _first_line(failure: str) -> str:
    return next(iter(failure.strip().splitlines()), "")


def main(args: argparse.Namespace) -> int:
    """Search and print; return 0 when every bug was found by a seed that passes without it."""
    every = [*MUTANTS, *TESTED]
    names = every if args.only is None else args.only.split(",")
    if unknown := [name for name in names if name not in every]:
        print(f"no planted bug {', '.join(unknown)}; there are: {', '.join(every)}")
        return 2
    missed = _by_tests(names, as_json=args.json)
    wanted = [MUTANTS[name] for name in names if name in MUTANTS]
    last = {} if args.afresh else last_seeds()
    for found in find(wanted, last, seeds_max=args.seeds_max, jobs=args.jobs):
        if not found.proven:
            missed.append(found.name)
        print(json.dumps(asdict(found)) if args.json else _line(found), flush=True)
    if not args.json:
        for absent in ABSENT if args.only is None else ():
            print(f"{absent.canon:3}  does not apply yet: {absent.title}")
        print(f"{len(names) - len(missed)} of {len(names)} planted bugs found")
        if missed:
            print(f"NOT found: {', '.join(missed)}")
    return 1 if missed else 0


def _by_tests(names: list[str], *, as_json: bool) -> list[str]:
    """Check the bugs of `names` that a test has to find; return those that no test found."""
    missed: list[str] = []
    for one in judge([TESTED[name] for name in names if name in TESTED]):
        if not one.failed:
            missed.append(one.name)
        if as_json:
            print(json.dumps(asdict(one)), flush=True)
        else:
            said = one.failed or "NOT FOUND"
            print(f"     {one.name:<38} {one.wall_s:7.1f} s  {said}", flush=True)
    return missed


def _line(found: Found) -> str:
    head = f"{MUTANTS[found.name].canon or '':3}  {found.name:<38}"
    unclean = f"  ({len(found.unclean)} seeds fail without it too)" if found.unclean else ""
    if found.seed is None:
        return f"{head} NOT FOUND in {found.seeds} seeds, {found.wall_s:.1f} s{unclean}"
    caught_by = found.caught_by[:110]
    return f"{head} {found.seeds:6} seeds {found.wall_s:7.1f} s  {caught_by}{unclean}"
