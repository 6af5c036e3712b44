"""The job `gc`: delete ledgers that tasks of the Spark sink and compactions left behind.

The broker keeps every ledger that a partition has, and refuses a later commit of a deleted ledger:
the grace period only spares running work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.pipeline.compact_orphans import Leftover, collect_compacted
from octavo.pipeline.interrupt import Interrupted, Signals, told
from octavo.pipeline.outcome import Outcome
from octavo.spark.orphans import Orphans, collect_orphans


def gc(service: str, say: Callable[[str], None], *, grace_ms: int, dry_run: bool) -> Outcome:
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
