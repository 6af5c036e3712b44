"""Reads pieces of ledgers as stored batches, with the records that came along.

A reader needs no metadata store. When its records are outdated (a ledger was moved or trimmed, a
bookie has a new address), it asks the service for new records and continues at the same offset.
Messages that retention has removed meanwhile are an error or skipped, as `failOnDataLoss` says.
With `readFrom=broker` a broker serves the messages instead: see served.py. Without Spark and Arrow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterable

from octavo.ledger.errors import LedgerError, LedgerNotFound, OffloadDamaged
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.protocol.append_time import readable, shown
from octavo.protocol.batch import read_header
from octavo.protocol.codes import NoSuchEntry, OctavoError
from octavo.protocol.entry import Entry
from octavo.spark.batches import StoredBatch
from octavo.spark.cluster import Cluster, connected
from octavo.spark.splits import DataLost, Piece, checked_range, of_this_topic, pieces

_TRIES_MAX = 5
_PAUSE_S = 0.5

_log = logging.getLogger("octavo.spark")


class NotServed(OctavoError):
    """A broker did not return the messages. The message is its answer."""

    name = "not-served"
    retryable = True


class Place:
    """Where a reader finds an open cluster, and leaves it."""

    def __init__(self, cluster: Cluster | None) -> None:
        self.cluster = cluster


class PieceReader:
    """Reads pieces. Holds only values, so it can be pickled."""

    def __init__(self, service: str, *, fail_on_data_loss: bool, read_from: str) -> None:
        self._service = service
        self._fail = fail_on_data_loss
        self._from = read_from

    async def batches(
        self, parts: Iterable[Piece], records: dict[str, bytes], place: Place | None = None
    ) -> AsyncGenerator[tuple[Piece, list[StoredBatch]]]:
        """Return the stored batches that hold these pieces, about a megabyte at a time.

        A batch may have messages outside of its piece. `records`: of `Cluster.records_for`.
        `place` may hold a cluster that was opened with equal records; at the end it holds the
        cluster to use next, which is open, or none.
        """
        first = None if place is None else place.cluster
        if first is None:
            first = Cluster(SnapshotStore(records, self._service))
            await first.start()
        elif place is not None:
            place.cluster = None
        cluster = first
        try:
            for piece in parts:
                rest: list[Piece] = [piece]
                tries = 0
                while rest:
                    at = rest[0]
                    try:
                        async with contextlib.aclosing(self._stored(cluster, at)) as found:
                            async for batches in found:
                                yield at, batches
                                at = at._replace(start=_after(at, batches[-1]))
                                tries = 0
                        if at.start < at.end and not at.compacted:
                            # An open ledger was deleted: bookies then report it as ending early,
                            # which must not count as the end of the data.
                            raise NotServed(f"ledger {at.ledger_id} ends before {at.end}")
                        rest = rest[1:]
                    except OffloadDamaged:
                        raise  # a retry cannot help
                    except (LedgerError, NoSuchEntry, NotServed) as error:
                        tries += 1
                        cluster, rest = await self.tried_again(cluster, at, rest[1:], error, tries)
                await cluster.release(piece.ledger_id)
            if place is not None and cluster is first:  # and not one with newer records
                place.cluster = cluster
        finally:
            if place is None or place.cluster is None:
                await cluster.close()

    async def _stored(self, cluster: Cluster, piece: Piece) -> AsyncGenerator[list[StoredBatch]]:
        if self._from == "broker":
            from octavo.spark.served import served  # slow to import: aiohttp

            async with contextlib.aclosing(served(self._service, piece)) as found:
                async for batches in found:
                    yield batches
        else:
            async with contextlib.aclosing(cluster.entries(piece)) as entries:
                async for some in entries:
                    yield [stored_batch(piece, entry) for entry in some]

    async def tried_again(
        self, old: Cluster, at: Piece, rest: list[Piece], error: Exception, tries: int
    ) -> tuple[Cluster, list[Piece]]:
        """Return how to continue after reading `at` has failed `tries` times in a row.

        Closes `old`. Raises `error` after the last try, and `DataLost`.
        """
        if tries == _TRIES_MAX:
            raise error
        _log.warning("%s: asking the service for new records", error)
        await asyncio.sleep(_PAUSE_S * (tries - 1))
        return await self._planned_anew(old, at, rest, error)

    async def _planned_anew(
        self, old: Cluster, at: Piece, rest: list[Piece], error: Exception
    ) -> tuple[Cluster, list[Piece]]:
        """Plan the rest of a piece with current metadata. Raises `DataLost`."""
        async with connected(self._service, self._from) as service:
            if at.compacted:
                again = [await _still_there(service, at, error)]
            else:
                view = await service.view(at.topic, at.partition)
                of = at.incarnation
                try:
                    start, end = of_this_topic(view, at.start, at.end, of, of, fail=self._fail)
                    start, end = checked_range(view, start, end, fail=self._fail)
                except DataLost as lost:
                    raise lost from error
                again = pieces(view, start, end)
            records = await service.records_for(one.ledger_id for one in (*again, *rest))
        await old.close()
        cluster = Cluster(SnapshotStore(records, self._service))
        await cluster.start()
        return cluster, [*again, *rest]


async def _still_there(service: Cluster, at: Piece, error: Exception) -> Piece:
    """Check that a compacted view's piece is still there: no other view can replace it."""
    try:
        await service.ledgers.metadata(at.ledger_id)
    except LedgerNotFound:
        raise DataLost(
            f"topic {at.topic} partition {at.partition}: the compacted view that this query reads "
            "was replaced and its ledgers were deleted; start the query again"
        ) from error
    return at


def stored_batch(piece: Piece, entry: Entry) -> StoredBatch:
    """Return the entry as a batch with its place in the partition. Raises `InvalidBatch`."""
    header = shown(read_header(entry.payload), piece.appended)
    return StoredBatch(
        piece.topic,
        piece.partition,
        piece.ledger_id,
        entry.entry_id,
        piece.base + header.base_offset,
        header,
        bytes(readable(header, entry.payload)),
    )


def _after(piece: Piece, batch: StoredBatch) -> int:
    return min(piece.end, batch.next_offset)
