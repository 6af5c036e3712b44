"""Find private ledgers of the sink that no commit will ever name, and give them up.

Tasks that die or lose to another attempt leave them. The broker refuses them to any later commit
and keeps every ledger that a partition has: the grace period only spares running work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from octavo.broker.bulkload.rules import BATCH_KEY, BULK_LOAD_KEY, KIND, KIND_KEY
from octavo.clock import wall_clock_ms
from octavo.spark.cluster import Cluster, connected
from octavo.spark.commit import SinkFailed, give_up

GRACE_MS = 24 * 3600 * 1000
_ABORT_TIMEOUT_MS = 60_000


class Orphans(NamedTuple):
    bulk_load: str
    batch: int
    looked_at: tuple[int, ...]
    deleted: tuple[int, ...]

    @property
    def transaction(self) -> str:
        """Return `bulk_load` by its former name, until 0.3."""
        return self.bulk_load


async def collect_orphans(
    service: str,
    *,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
    each: Callable[[Orphans], None] = lambda _: None,
) -> list[Orphans]:
    """Give up private ledgers older than `grace_ms` and in no partition; `each` is called per
    batch.

    With `dry_run` nothing is deleted and `deleted` is empty. Raises `SinkFailed`.
    """
    async with connected(service) as cluster:
        old = await _older_than(cluster, wall_clock_ms() - grace_ms)
    found = []
    for (bulk_load, batch), ids in sorted(old.items()):
        deleted: list[int] = []
        if not dry_run:
            try:
                deleted = await give_up(service, bulk_load, batch, ids, _ABORT_TIMEOUT_MS)
            except SinkFailed as error:
                if error.problem.get("code") != "foreign-bulk-load":
                    raise
                # The id is bound to another writer's token: that writer gives its ledgers up.
        found.append(Orphans(bulk_load, batch, tuple(ids), tuple(deleted)))
        each(found[-1])
    return found


async def _older_than(cluster: Cluster, until_ms: int) -> dict[tuple[str, int], list[int]]:
    named = await cluster.named_ledgers()
    ids = [one for one in await cluster.ledgers.list() if one not in named]
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in (await cluster.ledgers.standing(ids)).values():
        if one.custom.get(KIND_KEY) != KIND or one.created_ms >= until_ms:
            continue
        bulk_load, batch = one.custom[BULK_LOAD_KEY], one.custom[BATCH_KEY]
        found[bulk_load.decode(), int(batch)].append(one.ledger_id)
    return found
