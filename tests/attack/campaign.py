"""Runs attempts one after another against one cluster, and records the effect of each."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack import (  # noqa: F401  (they enter themselves)
    attempts_costly,
    attempts_requests,
    attempts_v3,
)
from tests.attack.canary import SLOWEST_SHARE, Canary
from tests.attack.fuzz import LONG_S, SHORT_S, fuzzing
from tests.attack.stalls import Stall, Stalls
from tests.attack.timed import Turn, Turns
from tests.attack.world import ATTEMPTS, Attempt, World
from tests.support.loop_time import slowness
from tests.support.processes.standalone import Standalone

CALM_S = 5.0
"""This long after an attempt everything is as it was before."""
LOG_BYTES_MAX = 2_000_000
"""For all logs together, in an attempt or in each minute of a longer attempt."""
ATTEMPT_S = 300.0
"""Beyond the time that it was told to take."""


@dataclass
class Outcome:
    attempt: Attempt
    seconds: float
    problems: list[str] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    """Reported, and no harm by themselves: a busy machine causes them too."""
    turn: Turn | None = None
    """The longest turn of the judged loops, in processor time; None: all were short."""
    p99_s: float = 0.0
    """99th percentile of the canary's latency."""
    memory: list[str] = field(default_factory=list)
    """Peaks of each process over all attempts; only in the last outcome."""


def chosen(
    only: str = "", *, short: bool = False, seed: int = 1, fuzz_s: float | None = None
) -> list[Attempt]:
    """Return the attempts whose names contain `only`; in the short form a fifth of the single
    requests. `fuzz_s`: the fuzzer's time; None: by the form."""
    fuzzer = fuzzing(fuzz_s or (SHORT_S if short else LONG_S), seed)
    every = [*ATTEMPTS.values(), fuzzer]
    found = [one for one in every if only in one.name and not (short and one.long)]
    if short:
        rng = random.Random(seed)
        found = [one for one in found if ":" not in one.name or rng.random() < 0.2]
    return sorted(found, key=lambda one: one.last)


async def attack(
    cluster: Standalone,
    attempts: Iterable[Attempt],
    tell: Callable[[Outcome], None],
    share: float,
    make_world: Callable[[Standalone], World] = World,
) -> list[Outcome]:
    """Run all attempts; the last outcome audits the canary's topic and has the memory peaks."""
    world = make_world(cluster)
    await world.prepare()
    canary = Canary(world)
    await canary.start()
    stalls = Stalls(
        world.named("broker") | world.named("bookie"), cluster.folder / "stalls", world.environment
    )
    outcomes: list[Outcome] = []
    try:
        for attempt in attempts:
            outcome = await _one(world, canary, stalls, attempt, share)
            outcomes.append(outcome)
            tell(outcome)
        problems = await canary.stop()
    finally:
        stalls.stop()
        canary.kill()
        await world.close()
    last = Outcome(Attempt("the canary's messages", attempts_costly.serves, False), 0.0)
    last.problems += problems
    last.problems += [f"a trace in a log: {line}" for line in world.traces()[:3]]
    last.memory += world.peaks.report()
    outcomes.append(last)
    tell(last)
    return outcomes


async def _one(
    world: World, canary: Canary, stalls: Stalls, attempt: Attempt, share: float
) -> Outcome:
    began, waited_s, logged = time.monotonic(), canary.waited_s(), world.log_bytes()
    world.peaks.begin()
    outcome = Outcome(attempt, 0.0)
    try:
        async with asyncio.timeout(ATTEMPT_S + attempt.seconds):
            await attempt.run(world)
    except Exception as error:
        outcome.problems.append(f"{type(error).__name__}: {error}"[:6000])
    outcome.seconds = time.monotonic() - began
    outcome.problems += canary.problems(began, waited_s, share)
    outcome.problems += world.check_processes()
    outcome.problems += await world.harm()
    outcome.problems += await _calm(world, canary)
    outcome.problems += world.peaks.end(attempt.name)
    outcome.stalls += stalls.since(began)
    outcome.p99_s = canary.p99_since(began)
    turns = Turns(world.cluster.folder)
    outcome.turn = turns.longest(began, attempt.turn_of)
    turn = turns.longest(began, attempt.turn_of, collections=attempt.collections)
    if (
        (bound_s := attempt.turn_s_max) is not None
        and turn is not None
        and (
            turn.processor_s - (0.0 if attempt.collections else turn.collected_s)
            > bound_s * slowness()
        )
    ):
        outcome.problems.append(f"{turn}; the most is {bound_s * 1000:g} ms on an idle machine")
    minutes = max(1.0, outcome.seconds / 60)
    if (more := world.log_bytes() - logged) > LOG_BYTES_MAX * minutes:
        outcome.problems.append(f"it wrote {more} bytes into the logs")
    return outcome


async def _calm(world: World, canary: Canary) -> list[str]:
    problems = []
    ended = time.monotonic()
    until = ended + CALM_S
    for broker in range(len(world.brokers)):
        while (said := await world.ask("GET", "/readyz", broker=broker)).status != 200:
            if time.monotonic() > until:
                problems.append(f"broker {broker} is not ready {CALM_S:g} s later: {said}")
                break
            await asyncio.sleep(0.1)
    while not canary.acked_since(ended):
        if time.monotonic() > until:
            problems.append(f"nothing of the canary was acked {CALM_S:g} s later")
            break
        await asyncio.sleep(0.02)
    return problems


def run(
    folder: Path,
    attempts: list[Attempt],
    tell: Callable[[Outcome], None],
    *,
    share: float = SLOWEST_SHARE,
    options: Iterable[str] = (),
    make_world: Callable[[Standalone], World] = World,
) -> list[Outcome]:
    """Start a cluster in `folder`, attack it, and stop it. `share`: of the canary's pace.
    `options`: of `octavo standalone`."""
    command = (sys.executable, "-m", "tests.attack.timed")
    cluster = Standalone(folder, "--no-restart", *options, command=command)
    try:
        cluster.start()
        return asyncio.run(attack(cluster, attempts, tell, share, make_world))
    finally:
        cluster.clean_up()
