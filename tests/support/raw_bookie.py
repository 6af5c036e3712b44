"""A bookie in this process and a client that sends it raw frames, for tests of the bookie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import Disk, File, RealDisk, RealFile
from octavo.bookie.node import BookieNode
from octavo.bookie.wire.guard import Guard
from octavo.metadata.opening import SESSION_TIMEOUT_MS, open_store
from octavo.metadata.store import MetadataStore
from octavo.protocol import extension
from octavo.protocol.answers import (
    Added,
    AddRefused,
    AnyAnswer,
    BatchReadAnswer,
    ReadAnswer,
    parse_answers,
)
from octavo.protocol.codes import Code
from octavo.protocol.entry import Buffer, DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import Flag, add_prefix, batch_read_request, read_request
from octavo.tls.contexts import Certificates

T = TypeVar("T")

KEY = master_key(b"secret")
CRC32C = digest_for(DigestType.CRC32C, b"")
OURS = int(Flag.CRC32C | Flag.RANGE_ACK)
FRAME_BYTES_MAX = 5 * 1024 * 1024
DEADLINE_S = 20.0
LOOPS = [asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def on_both_loops(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Production runs on uvloop, the simulation on asyncio's transports. A module with
    `event_loop_policy = on_both_loops` runs each of its tests on both."""
    policy: asyncio.AbstractEventLoopPolicy = request.param
    return policy


def entry_of(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int = -2) -> bytes:
    """Build a CRC32C entry; its LAC is the entry before it by default."""
    lac = entry_id - 1 if lac == -2 else lac
    return pack_entry(CRC32C, ledger_id, entry_id, lac, (entry_id + 1) * len(payload), payload)


def add_of(
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    *,
    flags: int = OURS,
    key: bytes = KEY,
    lac: int = -2,
) -> bytes:
    entry = entry_of(ledger_id, entry_id, payload, lac)
    return add_prefix(key, len(entry), flags) + entry


def adds_of(ledger_id: int, ids: Iterable[int], payload: bytes = b"payload", **how: Any) -> bytes:
    return b"".join(add_of(ledger_id, entry_id, payload, **how) for entry_id in ids)


