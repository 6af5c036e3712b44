"""Micro-batches without Spark's streaming: ranges of offsets, each noted before it is read.

Spark 4.0 and 4.1 pass no limits to a source: a stream would read a whole topic at once. The
checkpoint has Spark's own form (`offsets/N`: what batch N reads; `commits/N`: it is done), so
either may continue after an upgrade. A batch that was not done is read again, with the same
offsets.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.pipeline.files import exists, listing, read_text, write_text
from octavo.pipeline.runner import BadUsage, Run, frame_between
from octavo.spark.cluster import connected
from octavo.spark.options import Selection
from octavo.spark.planning import views_of
from octavo.spark.splits import (
    Offsets,
    admitted,
    begun_anew,
    bytes_per_row_of,
    ends_of,
    from_json,
    incarnations_in,
    incarnations_of,
    to_json,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORM = "v1"
_OFFSETS, _COMMITS = "offsets", "commits"


class Checkpoint:
    def __init__(self, run: Run, path: str) -> None:
        self._run = run
        self._path = path.rstrip("/")

    def newest(self, kind: str) -> int:
        """Return the newest batch in `offsets` or `commits`; −1: none."""
        folder = f"{self._path}/{kind}"
        if not exists(self._run, folder):
            return -1
        return max((int(n) for n in listing(self._run, folder) if n.isdecimal()), default=-1)

    def end_of(self, number: int) -> dict[str, Any]:
        path = f"{self._path}/{_OFFSETS}/{number}"
        lines = read_text(self._run, path).splitlines()
        if len(lines) != 3 or lines[0] != _FORM:
            raise BadUsage(
                f"{path} is not of the form {_FORM}, for a single source: continue with the Spark "
                "that has written this checkpoint"
            )
        found = json.loads(lines[2])
        assert isinstance(found, dict)
        return found

    def begin(self, number: int, end: Mapping[str, Any]) -> None:
        if number == 0 and not exists(self._run, f"{self._path}/metadata"):
            self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        about = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
        text = f"{_FORM}\n{json.dumps(about)}\n{json.dumps(end)}"
        self._write(f"{_OFFSETS}/{number}", text)

    def done(self, number: int) -> None:
        self._write(f"{_COMMITS}/{number}", f'{_FORM}\n{{"nextBatchWatermarkMs":0}}')

    def _write(self, name: str, text: str) -> None:
        write_text(self._run.spark, f"{self._path}/{name}", text)


def follow_ranges(
    run: Run,
    selection: Selection,
    checkpoint: str,
    write: Callable[[DataFrame, int], None],
    *,
    columns: str,
    rows_max: int,
    every_s: float | None,
) -> None:
    """Give each range to `write`, with the number of its batch.

    `every_s` None: read what is there now, then end. Raises the errors of `write`; then the next
    run begins with the same batch.
    """
    place = Checkpoint(run, checkpoint)
    begun, done = place.newest(_OFFSETS), place.newest(_COMMITS)
    start = place.end_of(done) if done >= 0 else asyncio.run(_beginning(run.service, selection))
    until: Offsets | None = None
    while True:
        if begun > done:
            number, end = begun, place.end_of(begun)
        else:
            began = time.monotonic()
            number = done + 1
            end, most = asyncio.run(_next_end(run.service, selection, start, rows_max, until))
            if every_s is None and until is None:
                until = most
            if end == start:
                if every_s is None:
                    return
                time.sleep(max(0.0, every_s - (time.monotonic() - began)))
                continue
            place.begin(number, end)
        write(frame_between(run, start, end, columns), number)
        place.done(number)
        begun = done = number
        start = end


async def _beginning(service: str, selection: Selection) -> dict[str, Any]:
    async with connected(service) as cluster:
        views = await views_of(cluster, await cluster.partitions(selection))
        return to_json({view.name: view.earliest for view in views}, incarnations_of(views))


async def _next_end(
    service: str,
    selection: Selection,
    start: Mapping[str, Any],
    rows_max: int,
    until: Offsets | None,
) -> tuple[dict[str, Any], Offsets]:
    """Return where the next range ends, and where the partitions end now.

    Raises `DataLost` if a topic was deleted and created again.
    """
    async with connected(service) as cluster:
        views = await views_of(cluster, await cluster.partitions(selection))
    begin = begun_anew(views, from_json(start), incarnations_in(start), fail=True)
    first = {view.name: begin.get(view.name, 0) for view in views}
    ends = ends_of(views)
    end = {
        name: max(first[name], to if until is None else min(to, until.get(name, 0)))
        for name, to in ends.items()
    }
    sizes = {view.name: bytes_per_row_of(view) for view in views}
    reached = admitted(first, end, sizes, rows_max=rows_max, bytes_max=None)
    return to_json(reached, incarnations_in(start) | incarnations_of(views)), ends
