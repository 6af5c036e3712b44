"""The job `gc`: deletes ledgers left behind by tasks of the Spark sink and of compactions.

A task that died, or that lost to another attempt of the same task, leaves private ledgers that no
commit will ever name. Their metadata tells what they are. They are deleted through the broker,
which keeps every ledger that a partition has; a later commit of a deleted ledger is refused
(octavo/spark/orphans.py). So the grace period is only there to spare running work. Also deleted:
ledgers of compactions that no record names, and ledgers of views replaced long ago
(compact_orphans.py). This job needs no Spark session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.pipeline.compact_orphans import Leftover, collect_compacted
from octavo.pipeline.interrupt import Interrupted, Signals, told
from octavo.pipeline.outcome import Outcome
from octavo.spark.orphans import Orphans, collect_orphans


def gc(service: str, say: Callable[[str], None], *, grace_ms: int, dry_run: bool) -> Outcome:
    """Run the job. Raises `SinkFailed`, and errors of the cluster."""
    outcome = Outcome("gc")
    found: list[Orphans] = []
    compacted: list[Leftover] = []

    def given_up(one: Orphans) -> None:
        found.append(one)
        told = f"{len(one.looked_at)} ledgers" if dry_run else f"{len(one.deleted)} deleted"
        say(f"batch {one.batch} of {one.bulk_load}: {told}")

    def left(one: Leftover) -> None:
        compacted.append(one)
        say(f"ledger {one.ledger_id} of {one.partition}: {one.why}")

    def how_far() -> None:
        outcome.summary = {
            "batches": len(found),
            "ledgers": sum(len(one.looked_at) for one in found),
            "ledgers_deleted": sum(len(one.deleted) for one in found),
            "compacted_ledgers": len(compacted),
            "compacted_ledgers_deleted": 0 if dry_run else len(compacted),
            "grace_ms": grace_ms,
            "dry_run": dry_run,
        }

    try:
        with Signals(), told(outcome, how_far):
            asyncio.run(collect_orphans(service, grace_ms=grace_ms, dry_run=dry_run, each=given_up))
            asyncio.run(collect_compacted(service, grace_ms=grace_ms, dry_run=dry_run, each=left))
    except Interrupted as stop:
        return stop.ended("gc")
    return outcome
