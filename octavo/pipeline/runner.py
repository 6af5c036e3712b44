"""Run a job to its end: the Spark session, progress, and errors as a single line.

A job checks first what needs no Spark, which takes seconds to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.broker.types import DEFAULT_NAMESPACE
from octavo.client.errors import InvalidCall
from octavo.client.types import TopicName
from octavo.metadata.topics import PartitionRecord, TopicSettings, TopicStore
from octavo.pipeline.interrupt import Interrupted, Signals
from octavo.pipeline.json_schema import BadSchema
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.session import SparkOptions, session
from octavo.pipeline.streams import SLOW_START, SLOW_START_HELP
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import connected
from octavo.spark.options import InvalidOption, Selection
from octavo.spark.splits import Offsets, View, ends_of, from_json, incarnations_in, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$")


class BadUsage(OctavoError):
    name = "bad-usage"


class JobFailed(OctavoError):
    name = "job-failed"


USAGE = (BadUsage, BadSchema, InvalidOption, InvalidCall)
"""Errors that the user can correct by changing the command."""


class Run:
    """A job's surroundings. `say` reports progress to the user."""

    def __init__(
        self, job: str, service: str, say: Callable[[str], None], options: SparkOptions
    ) -> None:
        self.service = service
        self.say = say
        self.options = options
        self._job = job
        self._signals = Signals()
        self._held = contextlib.ExitStack()

    @functools.cached_property
    def spark(self) -> SparkSession:
        found = self._held.enter_context(session(self._job, self.options))
        self._signals.set()
        return found

    def carry_out(self, work: Callable[[Run], Outcome]) -> Outcome:
        interrupted: Outcome | None = None
        try:
            with self._held:
                self._held.enter_context(self._signals)
                try:
                    return work(self)
                except Interrupted as stop:
                    interrupted = stop.ended(self._job)
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            if interrupted is None:
                raise _translated(error) from error
            # A Ctrl-C goes to all processes and has ended Spark too: the error is only its end.
        assert interrupted is not None
        return interrupted


def run_job(
    job: str,
    work: Callable[[Run], Outcome],
    *,
    service: str,
    say: Callable[[str], None],
    options: SparkOptions | None = None,
) -> Outcome:
    started = time.monotonic()
    outcome = Run(job, service, say, options or SparkOptions()).carry_out(work)
    outcome.summary["took_s"] = round(time.monotonic() - started, 1)
    return outcome


def _translated(error: Exception) -> OctavoError:
    name, text = cause_in(str(error))
    kind = InvalidOption if name == InvalidOption.__name__ else JobFailed
    if SLOW_START in str(error):
        return kind(f"{text}: {SLOW_START_HELP}")
    return kind(text)


def cause_in(said: str) -> tuple[str, str]:
    inside = False
    found = None
    for line in said.splitlines():
        if "Traceback (most recent call last)" in line:  # Spark may put its own words before it
            inside = True
        elif inside and (match := _OURS.match(line)):
            found = (match[1], match[2])
            inside = False
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
    return found or ("", first)


def selection_of(topics: str | None, *, every: bool = False) -> Selection:
    if every == bool(topics):
        raise BadUsage("select topics: name them (a,b,namespace/c) or give --all, not both")
    if every:
        return Selection(pattern=".*")
    names = [name.strip() for name in (topics or "").split(",")]
    return Selection(topics=tuple(str(TopicName.of(name)) for name in names))


def look(service: str, selection: Selection) -> list[tuple[View, PartitionRecord]]:
    async def see() -> list[tuple[View, PartitionRecord]]:
        async with connected(service) as cluster:
            looked = []
            for topic, partitions in sorted((await cluster.partitions(selection)).items()):
                for number in partitions:
                    record = await cluster.record(topic, number)
                    looked.append((await cluster.view_of(topic, number, record), record))
            return looked

    return asyncio.run(see())


def topic_settings(service: str, topics: list[str]) -> dict[str, TopicSettings]:
    async def read() -> dict[str, TopicSettings]:
        async with connected(service) as cluster:
            store = TopicStore(cluster.store)
            return {
                topic: (await store.read_topic(*topic.split("/")))[0].settings for topic in topics
            }

    return asyncio.run(read())


def frame(run: Run, seen: list[View], columns: str, *, source: str = "octavo") -> DataFrame:
    """Return the messages of these partitions up to now: every pass reads the same rows."""
    start = {view.name: view.earliest for view in seen}
    return frame_of(run, start, ends_of(seen), columns, source=source)


def with_whole_names(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    whole = f.concat(f.lit(f"{DEFAULT_NAMESPACE}/"), topic)
    return rows.withColumn("topic", f.when(topic.contains("/"), topic).otherwise(whole))


def frame_of(
    run: Run, start: Offsets, end: Offsets, columns: str, *, source: str = "octavo"
) -> DataFrame:
    """Return the messages of these ranges; `start` and `end` must name the same partitions."""
    return frame_between(run, to_json(start), to_json(end), columns, source=source)


def frame_between(
    run: Run,
    start: Mapping[str, Any],
    end: Mapping[str, Any],
    columns: str,
    *,
    source: str = "octavo",
) -> DataFrame:
    """Read as `frame_of`, between offsets as `to_json` writes them, perhaps with incarnations.

    A partition that is only in `end` is read from its first message.
    """
    parts: dict[str, list[int]] = {}
    for topic, partition in sorted(from_json(end)):
        parts.setdefault(topic, []).append(partition)
    first = {name: from_json(start).get(name, 0) for name in from_json(end)}
    return (
        run.spark.read.format(source)
        .option("service", run.service)
        .option("assign", json.dumps(parts))
        .option("startingOffsets", json.dumps(to_json(first, incarnations_in(start))))
        .option("endingOffsets", json.dumps(end))
        .option("columns", columns)
        .load()
    )
