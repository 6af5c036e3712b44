"""A bookie whose journal could not be synced still said yes: to adds of entries that it had before.

What is here already is not journaled again, so its success did not pass through the journal, which
is what stops all others when a sync fails. The entry was durable, and nothing was lost by it; but a
process that has to end promises nothing any more, and whoever reasons about failed syncs relies on
that. Found by seed 685 of `sim`, the first whole run after a bookie compares what it is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.bookie.disk.files import DiskFull, SyncFailed
from octavo.bookie.journal.journal import journal_of
from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench, eventually, make_run

TWO = replace(CONFIG, journal_directories=("/j", "/k"), read_cache_bytes_max=1)
LEDGER = 1
OWN, OTHER = ("j", "k") if journal_of(LEDGER, 2) == 0 else ("k", "j")
NEIGHBOUR = next(n for n in range(2, 9) if journal_of(n, 2) != journal_of(LEDGER, 2))
PLACES = ["cache", "log"]


class Gate:
    """Where a call to the disk waits until the test lets it go."""

    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.entered.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


def failing(folder: str, gate: Gate | None = None) -> Callable[[str, str], None]:
    """Syncs of journals in `folder` fail, behind the gate if there is one."""

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.startswith(f"/{folder}/"):
            if gate is not None:
                gate.wait()
            raise SyncFailed(f"fdatasync {path}: input/output error")

    return hook


async def with_an_entry(place: str) -> Bench:
    """One that is here, and durable."""
    bench = Bench(TWO)
    await bench.start()
    for ledger_id in (LEDGER, NEIGHBOUR):
        assert await bench.add(ledger_id, 0) is Code.OK
    if place == "log":
        await bench.storage.checkpoint()
    assert await bench.add(LEDGER, 0) is Code.OK
    return bench


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("broken", [OWN, OTHER])
async def test_after_it_nothing_is_a_success(place: str, recovery: bool, broken: str) -> None:
    bench = await with_an_entry(place)
    bench.disk.hook = failing(broken)
    assert await bench.add(LEDGER if broken == OWN else NEIGHBOUR, 1) is Code.IO
    bench.disk.hook = lambda call, path: None
    for _ in range(2):
        assert await bench.add(LEDGER, 0, recovery=recovery) is Code.IO
    assert [type(error) for error in bench.fatal] == [SyncFailed]
    await bench.storage.close()


async def test_what_came_while_the_sync_was_failing() -> None:
    bench, gate = await with_an_entry("cache"), Gate()
    bench.disk.hook = failing(OWN, gate)
    new = bench.send(make_run(LEDGER, 1, [b""]))
    await eventually(gate.entered.is_set)
    again, of_the_new = (bench.send(make_run(LEDGER, entry_id, [b""])) for entry_id in (0, 1))
    gate.open()
    assert [await new, await again, await of_the_new] == [[Code.IO]] * 3
    await bench.storage.close()


async def test_a_sync_that_fails_while_entries_are_compared() -> None:
    """Not even when the disk has failed, and the loop does not know it yet."""
    bench, reading, syncing = await with_an_entry("log"), Gate(), Gate()
    sync_fails = failing(OWN, syncing)

    def hook(call: str, path: str) -> None:
        if call == "pread" and path.endswith(".log"):
            reading.wait()
        sync_fails(call, path)

    bench.disk.hook = hook
    again = bench.send(make_run(LEDGER, 0, [b""]))
    await eventually(reading.entered.is_set)
    new = bench.send(make_run(LEDGER, 1, [b""]))
    await eventually(syncing.entered.is_set)
    reading.open()
    queue = bench.storage._journals.of(LEDGER)._queue
    await eventually(lambda: again.done() or bool(queue))
    assert not again.done()
    syncing.open()
    assert [await new, await again] == [[Code.IO]] * 2
    await bench.storage.close()


async def test_of_a_full_disk_what_is_here_knows_nothing() -> None:
    bench = await with_an_entry("cache")

    def hook(call: str, path: str) -> None:
        if call == "pwritev" and path.startswith(f"/{OWN}/"):
            raise DiskFull(f"write {path}: no space left; free some space")

    bench.disk.hook = hook
    runs = [make_run(LEDGER, entry_id, [b""], recovery=True) for entry_id in (1, 0)]
    assert await bench.send(*runs) == [Code.READ_ONLY, Code.OK]
    bench.disk.hook = lambda call, path: None
    assert bench.fatal == []
    await bench.storage.close()


async def test_what_could_not_be_synced_is_a_success_once_it_is() -> None:
    """The next process reads it from the page cache, and has it on the disk before it says yes."""
    bench = await with_an_entry("cache")
    bench.disk.hook = failing(OWN)
    assert await bench.add(LEDGER, 1) is Code.IO
    await bench.storage.close()
    bench.disk.hook = lambda call, path: None
    await bench.start()
    assert await bench.storage.reads.entries(LEDGER) == [(0, 1)]
    assert await bench.add(LEDGER, 1) is Code.OK
    await bench.crash()
    assert await bench.storage.reads.entries(LEDGER) == [(0, 1)]
    await bench.storage.close()
