"""Finds the records of entry logs and damages them."""

from __future__ import annotations

from typing import NamedTuple

from octavo.bookie.adds import AddBatch
from octavo.bookie.entrylog.format import Location, Record
from octavo.bookie.entrylog.log import EntryLogs
from octavo.protocol.entry import DigestType, digest_for, pack_entry
from octavo.protocol.frames import Flag, add_prefix
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import KEY, Bench

CRC32C = digest_for(DigestType.CRC32C, b"")


def checked_run(ledger_id: int, first: int, payloads: list[bytes], *, bad: int = -1) -> AddBatch:
    """Build a run of CRC32C entries; the digest of entry `bad` is wrong."""
    frames: list[bytes] = []
    offsets: list[int] = []
    for number, payload in enumerate(payloads):
        entry_id = first + number
        entry = bytearray(pack_entry(CRC32C, ledger_id, entry_id, entry_id - 1, 0, payload))
        if entry_id == bad:
            entry[-1] ^= 1
        offsets.append(sum(map(len, frames)))
        frames.append(add_prefix(KEY, len(entry), Flag.CRC32C) + bytes(entry))
    return AddBatch(ledger_id, first, len(payloads), KEY, False, b"".join(frames), offsets)


class Placed(NamedTuple):
    path: str
    record: Record
    location: Location


def records_in(disk: MemoryDisk, folders: tuple[str, ...]) -> list[Placed]:
    logs = EntryLogs(disk, folders, 2**30)
    logs.open()
    found = [
        Placed(logs.path_of(log_id), record, location)
        for log_id in logs.log_ids
        for record, location in logs.scan(log_id)
    ]
    logs.close()
    return found


def flip(disk: MemoryDisk, path: str, offset: int) -> None:
    disk.flip(path, offset, 0x10)


def cut(disk: MemoryDisk, path: str, size: int) -> None:
    disk.names[path].resize(size)
    disk.names[path].sync()


async def fill(bench: Bench, ledgers: int = 3, rounds: int = 3, entries: int = 4) -> list[Placed]:
    for number in range(rounds):
        for ledger_id in range(1, ledgers + 1):
            first = number * entries
            payloads = [b"%d-%d" % (ledger_id, first + n) * 20 for n in range(entries)]
            await bench.send(checked_run(ledger_id, first, payloads))
        await bench.storage.checkpoint()
    return records_in(bench.disk, bench.config.ledger_directories)
