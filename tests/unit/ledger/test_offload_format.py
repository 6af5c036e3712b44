"""Offloaded ledgers: the same entries come out, and damage is reported."""

from __future__ import annotations

import gc
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.ledger.errors import (
    BeyondLastConfirmed,
    LedgerError,
    OffloadDamaged,
    OffloadUnavailable,
)
from octavo.ledger.offload import format as offload_format
from octavo.ledger.offload.format import About, Checksum, ObjectFile, ObjectWriter, Written
from octavo.ledger.offload.object_store import file_system, joined
from octavo.ledger.offload.offloaded import open_offloaded
from octavo.metadata.topics import OffloadRecord
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch
from tests.support.kit.examples import examples

LEDGER = 42


def entries_of(counts: list[int], step_ms: int = 10) -> list[Entry]:
    """Return entries as a broker stores them: batches with offsets relative to the ledger."""
    found, base, length = [], 0, 0
    for number, count in enumerate(counts):
        made = build_batch(
            [Record(b"k", b"%d-%d" % (number, n), (), number * step_ms + n) for n in range(count)]
        )
        payload = with_base_offset(made, base)
        length += len(payload)
        found.append(Entry(LEDGER, number, number - 1, length, payload))
        base += count
    return found


def written(entries: list[Entry]) -> tuple[bytes, Written]:
    sink = io.BytesIO()
    about = About(LEDGER, "u-1", "public/t", 0, 100, len(entries))
    writer = ObjectWriter(sink, about)
    writer.add(entries)
    found = writer.close()
    assert found.bytes == len(sink.getvalue())
    return sink.getvalue(), found


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_format, "GROUP_ENTRIES_MAX", 3)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_the_same_entries_come_out(
    small_groups: None, counts: list[int], drawn: st.DataObject
) -> None:
    entries = entries_of(counts)
    data, facts = written(entries)
    file = ObjectFile(io.BytesIO(data), "object", facts.bytes, facts.footer_crc)
    groups = range(len(file.first_entries))
    assert [entry for group in groups for entry in file.entries(group)] == entries
    offset = drawn.draw(st.integers(0, sum(counts) - 1))
    group = file.group_of_offset(offset)
    held = [entry for entry in file.entries(group) if holds(entry, offset)]
    assert [file.group_of_entry(entry.entry_id) for entry in held] == [group]
    newest = [read_header(entry.payload).max_timestamp for entry in entries]
    assert [one.newest_ms for one in file.groups] == [
        max(newest[n : n + 3]) for n in range(0, len(newest), 3)
    ]


class Full(io.BytesIO):
    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._room:
            raise OSError("no space left")
        return super().write(data)


