"""A bookie over a real socket: adds, reads, fencing, the extension, broken bytes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.bookie.node import BookieNode
from octavo.protocol.answers import Added, AddRefused, BatchReadAnswer, ReadAnswer
from octavo.protocol.auth import AUTH_DISABLED, AuthMessage
from octavo.protocol.codes import Code
from octavo.protocol.extension import Op, encode_answer, encode_request
from octavo.protocol.frames import (
    Flag,
    add_prefix,
    auth_frame,
    batch_read_request,
    header,
    read_request,
)
from tests.support.raw_bookie import (
    KEY,
    RawClient,
    add_of,
    adds_of,
    entry_of,
    on_both_loops,
    running_bookie,
    until,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
event_loop_policy = on_both_loops

OTHER_KEY = b"k" * 20
RECOVERY = int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY | Flag.CRC32C)


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[BookieNode]:
    async with running_bookie(tmp_path) as node:
        yield node


@pytest.fixture
async def client(bookie: BookieNode) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(bookie)
    yield client
    client.close()


async def test_pipelined_adds_are_acked_in_order_and_read_back(client: RawClient) -> None:
    client.send(adds_of(1, range(5000)))
    assert await client.acked(5000) == [(1, i) for i in range(5000)]
    for entry_id in (0, 1, 2500, 4999):
        assert await client.read(1, entry_id) == entry_of(1, entry_id)
    assert await client.read(1, -1) == entry_of(1, 4999)


async def test_range_acks_are_few_and_plain_v2_gets_one_answer_each(client: RawClient) -> None:
    client.send(adds_of(1, range(1000)))
    answers = 0
    acked = 0
    while acked < 1000:
        answer = await client.answer()
        assert isinstance(answer, Added)
        acked += answer.last - answer.first + 1
        answers += 1
    assert answers < 200
    client.send(adds_of(2, range(1000), flags=0))
    assert await client.acked(1000) == [(2, i) for i in range(1000)]


async def test_ledgers_and_connections_are_independent(bookie: BookieNode) -> None:
    clients = [await RawClient.connect(bookie) for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(adds_of(number, range(300)) + adds_of(100 + number, [5, 7, 3]))
    for number, client in enumerate(clients):
        acked = await client.acked(303)
        assert set(acked) == {(number, i) for i in range(300)} | {
            (100 + number, i) for i in (3, 5, 7)
        }
        client.close()


async def test_entry_arriving_byte_by_byte(client: RawClient) -> None:
    for byte in read_request(9, 9) + add_of(1, 0):
        client.send(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert {await client.answer(), await client.answer()} == {
        ReadAnswer(Code.NO_LEDGER, 9, 9, b""),
        Added(1, 0, 0),
    }


async def test_largest_entry(client: RawClient) -> None:
    payload = bytes(5 * 1024 * 1024 - 128)
    client.send(add_of(1, 0, payload) + add_of(1, 1))
    assert await client.acked(2) == [(1, 0), (1, 1)]
    assert await client.read(1, 0) == entry_of(1, 0, payload)


async def test_unknown_ledger_and_entry(client: RawClient) -> None:
    assert await client.read(404, 0) is Code.NO_LEDGER
    assert await client.read(404, -1) is Code.NO_LEDGER
    assert await client.add(add_of(1, 5)) is Code.OK
    assert await client.read(1, 4) is Code.NO_ENTRY
    assert await client.read(1, 6) is Code.NO_ENTRY


async def test_wrong_key_neither_writes_nor_fences(client: RawClient) -> None:
    assert await client.add(add_of(1, 0)) is Code.OK
    assert await client.add(add_of(1, 1, key=OTHER_KEY)) is Code.UNAUTHORIZED
    assert await client.fence(1, OTHER_KEY) is Code.UNAUTHORIZED
    assert await client.add(add_of(1, 1)) is Code.OK


async def test_fence_refuses_adds_and_passes_recovery(client: RawClient) -> None:
    client.send(adds_of(1, range(10)))
    await client.acked(10)
    assert await client.fence(1) == entry_of(1, 9)
    assert await client.add(add_of(1, 10)) is Code.FENCED
    assert await client.add(add_of(1, 10, flags=0)) is Code.FENCED
    assert await client.add(add_of(1, 10, flags=RECOVERY)) is Code.OK
    assert await client.read(1, 10) == entry_of(1, 10)
    assert await client.read(1, 11, Flag.FENCE | Flag.HIGH_PRIORITY, KEY) is Code.NO_ENTRY


async def test_fence_of_a_ledger_never_heard_of(client: RawClient) -> None:
    assert await client.fence(77) is Code.NO_ENTRY
    assert await client.add(add_of(77, 0)) is Code.FENCED
    assert await client.add(add_of(77, 0, flags=RECOVERY)) is Code.OK


async def test_adds_sent_before_a_fence_are_answered_before_it(bookie: BookieNode) -> None:
    """An ack after the fence's answer would break P14."""
    writer, recoverer = await RawClient.connect(bookie), await RawClient.connect(bookie)
    writer.send(adds_of(1, range(2000)))
    recoverer.send(read_request(1, -1, Flag.FENCE | Flag.HIGH_PRIORITY, KEY))
    fence = await recoverer.answer()
    assert isinstance(fence, ReadAnswer)
    answered: dict[int, bool] = {}
    while len(answered) < 2000:
        answer = await writer.answer()
        if isinstance(answer, Added):
            answered.update(dict.fromkeys(range(answer.first, answer.last + 1), True))
        else:
            assert isinstance(answer, AddRefused)
            assert answer.code == Code.FENCED
            answered[answer.entry_id] = False
    acked = [entry_id for entry_id, ok in answered.items() if ok]
    last = int.from_bytes(fence.entry[8:16], "big") if fence.code == Code.OK else -1
    assert sorted(acked) == list(range(last + 1))
    writer.close()
    recoverer.close()


