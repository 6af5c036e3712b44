"""`python -m tests.sim run SEED` · `many N` · `digest N` · `mutants`: the simulator's commands."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

from tests.sim.digest import digests
from tests.sim.ledger_load import ACTIVITIES
from tests.sim.options import BY_NAME, FAULTS, PROFILES
from tests.sim.quiet import prepare
from tests.sim.run import SeedResult, run_seed
from tests.sim.topic_options import FAULTS as TOPIC_FAULTS

SITUATIONS = (
    *("ambush", "bookie.pressure", "judge.left_open", "metadata.session_timed_out"),
    *("bookie.found_in_entry_log", "bookie.found_in_read_cache", "bookie.found_in_write_cache"),
    *("bookie.journal_rolled", "bookie.journal_trimmed", "bookie.entry_log_closed"),
    *("bookie.ends.CookieRefused", "bookie.ends.SyncFailed", "bookie.ends.JournalDamaged"),
    *("writer.EnsembleChanged", "writer.EnsembleChanged striped", "writer.ChangeDelayed"),
    *("writer.Ended", "recovery.FenceHeld", "recovery.WrittenBack", "recovery.BookieReplaced"),
    *("topic.takeover", "topic.reopen", "topic.handover", "topic.ledger_added", "topic.trim"),
    *("topic.state_roll", "topic.state_compared", "topic.duplicate", "topic.publish_unknown"),
    *("topic.redelivered", "topic.stale_lease", "topic.seek"),
    *("bookie.log_removed", "bookie.log_rewritten", "bookie.marker_dropped"),
    *("bookie.read_only", "bookie.writable", "bookie.limbo", "damage.folder_lost"),
    *("bookie.loss_accepted.CookieRefused", "bookie.loss_accepted.JournalDamaged"),
    *("bookie.scrubbed", "bookie.found_damage", "judge.damage_was_known"),
    "bookie.unknown_in_limbo",
    *("bulk_load.taken_in", "bulk_load.given_up", "bulk_load.lost_to_another_attempt"),
    *("bulk_load.outcome_unknown", "sink.repeated", "sink.orphan_collected"),
    *("offload.offloaded", "offload.begun_anew", "offload.bookies_dropped"),
    *("offload.read_from_object", "topic.deleted"),
    *("compacted.published", "compacted.page_of_view", "compacted.page_over_the_horizon"),
    *("compacted.pass", "compacted.retired_deleted", "compacted.lost_to_another_run"),
)
"""Probes that a few thousand seeds must reach. If one is not reached, the simulator has gone
blind."""

_CHUNK = 50
_PROGRESS_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one seed, with its trace hash")
    run.add_argument("seed", type=int)
    run.add_argument("--verbose", action="store_true", help="every fault and protocol event")
    run.add_argument(
        "--profile",
        default=None,
        choices=(*PROFILES, *BY_NAME),
        help="drawn by each seed when it is not given",
    )
    run.add_argument("--mutant", default=None, help="with this planted bug")
    many = commands.add_parser("many", help="many seeds, with what they came by")
    many.add_argument("count", type=int)
    many.add_argument("--start", type=int, default=0)
    many.add_argument("--jobs", type=int, default=1)
    many.add_argument(
        "--profile",
        default=None,
        choices=(*PROFILES, *BY_NAME, "all"),
        help="of every seed; all: each seed once in every profile; else drawn by each seed",
    )
    many.add_argument("--mutant", default=None)
    many.add_argument("--json", action="store_true")
    many.add_argument("--hashes", action="store_true", help="only each seed's trace hash")
    digest = commands.add_parser("digest", help="what N seeds of every profile told, as hashes")
    digest.add_argument("count", type=int)
    digest.add_argument("--start", type=int, default=0)
    digest.add_argument("--jobs", type=int, default=1)
    digest.set_defaults(profile="all", mutant=None)
    mutants = commands.add_parser("mutants", help="each planted bug and the seeds it takes")
    mutants.add_argument("--only", default=None)
    mutants.add_argument("--seeds-max", type=int, default=20_000)
    mutants.add_argument("--jobs", type=int, default=1)
    mutants.add_argument("--json", action="store_true")
    mutants.add_argument("--afresh", action="store_true", help="seeds from 0 on, not last time's")
    args = parser.parse_args()
    if args.command == "run":
        return _run(args)
    if args.command == "many":
        return _many(args)
    if args.command == "digest":
        return _digest(args)
    from tests.sim.mutants.search import main as search  # only this command needs it

    return search(args)


def _run(args: argparse.Namespace) -> int:
    result = run_seed(args.seed, mutant=args.mutant, profile=args.profile, verbose=args.verbose)
    print(
        f"seed {result.seed} ({result.profile}): hash {result.trace_hash}, "
        f"{result.steps} steps, {result.virtual_s:.3f} virtual s, {result.wall_s * 1000:.0f} ms"
    )
    print("faults: " + _counts(result.faults))
    print("probes: " + _counts(result.probes))
    if result.failure is None:
        print("no violation")
        return 0
    print(explain(result, args.mutant))
    return 1


def explain(result: SeedResult, mutant: str | None = None) -> str:
    """Print a failed seed for the person who has to find the cause."""
    more = f" --profile {result.profile}" + (f" --mutant {mutant}" if mutant else "")
    return "\n".join(
        [
            f"SEED {result.seed} FAILED {result.failure}",
            *(f"  {line}" for line in result.events),
            f"  replay: python -m tests.sim run {result.seed} --verbose{more}",
        ]
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _many(args: argparse.Namespace) -> int:
    if args.hashes:
        for results in _results(args):
            print("\n".join(f"{result.seed} {result.trace_hash}" for result in results))
        return 0
    started = time.perf_counter()
    shown = started
    total = Total()
    runs = args.count * (len(PROFILES) if args.profile == "all" else 1)
    for results in _results(args):
        total.take(results)
        now = time.perf_counter()
        if not args.json and now - shown > _PROGRESS_S:
            shown = now
            rate = total.seeds / (now - started)
            print(
                f"{total.seeds} of {runs} seeds, {rate:.0f}/s, {len(total.failures)} failed",
                file=sys.stderr,
            )
    wall_s = time.perf_counter() - started
    if args.json:
        print(json.dumps(total.as_dict(wall_s), indent=1))
    else:
        total.show(wall_s)
    return 1 if total.failures else 0


def _digest(args: argparse.Namespace) -> int:
    results = (result for some in _results(args) for result in some)
    for profile, found in digests(results).items():
        print(f"{found}  {profile}")
    return 0


def _results(args: argparse.Namespace) -> Iterator[list[SeedResult]]:
    chunks = [
        range(first, min(first + _CHUNK, args.start + args.count))
        for first in range(args.start, args.start + args.count, _CHUNK)
    ]
    profiles = PROFILES if args.profile == "all" else (args.profile,)
    jobs = [(list(chunk), args.mutant, profile) for chunk in chunks for profile in profiles]
    prepare()
    with get_context("fork").Pool(args.jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(run_chunk, jobs)


def run_chunk(job: tuple[list[int], str | None, str | None]) -> list[SeedResult]:
    """Run some seeds in a worker process: ending it is quicker than collecting its garbage."""
    gc.disable()
    seeds, mutant, profile = job
    return [run_seed(seed, mutant=mutant, profile=profile) for seed in seeds]


class Total:
    def __init__(self) -> None:
        self.seeds = 0
        self.steps = 0
        self.virtual_s = 0.0
        self.cpu_s = 0.0
        self.faults: Counter[str] = Counter()
        self.probes: Counter[str] = Counter()
        self.failures: list[SeedResult] = []

    def take(self, results: list[SeedResult]) -> None:
        for result in results:
            self.seeds += 1
            self.steps += result.steps
            self.virtual_s += result.virtual_s
            self.cpu_s += result.wall_s
            self.faults.update(result.faults)
            self.probes.update(result.probes)
            if result.failure is not None:
                self.failures.append(result)
                print(explain(result), file=sys.stderr, flush=True)

    def as_dict(self, wall_s: float) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "wall_s": round(wall_s, 1),
            "seeds_per_s": round(self.seeds / wall_s, 1),
            "seeds_per_core_s": round(self.seeds / self.cpu_s, 1),
            "steps": self.steps,
            "virtual_s": round(self.virtual_s),
            "faults": dict(sorted(self.faults.items())),
            "probes": dict(sorted(self.probes.items())),
            "blind_spots": self.blind_spots,
            "failures": {f"{r.seed} {r.profile}": r.failure for r in self.failures},
        }

    @property
    def blind_spots(self) -> list[str]:
        """Return what no seed reached: faults, pairs of a fault and a client's activity,
        situations."""
        wanted = [f"{kind} × {activity}" for kind in FAULTS for activity in ACTIVITIES]
        wanted += SITUATIONS
        return [
            *(kind for kind in (*FAULTS, *TOPIC_FAULTS) if not self.faults[kind]),
            *(name for name in wanted if not self.probes[name]),
        ]

    def show(self, wall_s: float) -> None:
        print(
            f"{self.seeds} seeds in {wall_s:.1f} s: {self.seeds / wall_s:.1f} seeds/s, "
            f"{self.seeds / self.cpu_s:.1f} a core; {self.steps} steps, "
            f"{self.virtual_s:.0f} virtual s"
        )
        for title, counts in (("faults injected", self.faults), ("probes reached", self.probes)):
            print(f"{title}:")
            for name, count in sorted(counts.items()):
                print(f"  {count:9d}  {name}")
        print(f"blind spots: {', '.join(self.blind_spots) or 'none'}")
        failed = "".join(f" {one.seed} ({one.profile})" for one in self.failures)
        print(f"{len(self.failures)} failed{failed}")


if __name__ == "__main__":
    sys.exit(main())