async def until(condition: Callable[[], T], timeout_s: float = DEADLINE_S) -> T:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {condition}"
        await asyncio.sleep(0.005)
    return found


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._data = b""
        self._answers: list[AnyAnswer] = []

    @classmethod
    async def connect(cls, node: BookieNode, *, limit: int = 2**16) -> RawClient:
        return await cls.connect_to(node.port, limit=limit)

    @classmethod
    async def connect_to(cls, port: int, *, limit: int = 2**16) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    def send(self, data: Buffer) -> None:
        self.writer.write(data)

    async def answer(self) -> AnyAnswer:
        async with asyncio.timeout(DEADLINE_S):
            while not self._answers:
                more = await self._reader.read(1 << 20)
                if not more:
                    raise EOFError("the bookie closed the connection")
                self._data += more
                self._answers, end = parse_answers(memoryview(self._data), FRAME_BYTES_MAX)
                self._data = self._data[end:]
        return self._answers.pop(0)

    async def acked(self, count: int) -> list[tuple[int, int]]:
        """Return (ledger, entry) of the next `count` acked adds; fail on any other answer."""
        found: list[tuple[int, int]] = []
        while len(found) < count:
            answer = await self.answer()
            assert isinstance(answer, Added), answer
            ids = range(answer.first, answer.last + 1)
            found += [(answer.ledger_id, entry_id) for entry_id in ids]
        assert len(found) == count
        return found

    async def add(self, frame: bytes) -> Code:
        self.send(frame)
        answer = await self.answer()
        if isinstance(answer, Added):
            return Code.OK
        assert isinstance(answer, AddRefused), answer
        return Code(answer.code)

    async def read(self, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> Any:
        self.send(read_request(ledger_id, entry_id, flags, key))
        answer = await self.answer()
        assert isinstance(answer, ReadAnswer), answer
        assert (answer.ledger_id, answer.entry_id) == (ledger_id, entry_id)
        return answer.entry if answer.code == Code.OK else Code(answer.code)

    async def read_all(self, ledger_id: int, last: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) <= last:
            self.send(batch_read_request(ledger_id, len(found), 1, last + 1 - len(found), 1 << 20))
            answer = await self.answer()
            assert isinstance(answer, BatchReadAnswer), answer
            assert answer.code == Code.OK, f"entry {len(found)}: {Code(answer.code).name}"
            found += answer.entries
        return found

    async def fence(self, ledger_id: int, key: bytes = KEY) -> Any:
        return await self.read(ledger_id, -1, Flag.FENCE | Flag.HIGH_PRIORITY, key)

    async def call(self, op: extension.Op, **body: Any) -> extension.Answer:
        self.send(extension.encode_request(op, 7, body))
        answer = await self.answer()
        assert isinstance(answer, extension.Answer), answer
        assert (answer.op, answer.request_id) == (op, 7)
        return answer

    async def is_closed(self) -> bool:
        answers = await self.answers_until_closed()
        assert not answers, f"answered instead of closing: {answers}"
        return True

    async def answers_until_closed(self) -> list[AnyAnswer]:
        answers: list[AnyAnswer] = []
        try:
            while True:
                answers.append(await self.answer())
        except (EOFError, ConnectionResetError):
            return answers

    def close(self) -> None:
        self.writer.close()


class TroubledFile(RealFile):
    __slots__ = ("disk",)
    disk: TroubledDisk

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self.disk.before("pwritev", self.path)
        return super().pwritev(buffers, offset)

    def preallocate(self, length: int) -> None:
        self.disk.before("preallocate", self.path)
        super().preallocate(length)

    def datasync(self) -> None:
        self.disk.before("datasync", self.path)
        super().datasync()


class TroubledDisk(RealDisk):
    def __init__(self) -> None:
        self.hook: Callable[[str, str], object] = lambda call, path: None
        self.free: int | None = None

    def before(self, call: str, path: str) -> None:
        self.hook(call, path)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        real = super().open(path, create=create, write=write)
        assert isinstance(real, RealFile)
        file = TroubledFile(os.dup(real._fd), path)
        real.close()
        file.disk = self
        return file

    def free_bytes(self, path: str) -> tuple[int, int]:
        free, total = super().free_bytes(path)
        return (free if self.free is None else self.free), total


def config_in(folder: Path, **how: Any) -> BookieConfig:
    settings: dict[str, Any] = {
        "port": 0,
        "bookie_id": "bookie-1",
        "journal_directories": (f"{folder}/journal",),
        "ledger_directories": (f"{folder}/ledgers",),
        "journal_preallocate_bytes": 1 << 20,
        "disk_free_bytes_min": 2,
        "disk_free_bytes_resume": 3,
        "disk_free_bytes_reserve": 1,
    }
    return BookieConfig(**{**settings, **how})


@contextlib.asynccontextmanager
async def open_metadata(
    folder: Path, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> AsyncIterator[MetadataStore]:
    """Open the embedded store in `folder`; one file is one cluster."""
    os.makedirs(folder, exist_ok=True)
    store = open_store(f"file://{folder}/metadata.db", session_timeout_ms=session_timeout_ms)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def new_node(
    config: BookieConfig,
    store: MetadataStore,
    disk: Disk | None = None,
    tls: Certificates | None = None,
    guard: Guard | None = None,
) -> BookieNode:
    return BookieNode(
        config,
        store,
        disk=disk or RealDisk(),
        rng=random.Random(store.url),
        clock=lambda: 1_700_000_000_000,
        tls=tls,
        guard=guard,
    )


@contextlib.asynccontextmanager
async def running_bookie(
    folder: Path,
    *,
    disk: Disk | None = None,
    metadata: Path | None = None,
    tls: Certificates | None = None,
    **how: Any,
) -> AsyncIterator[BookieNode]:
    async with open_metadata(metadata or folder) as store:
        node = new_node(config_in(folder, **how), store, disk, tls)
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


def tell_read_only(node: BookieNode, read_only: bool) -> None:
    """Make a running bookie read-only, as the setting `read_only` does."""
    node._told_read_only = read_only
    node._apply_mode()
