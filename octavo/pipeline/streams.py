"""A streaming query of a job, followed to its end, with the rows that it has had."""

from __future__ import annotations

from typing import Any

from octavo.pipeline.runner import Run

_LOOK_S = 1
"""Spark remembers the progress of a hundred batches."""


def followed(run: Run, writer: Any, *, every_s: float | None) -> int:
    """Start it; the rows that it has read when it ends. `every_s` None: what is there, then end.

    Interrupted, it ends behind the batch that is under way. Raises what ended it.
    """
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    query = writer.start()
    rows: dict[int, int] = {}
    try:
        while not query.awaitTermination(_LOOK_S):
            _note(run, query, rows)
    except KeyboardInterrupt:
        run.say("stopping; the next run goes on here")
        query.stop()
    _note(run, query, rows)
    return sum(rows.values())


def _note(run: Run, query: Any, rows: dict[int, int]) -> None:
    for progress in query.recentProgress:
        number, count = int(progress["batchId"]), int(progress["numInputRows"])
        if count and number not in rows:
            rows[number] = count
            run.say(f"batch {number}: {sum(rows.values()):,} rows")
