"""The private ledgers of one Spark task: one per partition that it has rows for, at the bookies.

Nothing that is written here is visible until a commit names the ledger. Each says in its metadata
which bulk load and batch it is for, so that nobody else can commit it, and what a dead task
leaves behind can be told from data. Entries are pipelined; `close` returns when all are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from octavo.broker.bulkload.rules import BATCH_KEY, BULK_LOAD_KEY, KIND, KIND_KEY, PARTITION_KEY
from octavo.broker.log.ledger_list import Contents
from octavo.ledger.encryption import plain_length
from octavo.ledger.errors import LedgerError
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.together import all_of
from octavo.metadata.topics import TopicSettings
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.spark.cluster import Cluster
from octavo.spark.options import InvalidOption
from octavo.spark.sink_rows import Target

ATTEMPT_KEY = "octavo.attempt"


class Written(NamedTuple):
    """A closed private ledger and what it holds."""

    topic: str
    partition: int
    ledger_id: int
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    disorder_ms: int


class _Ledger:
    """One of them, while it is written."""

    __slots__ = ("contents", "entries", "error", "target", "writer")

    def __init__(self, target: Target, writer: LedgerWriter) -> None:
        self.target = target
        self.writer = writer
        self.contents = Contents()
        self.entries = 0
        self.error: OctavoError | None = None

    def add(self, batch: bytes) -> None:
        header = read_header(batch)
        self.writer.add(with_base_offset(batch, self.contents.messages), self._added)
        self.contents = self.contents.plus(header, len(batch))
        self.entries += 1

    def _added(self, _: int, error: OctavoError | None) -> None:
        self.error = self.error or error


class TaskLedgers:
    """Writes record batches; made and used on one event loop."""

    def __init__(self, cluster: Cluster, bulk_load: str, batch: int, attempt: str) -> None:
        self._cluster = cluster
        self._marks = {
            KIND_KEY: KIND,
            BULK_LOAD_KEY: bulk_load.encode(),
            BATCH_KEY: str(batch).encode(),
            ATTEMPT_KEY: attempt.encode(),
        }
        self._ledgers: dict[Target, _Ledger] = {}
        self._settings: dict[str, TopicSettings] = {}

    async def write(self, batches: Sequence[tuple[Target, bytes]]) -> None:
        """Add; waits only while too much is on its way. Raises what ended a ledger."""
        missing = dict.fromkeys(target for target, _ in batches if target not in self._ledgers)
        await all_of(map(self._make, missing))
        for target, batch in batches:
            if len(batch) > ENTRY_PAYLOAD_BYTES_MAX:
                raise LedgerError(
                    f"a message for {target.topic}/{target.partition} makes a batch of "
                    f"{len(batch)} bytes; one entry holds {ENTRY_PAYLOAD_BYTES_MAX}"
                )
            ledger = self._ledgers[target]
            await ledger.writer.drain()
            ledger.add(batch)

    async def close(self) -> tuple[Written, ...]:
        """Make all durable and close. Raises what went wrong in any of them."""
        return tuple(await asyncio.gather(*map(_closed, self._ledgers.values())))

    async def discard(self) -> None:
        """The task fails, and nobody was told of these ledgers: they may go."""
        for ledger in tuple(self._ledgers.values()):
            await self._cluster.ledgers.discard(ledger.writer)

    async def _make(self, target: Target) -> None:
        settings = self._settings.get(target.topic) or await self._cluster.settings(target.topic)
        if settings is None:
            raise InvalidOption(f"there is no topic {target.topic}")
        self._settings[target.topic] = settings
        writer = await self._cluster.ledgers.create(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            custom={**self._marks, PARTITION_KEY: f"{target.topic}/{target.partition}".encode()},
            encrypted_for=target.topic.partition("/")[0] if settings.encrypted else None,
        )
        self._ledgers[target] = _Ledger(target, writer)


async def _closed(ledger: _Ledger) -> Written:
    writer, contents = ledger.writer, ledger.contents
    metadata = await writer.close()
    if ledger.error is not None:
        raise ledger.error
    size = plain_length(metadata)
    if (metadata.last_entry, size) != (ledger.entries - 1, contents.payload_bytes):
        raise LedgerError(
            f"ledger {writer.ledger_id} was closed at entry {metadata.last_entry} with "
            f"{size} bytes; {ledger.entries} entries were written"
        )
    return Written(
        *ledger.target, writer.ledger_id, contents.messages, contents.payload_bytes,
        contents.first_ms, contents.last_ms, contents.disorder_ms,
    )  # fmt: skip
