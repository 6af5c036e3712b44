"""The partition matrix: `python -m tests.network`, as root; docs/partitions.md. Exits with 1
when a promise was broken, with 2 when this machine cannot have network namespaces."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.network.cases import BY_NAME, Case, Phase
from tests.network.hosts import NoNamespaces, enter_sandbox
from tests.network.rounds import RECOVERY_GOAL_S, Cell, Partitioner, make_ensemble, make_hosts
from tests.support.zookeeper_ensemble import running

MODULE = "tests.network"


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.list:
        for case in BY_NAME.values():
            print(f"{case.name:26}{case.what}")
        return 0
    try:
        enter_sandbox(MODULE, arguments)
    except NoNamespaces as error:
        print(error, file=sys.stderr)
        return 2
    return asyncio.run(matrix(options))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--cases", nargs="+", choices=sorted(BY_NAME), default=[*BY_NAME])
    parser.add_argument("--phases", nargs="+", choices=[*Phase], default=[*Phase])
    parser.add_argument(
        "--cells",
        nargs="+",
        metavar="CASE:PHASE",
        help="exactly these, one after another, on one cluster",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave logs and data behind")
    parser.add_argument("--json", type=Path, help="write the cells there")
    return parser.parse_args(arguments)


def rounds(options: argparse.Namespace) -> list[list[tuple[Case, Phase]]]:
    if options.cells:
        pairs = [cell.partition(":") for cell in options.cells]
        return [[(BY_NAME[name], Phase(phase)) for name, _, phase in pairs]]
    phases = [Phase(phase) for phase in options.phases]
    return [[(BY_NAME[name], phase) for phase in phases] for name in options.cases]


async def matrix(options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="octavo-network-"))
    hosts = make_hosts()
    ensemble = make_ensemble(hosts, folder / "zookeeper")
    cells: list[Cell] = []
    started = time.monotonic()
    print(HEAD, flush=True)
    with running(ensemble):
        for number, planned in enumerate(rounds(options)):
            partitioner = Partitioner(hosts, ensemble, planned, show)
            data = folder / f"round-{number}"
            found = await one_round(
                partitioner, planned, data, random.Random(options.seed + number)
            )
            if not options.keep and not any(cell.wrong or cell.unfinished for cell in found):
                shutil.rmtree(data)
            cells += found
            if options.json:
                plain = [cell.plain() for cell in cells]
                options.json.write_text(json.dumps(plain, indent=1) + "\n")
    return conclude(options, folder, cells, time.monotonic() - started)


async def one_round(
    partitioner: Partitioner, planned: list[tuple[Case, Phase]], data: Path, rng: random.Random
) -> list[Cell]:
    """Run all cells of a cluster; faults found at the end belong to the last cell."""
    cells = partitioner.cells
    try:
        outcome = await partitioner.run(data, rng)
        record = outcome.record
        print(f"  {record.sent} sent, {record.acked} acked, {outcome.stored} stored", flush=True)
        cells[-1].wrong += outcome.wrong
        for one in outcome.wrong[:20]:
            print(f"  WRONG {one}", flush=True)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        print(f"  NOT JUDGED {reason}", flush=True)
        cells += [Cell(case.name, phase.value) for case, phase in planned[len(cells) :]]
        for cell in cells:
            cell.unfinished = reason
    return cells


def show(cell: Cell) -> None:
    print(row(cell), flush=True)


def conclude(options: argparse.Namespace, folder: Path, cells: list[Cell], took_s: float) -> int:
    recoveries = sorted(cell.recovery_s for cell in cells if cell.recovery_s is not None)
    wrong = sum(bool(cell.wrong) for cell in cells)
    unfinished = sum(bool(cell.unfinished) for cell in cells)
    late = sum(one > RECOVERY_GOAL_S for one in recoveries)
    print(
        f"{len(cells)} cells in {took_s:.0f} s: {wrong} broke a promise, {unfinished} were not "
        f"judged; recovery at most {max(recoveries, default=0.0):.1f} s, "
        f"above {RECOVERY_GOAL_S:.0f} s in {late}"
    )
    if wrong or unfinished or options.keep:
        print(f"logs and data: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong or unfinished else 0


HEAD = (
    f"{'case':24}{'phase':11}{'acked while cut':>16}{'minority acks':>15}"
    f"{'take-over':>11}{'publishing':>12}{'recovery':>10}"
)


def row(cell: Cell) -> str:
    minority = str(cell.acks_of_silent) if cell.silent else "-"
    times = [cell.take_over_s, cell.publishing_s, cell.recovery_s]
    shown = ["-" if one is None else f"{one:.2f} s" for one in times]
    return (
        f"{cell.case:24}{cell.phase:11}{cell.acked_while_cut:16}{minority:>15}"
        f"{shown[0]:>11}{shown[1]:>12}{shown[2]:>10}"
    ) + "".join(f"\n  WRONG {one}" for one in cell.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
