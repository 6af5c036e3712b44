"""The sink in a task: writes rows to the task's own ledgers, or keeps them for the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
from pyspark import TaskContext

from octavo.clock import wall_clock_ms
from octavo.loop_thread import LoopThread
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import Cluster
from octavo.spark.kept import WRITERS, Connection, run_of_task
from octavo.spark.service import no_topic, store_of
from octavo.spark.sink_ledgers import TaskLedgers
from octavo.spark.sink_message import Message, Written
from octavo.spark.sink_options import SinkOptions
from octavo.spark.sink_producer import TASK_BYTES_MAX, not_small
from octavo.spark.sink_rows import LargeRow, RowRouter, Target

_LAST_WRITE_S = 30.0


class _Task:
    """A task's writes. Connects at the first row, so that empty tasks cost nothing."""

    def __init__(self, options: SinkOptions, bulk_load: str, batch: int, attempt: str) -> None:
        self._options = options
        self._of = (bulk_load, batch, attempt)
        run = run_of_task()
        self._key = None if run is None else (run, options.service)
        kept = None if self._key is None else WRITERS.take(self._key)
        self._thread = LoopThread("octavo-spark-sink") if kept is None else kept.thread
        self._cluster = None if kept is None else kept.cluster
        self._is_kept = kept is not None
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

    def stop(self, *, keep: bool) -> None:
        """Close all connections, or keep them for the run's next task."""
        if self._cluster is None:
            self._thread.stop()
        elif keep and self._key is not None:
            WRITERS.put(self._key, Connection(self._thread, self._cluster))
        else:
            Connection(self._thread, self._cluster).end()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    async def _count(self, topic: str) -> int:
        try:
            settings = await (await self._connected()).settings(topic)
        except OctavoError:
            if not self._is_kept:
                raise
            await self._anew()  # it may have broken since the last task
            settings = await (await self._connected()).settings(topic)
        if settings is None:
            raise no_topic(topic)
        return settings.partitions

    async def _write(self, batches: Sequence[tuple[Target, bytes | LargeRow]]) -> None:
        if self._ledgers is None:
            self._ledgers = TaskLedgers(await self._connected(), *self._of)
        await self._ledgers.write(batches)

    async def _anew(self) -> None:
        """Give up the connection of an earlier task."""
        cluster, self._cluster, self._is_kept = self._cluster, None, False
        if cluster is not None:
            with contextlib.suppress(OctavoError):
                await cluster.close()

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(await store_of(self._options.service))
            await self._cluster.start()
        return self._cluster


def write(
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
    ended = False
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
            message = Message(bulk_load, batch, number, (), router.take())
        else:
            task.write(router.rest())
            message = Message(bulk_load, batch, number, task.close(), {})
        ended = True
        return message
    except BaseException:
        task.fail()
        raise
    finally:
        task.stop(keep=ended)


def _most(options: SinkOptions) -> str:
    return f"batchBytes ({options.batch_bytes}) for a partition, or {TASK_BYTES_MAX} bytes in all,"
