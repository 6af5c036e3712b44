"""A connection to a bookie that is silent, broken, or a different one than expected."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from octavo.ledger.bookies.bookies import Bookies, RequestClass
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import Code, NoSuchEntry, OctavoError
from octavo.protocol.entry import DigestType, digest_for, pack_entry
from octavo.protocol.extension import Op, decode_request, encode_answer
from octavo.protocol.frames import (
    LENGTH,
    PREFIX,
    READ,
    read_answer,
)
from octavo.protocol.frames import Op as V2Op
from tests.support.apache_bookie import apache_bookie
from tests.support.cluster import add_many
from tests.support.raw_bookie import open_metadata

Answering = Callable[[bytes, asyncio.StreamWriter], None]
ENTRY = pack_entry(digest_for(DigestType.CRC32C, b""), 1, 0, -1, 3, b"abc")


@contextlib.asynccontextmanager
async def fake_bookie(
    store: MetadataStore, name: str, answer: Answering, *, ours: bool = True, says: str = ""
) -> AsyncIterator[None]:
    """A registered server that hands each frame to `answer`; it answers NODE_INFO itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(LENGTH.unpack(head)[0])
                if frame[4] == 0x4F and frame[5] == Op.NODE_INFO:
                    request = decode_request(memoryview(frame))
                    body = {"bookie_id": says or name}
                    writer.write(encode_answer(Op.NODE_INFO, request.request_id, Code.OK, body))
                else:
                    answer(frame, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    properties = {"incarnation": name} if ours else {}
    registry = BookieRegistry(store)
    await registry.register(BookieInfo(name, "127.0.0.1", port, properties=properties))
    try:
        yield
    finally:
        await registry.unregister(name)
        server.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_metadata(tmp_path) as store:
        yield store


@contextlib.asynccontextmanager
async def pool_of(store: MetadataStore, **options: float) -> AsyncIterator[Bookies]:
    pool = Bookies(BookieRegistry(store), LedgerOptions(**options), random.Random(1))  # type: ignore[arg-type]
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def read(pool: Bookies, name: str, entry_id: int) -> bytes:
    connection = await pool.get(name).connected()
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(error: OctavoError | None, data: bytes) -> None:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(data)

    connection.read(1, entry_id, done)
    return await answer


def is_read(frame: bytes) -> bool:
    return PREFIX.unpack_from(frame)[1] >> 16 & 0xFF == V2Op.READ and frame[4] == 2


def ids(frame: bytes) -> tuple[int, int]:
    _, _, ledger_id, entry_id = READ.unpack_from(frame)
    return ledger_id, entry_id


async def test_answers_are_matched_by_entry_whatever_their_order(store: MetadataStore) -> None:
    held: list[bytes] = []

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        held.append(frame)
        if len(held) == 3:
            for one in reversed(held):
                code = 1 if ids(one)[1] == 2 else 0
                writer.write(read_answer(2 if code else 0, *ids(one), b"" if code else ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        found = await asyncio.gather(
            *(read(pool, "f1", i) for i in (0, 1, 2)), return_exceptions=True
        )
        assert found[:2] == [ENTRY, ENTRY]
        assert isinstance(found[2], NoSuchEntry)


async def test_a_silent_bookie_times_out_and_is_given_up(store: MetadataStore) -> None:
    def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async with fake_bookie(store, "f1", silent), pool_of(store, read_timeout_s=0.2) as pool:
        found = await asyncio.gather(
            *(read(pool, "f1", i) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(error, BookieUnavailable) for error in found)
        assert not pool.get("f1").is_up


async def test_a_late_answer_is_not_taken_for_another(store: MetadataStore) -> None:
    frames: list[tuple[bytes, asyncio.StreamWriter]] = []

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        if ids(frame)[1] == 9:
            writer.write(read_answer(0, 1, 9, ENTRY))
            return
        frames.append((frame, writer))
        if len(frames) == 2:
            writer.write(read_answer(2, 1, 0) + read_answer(0, 1, 0, ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store, read_timeout_s=0.3) as pool:
        first = asyncio.ensure_future(read(pool, "f1", 0))
        while not first.done():
            await read(pool, "f1", 9)
            await asyncio.sleep(0.02)
        assert isinstance(first.exception(), BookieUnavailable)
        assert pool.get("f1").is_up
        assert await read(pool, "f1", 0) == ENTRY


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff rubbish",
        b"\x00\x00\x00\x08\x02\x63\x00\x00abcd",
        read_answer(0, 77, 77, ENTRY),
        b"\x00\x00\x00\x01x",
    ],
)
async def test_broken_bytes_end_the_connection_and_nothing_else(
    store: MetadataStore, garbage: bytes
) -> None:
    calls = 0

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.write(garbage if calls == 1 else read_answer(0, *ids(frame), ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        with pytest.raises(BookieUnavailable):
            await read(pool, "f1", 0)
        assert await read(pool, "f1", 0) == ENTRY, "a new connection serves again"


async def test_another_bookie_at_the_address_is_refused(store: MetadataStore) -> None:
    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing is asked of the wrong bookie")

    async with fake_bookie(store, "f1", answer, says="f2"), pool_of(store) as pool:
        with pytest.raises(BookieUnavailable, match="bookie f2 answers at its address"):
            await read(pool, "f1", 0)


async def test_an_unknown_bookie(store: MetadataStore) -> None:
    async with pool_of(store, connect_timeout_s=1) as pool:
        with pytest.raises(BookieUnavailable, match="not registered"):
            await read(pool, "nobody", 0)
        with pytest.raises(BookieUnavailable):
            await read(pool, "127.0.0.1:1", 0)


async def test_request_classes_do_not_share_a_connection(store: MetadataStore) -> None:
    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(read_answer(0, *ids(frame), ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        normal = await pool.get("f1", RequestClass.NORMAL).connected()
        recovery = await pool.get("f1", RequestClass.RECOVERY).connected()
        assert normal is not recovery


async def test_a_foreign_bookie_gets_bookkeepers_frames_only(store: MetadataStore) -> None:
    async with apache_bookie(store, "f1") as bookie:
        client = LedgerClient(store, rng=random.Random(1), options=LedgerOptions())
        await client.start()
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await add_many(writer, 50)
        await add_many(writer, 1)
        reader = await client.open(writer.ledger_id)
        assert await reader.wait_for(49, 20) == 50, "the LAC that came alone"
        assert (await reader.read(49, 50))[1].entry_id == 50
        await writer.close()
        await client.close()
        assert not bookie.hung_up


async def test_pending_requests_fail_when_the_client_closes(store: MetadataStore) -> None:
    asked = asyncio.Event()

    def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()

    async with fake_bookie(store, "f1", silent), pool_of(store) as pool:
        pending: Awaitable[bytes] = asyncio.ensure_future(read(pool, "f1", 0))
        await asked.wait()
        await pool.close()
        with pytest.raises(BookieUnavailable, match="closing"):
            await pending
