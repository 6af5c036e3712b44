"""`gc`: the ledgers that tasks of the Spark sink have left behind are given up.

A task that died, or whose twin was faster, leaves private ledgers that no commit will ever name.
They are told by their own metadata and deleted by way of the broker, which keeps whatever a
partition has and refuses what it has given up to any later commit (octavo/spark/orphans.py). So
the time of grace only spares work that is under way. This job needs no Spark session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.pipeline.outcome import Outcome
from octavo.spark.orphans import collect_orphans


def gc(service: str, say: Callable[[str], None], *, grace_ms: int, dry_run: bool) -> Outcome:
    """Raises `SinkFailed`, and errors of the cluster."""
    found = asyncio.run(collect_orphans(service, grace_ms=grace_ms, dry_run=dry_run))
    for one in found:
        told = f"{len(one.looked_at)} ledgers" if dry_run else f"{len(one.deleted)} deleted"
        say(f"batch {one.batch} of {one.transaction}: {told}")
    looked_at = sum(len(one.looked_at) for one in found)
    deleted = sum(len(one.deleted) for one in found)
    outcome = Outcome("gc")
    outcome.summary = {
        "batches": len(found),
        "ledgers": looked_at,
        "ledgers_deleted": deleted,
        "grace_ms": grace_ms,
        "dry_run": dry_run,
    }
    return outcome
