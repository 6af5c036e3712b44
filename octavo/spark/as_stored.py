"""The source `octavo-as-stored`: reads ledgers entry by entry, for the job `verify`.

The source `octavo` refuses entries whose offsets do not follow one another
(ledger/read/continuity.py). `verify` has to report all such entries, so this source reads on. It
never relies on the offsets, which are in doubt: a task reads a whole ledger from its first entry to
its last. It takes the options of `octavo`, but always begins at the start of a ledger. An entry
without a row is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from pyspark.sql.types import StructType

from octavo.ledger.errors import LedgerDamaged, LedgerError, OffloadDamaged
from octavo.ledger.read.continuity import Continuity
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.protocol.codes import NoSuchEntry
from octavo.protocol.entry import Entry
from octavo.spark.batches import StoredBatch
from octavo.spark.cluster import Cluster, connected
from octavo.spark.columns import checked_schema
from octavo.spark.options import SourceOptions, source_options
from octavo.spark.planning import planned, range_of, views_of
from octavo.spark.readers import OctavoReader
from octavo.spark.reading import Split, SplitReader
from octavo.spark.source import OctavoDataSource
from octavo.spark.splits import Piece
from octavo.spark.stored import NotServed, Place, stored_batch

_LEAST, _MOST = -(2**63), 2**63 - 1


class AsStored(OctavoDataSource):
    """The source for batch queries."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "octavo-as-stored"

    def reader(self, schema: StructType) -> AsStoredReader:
        """Return the reader of a batch query."""
        options = source_options(self.options, streaming=False)
        return AsStoredReader(options, checked_schema(schema, options))


class AsStoredReader(OctavoReader):
    """Reads a batch query whose splits hold whole ledgers."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        self._splits = WholeReader(options, names)

    async def _plan(self) -> list[Split]:
        options = self._options
        async with connected(options.service, options.read_from) as cluster:
            wanted = await cluster.partitions(options.selection)
            views = await views_of(cluster, wanted)
            start, end = await range_of(cluster, views, options)
            splits = await planned(cluster, options, views, start, end, cut=False)
        # Leave out ledgers that were open when the end was set: they have grown since.
        closed = frozenset(
            span.ledger_id
            for view in views
            for span in view.spans
            if span.bytes and span.end <= end[view.name]
        )
        return [WholeSplit(split.parts, split.records, closed) for split in splits]


class WholeSplit(Split):
    """Pieces that each are a whole ledger. All offsets of the ledgers in `closed` are read."""

    def __init__(
        self, parts: tuple[Piece, ...], records: dict[str, bytes], closed: frozenset[int]
    ) -> None:
        super().__init__(parts, records)
        self.closed = closed.intersection(piece.ledger_id for piece in parts)


class WholeReader(SplitReader):
    """Reads whole entries; after an error, continues at the next entry instead of an offset."""

    async def stored(
        self,
        split: Split,
        place: Place | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[tuple[Piece, list[StoredBatch]]]:
        """Yield the batches of whole ledgers, with a piece that has the offsets to keep."""
        assert isinstance(split, WholeSplit)
        pieces = self.pieces()
        cluster = Cluster(SnapshotStore(split.records, self._options.service))
        await cluster.start()
        try:
            rest = list(split.parts)
            entry_id = tries = reached = 0
            while rest:
                at = rest[0]
                is_closed = at.ledger_id in split.closed
                counts = at._replace(start=_LEAST, end=_MOST) if is_closed else at
                try:
                    async with contextlib.aclosing(
                        cluster.entries_as_stored(at, entry_id)
                    ) as found:
                        async for entries in found:
                            batches = [_checked(at, entry) for entry in entries]
                            yield counts, batches
                            entry_id = entries[-1].entry_id + 1
                            reached = max(reached, *(one.next_offset for one in batches))
                            tries = 0
                    if not is_closed and reached < at.end:
                        # The bookies may have deleted the ledger: ask the service (reading.py).
                        raise NotServed(f"ledger {at.ledger_id} ends before {at.end}")
                    await cluster.release(at.ledger_id)
                    rest = rest[1:]
                    entry_id = tries = reached = 0
                except (OffloadDamaged, LedgerDamaged):
                    raise  # a retry cannot help
                except (LedgerError, NoSuchEntry, NotServed) as error:
                    tries += 1
                    cluster, rest = await pieces.tried_again(cluster, at, rest[1:], error, tries)
        finally:
            await cluster.close()


def _checked(piece: Piece, entry: Entry) -> StoredBatch:
    """Return the entry as a batch. Raises `LedgerDamaged` if it holds no message."""
    Continuity(piece.ledger_id).checked(entry)
    batch = stored_batch(piece, entry)
    if batch.header.record_count < 1:
        raise LedgerDamaged(piece.ledger_id, entry.entry_id, "holds no message")
    return batch
