"""Reads a split in a Spark task: entries from the bookies, as Arrow batches.

A task needs no metadata store: the few records it needs come with the split (stored.py). An event
loop on its own thread reads entries, while this thread makes Arrow batches of the entries before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from octavo.loop_thread import LoopThread
from octavo.spark.options import SourceOptions
from octavo.spark.splits import Piece

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.spark.batches import StoredBatch
    from octavo.spark.stored import PieceReader, Place

ROWS_MAX = 20_000
BYTES_MAX = 2 * 2**20
"""An Arrow batch is complete at either of these limits."""


class Split(InputPartition):
    """A task of Spark: some pieces, and the metadata records needed to read them."""

    def __init__(self, parts: tuple[Piece, ...], records: dict[str, bytes]) -> None:
        super().__init__(None)
        self.parts = parts
        self.records = records


class SplitReader:
    """Reads splits. Spark pickles it to the tasks, so it holds only values."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split, in order within each partition."""
        # Slow to import: in tasks only.
        from octavo.spark.arrow import ArrowBuilder
        from octavo.spark.kept import READERS, Connection, run_of_task
        from octavo.spark.stored import Place

        run, options = run_of_task(), self._options
        key = run, options.service, options.read_from, frozenset(split.records.items())
        kept = None if run is None else READERS.take(key)
        thread = LoopThread("octavo-spark") if kept is None else kept.thread
        place = Place(None if kept is None else kept.cluster)
        builder = ArrowBuilder(self._names)
        try:
            for piece, batches in thread.iterate(self.stored(split, place)):
                for batch in batches:
                    builder.add(batch, piece.start, piece.end)
                    if builder.rows >= ROWS_MAX or builder.bytes >= BYTES_MAX:
                        yield builder.take()
            if builder.rows:
                yield builder.take()
        finally:
            connection = None if place.cluster is None else Connection(thread, place.cluster)
            if connection is None:
                thread.stop()
            elif run is None:
                connection.end()
            else:
                READERS.put(key, connection)

    def stored(
        self, split: Split, place: Place | None = None
    ) -> AsyncGenerator[tuple[Piece, list[StoredBatch]]]:
        """Return the stored batches that hold the split's pieces, about a megabyte at a time."""
        return self.pieces().batches(split.parts, split.records, place)

    def pieces(self) -> PieceReader:
        """Return a reader of pieces, with these options."""
        from octavo.spark.stored import PieceReader

        return PieceReader(
            self._options.service,
            fail_on_data_loss=self._options.fail_on_data_loss,
            read_from=self._options.read_from,
        )
