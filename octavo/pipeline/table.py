"""The job `table`: a topic as an Iceberg table, once or continuously, without Spark.

Each commit adds a range of messages together with the offsets after them, so the table has each
message once. It asserts the snapshot that the job has read: if another program changed the table,
the job reads the position again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from octavo.client.types import TopicName
from octavo.loop_thread import LoopThread
from octavo.pipeline.interrupt import Interrupted, Signals, told
from octavo.pipeline.json_schema import BadSchema
from octavo.pipeline.outcome import SHOWN_MAX, Finding, Outcome
from octavo.pipeline.runner import BadUsage, JobFailed
from octavo.pipeline.table_columns import Columns, Rows, columns_of_schema
from octavo.pipeline.table_iceberg import (
    Conflict,
    IcebergTable,
    Place,
    Step,
    away,
    only_follower,
)
from octavo.pipeline.table_infer import inferred, json_of, widened
from octavo.pipeline.table_rules import (
    INCARNATION,
    INFERRED,
    SCHEMA,
    TOPIC,
    Plan,
    Position,
    TableUnusable,
    Upkeep,
    check_topic,
    next_ranges,
)
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import Cluster, connected
from octavo.spark.options import InvalidOption, Selection
from octavo.spark.splits import Piece, View, pieces
from octavo.spark.stored import PieceReader

_INFER_ROWS = 10_000
_PAUSE_S, _PAUSE_S_MAX = 0.5, 30.0
_TRIES_MAX = 5
"""Failures in a row after which a job without `--follow` ends."""


@dataclass(frozen=True)
class TableOptions:
    """Sizes in bytes."""

    topic: str
    place: Place
    schema: Mapping[str, Any] | None = None
    infer: bool = False
    """Take the fields of the first messages for the schema, and add fields that come later."""
    bad_rows: str = "suspend"
    """A value that does not fit: `suspend` ends the job before its commit, `skip` leaves the
    message out.
    """
    keep_value: bool = False
    follow: bool = False
    every_s: float = 30.0
    """Between the beginnings of two commits, while it follows."""
    rows_max: int = 1_000_000
    bytes_max: int = 256 * 2**20
    """A commit is complete at either of these bounds, which also bound memory."""
    fail_on_data_loss: bool = True
    upkeep: Upkeep = field(default_factory=Upkeep)
    upkeep_commits: int = 10
    as_json: bool = False


@dataclass
class _Tally:
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    bad: int = 0
    odd_times: int = 0
    behind: int = 0
    conflicts: int = 0
    joined: int = 0
    expired: int = 0
    suspended: bool = False
    findings: list[Finding] = field(default_factory=list)


class _Widened(Exception):
    pass


class _Suspended(Exception):
    pass


def place_of(
    topic: TopicName, to: str, catalog: str | None, name: str | None, properties: Mapping[str, str]
) -> Place:
    if not to and catalog is None:
        raise BadUsage("say where the table is: --to FOLDER, or --catalog with a URL or a name")
    if "://" in to and catalog is None:
        raise BadUsage(
            f"--to {to} needs --catalog: only a local folder can hold its catalog itself"
        )
    if any(one in to for one in "?#%") and "://" not in to:
        raise BadUsage(f"--to {to}: PyIceberg cannot read names with ?, # or %: rename the folder")
    namespace, _, last = (name or f"{topic.namespace}.{topic.topic}").rpartition(".")
    if name is not None and not (namespace and last and "/" not in name):
        raise BadUsage(f"--table {name}: give NAMESPACE.NAME, such as lake.flights")
    return Place(to, namespace, last, catalog, properties)


def _no_step(_: str) -> None: ...


def table(
    service: str, options: TableOptions, say: Callable[[str], None], *, step: Step = _no_step
) -> Outcome:
    """Write a topic into a table; `step` is called before each step that changes it, for tests."""
    started = time.monotonic()
    outcome = Outcome("table")
    follower = Follower(service, options, say, step)

    def how_far() -> None:
        tally = follower.tally
        outcome.summary = {
            "table": f"{options.place.namespace}.{options.place.name}",
            "rows": tally.rows,
            "commits": tally.commits,
            "bad_rows": tally.bad,
            "suspended": tally.suspended,
            "behind_messages": tally.behind,
            "times_outside_calendar": tally.odd_times,
            "conflicts": tally.conflicts,
            "files_joined": tally.joined,
            "snapshots_expired": tally.expired,
            "took_s": round(time.monotonic() - started, 1),
        }
        outcome.found(tally.findings, {"bad-row": tally.bad})

    with Signals():
        try:
            with told(outcome, how_far), only_follower(options.place):
                follower.run()
        except Interrupted as stop:
            return stop.ended("table")
        finally:
            follower.close()
    return outcome


class Follower:
    def __init__(
        self, service: str, options: TableOptions, say: Callable[[str], None], step: Step
    ) -> None:
        self._service = service
        self._options = options
        self._say = say
        self._step = step
        self._thread = LoopThread("octavo-table")
        self._reader = PieceReader(
            service, fail_on_data_loss=options.fail_on_data_loss, read_from="auto"
        )
        # Names the process for another machine's messages.
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._table = IcebergTable(options.place, self.name, step)
        self._columns: Columns | None = None
        self._schema: Mapping[str, Any] | None = None
        self._infers = options.infer
        self._pauses = Backoff(_PAUSE_S, _PAUSE_S_MAX, None)
        self.tally = _Tally()

    def close(self) -> None:
        self._thread.stop()

    def run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                is_full = self.commit_next()
                failures = 0
                self._pauses.reset()
            except _Suspended:
                return
            except _Widened:
                continue
            except Conflict as conflict:
                self.tally.conflicts += 1
                failures += 1
                self._failed(conflict, str(conflict), failures)
                continue
            except Exception as error:
                retryable = isinstance(error, OctavoError) and error.retryable
                why = str(error) if retryable else away(error)
                if why is None or isinstance(error, (BadUsage, InvalidOption)):
                    raise
                failures += 1
                self._table.forget()
                self._failed(error, why, failures)
                continue
            if is_full:
                continue
            if not self._options.follow:
                return
            time.sleep(max(0.0, self._options.every_s - (time.monotonic() - began)))

    def _failed(self, error: Exception, why: str, failures: int) -> None:
        if not self._options.follow and failures >= _TRIES_MAX:
            raise JobFailed(f"{why} (tried {failures} times)") from error
        pause = self._pauses.next_s()
        self._say(f"{why}: trying again in {pause:.1f} s")
        time.sleep(pause)

    def commit_next(self) -> bool:
        self._step("load")
        exists = self._table.load()
        try:
            views = self._thread.call(self._looked())
        except InvalidOption:
            if exists:  # say so, if the topic was there before
                check_topic(self._table.position(), self._options.topic, "")
            raise
        incarnation = views[0].incarnation
        if exists:
            position = self._table.position()
            check_topic(position, self._options.topic, incarnation)
        else:
            position = Position(self._options.topic, incarnation)
        if not exists and self._options.infer and self._schema is None:
            self._schema = self._inferred(position, views)
            if self._schema is None:
                return False
        columns = self._columns_for()
        if not exists:
            self._table.create(columns.arrow, self._properties(position))
            position = self._table.position()
            check_topic(position, self._options.topic, incarnation)
        self._table.check_mine()
        plan = self._plan(position, views, self._options.rows_max)
        if not plan.ranges:
            self.tally.behind = 0
            return False
        began = time.monotonic()
        self._step("read")
        batches, rows, reached = self._read(plan, columns)
        self._judge(rows)
        table = pa.Table.from_batches(batches, columns.arrow)
        self._table.append(table, position.at(reached), columns.arrow, self._properties(position))
        self._count(plan, table, rows, reached, time.monotonic() - began)
        if self.tally.commits % self._options.upkeep_commits == 0:
            self.keep_up()
        return self.tally.behind > 0 and (plan.is_full or reached != _ends(plan))

    def _plan(self, position: Position, views: list[View], rows_max: int) -> Plan:
        return next_ranges(
            position,
            views,
            rows_max=rows_max,
            bytes_max=self._options.bytes_max,
            fail=self._options.fail_on_data_loss,
        )

    def _inferred(self, position: Position, views: list[View]) -> Mapping[str, Any] | None:
        """Infer a schema; None: no message yet. Raises `TableUnusable` if no message has fields."""
        plan = self._plan(position, views, _INFER_ROWS)
        if not plan.ranges:
            return None
        batches, _, _ = self._read(plan, Columns(None))
        values = (value for one in batches for value in one.column("value").to_pylist())
        found = inferred(json_of(value) for value in values)
        if found is None:
            raise TableUnusable(
                "none of the first messages is a JSON object with fields, from which columns could "
                "be inferred: leave out --schema infer to keep the values as bytes"
            )
        return found

    async def _looked(self) -> list[View]:
        async with connected(self._service) as cluster:
            return await _views(cluster, self._options.topic)

    def _columns_for(self) -> Columns:
        if self._columns is None:
            self._schema = self._schema or self._chosen()
            self._columns = columns_of_schema(self._schema, keep_value=self._options.keep_value)
        return self._columns

    def _chosen(self) -> Mapping[str, Any] | None:
        given = self._options.schema
        if not self._table.exists:
            return given
        pinned = self._table.properties.get(SCHEMA, "")
        self._infers = given is None and self._table.properties.get(INFERRED) == "true"
        if pinned == "" and (given is not None or self._options.infer):
            raise BadUsage(
                "the table has values as bytes, in one column: leave out --schema, or choose "
                "another with --table NAMESPACE.NAME"
            )
        return given or (json.loads(pinned) if pinned else None)

    def _properties(self, position: Position) -> dict[str, str]:
        schema = self._schema
        return {
            TOPIC: position.topic,
            INCARNATION: position.incarnation,
            SCHEMA: "" if schema is None else json.dumps(schema),
            INFERRED: "true" if self._infers else "false",
        }

    def _read(
        self, plan: Plan, columns: Columns
    ) -> tuple[list[pa.RecordBatch], Rows, dict[int, int]]:
        parts = [one for given in plan.ranges for one in pieces(given.view, given.start, given.end)]
        with _without_collector():
            return self._rows_of(parts, plan, columns)

    def _rows_of(
        self, parts: list[Piece], plan: Plan, columns: Columns
    ) -> tuple[list[pa.RecordBatch], Rows, dict[int, int]]:
        records = self._thread.call(self._records(one.ledger_id for one in parts))
        rows = Rows(columns)
        batches: list[pa.RecordBatch] = []
        reached: dict[int, int] = {}
        size = 0
        stream: Any = self._thread.iterate(self._reader.batches(parts, records))
        with contextlib.closing(stream):
            for piece, found in stream:
                for batch in found:
                    rows.add(batch, piece.start, piece.end)
                    reached[piece.partition] = min(piece.end, batch.next_offset)
                    if rows.pending >= 20_000:
                        batches.append(rows.take())
                        size += batches[-1].nbytes
                if size + rows.misfit_bytes >= self._options.bytes_max:
                    break
            else:
                reached = _ends(plan)
        if rows.pending:
            batches.append(rows.take())
        return batches, rows, reached

    def _widen(self, rows: Rows) -> None:
        assert self._schema is not None
        schema = dict(self._schema)
        for one in rows.misfits:
            with contextlib.suppress(BadSchema):
                schema = widened(schema, json_of(one.value))
        if schema == self._schema:
            return
        with contextlib.suppress(BadSchema):
            columns = columns_of_schema(schema, keep_value=self._options.keep_value)
            if any(columns.fits(one.value) for one in rows.misfits):
                self._schema, self._columns = schema, columns
                raise _Widened

    def _judge(self, rows: Rows) -> None:
        if not rows.misfits:
            return
        if self._infers:
            self._widen(rows)
        self.tally.findings += [
            Finding(
                "bad-row", f"{self._options.topic}/{one.partition} offset {one.offset}", one.reason
            )
            for one in rows.misfits[: SHOWN_MAX - len(self.tally.findings)]
        ]
        if self._options.bad_rows == "suspend":
            self.tally.bad += len(rows.misfits)
            self.tally.suspended = True
            raise _Suspended

    async def _records(self, ledgers: Any) -> dict[str, bytes]:
        async with connected(self._service) as cluster:
            return await cluster.records_for(ledgers)

    def _count(
        self,
        plan: Plan,
        table: pa.Table,
        rows: Rows,
        reached: Mapping[int, int],
        took_s: float,
    ) -> None:
        tally = self.tally
        tally.commits += 1
        tally.rows += table.num_rows
        tally.bytes += table.nbytes
        tally.odd_times += rows.odd_times
        tally.bad += len(rows.misfits)
        starts = {given.view.partition: given.start for given in plan.ranges}
        tally.behind = plan.behind - sum(reached[one] - starts[one] for one in reached)
        said = {
            "commit": tally.commits,
            "rows": table.num_rows,
            "bytes": table.nbytes,
            "seconds": round(took_s, 2),
            "rows_total": tally.rows,
            "behind_messages": tally.behind,
            "newest_message_ms": rows.newest_ms,
        }
        if self._options.as_json:
            self._say(json.dumps(said))
            return
        self._say(
            f"commit {tally.commits}: {table.num_rows:,} rows in {took_s:.1f} s, {tally.rows:,} in "
            f"all; {tally.behind:,} messages behind"
        )

    def keep_up(self) -> None:
        with contextlib.suppress(Conflict):
            self._table.load()
            self._table.check_mine()
            self.tally.joined += self._table.join_small(self._options.upkeep)
            self._table.load()
            self.tally.expired += self._table.expire(self._options.upkeep)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Turn the garbage collector off: its passes over the messages take longer than their decoding.
    A commit's bounds also bound the garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _ends(plan: Plan) -> dict[int, int]:
    return {given.view.partition: given.end for given in plan.ranges}


async def _views(cluster: Cluster, topic: str) -> list[View]:
    numbers = (await cluster.partitions(Selection(topics=(topic,))))[topic]
    views = [await cluster.view(topic, number) for number in numbers]
    if len({one.incarnation for one in views}) > 1:
        raise InvalidOption(f"topic {topic} is being deleted and created again: try again")
    return views
