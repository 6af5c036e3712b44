"""Offloaded objects as an Iceberg table: what records name, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs octavo[tables]")

from octavo.ledger.errors import OffloadDamaged
from octavo.ledger.offload.format import BY_ENTRY, About, ObjectWriter
from octavo.metadata.offloads import COPYING, OFFLOADED
from octavo.metadata.topics import OffloadRecord, PartitionLedger, PartitionRecord
from octavo.pipeline.offload_table import Registered, register
from octavo.pipeline.table_iceberg import Conflict, IcebergTable, Place, catalog_of
from octavo.pipeline.table_rules import TableUnusable, TopicReplaced
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch

TOPIC = "public/flights"


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = Place(str(folder), "public", "flights")

    def ledger(self, number: int, count: int, *, by: int = 2, **changed: Any) -> PartitionLedger:
        """Write an object with `count` messages; return the ledger that it is a copy of."""
        base = number * 100
        path = self.folder / "public" / "flights" / "0" / f"ledger-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        payload = build_batch(
            [Record(b"k%d" % (n % 3), b"%d" % (base + n), [], n) for n in range(count)]
        )
        with path.open("wb") as file:
            writer = ObjectWriter(file, About(number, "u", TOPIC, 0, base, 1, by))
            writer.add([Entry(number, 0, -1, len(payload), payload)])
            facts = writer.close()
        offload = OffloadRecord("u", OFFLOADED, path.as_uri(), 0, 1, facts.bytes, facts.crc)
        return PartitionLedger(number, base, count, offload=offload, **changed)

    def register(self, *ledgers: PartitionLedger, incarnation: str = "i1") -> Registered:
        return register(self.place, TOPIC, incarnation, [PartitionRecord(ledgers)])

    def table(self) -> Any:
        return catalog_of(self.place).load_table(("public", "flights"))

    def values(self) -> list[bytes]:
        return sorted(self.table().scan().to_arrow().column("value").to_pylist())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def expected(*ledgers: tuple[int, int]) -> list[bytes]:
    return sorted(b"%d" % (number * 100 + n) for number, count in ledgers for n in range(count))


def test_the_table_follows_the_records_without_a_copy(world: World) -> None:
    one, two, three = world.ledger(1, 10), world.ledger(2, 20), world.ledger(3, 5)
    assert world.register(one, two) == (2, 0, 0)
    assert world.values() == expected((1, 10), (2, 20))
    assert world.register(one, two) == (0, 0, 0)
    assert world.register(two, three) == (1, 1, 0)
    assert world.values() == expected((2, 20), (3, 5))
    files = world.table().inspect.files().column("file_path").to_pylist()
    assert sorted(files) == sorted(one.offload.url for one in (two, three) if one.offload)
    assert len([*world.folder.rglob("*.parquet")]) == 3, "no second copy"
    bounds = world.table().inspect.files().column("readable_metrics").to_pylist()
    assert sorted(one["offset"]["lower_bound"] for one in bounds) == [200, 300]


def test_a_topic_without_objects_gets_no_table(world: World) -> None:
    """With `--all` there would be an empty table for each topic."""
    from pyiceberg.exceptions import NoSuchTableError

    assert world.register() == (0, 0, 0)
    with pytest.raises(NoSuchTableError):
        world.table()
    one = world.ledger(1, 3)
    assert world.register(one) == (1, 0, 0)
    assert world.register() == (0, 1, 0)
    assert world.values() == []


def test_a_damaged_object_is_named(world: World) -> None:
    one = world.ledger(1, 3)
    assert one.offload
    Path(one.offload.url.removeprefix("file://")).write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(OffloadDamaged, match=r"ledger-1\.parquet is damaged"):
        world.register(one)


def test_engines_read_it(world: World) -> None:
    world.register(world.ledger(1, 10), world.ledger(2, 20))
    table = world.table()
    polars = pytest.importorskip("polars")
    frame = polars.scan_iceberg(table).collect()
    assert sorted(frame["value"].to_list()) == expected((1, 10), (2, 20))


def test_objects_that_engines_cannot_read_are_left_out(world: World) -> None:
    old = world.ledger(1, 3, by=BY_ENTRY)
    good = world.ledger(2, 4)
    secret, unfinished = world.ledger(3, 5), world.ledger(4, 6)
    assert secret.offload
    assert unfinished.offload
    object.__setattr__(secret.offload, "encryption", "wrapped")
    object.__setattr__(unfinished.offload, "state", COPYING)
    assert world.register(old, good, secret, unfinished) == (1, 0, 1)
    assert world.values() == expected((2, 4))


def test_a_topic_made_again_is_never_mixed_in(world: World) -> None:
    world.register(world.ledger(1, 10))
    with pytest.raises(TopicReplaced, match="created again"):
        world.register(world.ledger(2, 10), incarnation="i2")
    assert world.values() == expected((1, 10))


def test_the_job_table_does_not_add_to_it(world: World) -> None:
    world.register(world.ledger(1, 10))
    table = IcebergTable(world.place, "f", lambda _: None)
    assert table.load()
    with pytest.raises(TableUnusable, match="objects of octavo pipeline offload"):
        table.position()


def test_a_table_of_another_kind_is_refused(world: World) -> None:
    import pyarrow as pa

    table = IcebergTable(world.place, "f", lambda _: None)
    table.load()
    table.create(pa.schema([("timestamp", pa.timestamp("us", tz="UTC"))]), {})
    with pytest.raises(TableUnusable, match="was not made by octavo pipeline offload"):
        world.register(world.ledger(1, 10))


def test_a_change_by_another_program_is_met_with_another_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.ledger(1, 10), world.ledger(2, 20)
    world.register(one)
    real, between = IcebergTable.change_files, [two]

    def change(table: IcebergTable, added: Any, removed: Any) -> None:
        if between:
            between.pop()
            other = IcebergTable(world.place, "f", lambda _: None)
            assert other.load()
            assert two.offload
            real(other, [two.offload.url], [])
        real(table, added, removed)

    monkeypatch.setattr(IcebergTable, "change_files", change)
    three = world.ledger(3, 5)
    assert world.register(one, two, three) == (1, 0, 0)
    assert world.values() == expected((1, 10), (2, 20), (3, 5))


def test_changes_all_the_time_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(*_: Any) -> None:
        raise Conflict("changed")

    monkeypatch.setattr(IcebergTable, "change_files", change)
    with pytest.raises(Conflict):
        world.register(world.ledger(1, 10))
