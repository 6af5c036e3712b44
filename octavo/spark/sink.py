"""The Spark sink `octavo`: writes rows to topics exactly once, in batches and as streams.

    task      rows → record batches → private ledgers at the bookies, closed     (sink_ledgers.py)
    driver    commit of (query id, batch id): all ledgers join their partitions, or none
              abort: the ledgers are given up                               (sink_driver.py)

Small batches may be published instead (option `commit`, sink_producer.py): then a task sends its
rows to the driver in its message.

After a failed task, a batch that Spark repeats after a crash, or a commit whose answer was lost,
the same (id, batch) is committed again, and a commit takes effect only once
(broker/bulkload/rules.py). Spark pickles these objects between its processes, so the messages hold
everything that a commit needs. A task that dies leaves invisible ledgers, which `orphans.py`
deletes.

Each process of Spark imports this module, and most need a part of it. So tasks import what writes
(sink_task.py) and the driver what commits (sink_driver.py) when they begin.
"""

from __future__ import annotations

import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from octavo.loop_thread import LoopThread
from octavo.spark.options import InvalidOption
from octavo.spark.sink_message import Message, SinkFailed
from octavo.spark.sink_options import SinkOptions, checked_columns, sink_options
from octavo.spark.versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> OctavoWriter:
    """Return the writer of `df.write`. Raises `InvalidOption`."""
    if overwrite:
        raise InvalidOption("a topic cannot be overwritten: use mode('append')")
    found = sink_options(options, streaming=False)
    checked_columns(schema, found)
    return OctavoWriter(found, found.bulk_load or f"batch-{uuid.uuid4()}")


def stream_writer(options: Mapping[str, str], schema: StructType) -> OctavoStreamWriter:
    """Return the writer of `df.writeStream`. Raises `InvalidOption`."""
    found = sink_options(options, streaming=True)
    checked_columns(schema, found)
    return OctavoStreamWriter(found)


class OctavoWriter(DataSourceArrowWriter):
    """Writes a batch query as a single batch of its `bulkLoadId`: a repeat adds nothing."""

    def __init__(self, options: SinkOptions, bulk_load: str) -> None:
        self._options = options
        self._bulk_load = bulk_load

    def with_target(self) -> OctavoWriter:
        """Check the target on the driver, before any task runs. Raises `InvalidOption`."""
        from octavo.spark.sink_driver import check_target

        _run(check_target(self._options))
        return self

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write rows in a task."""
        from octavo.spark.sink_task import write

        return write(self._options, self._bulk_load, self._options.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit on the driver, when all tasks are done."""
        _tell("commit", self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up on the driver, also after a failed commit."""
        _tell("abort", self._options, messages)


class OctavoStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as a batch of the query's id, which is in the checkpoint."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def with_target(self) -> OctavoStreamWriter:
        """Check the target on the driver, before any task runs. Raises `InvalidOption`."""
        from octavo.spark.sink_driver import check_target

        _run(check_target(self._options, once=True))
        return self

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write rows in a task. Only the task's properties name the query and the batch."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise SinkFailed(f"Spark sets neither {_QUERY_ID} nor {_BATCH_ID} in this task")
        from octavo.spark.sink_task import write

        return write(self._options, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit on the driver, when all tasks are done; called again after a crash."""
        assert all(one.batch == batchId for one in _told(messages))
        _tell("commit", self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Give up on the driver, also after a failed commit."""
        _tell("abort", self._options, messages)


# ---- on the driver


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    """Return the messages that came, in the order of the tasks."""
    return sorted((one for one in messages if isinstance(one, Message)), key=lambda one: one.task)


def _tell(
    what: Literal["commit", "abort"],
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    """Commit or abort what the tasks wrote. Without tasks there is nothing to do."""
    from octavo.spark import sink_driver as driver

    told = _told(messages)
    if told:
        written = [one for message in told for one in message.written]
        rows = [message.rows for message in told]
        call = driver.commit if what == "commit" else driver.abort
        _run(call(options, driver.Batch(told[0].bulk_load, told[0].batch, written, rows)))


def _run(work: Coroutine[Any, Any, object]) -> None:
    thread = LoopThread("octavo-spark-commit")
    try:
        thread.call(work)
    finally:
        thread.stop()
