"""A connection to the cluster that a Python worker of Spark keeps from one task to the next.

A stream's tasks run in a few processes, one after another in each, and only seconds apart. Without
a kept connection, each task would connect to the metadata store and the bookies. A connection
serves a single run of a query: a restarted query connects again. A task that fails gives up its
connection, because the next task may find another cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import NamedTuple

from pyspark import TaskContext

from octavo.loop_thread import LoopThread
from octavo.spark.cluster import Cluster

IDLE_S = 60.0
"""Spark ends a worker that was idle for as long."""
_RUN_ID = "spark.jobGroup.id"
"""Spark gives all jobs of a stream's run this property."""


class Connection(NamedTuple):
    """A cluster, and the thread of its event loop."""

    thread: LoopThread
    cluster: Cluster

    def end(self) -> None:
        """Close it, unless a fork has left its thread behind."""
        if not self.thread.is_stopped:
            try:
                self.thread.call(self.cluster.close())
            finally:
                self.thread.stop()


class Kept:
    """Keeps at most one connection. A task takes it out, so no other task has it meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[Hashable, Connection, float] | None = None

    def take(self, key: Hashable) -> Connection | None:
        """Take the connection out. One of another key, or an old one, is closed."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return None
        of, connection, until_s = held
        if of == key and time.monotonic() < until_s and not connection.thread.is_stopped:
            return connection
        connection.end()
        return None

    def put(self, key: Hashable, connection: Connection) -> None:
        """Keep it for the next task with an equal key."""
        with self._lock:
            before = self._held
            self._held = key, connection, time.monotonic() + IDLE_S
        if before is not None:
            before[1].end()


READERS, WRITERS = Kept(), Kept()


def run_of_task() -> str | None:
    """Return the id of the stream's run that this task belongs to; None outside of streams."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_RUN_ID)
