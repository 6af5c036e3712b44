"""A topic as an Iceberg table: each message once, whatever happens between two commits."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs octavo[tables]")
pytest.importorskip("pyiceberg", reason="needs octavo[tables]")

from octavo.broker.types import PartitionName, TopicName
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.runner import BadUsage, JobFailed
from octavo.pipeline.table import TableOptions, table
from octavo.pipeline.table_iceberg import Place, TableTaken, catalog_of
from octavo.pipeline.table_rules import TableUnusable, TopicReplaced, Upkeep, position_in
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.cluster import Cluster, RunningBroker, make_topic, owned, running_cluster

TOPIC = TopicName("public", "flights")
DAY_MS = 86_400_000
ROWS = 7
"""Messages of a batch: bounds of commits lie within batches."""
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass
class World:
    cluster: Cluster
    running: RunningBroker
    to: Path
    said: list[str] = field(default_factory=list)
    published: int = 0

    @property
    def service(self) -> str:
        return f"file://{self.cluster.folder / 'metadata.db'}"

    def options(self, **more: Any) -> TableOptions:
        place = more.pop("place", None) or Place(str(self.to), "public", "flights")
        return TableOptions(str(TOPIC), place, **{"rows_max": 25, **more})

    async def table(self, step: Callable[[str], None] | None = None, **more: Any) -> Outcome:
        options = self.options(**more)
        steps = {} if step is None else {"step": step}
        return await asyncio.to_thread(table, self.service, options, self.said.append, **steps)

    async def publish(self, batches: int, partition: int = 0, value: Any = None) -> None:
        place = await owned(self.running.broker, TOPIC.partition(partition))
        for _ in range(batches):
            records = []
            for row in range(ROWS):
                number = self.published * ROWS + row
                said = b"v%d" % number if value is None else value(number)
                headers = (("n", b"%d" % number),) if number % 3 else ()
                key = b"k%d" % number if number % 2 else None
                records.append(Record(key, said, headers, 1_000 + number * DAY_MS // 40))
            await place.publish(build_batch(records))
            self.published += 1
        await seen(self, partition, place.next_offset)

    async def messages(self) -> list[Row]:
        return [
            row
            for number in range(2)
            for row in await stored(self.running, TOPIC.partition(number))
        ]

    def read(self, name: str = "flights") -> Any:
        return catalog_of(Place(str(self.to), "public", name)).load_table(("public", name))

    def rows(self) -> list[Row]:
        found = self.read().scan().to_arrow().to_pylist()
        return sorted(map(as_message, found), key=lambda row: row[:2])


def as_message(row: dict[str, Any]) -> Row:
    time = row["timestamp"]
    time_ms = row["timestamp_ms"] if time is None else round(time.timestamp() * 1000)
    headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
    return row["partition"], row["offset"], time_ms, row["key"], row["value"], headers


async def stored(running: RunningBroker, name: PartitionName) -> list[Row]:
    partition = await owned(running.broker, name)
    found: list[Row] = []
    offset = 0
    while offset < partition.next_offset:
        for one in await partition.read(offset, bytes_max=100_000, count_max=10_000):
            found += [
                (
                    name.partition,
                    one.base_offset + number,
                    r.timestamp_ms,
                    r.key,
                    r.value,
                    tuple(r.headers),
                )
                for number, r in enumerate(read_records(one.data))
            ]
            offset = one.next_offset
    return found


async def seen(world: World, partition: int, end: int) -> None:
    from octavo.spark.cluster import connected

    async with asyncio.timeout(60), connected(world.service) as cluster:
        while (await cluster.view(str(TOPIC), partition)).end < end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_cluster(tmp_path, session_timeout_ms=60_000) as cluster:
        running = await cluster.start("A")
        await make_topic(running.broker, TOPIC, partitions=2, rollover_entries=4)
        yield World(cluster, running, tmp_path / "tables")


async def test_the_table_is_the_topic_message_by_message(world: World) -> None:
    """Commits of 25 rows cut batches of 7 rows, in two partitions and several ledgers."""
    await world.publish(11)
    await world.publish(6, partition=1)
    found = await world.table()
    assert found.exit == 0
    assert found.summary["rows"] == 17 * ROWS
    assert found.summary["commits"] == 5
    assert found.summary["behind_messages"] == 0
    assert world.rows() == await world.messages()

    await world.publish(2, partition=1)
    assert (await world.table()).summary["rows"] == 2 * ROWS
    assert (await world.table()).summary["commits"] == 0, "nothing is new"
    assert world.rows() == await world.messages()
    position = position_in(world.read().current_snapshot().summary.additional_properties)
    assert position is not None
    assert position.offsets == {0: 11 * ROWS, 1: 8 * ROWS}


class Died(BaseException):
    pass


class Nth:
    def __init__(self, number: int) -> None:
        self.number = number
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) - 1 == self.number:
            raise Died(step)


async def test_killed_at_any_step_and_started_again_it_is_exact(world: World) -> None:
    """Each run dies one step later than the run before, until runs come through whole."""
    upkeep = Upkeep(merge_files_min=2, keep_ms=0, keep_min=1)
    died_at: set[str] = set()
    number = 0
    while True:
        await world.publish(1, partition=number % 2)
        step = Nth(number)
        try:
            await world.table(step, rows_max=5, upkeep=upkeep, upkeep_commits=1)
        except Died as died:
            died_at.add(str(died))
            number += 1
            continue
        break
    assert world.rows() == await world.messages()
    assert {"load", "create", "read", "write", "commit append", "committed append"} <= died_at
    assert {"write join", "commit join", "committed join", "commit expire"} <= died_at
    assert len(world.rows()) == world.published * ROWS


async def test_a_commit_of_another_program_is_never_overwritten(world: World) -> None:
    """Another program deletes rows, adds a property, and rolls back, each between our reading of
    the table and our commit."""
    await world.publish(3)
    await world.table()
    done: list[str] = []

    def meddle(step: str) -> None:
        if step == "commit append" and not done:
            done.append(step)
            world.read().delete('"offset" = 3')

    await world.publish(3)
    found = await world.table(meddle)
    assert found.summary["conflicts"] == 1
    rows = world.rows()
    assert rows == [row for row in await world.messages() if row[1] != 3]

    first = min(world.read().metadata.snapshots, key=lambda one: one.sequence_number)
    world.read().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert (await world.table()).summary["rows"] == 3 * ROWS
    assert world.rows() == await world.messages()


async def test_two_followers_of_one_table(world: World) -> None:
    """The second on this machine is refused. Two on different machines share no lock: the first
    ends at its next commit."""
    await world.publish(3)
    refused: list[BaseException] = []

    def second(step: str) -> None:
        if step == "read" and not refused:
            with pytest.raises(TableTaken, match=f"process {os.getpid()} already follows") as told:
                table(world.service, world.options(), world.said.append)
            refused.append(told.value)

    assert (await world.table(second)).summary["rows"] == 3 * ROWS
    assert refused

    await world.publish(4)
    elsewhere = Place(f"file://{world.to}", "public", "flights", f"sqlite:///{world.to}/catalog.db")
    others: list[Outcome] = []

    def other_machine(step: str) -> None:
        if step == "committed append" and not others:
            others.append(table(world.service, world.options(place=elsewhere), world.said.append))

    with pytest.raises(TableUnusable, match="follows the topic into this table: this job ends"):
        await world.table(other_machine, rows_max=10)
    assert others[0].summary["rows"] > 0
    assert world.rows() == await world.messages()


async def test_a_topic_that_is_deleted_and_made_again_is_not_mixed_in(world: World) -> None:
    await world.publish(3)
    await world.table()
    before = world.rows()
    await world.running.broker.topics.delete(TOPIC)
    with pytest.raises(TopicReplaced, match="was deleted since this table began"):
        await world.table()
    await make_topic(world.running.broker, TOPIC, partitions=2)
    await world.publish(5)
    with pytest.raises(TopicReplaced, match="was deleted and created again"):
        await world.table()
    assert world.rows() == before
    other = Place(str(world.to), "public", "flights2")
    assert (await world.table(place=other)).summary["rows"] == 5 * ROWS
    await make_topic(world.running.broker, TopicName("public", "x"))
    options = TableOptions("public/x", other)
    with pytest.raises(TableUnusable, match="the table holds topic public/flights, not public/x"):
        await asyncio.to_thread(table, world.service, options, world.said.append)


async def test_times_outside_the_calendar_are_kept_as_numbers(world: World) -> None:
    place = await owned(world.running.broker, TOPIC.partition(0))
    times = [-1, 2**62, 253_402_300_799_999, 253_402_300_800_000, 0]
    await place.publish(build_batch([Record(None, b"v", (), time) for time in times]))
    await seen(world, 0, len(times))
    found = await world.table()
    assert found.summary["times_outside_calendar"] == 3
    assert [row[2] for row in world.rows()] == times
    odd = world.read().scan(row_filter="timestamp is null").to_arrow()
    assert odd.column("timestamp_ms").to_pylist() == [-1, 2**62, 253_402_300_800_000]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer"},
        "Key": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "from": {"type": "object", "properties": {"a.b": {"type": ["number", "null"]}}},
    },
}


async def test_values_become_columns_by_a_schema(world: World) -> None:
    """A field with the name of a message's column gets another name; a message without a value
    is a row without fields."""

    def value(number: int) -> bytes | None:
        if number == 3:
            return None
        more = {"Key": f"N{number}"} if number % 2 else {}
        at = {"at": "2024-01-01T02:00:00+02:00", "tags": ["x"], "from": {"a.b": number}}
        return json.dumps({"n": number, **more, **(at if number == 4 else {})}).encode()

    await world.publish(1, value=value)
    await world.table(schema=SCHEMA)
    rows = world.read().scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["n"] for row in rows] == [0, 1, 2, None, 4, 5, 6]
    assert [row["value_Key"] for row in rows] == [None, "N1", None, None, None, "N5", None]
    assert rows[4]["at"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert (rows[4]["tags"], rows[4]["from"]) == (["x"], {"a_b": 4.0})
    assert "value" not in rows[0]

    wider = {**SCHEMA, "properties": {**SCHEMA["properties"], "delay": {"type": "number"}}}
    await world.publish(1, value=lambda n: b'{"n": %d, "delay": 1.5}' % n)
    await world.table(schema=wider)
    rows = world.read().scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["delay"] for row in rows] == [None] * 7 + [1.5] * 7
    assert json.loads(world.read().properties["octavo.schema"]) == wider

    # The schema is the table's: a run without --schema uses it.
    await world.publish(1, value=lambda n: b'{"n": %d, "delay": 2.5}' % n)
    assert (await world.table()).summary["rows"] == 7
    assert world.read().scan().to_arrow().column("delay").to_pylist().count(2.5) == 7
    raw = Place(str(world.to), "public", "raw")
    await world.table(place=raw)
    with pytest.raises(BadUsage, match="the table has values as bytes"):
        await world.table(place=raw, schema=SCHEMA)


async def test_a_value_that_does_not_fit_suspends_or_is_skipped(world: World) -> None:
    await world.publish(1, value=lambda n: b'{"n": %d}' % n)
    await world.publish(1, value=lambda n: b"{" if n == 9 else b'{"n": %d}' % n)
    found = await world.table(schema=SCHEMA, rows_max=ROWS)
    assert (found.exit, found.summary["suspended"]) == (1, True)
    assert found.summary["rows"] == ROWS, "the commit before it is made"
    assert found.findings[0].where == "public/flights/0 offset 9"
    assert "truncated" in found.findings[0].what
    assert (await world.table(schema=SCHEMA)).summary["rows"] == 0
    found = await world.table(schema=SCHEMA, bad_rows="skip")
    assert (found.exit, found.summary["bad_rows"], found.summary["rows"]) == (1, 1, ROWS - 1)
    offsets = world.read().scan().to_arrow().column("offset").to_pylist()
    assert sorted(offsets) == [one for one in range(2 * ROWS) if one != 9]


async def test_three_readers_find_the_topic_in_the_table(world: World) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs octavo[dev]")
    polars = pytest.importorskip("polars", reason="needs octavo[dev]")
    upkeep = Upkeep(merge_files_min=2, keep_ms=0, keep_min=1)
    await world.publish(9)
    await world.publish(4, partition=1)
    found = await world.table(upkeep=upkeep, upkeep_commits=2)
    assert found.summary["files_joined"] > 2
    assert found.summary["snapshots_expired"] > 2
    messages = await world.messages()
    assert world.rows() == messages
    values = sorted((partition, offset, value) for partition, offset, _, _, value, _ in messages)
    iceberg = world.read()
    frame = polars.scan_iceberg(iceberg).select("partition", "offset", "value").collect()
    assert sorted(frame.rows()) == values
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        extension = pytest.importorskip(f"duckdb_extension_{name}", reason="needs octavo[dev]")
        (file,) = Path(extension.__file__).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    rows = connection.execute(
        f"SELECT partition, \"offset\", value FROM iceberg_scan('{iceberg.metadata_location}')"
    )
    assert sorted(rows.fetchall()) == values
    alive = {Path(one.file.file_path) for one in iceberg.scan().plan_files()}
    there = set(world.to.rglob("*.parquet"))
    assert alive <= there
    assert len(there - alive) <= 2 * len(alive), "files of expired snapshots are deleted"


async def test_fields_are_inferred_pinned_and_grow(world: World) -> None:
    """The first messages give the columns; a later field becomes a column in the same commit; a
    value of another type is bad."""
    assert (await world.table(infer=True)).summary["commits"] == 0
    assert not (world.to / "public" / "flights").exists(), "without a message there is no table"
    await world.publish(2, value=lambda n: b'{"n": %d, "tail": "N%d"}' % (n, n))
    await world.table(infer=True)
    names = {one.name for one in world.read().schema().fields}
    assert {"n", "tail"} < names

    await world.publish(1, value=lambda n: b'{"n": %d, "in": {"gate": "A%d"}}' % (n, n))
    await world.publish(1, value=lambda n: b'{"n": %d, "in": {"gate": "B", "row": 1}}' % n)
    found = await world.table()
    assert (found.summary["rows"], found.summary["bad_rows"]) == (2 * ROWS, 0)
    rows = world.read().scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["n"] for row in rows] == list(range(4 * ROWS))
    assert rows[0]["in"] is None
    assert rows[2 * ROWS]["in"] == {"gate": "A14", "row": None}
    assert rows[-1]["in"] == {"gate": "B", "row": 1}

    await world.publish(1, value=lambda n: b'{"n": "x"}' if n == 4 * ROWS else b'{"n": 1}')
    found = await world.table()
    assert (found.exit, found.summary["suspended"]) == (1, True)
    assert "Expected `int | null`, got `str` - at `$.n`" in found.findings[0].what
    assert (await world.table(bad_rows="skip")).summary["rows"] == ROWS - 1

    text = Place(str(world.to), "public", "text")
    await world.running.broker.topics.delete(TOPIC)
    await make_topic(world.running.broker, TOPIC, partitions=2)
    await world.publish(1)
    with pytest.raises(TableUnusable, match="none of the first messages is a JSON object"):
        await world.table(infer=True, place=text)


async def test_a_catalog_that_is_away_and_a_full_disk_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is locked by another program, then the disk is full, then nothing answers."""
    from sqlalchemy.exc import OperationalError

    monkeypatch.setattr("octavo.pipeline.table._PAUSE_S", 0.01)
    await world.publish(4)
    errors: list[Exception] = [
        OperationalError("update", {}, Exception("database is locked")),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)),
    ]
    at = ["load", "write", "commit append"]

    def fail(step: str) -> None:
        if at and step == at[0]:
            at.pop(0)
            raise errors.pop(0)

    found = await world.table(fail)
    assert found.summary["rows"] == 4 * ROWS
    assert world.rows() == await world.messages()
    said = "\n".join(world.said)
    assert "database is locked" in said
    assert "No space left on device" in said
    assert "Connection refused: trying again in" in said.replace("[Errno 111] ", "")

    def always(step: str) -> None:
        if step == "load":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(JobFailed, match=r"No space left on device.*tried 5 times"):
        await world.table(always)
