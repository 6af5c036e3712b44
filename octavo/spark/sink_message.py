"""What a task of the sink tells the driver. Spark pickles it, so it holds only values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from octavo.protocol.codes import OctavoError

if TYPE_CHECKING:
    from octavo.spark.sink_rows import Rows, Target


class SinkFailed(OctavoError):
    """A batch could not be committed. The message is the broker's reason, `problem` its answer."""

    name = "sink-failed"

    def __init__(self, message: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem = problem or {}


class Written(NamedTuple):
    """A closed private ledger and its contents."""

    topic: str
    partition: int
    ledger_id: int
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    disorder_ms: int
    pieces: int = 0
    """The pieces of the large message, if the ledger holds one."""


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