@pytest.mark.parametrize("room", [0, 3, 200, 10_000_000])
def test_a_writer_that_fails_leaves_nothing_to_be_written_into_a_closed_file(
    room: int, small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was collected it wrote, and failed where no code hears of it."""
    unheard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    entries = entries_of([1] * 8)
    with pytest.raises((OSError, ZeroDivisionError)):
        broken_off(entries, Full(room))
    gc.collect()
    assert unheard == []


def broken_off(entries: list[Entry], sink: Full) -> None:
    with sink, ObjectWriter(sink, About(LEDGER, "u", "public/t", 0, 0, 8)) as writer:
        writer.add(entries[:7])
        assert sink.tell() > 0
        raise ZeroDivisionError


def holds(entry: Entry, offset: int) -> bool:
    header = read_header(entry.payload)
    return header.base_offset <= offset < header.base_offset + header.record_count


def test_the_checksum_tells_entries_apart() -> None:
    entries = entries_of([2, 3, 1])

    def crc(some: list[Entry]) -> int:
        checksum = Checksum()
        for entry in some:
            checksum.add(entry)
        return checksum.crc

    whole = crc(entries)
    assert crc(entries[:2]) != whole
    assert crc([entries[1], entries[0], entries[2]]) != whole
    assert crc([*entries[:2], entries[2]._replace(last_add_confirmed=0)]) != whole
    assert crc(entries_of([2, 3, 1], step_ms=11)) != whole


def put(folder: Path, data: bytes, facts: Written) -> OffloadRecord:
    (folder / "object.parquet").write_bytes(data)
    url = f"file://{folder}/object.parquet"
    return OffloadRecord(
        "u-1", "offloaded", url, 0, facts.entries, facts.bytes, facts.crc, facts.footer_crc
    )


@pytest.mark.usefixtures("small_groups")
async def test_the_reader_reads_ranges_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    entries = entries_of([1, 2, 3, 4, 5, 6, 7])
    reader = await open_offloaded(LEDGER, put(tmp_path, *written(entries)))
    assert (reader.is_closed, reader.last_add_confirmed) == (True, 6)
    assert await reader.refresh() == await reader.wait_for(9, 1.0) == 6
    for first in range(7):
        for last in range(first - 1, 7):
            assert await reader.read(first, last) == entries[first : last + 1]
    for offset in range(28):
        assert holds(entries[await reader.entry_holding(offset)], offset)
    assert [len(batch) async for batch in reader.batches(1, 6)] == [2, 3, 1]
    with pytest.raises(BeyondLastConfirmed):
        await reader.read(0, 7)
    with pytest.raises(LedgerError, match="no range"):
        await reader.read(3, 1)
    async for _ in reader.entries(0, 6):
        break
    await reader.close()


@pytest.mark.usefixtures("small_groups")
async def test_each_damaged_byte_is_told_or_harmless(tmp_path: Path) -> None:
    """Only the written entries ever come out."""
    entries = entries_of([1, 2, 3, 4, 5, 6, 7])
    data, facts = written(entries)
    told: list[str] = []
    for at in range(0, len(data), 7):
        hurt = bytearray(data)
        hurt[at] ^= 0x10
        try:
            reader = await open_offloaded(LEDGER, put(tmp_path, bytes(hurt), facts))
            found = await reader.read(0, 6)
        except OffloadDamaged as error:
            told.append(str(error))
        else:
            assert found == entries
            assert at < 4, "the magic at the front, which nobody needs"
    assert len(told) >= (len(data) - 4) // 7
    assert all("object.parquet" in one for one in told)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("left", [0, 3, 100, -1, -9, -200])
async def test_a_torn_object_is_damaged(tmp_path: Path, left: int) -> None:
    data, facts = written(entries_of([1, 2, 3, 4, 5, 6, 7]))
    with pytest.raises(OffloadDamaged, match=r"object\.parquet"):
        await open_offloaded(LEDGER, put(tmp_path, data[:left], facts))


async def test_another_ledgers_object_is_refused(tmp_path: Path) -> None:
    offload = put(tmp_path, *written(entries_of([1, 1, 1, 1, 1, 1, 1])))
    with pytest.raises(OffloadDamaged, match="copy u-1 of ledger 42; expected is copy u-1 of ledg"):
        await open_offloaded(43, offload)
    other = replace(offload, uuid="u-2")
    with pytest.raises(OffloadDamaged, match="expected is copy u-2"):
        await open_offloaded(LEDGER, other)
    short = replace(offload, entries=8)
    with pytest.raises(OffloadDamaged, match="has 7 entries; 8 were written"):
        await open_offloaded(LEDGER, short)


async def test_what_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/nix.parquet", "tape://1/x", "nix.parquet"):
        with pytest.raises(OffloadUnavailable, match=url):
            await open_offloaded(LEDGER, OffloadRecord("u-1", "offloaded", url, entries=1))


def test_urls_are_joined() -> None:
    assert joined("file:///a/", "b", "c") == "file:///a/b/c"
    assert joined("s3://bucket/a?region=x", "b") == "s3://bucket/a/b?region=x"
    assert file_system("file:///a/b")[1] == "/a/b"
