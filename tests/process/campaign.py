"""A campaign of kills: `python -m tests.process.campaign --cycles 500 [--seed S] [--json]`. One
cluster with users at work; processes die at random and at every persist step. At the end no
acked message is lost, doubled, reordered or divergent. The report lists the hit failpoints and
the times to start."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from octavo.logs import configure_logging
from octavo.standalone.ports import free_port
from tests.support.processes import failpoints
from tests.support.processes.chaos import Breaker, run_round
from tests.support.processes.failpoints import (
    AFTER_A_CRASH,
    BOOKIE_FAILPOINTS,
    BROKER_FAILPOINTS,
    FIRST_START_FAILPOINTS,
    RARE_BROKER_STEPS,
)
from tests.support.processes.kills import KINDS, TINY_BOOKIE, Killer, LaunchedSupervisor
from tests.support.processes.users import Record
from tests.support.zookeeper_server import running_zookeeper

RATE = 100.0


@dataclass(slots=True, kw_only=True)
class Report:
    seed: int
    cycles: int
    seconds: float
    kills: dict[str, int]
    stops: int
    hits: dict[str, int]
    never_hit: list[str]
    unknown_steps: list[str]
    start_p50_s: dict[str, float]
    start_p99_s: dict[str, float]
    sent: int
    acked: int
    failed: int
    stored: int
    delivered: int
    wrong: list[str]
    log: list[str]


async def run_campaign(
    folder: Path,
    *,
    seed: int,
    cycles: int,
    metadata_url: str = "",
    rate: float = RATE,
    kinds: dict[str, int] = KINDS,
) -> Report:
    rng = random.Random(seed)
    killers: list[Killer] = []

    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = cast(LaunchedSupervisor, breaker.supervisor)
        killer = Killer(supervisor, rng, cycles, kinds)
        killers.append(killer)
        killer.log = breaker.log
        await killer.run()

    started = time.monotonic()
    outcome = await run_round(
        folder,
        rng,
        trouble,
        metadata_url,
        bookie=TINY_BOOKIE,
        make_supervisor=LaunchedSupervisor,
        rate=rate,
        quorums=((3, 3, 2),),
    )
    (killer,), record = killers, outcome.record
    hit = killer.hits()
    known = {*BOOKIE_FAILPOINTS, *BROKER_FAILPOINTS}
    steps = {name.partition(":")[0] for name in (*known, *FIRST_START_FAILPOINTS)}
    return Report(
        seed=seed,
        cycles=killer.done,
        seconds=round(time.monotonic() - started, 1),
        kills=dict(killer.kills),
        stops=killer.stops,
        hits=dict(sorted(hit.items())),
        never_hit=sorted(known - set(hit)),
        unknown_steps=sorted(
            failpoints.seen(folder / "failpoints") - steps - AFTER_A_CRASH - RARE_BROKER_STEPS
        ),
        start_p50_s={kind: _quantile(found, 50) for kind, found in killer.starts_s.items()},
        start_p99_s={kind: _quantile(found, 99) for kind, found in killer.starts_s.items()},
        sent=record.sent,
        acked=record.acked,
        failed=len(record.failed),
        stored=outcome.stored,
        delivered=len(record.delivered),
        wrong=outcome.wrong,
        log=killer.log,
    )


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return round(sum(values), 3)
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 3)


def shown(report: Report) -> str:
    steps: dict[str, Counter[str]] = {}
    for name in (*BOOKIE_FAILPOINTS, *BROKER_FAILPOINTS):
        step, phase = name.split(":")
        steps.setdefault(step, Counter())[phase] = report.hits.get(name, 0)
    table = [
        f"  {step:24}" + "".join(f"{counts.get(phase, '-'):>8}" for phase in PHASES)
        for step, counts in steps.items()
    ]
    kills = ", ".join(f"{count} {how}" for how, count in report.kills.items())
    starts = ", ".join(
        f"{kind} p50 {report.start_p50_s[kind]:.2f} s, p99 {report.start_p99_s[kind]:.2f} s"
        for kind in report.start_p50_s
    )
    return "\n".join(
        [
            f"seed {report.seed}: {report.cycles} kill cycles in {report.seconds:.0f} s: {kills}; "
            f"{report.stops} stops past the session",
            f"  {'persist step, hits':24}" + "".join(f"{phase:>8}" for phase in PHASES),
            *table,
            f"start to serving: {starts}",
            f"{report.sent} messages sent, {report.acked} acked, {report.failed} calls failed, "
            f"{report.stored} read back, {report.delivered} delivered",
            *([f"never hit: {', '.join(report.never_hit)}"] if report.never_hit else []),
            *(
                [f"unknown steps: {', '.join(report.unknown_steps)}"]
                if report.unknown_steps
                else []
            ),
            f"{len(report.wrong)} problems",
            *report.wrong[:30],
        ]
    )


PHASES = ("before", "half", "after")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.campaign")
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=RATE, help="messages/s of each publisher")
    parser.add_argument("--zookeeper", action="store_true", help="instead of the embedded store")
    parser.add_argument("--folder", type=Path, help="keep files and report there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    configure_logging(form="console", level="error")
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        url = ""
        if given.zookeeper:
            (folder / "zookeeper").mkdir()
            run = running_zookeeper(folder / "zookeeper", free_port())
            url = stack.enter_context(run).new_url()
        report = asyncio.run(
            run_campaign(
                folder / "data",
                seed=seed,
                cycles=given.cycles,
                metadata_url=url,
                rate=given.rate,
            )
        )
    if given.folder:
        (folder / "report.json").write_text(json.dumps(asdict(report), indent=2))
    print(json.dumps(asdict(report), indent=2) if given.json else shown(report))
    return 1 if report.wrong or report.unknown_steps else 0


if __name__ == "__main__":
    sys.exit(main())
