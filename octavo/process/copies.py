"""Run a bookie's `CopyKeeper`, which keeps the bookie's copies complete.

On the admin port, `GET /copies` shows the progress, `POST /copies` starts a walk over all ledgers,
and `POST /copies?ledger=7` compares a ledger's copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from octavo.bookie.adds import AddBatch
from octavo.bookie.admin import BadParameter, number_of
from octavo.bookie.node import BookieNode
from octavo.broker.log.orphan_ledgers import partition_of
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.rereplication.comparing import ComparingStatus, CopyComparer
from octavo.ledger.rereplication.copies import Range
from octavo.ledger.rereplication.keeper import CopyKeeper, KeeperOptions, KeeperStatus
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.store import MetadataError, MetadataStore, RecordNotFound
from octavo.metadata.topics import TopicStore, owner_path
from octavo.protocol.entry import HEADER
from octavo.protocol.frames import Flag, add_prefix
from octavo.protocol.numbers import WHOLE_MAX
from octavo.security.bookie_tokens import Prove
from octavo.tls.contexts import Certificates

log = structlog.get_logger()

_START_S = 10.0
"""The first walk waits until the other bookies of a starting cluster are up."""
_LISTED_MAX = 1000


class NodeCopies:
    def __init__(self, node: BookieNode) -> None:
        self._node = node
        self._storage = node.storage

    @property
    def bookie_id(self) -> str:
        return self._node.bookie_id

    @property
    def unsure_through(self) -> int:
        """Return the highest ledger of which entries may be lost here; −1 if there is none."""
        return self._storage.limbo.unknown_through

    def is_unsure(self, ledger_id: int) -> bool:
        return self._storage.limbo.covers(ledger_id)

    def doubtful(self, ledger_id: int) -> bool:
        """Whether entries must be read back: an index row alone does not prove them."""
        damaged = (damage.ledger_id for damage in self._storage.damages.current())
        return self.is_unsure(ledger_id) or ledger_id in damaged

    async def held(self, ledger_id: int) -> list[Range]:
        """Return the stored ranges of entries, ascending, adjacent ranges joined."""
        return await self._storage.reads.held(ledger_id)

    async def fence(self, ledger_id: int, key: bytes) -> None:
        """Fence the ledger; durable on return."""
        await self._storage.control.fence(ledger_id, key)

    async def vouch(self, ledger_ids: Iterable[int]) -> None:
        await self._storage.limbo_file.vouch(ledger_ids)

    async def end_limbo(self) -> None:
        """Record that all ledgers that name this bookie are complete here."""
        await self._node.end_limbo()

    async def replace(self, key: bytes, entry: bytes) -> None:
        """Replace an entry; durable on return."""
        ledger_id, entry_id, _, _ = HEADER.unpack_from(entry)
        frame = add_prefix(key, len(entry), int(Flag.RECOVERY_ADD)) + entry
        offsets = range(0, len(frame), len(frame))
        run = AddBatch(ledger_id, entry_id, 1, key, recovery=True, frames=frame, offsets=offsets)
        await self._storage.duplicate_adds.replace(run)


async def is_owned_by_a_broker(store: MetadataStore, metadata: LedgerMetadata) -> bool:
    """Whether a live broker may write the ledger: its partition has an owner, and names it as
    newest or state ledger.

    Raises `MetadataError`.
    """
    name = partition_of(metadata.custom)
    if name is None:
        return False
    try:
        await store.get(owner_path(*name))
        record, _ = await TopicStore(store).read_partition(*name)
    except RecordNotFound:
        return False
    newest = [segment.ledger_id for segment in record.ledgers[-1:]]
    return metadata.ledger_id in (*newest, record.state_ledger)


@contextlib.asynccontextmanager
async def kept_copies(
    node: BookieNode,
    store: MetadataStore,
    *,
    rng: random.Random,
    clock: Callable[[], int] | None = None,
    options: LedgerOptions | None = None,
    tls: Certificates | None = None,
    prove: Prove | None = None,
) -> AsyncIterator[CopyKeeper | None]:
    config = node.config
    if not config.keep_copies:
        yield None
        return
    client = LedgerClient(
        store, rng=rng, options=options or LedgerOptions(), clock=clock, tls=tls, prove=prove
    )
    own = NodeCopies(node)
    retry_s, bytes_per_s = config.copies_retry_ms / 1000, config.copies_bytes_per_s
    comparer = CopyComparer(client, own, retry_s=retry_s, bytes_per_s=bytes_per_s)
    keeper = CopyKeeper(
        client,
        own,
        KeeperOptions(
            lost_bookie_s=config.lost_bookie_ms / 1000,
            open_ledger_s=config.copies_open_ledger_ms / 1000,
            interval_s=config.copies_interval_ms / 1000,
            retry_s=retry_s,
            bytes_per_s=bytes_per_s,
        ),
        partial(is_owned_by_a_broker, store),
    )
    _expose(node, keeper, comparer)

    async def keep() -> None:
        await asyncio.sleep(min(_START_S, config.copies_retry_ms / 1000))
        while True:
            try:
                await client.start()
                await keeper.run()
            except MetadataError as error:
                log.warning("copies_not_looked_at", bookie=node.bookie_id, reason=str(error))
            except Exception as error:  # the bookie keeps serving without its keeper
                log.error(
                    "copies_failed", bookie=node.bookie_id, reason=repr(error), exc_info=error
                )
            await asyncio.sleep(config.copies_retry_ms / 1000)

    node.server.requests.fetch_copies = keeper.walk_now
    node.server.requests.compare_copies = comparer.doubt
    task = asyncio.create_task(keep(), name="copies")
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def _expose(node: BookieNode, keeper: CopyKeeper, comparer: CopyComparer) -> None:
    status, compared = keeper.status, comparer.status

    def listing(query: Mapping[str, str]) -> dict[str, Any]:
        limit = number_of(query, "limit", _LISTED_MAX)
        return {
            "walks": status.walks,
            "copied_entries": status.copied_entries,
            "copied_bytes": status.copied_bytes,
            "adopted": status.adopted,
            "unfinished": len(status.unfinished),
            "ledgers": [
                {"ledger": ledger_id, "reason": why}
                for ledger_id, why in sorted(status.unfinished.items())[:limit]
            ],
            "compared_entries": compared.compared_entries,
            "replaced": compared.replaced,
            "disagreeing": [
                {"ledger": ledger_id, "entry": entry_id, "reason": why}
                for (ledger_id, entry_id), why in sorted(compared.disagreeing.items())[:limit]
            ],
        }

    def look_now(query: Mapping[str, str]) -> dict[str, Any]:
        if "ledger" in query:
            ledger_id = number_of(query, "ledger", 0)
            first, last = number_of(query, "first", 0), number_of(query, "last", WHOLE_MAX)
            if first > last:
                raise BadParameter(f"first={first} is above last={last}: the last entry comes last")
            comparer.doubt(ledger_id, first, last)
        elif "first" in query or "last" in query:
            raise BadParameter("first and last are entries of a ledger: add ledger=ID")
        else:
            keeper.walk_now()
        return listing(query)

    node.admin.route("GET", "/copies", listing, "limit")
    node.admin.route("POST", "/copies", look_now, "ledger", "first", "last", "limit")
    node.metrics.registry.register(CopyMetrics(status, compared))


class CopyMetrics(Collector):
    def __init__(self, status: KeeperStatus, compared: ComparingStatus) -> None:
        self._status = status
        self._compared = compared

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield GaugeMetricFamily(
            "octavo_bookie_ledgers_not_whole",
            "Ledgers that the last walk could not make whole here",
            len(status.unfinished),
        )
        yield GaugeMetricFamily(
            "octavo_bookie_copies_disagree",
            "Entries whose copies differ, with none proved right",
            len(self._compared.disagreeing),
        )
        for name, text, value in (
            ("octavo_bookie_copied_entries", "Entries fetched from others", status.copied_entries),
            ("octavo_bookie_copied_bytes", "Bytes fetched from others", status.copied_bytes),
            ("octavo_bookie_adopted_fragments", "Adopted from lost bookies", status.adopted),
            (
                "octavo_bookie_replaced_copies",
                "Copies replaced because the copies of other bookies proved them wrong",
                self._compared.replaced,
            ),
        ):
            yield CounterMetricFamily(name, text, value)
