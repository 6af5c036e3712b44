"""Run a job's streaming query to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from octavo.pipeline.interrupt import Interrupted

_LOOK_S = 1
"""Spark remembers the progress of only a hundred batches: look often."""
_STARTS_MAX = 5
SLOW_START = "Python worker failed to connect back"
"""Spark's text when a Python process is not ready after 10 s, as a stream's first may be on a busy
machine.
"""
SLOW_START_HELP = (
    "a Python process of Spark was not ready 10 s after its start, as on a busy machine, or where "
    "each process compiles its modules again (then unset PYTHONDONTWRITEBYTECODE). Run it again; "
    "with fewer tasks at once (--master 'local[1]') there are fewer such processes"
)


def follow(writer: Any, look: Callable[[Any], None], *, every_s: float | None) -> None:
    """Start the query and wait until it ends. `every_s` None: read what is there now, then end.

    `look` is called every second and at the end. A query whose Python process was too slow to start
    is started again, a few times. Raises the query's error, and `Interrupted` once it has stopped;
    the next run begins with the interrupted batch.
    """
    from pyspark.errors import StreamingQueryException

    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    for starts in range(1, _STARTS_MAX + 1):
        try:
            _follow_once(writer, look)
            return
        except StreamingQueryException as error:
            if SLOW_START not in str(error) or starts == _STARTS_MAX:
                raise


def _follow_once(writer: Any, look: Callable[[Any], None]) -> None:
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
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._by_batch: dict[int, int] = {}

    @property
    def rows(self) -> int:
        return sum(self._by_batch.values())

    def look(self, query: Any) -> None:
        for progress in query.recentProgress:
            number, count = int(progress["batchId"]), int(progress["numInputRows"])
            if count and number not in self._by_batch:
                self._by_batch[number] = count
                self._say(f"batch {number}: {self.rows:,} rows")
