"""Cold reads during a flush, whose look-ups may be outdated by then; reads of damaged logs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bookie.back_pressure import AddBurst, Budget
from octavo.bookie.read.cache import CachedExtent, ReadCache
from octavo.bookie.read.cold_reads import ColdReads
from octavo.bookie.read.path import ReadPath
from octavo.bookie.stats import ReadStats
from octavo.bookie.write.cache import WriteCache
from octavo.protocol.codes import BookieIOError, UnknownState
from tests.support.raw_bookie import adds_of, config_in, entry_of
from tests.support.storage_support import make_run

LEDGER = 1


class Threads(Executor):
    """Each read ends when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[Future[list[CachedExtent]]] = []

    def submit(self, *_: object, **__: object) -> Future[Any]:
        self.under_way.append(Future())
        return self.under_way[-1]


def a_run(payload: bytes) -> CachedExtent:
    return CachedExtent(LEDGER, 0, 1, adds_of(LEDGER, range(2), payload))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_flush_ends_what_older_reads_may_answer() -> None:
    """A later request neither joins them nor finds their result in the cache."""
    threads, unused = Threads(), Any
    cache = ReadCache(1 << 20)
    cold = ColdReads(
        config_in(Path("/nowhere"), read_threads=2),
        executor=threads,
        index=unused,  # type: ignore[arg-type]
        logs=unused,  # type: ignore[arg-type]
        cache=cache,
        damages=unused,  # type: ignore[arg-type]
        stats=ReadStats(),
        burst=AddBurst(),
    )
    before = asyncio.create_task(cold.run_with(LEDGER, 0))
    joined = asyncio.create_task(cold.run_with(LEDGER, 0))
    await turns()
    cold.index_changed()
    after = asyncio.create_task(cold.run_with(LEDGER, 0))
    await turns()
    assert len(threads.under_way) == 2, "the second one joined, the third one may not"

    threads.under_way[0].set_result([a_run(b"older")])
    for read in (before, joined):
        run = await read
        assert run is not None
        assert run.entry(0) == entry_of(LEDGER, 0, b"older")
    assert not after.done()
    assert cache.find(LEDGER, 0) is None

    threads.under_way[1].set_result([a_run(b"newer")])
    run = await after
    assert run is not None
    assert run.entry(0) == entry_of(LEDGER, 0, b"newer")
    assert cache.find(LEDGER, 1) is run


async def test_what_cannot_be_read_ends_a_batch_that_has_something() -> None:
    """The reader gets the good entries, and the error when it asks for the bad one alone."""

    class Damaged:
        wait_s_max = 1.0

        async def run_with(self, *_: object, **__: object) -> None:
            raise BookieIOError("entry log /l/1.log at byte 5: checksum does not match")

    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, last_entry=lambda _: 9
    )
    damaged: Any = Damaged()
    lookups = ReadStats().lookups
    reads = ReadPath(control, cache, ReadCache(1 << 20), damaged, Budget(1 << 20), lookups)
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    with pytest.raises(BookieIOError):
        await reads.read_many(LEDGER, 2, 9, 1 << 20)
    assert reads._answers.used == 0


async def test_who_has_the_last_entry_from_memory_does_not_ask_the_disk() -> None:
    """If the bookie may have lost later entries, the disk's answer counts."""

    class Asked:
        wait_s_max = 1.0
        times = 0

        async def run_with(self, *_: object, **__: object) -> None:
            self.times += 1

    def unsure(_: int) -> int:
        raise UnknownState("this bookie may have lost some of it")

    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, last_entry=lambda _: 1
    )
    disk: Any = Asked()
    lookups = ReadStats().lookups
    reads = ReadPath(control, cache, ReadCache(1 << 20), disk, Budget(1 << 20), lookups)
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    assert len(reads.read_now(LEDGER, 1, 9, 1 << 20) or ()) == 1
    assert disk.times == 0
    control.last_entry = lambda _: 2
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    control.last_entry = unsure
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    assert disk.times == 2
