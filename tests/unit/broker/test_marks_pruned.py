"""Which bulk-load marks a partition drops when it has many: only those that no caller asks for
again.

If a mark is dropped while its batch is not complete, the batch can be taken in twice. Random bulk
loads, some of them forgotten and used again.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.bulkload import rules
from octavo.broker.partition.part_loader import PartLoader
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadRecord


@pytest.mark.parametrize("seed", range(40))
async def test_only_what_is_finished_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    records: dict[str, BulkLoadRecord] = {}
    marks: dict[str, int] = {}
    needed: set[str] = set()
    for number in range(rng.randint(1, 12)):
        name, batch = f"t{number}", rng.randint(0, 5)
        record = BulkLoadRecord(batch=batch, complete=rng.random() < 0.5, since_ms=7)
        records[name] = record
        behind, again = rng.random() < 0.3, rng.random() < 0.2
        mark = f"{name}@{5 if again else 7}"
        marks[mark] = batch - behind
        if not (record.complete or behind or again):
            needed.add(mark)

    async def read(bulk_load: str) -> tuple[BulkLoadRecord, int]:
        return records[bulk_load], 1

    context: Any = SimpleNamespace(bulk_loads=SimpleNamespace(read=read))
    keeper: Any = SimpleNamespace(value=SimpleNamespace(bulk_loads=marks))
    loader = PartLoader(PartitionName("public", "t", 0), context, keeper)
    monkeypatch.setattr(rules, "MARKS_MAX", len(marks))
    assert await loader._finished() == marks.keys() - needed
    monkeypatch.setattr(rules, "MARKS_MAX", len(marks) + 1)
    assert await loader._finished() == set(), "few marks cost nothing"
