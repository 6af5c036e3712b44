"""Metrics of a bookie's writes: groups, queue, syncs, flushes, and where its bytes are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bookie.disk.files import DiskFull, RealDisk
from octavo.bookie.gc.rules import Action, Decision, LogFacts
from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.metrics import BookieMetrics
from tests.support.storage_support import CONFIG, Bench, make_run


def value(metrics: BookieMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None, (name, labels)
    return found


def observed(bench: Bench) -> BookieMetrics:
    metrics = BookieMetrics()
    metrics.writing.observe(bench.storage.write_stats)
    return metrics


async def test_a_group_tells_its_size_its_appends_and_its_wait() -> None:
    bench = Bench()
    async with bench:
        metrics = observed(bench)
        runs = [make_run(1, number, [b"x" * 100]) for number in range(3)]
        await asyncio.gather(*(bench.send(run) for run in runs))
        assert value(metrics, "octavo_bookie_group_appends_sum") == 3
        assert value(metrics, "octavo_bookie_group_bytes_sum") == sum(
            len(run.frames) for run in runs
        )
        groups = value(metrics, "octavo_bookie_group_seconds_count")
        assert value(metrics, "octavo_bookie_queue_seconds_count") == groups
        bench.disk.hook = lambda call, path: _dawdle(call)
        slow = bench.send(make_run(1, 3, [b"slow"]))
        await asyncio.sleep(0.02)
        await asyncio.gather(slow, bench.send(make_run(1, 4, [b"waits for it"])))
        assert value(metrics, "octavo_bookie_queue_seconds_sum") > 0.05, (
            "the second waited for the first"
        )


def _dawdle(call: str) -> None:
    if call == "datasync":
        time.sleep(0.1)


async def test_bytes_move_from_journal_and_cache_to_the_logs() -> None:
    bench = Bench()
    empty = BookieMetrics()
    assert empty.registry.get_sample_value("octavo_bookie_bytes", {"state": "journal"}) is None
    async with bench:
        metrics = observed(bench)
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0
        await bench.add(1, 0, b"x" * 1000)
        assert value(metrics, "octavo_bookie_bytes", state="journal") > 1000
        assert value(metrics, "octavo_bookie_bytes", state="write_cache") > 1000
        await bench.storage.checkpoint()
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0
        assert value(metrics, "octavo_bookie_bytes", state="write_cache") == 0
        assert value(metrics, "octavo_bookie_flush_bytes_sum") > 1000
        assert value(metrics, "octavo_bookie_flush_seconds_count") == 1
        await bench.add(1, 1, b"y")
        assert 0 < value(metrics, "octavo_bookie_bytes", state="journal") < 1000


async def test_a_flush_that_failed_leaves_the_bytes_to_the_journal() -> None:
    bench = Bench(replace(CONFIG, entry_log_bytes_max=10**6))
    async with bench:
        metrics = observed(bench)
        await bench.add(1, 0, b"x" * 1000)
        bench.disk.capacity = bench.disk.used
        with pytest.raises(DiskFull):
            await bench.storage.checkpoint()
        before = value(metrics, "octavo_bookie_bytes", state="journal")
        assert before > 1000
        assert value(metrics, "octavo_bookie_bytes", state="flushing") > 1000
        bench.disk.capacity = 2**40
        await bench.add(1, 1, b"later")
        await bench.storage.checkpoint()  # the checkpoint that had failed: later adds are not in it
        assert 0 < value(metrics, "octavo_bookie_bytes", state="journal") < before
        await bench.storage.checkpoint()
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0


def test_entry_logs_are_told_apart_after_a_round() -> None:
    metrics, status = BookieMetrics(), CollectorStatus()
    metrics.garbage(status)
    assert (
        metrics.registry.get_sample_value("octavo_bookie_bytes", {"state": "entry_logs_live"})
        is None
    )
    status.begin(1)
    status.planned(
        [LogFacts(1, 1000, 300, False), LogFacts(2, 500, 500, True)],
        [Decision(1, Action.REWRITE, ""), Decision(2, Action.KEEP, "")],
    )
    status.end(0.1)
    assert value(metrics, "octavo_bookie_bytes", state="entry_logs_live") == 800
    assert value(metrics, "octavo_bookie_bytes", state="entry_logs_dead") == 700


def test_syncs_are_told_by_what_was_synced(tmp_path: Path) -> None:
    disk, metrics = RealDisk(), BookieMetrics()
    metrics.writing.observe_disk(disk)
    for name in ("1.journal", "journal.spare", "1.log", "1.state", "journal.mark.new", "VERSION"):
        file = disk.open(str(tmp_path / name), create=True)
        file.datasync()
        file.close()
    counts = {
        of: value(metrics, "octavo_bookie_sync_seconds_count", of=of)
        for of in ("journal", "entry_log", "ledger_state", "mark", "other")
    }
    assert counts == {"journal": 2, "entry_log": 1, "ledger_state": 1, "mark": 1, "other": 1}