async def test_damaged_entry_is_refused_and_the_rest_goes_on(
    bookie: BookieNode, client: RawClient
) -> None:
    bad = bytearray(add_of(1, 1))
    bad[-1] ^= 1
    client.send(add_of(1, 0) + bytes(bad) + add_of(1, 2))
    answers = [await client.answer() for _ in range(3)]
    assert AddRefused(Code.BAD_REQUEST, 1, 1) in answers
    assert {Added(1, 0, 0), Added(1, 2, 2)} <= set(answers)  # type: ignore[arg-type]
    assert await client.read(1, 1) is Code.NO_ENTRY
    assert bookie.metrics.registry.get_sample_value("octavo_bookie_adds_damaged_total") == 1
    bad[4:8] = struct.pack(">I", header(1))
    assert await client.add(bytes(bad)) is Code.OK


async def test_negative_ids_are_refused(client: RawClient) -> None:
    assert await client.add(add_of(-1, 0)) is Code.BAD_REQUEST
    assert await client.add(add_of(1, -0x1000)) is Code.BAD_REQUEST
    assert await client.fence(-1) is Code.BAD_REQUEST
    answer = await client.call(Op.WRITE_LAC, ledger=-1, key=KEY, lac=3)
    assert answer.code is Code.BAD_REQUEST
    assert (await client.call(Op.WRITE_LAC, ledger=1, key=b"short", lac=3)).code is (
        Code.UNAUTHORIZED
    )
    assert await client.read(-1, 0) is Code.NO_LEDGER


async def test_batch_read(client: RawClient) -> None:
    client.send(adds_of(1, range(20), b"x" * 1000))
    await client.acked(20)

    async def batch(start: int, count: int, size: int) -> BatchReadAnswer:
        client.send(batch_read_request(1, start, 99, count, size))
        answer = await client.answer()
        assert isinstance(answer, BatchReadAnswer)
        assert (answer.ledger_id, answer.start_entry, answer.request_id) == (1, start, 99)
        return answer

    assert (await batch(5, 3, 10**6)).entries == [entry_of(1, i, b"x" * 1000) for i in (5, 6, 7)]
    assert len((await batch(0, 0, 10**6)).entries) == 20, "no count: as many as fit"
    assert len((await batch(15, 100, 10**6)).entries) == 5
    assert len((await batch(0, 100, 3500)).entries) == 3
    assert len((await batch(0, 100, 10)).entries) == 1, "one entry always fits"
    assert (await batch(20, 1, 10**6)).code == Code.NO_ENTRY


async def test_auth_is_answered(client: RawClient) -> None:
    client.send(auth_frame("SomePlugin", b"token"))
    assert await client.answer() == AuthMessage(AUTH_DISABLED, b"")
    assert await client.add(add_of(1, 0)) is Code.OK


async def test_lac_read_write_and_entries(client: RawClient) -> None:
    client.send(adds_of(1, range(10)))
    await client.acked(10)
    answer = await client.call(Op.READ_LAC, ledger=1)
    assert answer.body == {"lac": 8, "entry": entry_of(1, 9)}
    assert (await client.call(Op.WRITE_LAC, ledger=1, key=KEY, lac=9)).code is Code.OK
    assert (await client.call(Op.READ_LAC, ledger=1)).body["lac"] == 9
    answer = await client.call(Op.WRITE_LAC, ledger=1, key=OTHER_KEY, lac=10)
    assert answer.code is Code.UNAUTHORIZED
    assert "key" in answer.body["reason"]
    client.send(adds_of(1, [12, 13]))
    await client.acked(2)
    answer = await client.call(Op.LIST_ENTRIES, ledger=1)
    assert answer.body == {"runs": [[0, 9], [12, 13]]}
    assert (await client.call(Op.FORCE, ledger=1)).code is Code.OK
    assert (await client.call(Op.READ_LAC, ledger=404)).code is Code.NO_LEDGER


