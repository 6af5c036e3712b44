"""Runs of entries as a connection makes them, and a storage on a disk that can crash."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import OnLoss
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER
from octavo.protocol.frames import Flag, add_prefix
from tests.sim.index import KeptIndex
from tests.support.memory_disk import MemoryDisk

KEY = b"k" * 20
OTHER_KEY = b"o" * 20
CONFIG = BookieConfig(
    journal_directories=("/j",),
    ledger_directories=("/l", "/m"),
    journal_preallocate_bytes=64 * 1024,
    journal_file_bytes_max=1024 * 1024,
    write_cache_bytes_max=1024 * 1024,
    flush_interval_ms=3_600_000,
)


def entry_bytes(
    ledger_id: int, entry_id: int, payload: bytes = b"", lac: int | None = None
) -> bytes:
    lac = entry_id - 1 if lac is None else lac
    return HEADER.pack(ledger_id, entry_id, lac, 0) + b"crc!" + payload


def make_run(
    ledger_id: int,
    first: int,
    payloads: Sequence[bytes],
    *,
    key: bytes = KEY,
    recovery: bool = False,
    lac: int | None = None,
) -> AddBatch:
    flags = Flag.RECOVERY_ADD if recovery else Flag.NONE
    parts: list[bytes] = []
    offsets: list[int] = []
    position = 0
    for number, payload in enumerate(payloads):
        entry = entry_bytes(ledger_id, first + number, payload, lac)
        frame = add_prefix(key, len(entry), flags) + entry
        parts.append(frame)
        offsets.append(position)
        position += len(frame)
    return AddBatch(ledger_id, first, len(payloads), key, recovery, b"".join(parts), offsets)


async def eventually(holds: Callable[[], bool], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def is_fenced(storage: Storage, ledger_id: int) -> bool:
    """Whether ordinary adds are refused. Raises `NoSuchLedger`, `UnknownState`."""
    state = storage.control.known(ledger_id)
    if not state.fenced:
        storage.control.require_certain(ledger_id, "was fenced")
    return state.fenced


class Bench:
    def __init__(self, config: BookieConfig = CONFIG, disk: MemoryDisk | None = None) -> None:
        self.config = config
        self.disk = disk or MemoryDisk()
        self.fatal: list[BaseException] = []
        self.on_loss: OnLoss | None = None
        self.storage: Storage
        self.is_open = False

    @property
    def indexes(self) -> dict[str, KeptIndex]:
        """The disk's indexes. Clearing them loses them."""
        return self.disk.indexes.kept

    async def start(self) -> None:
        self.is_open = False
        self.storage = await Storage.open(
            self.config,
            disk=self.disk,
            index_opener=self.disk.open_index,
            on_fatal=self.fatal.append,
            on_loss=self.on_loss,
        )
        self.is_open = True

    async def __aenter__(self) -> Bench:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.is_open and not self.disk.dead:
            await self.storage.close()

    def send(self, *runs: AddBatch, deferred: bool = False) -> asyncio.Future[list[Code]]:
        future: asyncio.Future[list[Code]] = asyncio.get_running_loop().create_future()

        codes: dict[int, Code] = {}

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            parts = [id(run) for run, _ in results]
            assert parts == [id(run) for run in runs if id(run) in parts]
            assert not codes.keys() & set(parts)
            codes.update({id(run): code for run, code in results})
            if len(codes) == len(runs):
                future.set_result([codes[id(run)] for run in runs])

        self.storage.add(runs, done, deferred=deferred)
        return future

    async def defer(self, ledger_id: int, first: int, *payloads: bytes) -> Code:
        return (await self.send(make_run(ledger_id, first, payloads or [b""]), deferred=True))[0]

    async def add(self, ledger_id: int, first: int, *payloads: bytes, **more: object) -> Code:
        run = make_run(ledger_id, first, payloads or [b""], **more)  # type: ignore[arg-type]
        return (await self.send(run))[0]

    async def overwrite(self, run: AddBatch) -> Code:
        """Store a second form of an entry that exists, as older versions allowed."""
        state = self.storage._states.get(run.ledger_id)
        if state is not None:
            state.reached = -1
        return (await self.send(run))[0]

    async def crash(self, rng: random.Random | None = None, **changed: object) -> None:
        after = self.disk.after_crash(rng)
        await abandon(self.storage)
        self.disk = after
        self.config = replace(self.config, **changed)  # type: ignore[arg-type]
        await self.start()

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()


async def abandon(storage: Storage) -> None:
    storage._flushing.task.cancel()
    await asyncio.gather(storage._flushing.task, return_exceptions=True)
    for executor in storage.executors:
        executor.shutdown(wait=True)
