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
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from octavo.clock import wall_clock_ms
from octavo.credentials import certificates, credentials_file
from octavo.loop_thread import LoopThread
from octavo.metadata.opening import open_store
from octavo.spark import sink_driver as driver
from octavo.spark.cluster import Cluster, metadata_url
from octavo.spark.commit import SinkFailed
from octavo.spark.options import InvalidOption
from octavo.spark.sink_ledgers import TaskLedgers, Written
from octavo.spark.sink_options import SinkOptions, checked_columns, sink_options
from octavo.spark.sink_producer import TASK_BYTES_MAX, not_small
from octavo.spark.sink_rows import LargeRow, RowRouter, Rows, Target
from octavo.spark.versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DriverCall = Callable[[SinkOptions, driver.Batch], Coroutine[Any, Any, None]]
"""`driver.commit` or `driver.abort`."""
_LAST_WRITE_S = 30.0
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Message(WriterCommitMessage):
    """A task's message to the driver: its bulk load and batch, with its ledgers or its rows."""

    def __init__(
        self,
        bulk_load: str,
        batch: int,
        task: int,
        written: tuple[Written, ...],
        rows: Mapping[Target, Rows],
    ) -> None:
        self.bulk_load = bulk_load
        self.batch = batch
        self.task = task
        self.written = written
        self.rows = rows


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
        _run(driver.check_target(self._options))
        return self

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write rows in a task."""
        return _write(self._options, self._bulk_load, self._options.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit on the driver, when all tasks are done."""
        _tell(driver.commit, self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up on the driver, also after a failed commit."""
        _tell(driver.abort, self._options, messages)


class OctavoStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as a batch of the query's id, which is in the checkpoint."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def with_target(self) -> OctavoStreamWriter:
        """Check the target on the driver, before any task runs. Raises `InvalidOption`."""
        _run(driver.check_target(self._options, once=True))
        return self

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write rows in a task. Only the task's properties name the query and the batch."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise SinkFailed(f"Spark sets neither {_QUERY_ID} nor {_BATCH_ID} in this task")
        return _write(self._options, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit on the driver, when all tasks are done; called again after a crash."""
        assert all(one.batch == batchId for one in _told(messages))
        _tell(driver.commit, self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Give up on the driver, also after a failed commit."""
        _tell(driver.abort, self._options, messages)


# ---- in a task


class _Task:
    """A task's writes. Connects at the first row, so that empty tasks cost nothing."""

    def __init__(self, options: SinkOptions, bulk_load: str, batch: int, attempt: str) -> None:
        self._options = options
        self._of = (bulk_load, batch, attempt)
        self._thread = LoopThread("octavo-spark-sink")
        self._cluster: Cluster | None = None
        self._ledgers: TaskLedgers | None = None
        self._counts: dict[str, int] = {}
        self._writing: Future[None] | None = None

    def partitions(self, topic: str) -> int:
        """Return the topic's number of partitions, which is asked for once."""
        if topic not in self._counts:
            self._counts[topic] = self._thread.call(self._count(topic))
        return self._counts[topic]

    def write(self, batches: Sequence[tuple[Target, bytes | LargeRow]]) -> None:
        """Start to write; meanwhile the caller makes the next batches."""
        if batches:
            self._wait()
            self._writing = self._thread.start(self._write(batches))

    def close(self) -> tuple[Written, ...]:
        """Wait until all is durable, and close the ledgers."""
        self._wait()
        return () if self._ledgers is None else self._thread.call(self._ledgers.close())

    def fail(self) -> None:
        """Discard the ledgers as far as possible."""
        if self._writing is not None:
            # Let the last write end: a cancelled write might leave a ledger for ever.
            with contextlib.suppress(Exception):
                self._writing.result(_LAST_WRITE_S)
        if self._ledgers is not None:
            self._thread.call(self._ledgers.discard())

    def stop(self) -> None:
        """Close all connections."""
        if self._cluster is not None:
            self._thread.call(self._cluster.close())
        self._thread.stop()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    async def _count(self, topic: str) -> int:
        settings = await (await self._connected()).settings(topic)
        if settings is None:
            raise driver.no_topic(topic)
        return settings.partitions

    async def _write(self, batches: Sequence[tuple[Target, bytes | LargeRow]]) -> None:
        if self._ledgers is None:
            self._ledgers = TaskLedgers(await self._connected(), *self._of)
        await self._ledgers.write(batches)

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            url = await metadata_url(self._options.service)
            self._cluster = Cluster(
                open_store(url, credentials_file=credentials_file(), tls=certificates())
            )
            await self._cluster.start()
        return self._cluster


def _write(
    options: SinkOptions, bulk_load: str, batch: int, iterator: Iterator[pa.RecordBatch]
) -> Message:
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    attempt = "0" if context is None else str(context.taskAttemptId())
    task = _Task(options, bulk_load, batch, attempt)
    # A published batch may be repeated, by other tasks: its rows must go to the same partitions.
    turn = batch + number if options.commit == "bulk-load" else batch
    router = RowRouter(options, task.partitions, turn, wall_clock_ms())
    is_small = options.commit != "bulk-load"
    try:
        for rows in iterator:
            full = router.add(rows) if rows.num_rows else []
            if is_small and (full or router.held_bytes > TASK_BYTES_MAX):
                is_small = False
                if options.commit == "producer":
                    large = any(isinstance(one, LargeRow) for _, one in full)
                    what = "large messages" if large else f"more than {_most(options)}"
                    raise not_small(f"{what} from a single task")
            if not is_small:
                task.write(full)
        if is_small:
            return Message(bulk_load, batch, number, (), router.take())
        task.write(router.rest())
        return Message(bulk_load, batch, number, task.close(), {})
    except BaseException:
        task.fail()
        raise
    finally:
        task.stop()


def _most(options: SinkOptions) -> str:
    return f"batchBytes ({options.batch_bytes}) for a partition, or {TASK_BYTES_MAX} bytes in all,"


# ---- on the driver


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    """Return the messages that came, in the order of the tasks."""
    return sorted((one for one in messages if isinstance(one, Message)), key=lambda one: one.task)


def _tell(
    driver_call: DriverCall, options: SinkOptions, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Commit or abort what the tasks wrote. Without tasks there is nothing to do."""
    told = _told(messages)
    if told:
        written = [one for message in told for one in message.written]
        rows = [message.rows for message in told]
        _run(driver_call(options, driver.Batch(told[0].bulk_load, told[0].batch, written, rows)))


def _run(work: Coroutine[Any, Any, object]) -> None:
    thread = LoopThread("octavo-spark-commit")
    try:
        thread.call(work)
    finally:
        thread.stop()
