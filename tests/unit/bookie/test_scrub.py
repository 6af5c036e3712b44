"""The scrubber names damage exactly, never good data, and goes slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from octavo.bookie.check.scrub import Scrubber
from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import DiskError
from octavo.bookie.entrylog.format import RECORD_BYTES
from tests.support.damaged_logs import Placed, checked_run, cut, fill, flip
from tests.support.storage_support import CONFIG, Bench, make_run

KINDS = DamageKind
SMALL_LOGS = replace(CONFIG, entry_log_bytes_max=2000, scrub_bytes_per_s=2**30)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench(SMALL_LOGS) as made:
        yield made


async def scrubbed(bench: Bench) -> list[Damage]:
    """Return the findings of a pass, without the time."""
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    await scrubber.one_pass()
    return [found._replace(found_ms=0) for found in bench.storage.damages.current()]


def lost(kind: DamageKind, at: Placed) -> Damage:
    """Return the finding of a record that is damaged as a whole."""
    record, location = at.record, at.location
    span = (record.ledger_id, record.first_entry, record.last_entry)
    return Damage(kind, at.path, location.offset, location.length, *span)


async def test_what_is_good_is_never_reported(bench: Bench) -> None:
    placed = await fill(bench)
    await bench.send(make_run(9, 0, [b"of a foreign writer, of a digest that nobody knows"]))
    await bench.storage.checkpoint()
    await bench.send(checked_run(9, 1, [b"not flushed"]))
    assert len({at.path for at in placed}) > 1
    assert await scrubbed(bench) == []
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    assert scrubber.passes == 1
    assert scrubber.bytes > sum(at.location.length for at in placed)


@pytest.mark.parametrize("number", range(9))
async def test_a_flipped_bit_in_a_body_is_a_run_checksum(bench: Bench, number: int) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 40)
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("byte", [0, 5, 20, 26, 30, RECORD_BYTES - 1])
async def test_a_flipped_bit_in_a_header_takes_this_record_and_no_other(
    bench: Bench, number: int, byte: int
) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + byte)
    assert await scrubbed(bench) == [lost(KINDS.RECORD_HEADER, at)]


async def test_two_bad_headers_in_a_row_are_two_findings(bench: Bench) -> None:
    placed = await fill(bench)
    for at in placed[0:2]:
        flip(bench.disk, at.path, at.location.offset)
    assert await scrubbed(bench) == [lost(KINDS.RECORD_HEADER, at) for at in placed[0:2]]


async def test_an_entry_that_came_damaged_is_named_alone(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"abc"] * 5, bad=3))
    await bench.storage.checkpoint()
    frame = len(checked_run(1, 0, [b"abc"]).frames)
    found = await scrubbed(bench)
    path = found[0].path
    offset = 24 + RECORD_BYTES + 3 * frame
    assert found == [Damage(KINDS.ENTRY_DIGEST, path, offset, frame, 1, 3, 3)]


async def test_a_file_header_is_named_and_the_rest_is_read(bench: Bench) -> None:
    placed = await fill(bench)
    flip(bench.disk, placed[0].path, 3)
    flip(bench.disk, placed[0].path, placed[0].location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [
        Damage(KINDS.FILE_HEADER, placed[0].path, 0, 24),
        lost(KINDS.EXTENT_CHECKSUM, placed[0]),
    ]


@pytest.mark.parametrize("from_end", [1, 10, 20, 25, 40])
async def test_a_damaged_map_loses_no_entry(bench: Bench, from_end: int) -> None:
    placed = await fill(bench)
    path = placed[0].path
    size = bench.disk.names[path].size
    end = max(at.location.offset + at.location.length for at in placed if at.path == path)
    assert size > end + 40
    flip(bench.disk, path, size - from_end)
    assert await scrubbed(bench) == [Damage(KINDS.LEDGERS_MAP, path, end, size - end)]
    flip(bench.disk, path, size - from_end)
    assert await scrubbed(bench) == []


async def test_a_log_cut_within_a_record(bench: Bench) -> None:
    placed = await fill(bench)
    for at in placed[:1]:
        cut(bench.disk, at.path, at.location.offset + RECORD_BYTES + 10)
    found = await scrubbed(bench)
    assert found[0] == lost(KINDS.TRUNCATED, placed[0])


async def test_the_current_log_cut_before_the_mark(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=1)
    cut(bench.disk, placed[-1].path, placed[-1].location.offset + 10)
    assert await scrubbed(bench) == [lost(KINDS.TRUNCATED, placed[-1])]


async def test_a_missing_log_names_what_it_held(bench: Bench) -> None:
    placed = await fill(bench)
    path = placed[0].path
    del bench.disk.names[path]
    found = await scrubbed(bench)
    held = {at.record.ledger_id: at.record for at in placed if at.path == path}
    assert {(d.kind, d.path) for d in found} == {(KINDS.MISSING_FILE, path)}
    assert {(d.ledger_id, d.first, d.last) for d in found} == {
        (r.ledger_id, r.first_entry, r.last_entry) for r in held.values()
    }


def failing(path: str, start: int, end: int, times: int) -> Callable[[int, int], bool]:
    left = [times]

    def fails(length: int, offset: int) -> bool:
        hit = offset < end and offset + length > start and left[0] > 0
        left[0] -= hit
        return hit

    return fails


@pytest.mark.parametrize(("times", "found"), [(1, False), (99, True)])
async def test_a_refused_read_is_repeated_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, found: bool
) -> None:
    placed = await fill(bench)
    at = placed[1]
    body = at.location.offset + RECORD_BYTES
    fails = failing(at.path, body, body + 1, times)
    real = bench.disk.open(at.path)
    pread = type(real).pread

    def troubled(self: object, length: int, offset: int) -> bytes:
        if self.path == at.path and fails(length, offset):  # type: ignore[attr-defined]
            raise DiskError(f"pread {at.path}: input/output error")
        return pread(self, length, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(type(real), "pread", troubled)
    assert await scrubbed(bench) == ([lost(KINDS.UNREADABLE, at)] if found else [])


async def test_damage_where_nothing_lives_names_no_ledger(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=2)
    await bench.storage.delete_ledger(1)
    await bench.storage.checkpoint()
    for at in placed[:2]:
        flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    dead = lost(KINDS.EXTENT_CHECKSUM, placed[0])._replace(ledger_id=None, first=None, last=None)
    assert await scrubbed(bench) == [dead, lost(KINDS.EXTENT_CHECKSUM, placed[1])]


async def test_only_entries_that_the_index_finds_there_are_named(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"old"] * 6))
    await bench.storage.checkpoint()
    await bench.overwrite(checked_run(1, 0, [b"new"] * 2))
    await bench.storage.checkpoint()
    at = (await fill(bench, ledgers=0))[0]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)._replace(first=2)]


async def test_what_is_good_again_is_cleared_and_the_rest_stays(bench: Bench) -> None:
    placed = await fill(bench)
    hurt = [placed[0], placed[4], placed[8]]
    for at in hurt:
        flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    assert len(await scrubbed(bench)) == 3
    flip(bench.disk, placed[4].path, placed[4].location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [
        lost(KINDS.EXTENT_CHECKSUM, placed[0]),
        lost(KINDS.EXTENT_CHECKSUM, placed[8]),
    ]


async def test_a_read_and_the_scrubber_report_the_same_finding_once(bench: Bench) -> None:
    placed = await fill(bench)
    at = placed[4]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    for _ in range(2):
        with pytest.raises(Exception, match="checksum"):
            await bench.storage.reads.read(at.record.ledger_id, at.record.first_entry)
    assert len(bench.storage.damages.current()) == 1
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)]


async def test_it_keeps_to_its_rate(bench: Bench) -> None:
    await fill(bench)
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    scrubber._bytes_per_s = 20_000
    loop = asyncio.get_running_loop()
    before = loop.time()
    await scrubber.one_pass()
    assert loop.time() - before >= scrubber.bytes / 20_000 * 0.9


async def test_a_pass_on_request_and_the_end_of_the_task(bench: Bench) -> None:
    await fill(bench)
    scrubber = bench.storage.scrubber
    assert isinstance(scrubber, Scrubber)
    scrubber._interval_s = 0.0
    task = asyncio.create_task(scrubber.run())
    await asyncio.sleep(0.05)
    assert scrubber.passes == 0
    assert scrubber.last_pass_age_s == -1
    scrubber.start_pass()
    async with asyncio.timeout(5):
        while not scrubber.passes:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert scrubber.last_pass_age_s >= 0
    assert scrubber.status()["passes"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