async def test_wait_lac_returns_with_the_entry(bookie: BookieNode, client: RawClient) -> None:
    client.send(adds_of(1, [0]))
    await client.acked(1)
    client.send(
        encode_request(
            Op.WAIT_LAC, 1, {"ledger": 1, "after": -1, "timeout_ms": 9000, "entry": True}
        )
    )
    await until(lambda: bookie.server.requests._parked)
    writer = await RawClient.connect(bookie)
    writer.send(adds_of(1, [1]))
    answer = await client.answer()
    assert answer.code is Code.OK  # type: ignore[union-attr]
    assert answer.body == {"lac": 0, "entry": entry_of(1, 0)}  # type: ignore[union-attr]
    # Already there: no wait. Not there within the time: the old LAC, no error.
    assert (await client.call(Op.WAIT_LAC, ledger=1, after=-1)).body == {"lac": 0}
    answer = await client.call(Op.WAIT_LAC, ledger=1, after=0, timeout_ms=20)
    assert (answer.code, answer.body) == (Code.OK, {"lac": 0})
    writer.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_fence_ends_long_polls(bookie: BookieNode, client: RawClient, times: int) -> None:
    """A follower learned of a recovered end only when its poll's whole time was over."""
    assert await client.add(add_of(1, 0)) is Code.OK
    assert await client.add(add_of(2, 0)) is Code.OK
    for _ in range(times - 1):
        await bookie.storage.control.fence(1, KEY)
    for number in (1, 2):
        body = {"ledger": number, "after": 5, "timeout_ms": 600_000}
        client.send(encode_request(Op.WAIT_LAC, number, body))
    await until(lambda: len(bookie.server.requests._parked) == 2)
    await bookie.storage.control.fence(1, KEY)
    answer = await client.answer()
    assert (answer.request_id, answer.code) == (1, Code.OK)  # type: ignore[union-attr]
    assert answer.body == {"lac": -1}  # type: ignore[union-attr]
    assert len(bookie.server.requests._parked) == 1, "the other ledger is not concerned"


async def test_a_deletion_ends_long_polls(bookie: BookieNode, client: RawClient) -> None:
    assert await client.add(add_of(1, 0)) is Code.OK
    body = {"ledger": 1, "after": 5, "timeout_ms": 600_000}
    client.send(encode_request(Op.WAIT_LAC, 1, body))
    await until(lambda: bookie.server.requests._parked)
    await bookie.storage.control.delete(1)
    answer = await client.answer()
    assert answer.code is Code.NO_LEDGER  # type: ignore[union-attr]


async def test_parked_long_poll_ends_with_its_connection(bookie: BookieNode) -> None:
    client = await RawClient.connect(bookie)
    assert await client.add(add_of(1, 0)) is Code.OK
    client.send(encode_request(Op.WAIT_LAC, 1, {"ledger": 1, "after": 5, "timeout_ms": 60_000}))
    await until(lambda: bookie.server.requests._parked)
    client.writer.transport.abort()
    await until(lambda: not bookie.server.requests._parked)


async def test_too_many_long_polls_are_told_so(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, long_polls_max=2) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        for number in range(3):
            client.send(
                encode_request(Op.WAIT_LAC, number, {"ledger": 1, "after": 5, "timeout_ms": 60_000})
            )
        answer = await client.answer()
        assert answer.code is Code.TOO_MANY_REQUESTS  # type: ignore[union-attr]
        client.close()


async def test_node_info(bookie: BookieNode, client: RawClient) -> None:
    body = (await client.call(Op.NODE_INFO)).body
    assert body["bookie_id"] == "bookie-1"
    assert body["incarnation"] == bookie.incarnation != ""
    assert body["read_only"] is False
    assert 0 < body["free_bytes"] <= body["total_bytes"]


async def test_extension_request_with_missing_or_odd_fields(client: RawClient) -> None:
    assert (await client.call(Op.READ_LAC)).code is Code.BAD_REQUEST
    assert (await client.call(Op.READ_LAC, ledger="one")).code is Code.BAD_REQUEST
    assert (await client.call(Op.NODE_INFO, unknown="is ignored")).code is Code.OK


