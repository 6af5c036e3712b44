"""`octavo-as-stored`: ledgers entry by entry, whatever their batches claim. For the job `verify`.

The source `octavo` refuses entries whose offsets do not follow one another
(ledger/read/continuity.py). Who is to tell of all of them reads on, and nothing here goes by the
offsets that are in doubt: a ledger is read whole, in one task, from its first entry to its last.
Takes the options of `octavo`; what is read begins where a ledger does. An entry that has no row to
show is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from pyspark.sql.types import StructType

from octavo.ledger.errors import LedgerDamaged, LedgerError, OffloadDamaged
from octavo.ledger.read.continuity import Continuity
from octavo.metadata.frozen import FrozenStore
from octavo.protocol.codes import NoSuchEntry
from octavo.protocol.entry import Entry
from octavo.spark.cluster import Cluster, connected
from octavo.spark.columns import StoredBatch, checked_schema
from octavo.spark.options import SourceOptions, source_options
from octavo.spark.planning import planned, range_of, views_of
from octavo.spark.reading import Split, SplitReader, stored_batch
from octavo.spark.served import NotServed
from octavo.spark.source import OctavoDataSource, OctavoReader
from octavo.spark.splits import Piece

_LEAST, _MOST = -(2**63), 2**63 - 1


class AsStored(OctavoDataSource):
    """For batch queries."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "octavo-as-stored"

    def reader(self, schema: StructType) -> AsStoredReader:
        """For a batch query."""
        options = source_options(self.options, streaming=False)
        return AsStoredReader(options, checked_schema(schema, options))


class AsStoredReader(OctavoReader):
    """One query, whose splits have whole ledgers."""

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
        # One that is open, or was so when the end was set, has grown since: see `Span.bytes`.
        closed = frozenset(
            span.ledger_id
            for view in views
            for span in view.spans
            if span.bytes and span.end <= end[view.name]
        )
        return [WholeSplit(split.parts, split.records, closed) for split in splits]


class WholeSplit(Split):
    """Pieces that are each all there is of a ledger. Of `closed` ones every entry counts."""

    def __init__(
        self, parts: tuple[Piece, ...], records: dict[str, bytes], closed: frozenset[int]
    ) -> None:
        super().__init__(parts, records)
        self.closed = closed.intersection(piece.ledger_id for piece in parts)


class WholeReader(SplitReader):
    """Reads on at the entry that it had come to, not at an offset."""

    async def stored(self, split: Split) -> AsyncGenerator[tuple[Piece, list[StoredBatch]]]:
        """Every batch of each ledger, with the piece's offsets that count."""
        assert isinstance(split, WholeSplit)
        cluster = Cluster(FrozenStore(split.records, self._service))
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
                        # As in reading.py: its bookies may have forgotten it.
                        raise NotServed(f"ledger {at.ledger_id} ends before {at.end}")
                    await cluster.release(at.ledger_id)
                    rest = rest[1:]
                    entry_id = tries = reached = 0
                except (OffloadDamaged, LedgerDamaged):
                    raise  # it will not mend itself
                except (LedgerError, NoSuchEntry, NotServed) as error:
                    tries += 1
                    cluster, rest = await self.tried_again(cluster, at, rest[1:], error, tries)
        finally:
            await cluster.close()


def _checked(piece: Piece, entry: Entry) -> StoredBatch:
    """Raises `LedgerDamaged` for an entry without a message."""
    Continuity(piece.ledger_id).checked(entry)
    batch = stored_batch(piece, entry)
    if batch.header.record_count < 1:
        raise LedgerDamaged(piece.ledger_id, entry.entry_id, "holds no message")
    return batch
