"""A streaming query of a job, followed to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from octavo.pipeline.interrupt import Interrupted

_LOOK_S = 1
"""Spark remembers the progress of a hundred batches."""


def follow(writer: Any, look: Callable[[Any], None], *, every_s: float | None) -> None:
    """Start it and wait until it ends. `every_s` None: what is there, then end.

    `look` gets the query every so often, and when it has ended. Raises what ended it, and
    `Interrupted` when the query has stopped: the batch under way is broken off, and the next run
    begins with it.
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
    """The rows of a query's batches, each counted once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._by_batch: dict[int, int] = {}

    @property
    def rows(self) -> int:
        """Of all batches that are done."""
        return sum(self._by_batch.values())

    def look(self, query: Any) -> None:
        """Take in what the query has done meanwhile."""
        for progress in query.recentProgress:
            number, count = int(progress["batchId"]), int(progress["numInputRows"])
            if count and number not in self._by_batch:
                self._by_batch[number] = count
                self._say(f"batch {number}: {self.rows:,} rows")
