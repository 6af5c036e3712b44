"""One sector that the disk refuses to read ended the whole bookie, at each round of the collector.

A census reads the ledgers map at the end of every entry log, straight from the file: what the disk
said came up as a `DiskError`, which nobody takes for damage, so the round ended with it and the
bookie too; and again ten minutes after its restart. The same raw reads ended a start that had been
told to accept losses. Found by reading the engine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import DiskError
from octavo.bookie.gc.status import ledger_sizes
from octavo.bookie.startup.repair import restore_states
from octavo.protocol.codes import BookieIOError, Code
from tests.support.storage_support import CONFIG, Bench

SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def sealed_logs(bench: Bench) -> list[int]:
    for ledger_id in range(3):
        assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
        await bench.storage.checkpoint()
    return bench.storage.logs.log_ids


def refuse(bench: Bench, path: str) -> None:
    def hook(call: str, its_path: str) -> None:
        if call == "pread" and its_path == path:
            raise DiskError(f"pread {path}: input/output error")

    bench.disk.hook = hook


async def test_a_census_names_the_log_and_goes_on() -> None:
    async with Bench(SMALL) as bench:
        first, second, _ = await sealed_logs(bench)
        await bench.restart()
        path = bench.storage.logs.path_of(first)
        refuse(bench, path)
        counted = await bench.storage.compactor.log_metadata({})
        assert not counted.complete
        assert {facts.log_id: bool(facts.why_not) for facts in counted.logs}[first]
        assert not {facts.log_id: bool(facts.why_not) for facts in counted.logs}[second]
        (damage,) = bench.storage.damages.current()
        assert (damage.kind, damage.path) == (DamageKind.UNREADABLE, path)
        sizes = await ledger_sizes(bench.storage.logs, {})
        assert [log["log_id"] for log in sizes["unreadable_logs"]] == [first]


async def test_stepping_through_it_is_an_unknown_not_an_end() -> None:
    async with Bench(SMALL) as bench:
        first, second, third = await sealed_logs(bench)
        await bench.restart()
        logs = bench.storage.logs
        refuse(bench, logs.path_of(second))
        with pytest.raises(BookieIOError):
            list(logs.scan_all(second))
        states = bench.storage._states
        for ledger_id in range(3):
            states._all.pop(ledger_id)
        assert restore_states(logs, states, (first, 0)) == 2, f"of {first} and {third}"