BROKEN = {
    "frame longer than the bound": struct.pack(">II", 5 * 1024 * 1024 + 1, header(1)),
    "frame shorter than its header": struct.pack(">II", 3, header(1)),
    "http": b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
    "tls": bytes.fromhex("160301020001000001fc0303"),
    "v3 protobuf": struct.pack(">I", 20) + b"\x0a\x06\x08\x03\x10\x02\x18\x01" + bytes(12),
    "add too short for an entry": add_prefix(KEY, 20) + bytes(20),
    "read too short": struct.pack(">IIq", 12, header(2), 1),
    "fencing read without a key": struct.pack(">IIqq", 20, header(2, Flag.FENCE), 1, 0),
    "extension body that is no msgpack": struct.pack(">II", 8, header(1, 0, 0x4F))
    + b"\xc1\xc1\xc1\xc1",
    "unknown operation": struct.pack(">IIqq", 20, header(4), 5, 6),
    "unknown operation of an unknown version": struct.pack(">IIqq", 20, header(99, 0, 7), 5, 6),
    "an answer of ours": encode_answer(Op.ADDED, 0, Code.OK, {}),
    "a request that is an answer": encode_request(Op.ADDED, 0, {}),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_broken_bytes_end_their_connection_only(
    bookie: BookieNode, client: RawClient, what: str
) -> None:
    other = await RawClient.connect(bookie)
    other.send(BROKEN[what])
    assert await other.is_closed()
    assert bookie.metrics.registry.get_sample_value("octavo_bookie_protocol_errors_total") == 1
    assert await client.add(add_of(1, 0)) is Code.OK


async def test_adds_before_broken_bytes_count(bookie: BookieNode, client: RawClient) -> None:
    other = await RawClient.connect(bookie)
    other.send(adds_of(1, range(3)) + BROKEN["zeros"])
    await other.answers_until_closed()

    async def stored() -> bool:
        return await client.read(1, 2) == entry_of(1, 2)

    async with asyncio.timeout(10):
        while not await stored():
            pass


async def test_another_version_is_told_so(client: RawClient) -> None:
    client.send(struct.pack(">IIqq", 20, header(2, 0, 1), 5, 6))
    data = await asyncio.wait_for(client._reader.readexactly(28), 10)
    length, head, code, ledger_id, entry_id = struct.unpack(">IIiqq", data)
    assert (length, head, code) == (24, header(2, 0, 1), Code.BAD_VERSION)
    assert (ledger_id, entry_id) == (5, 6)
    assert await client.add(add_of(1, 0)) is Code.OK


async def test_random_bytes_never_harm(bookie: BookieNode, client: RawClient) -> None:
    import random

    rng = random.Random(11)
    for _ in range(40):
        other = await RawClient.connect(bookie)
        frame = bytearray(add_of(1, rng.randrange(9)) + read_request(1, 2))
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        other.send(frame + rng.randbytes(rng.randrange(50)))
        other.writer.write_eof()
        await asyncio.wait_for(other._reader.read(), 10)
        other.close()
    assert await client.add(add_of(2, 0)) is Code.OK


async def test_half_closed_connection_still_gets_its_answers(bookie: BookieNode) -> None:
    client = await RawClient.connect(bookie)
    client.send(adds_of(1, range(1000)) + read_request(1, 9999))
    client.writer.write_eof()
    found: set[int] = set()
    no_entry = False
    while len(found) < 1000 or not no_entry:
        answer = await client.answer()
        if isinstance(answer, Added):
            found |= set(range(answer.first, answer.last + 1))
        else:
            no_entry = True
    assert await client.is_closed()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, connections_max=2) as bookie:
        clients = [await RawClient.connect(bookie) for _ in range(2)]
        for client in clients:
            assert await client.add(add_of(1, 0, flags=RECOVERY)) is Code.OK
        assert await (await RawClient.connect(bookie)).is_closed()
        clients[0].close()
        await until(lambda: len(bookie.server._connections) == 1)
        again = await RawClient.connect(bookie)
        assert await again.add(add_of(1, 1)) is Code.OK
        again.close()
        clients[1].close()


async def test_metrics_count_what_happened(bookie: BookieNode, client: RawClient) -> None:
    client.send(adds_of(1, range(100)))
    await client.acked(100)
    await client.read(1, 5)
    await client.read(1, 500)
    await client.fence(1)
    text = bookie.metrics.exposition().decode()
    for line in (
        "octavo_bookie_adds_total 100.0",
        'octavo_bookie_reads_total{code="OK"} 2.0',
        'octavo_bookie_reads_total{code="NO_ENTRY"} 1.0',
        'octavo_bookie_fences_total{code="ok"} 1.0',
        'octavo_bookie_lookups_total{place="write_cache"} 2.0',
        "octavo_bookie_connections 1.0",
        "octavo_bookie_queue_bytes 0.0",
        "octavo_bookie_ledgers 1.0",
    ):
        assert line in text.splitlines()
    assert (bookie.metrics.registry.get_sample_value("octavo_bookie_group_seconds_count") or 0) >= 2
