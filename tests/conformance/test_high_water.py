"""The high-water mark over every kind of store: older metadata is refused, or its ids are
skipped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.high_water import HighWaterMark, MetadataOlder, read_high_water
from octavo.metadata.bookies import BookieRegistry, Cookie
from octavo.metadata.high_water import HIGH_WATER_ROOT, HighWater, HighWaterStore
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerStore
from octavo.metadata.store import RecordNotFound
from tests.support.metadata_trees import Tree

NEW = LedgerMetadata(-1, 3, 3, 2, (Fragment(0, ("a:1", "b:1", "c:1")),))
PATH = f"{HIGH_WATER_ROOT}/b1"


async def at_once(call: Any, *args: Any) -> Any:
    return call(*args)


def mark_of(store: Any, folder: Path) -> HighWaterMark:
    ledgers = LedgerStore(store, rng=random.Random(1))
    disk = RealDisk()
    disk.make_directory(str(folder))
    return HighWaterMark("b1", HighWaterStore(store), ledgers, disk, [str(folder)], at_once)


async def put_back(store: Any, value: bytes | None) -> None:
    """Do to the record what a copy of the metadata does."""
    if value is None:
        await store.delete(PATH)
    else:
        _, version = await store.get(PATH)
        await store.put(PATH, value, version)


async def test_a_copy_that_is_put_back_is_refused(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    await LedgerStore(store, rng=random.Random(1)).initialize()
    await mark_of(store, tmp_path).start(accept_older=False)
    copy, _ = await store.get(PATH)
    running = mark_of(store, tmp_path)
    await running.start(accept_older=False)
    await running.rise()
    for older in (copy, None):
        await put_back(store, older)
        with pytest.raises(MetadataOlder, match="--accept-older-metadata"):
            await mark_of(store, tmp_path).start(accept_older=False)
        with pytest.raises(MetadataOlder):  # and by a bookie that has been up all the time
            await running.rise()


async def test_who_accepts_it_draws_ids_that_none_had(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    ledgers = LedgerStore(store, rng=random.Random(1))
    await ledgers.initialize()
    first, _ = await ledgers.create(NEW)
    mark = mark_of(store, tmp_path)
    await mark.start(accept_older=False)
    copy, _ = await store.get(PATH)
    await ledgers.draw_beyond(6)  # later, and unknown to the copy
    later, _ = await ledgers.create(NEW)
    await mark.rise()
    await put_back(store, copy)
    await store.delete(f"/ledgers/idgen-long/HOB-{7:010d}")
    again = mark_of(store, tmp_path)
    await again.start(accept_older=True)
    new, _ = await ledgers.create(NEW)
    assert first.ledger_id < later.ledger_id < new.ledger_id
    assert new.ledger_id >> 32 == 8
    await mark_of(store, tmp_path).start(accept_older=False)  # once is enough
    held = read_high_water(RealDisk(), [str(tmp_path)])
    assert held is not None
    assert held.seen == 4
    assert held.stretch == 8


async def test_accepting_what_is_not_older_changes_no_ids(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    ledgers = LedgerStore(store, rng=random.Random(1))
    await ledgers.initialize()
    await mark_of(store, tmp_path).start(accept_older=True)
    await mark_of(store, tmp_path).start(accept_older=True)
    assert await ledgers.stretch() == 0


async def test_a_forgotten_bookie_leaves_no_mark(tree: Tree) -> None:
    store = await tree.open()
    registry, marks = BookieRegistry(store), HighWaterStore(store)
    await registry.write_cookie(Cookie("b1", "/j", ("/l",)))
    _, version = await marks.read("b1")
    await marks.write("b1", HighWater(1, 0), version)
    await registry.delete_cookie("b1", 0)
    with pytest.raises(RecordNotFound):
        await store.get(PATH)
