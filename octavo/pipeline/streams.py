"""Runs a job's streaming query to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from octavo.pipeline.interrupt import Interrupted

_LOOK_S = 1
"""Spark remembers the progress of only a hundred batches: look often."""


def follow(writer: Any, look: Callable[[Any], None], *, every_s: float | None) -> None:
    """Start the query and wait until it ends. `every_s` None: read what is there now, then end.

    `look` is called with the query every second and at the end. Raises the query's error, and
    `Interrupted` once the query has stopped. The interrupted batch is dropped; the next run begins
    with it.
    """
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    query = writer.start()
    try:
        while not query.awaitTermination(_LOOK_S):
            look(query)
    except Interrupted:
        with contextlib.suppress(Exception):  # the signal may have ended Spark too
            query.stop()
            look(query)
        raise
    look(query)


class Progress:
    """Counts the rows of a query's batches, each batch once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._by_batch: dict[int, int] = {}

    @property
    def rows(self) -> int:
        """The rows of all finished batches."""
        return sum(self._by_batch.values())

    def look(self, query: Any) -> None:
        """Count the batches that have finished since the last call."""
        for progress in query.recentProgress:
            number, count = int(progress["batchId"]), int(progress["numInputRows"])
            if count and number not in self._by_batch:
                self._by_batch[number] = count
                self._say(f"batch {number}: {self.rows:,} rows")
