"""A bookie over a real socket: adds, reads, fencing, the extension, broken bytes, TLS."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.bookie.node import BookieNode
from octavo.ledger.errors import BookieUnavailable
from octavo.protocol import v3
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
from octavo.tls.contexts import Certificates
from tests.support.certificates import certificates, make, renew
from tests.support.cluster import add_many, payload_of, running_cluster
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
from tests.support.v3_frames import V3Client, add_frame, request_frame

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


START_TLS = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
OK = v3.STATUS[Code.OK]


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "certs", handshake_timeout_ms=2_000)


@pytest.fixture
async def node(tmp_path: Path, held: Certificates) -> AsyncIterator[BookieNode]:
    async with running_bookie(tmp_path, tls=held, admin_port=0) as running:
        yield running


async def secured(node: BookieNode, held: Certificates) -> tuple[Any, asyncio.StreamWriter]:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
    client.send(START_TLS)
    assert (await client.answer()).status == OK
    await client.writer.start_tls(held.client, server_hostname="127.0.0.1")  # type: ignore[arg-type]
    return client.reader, client.writer


async def test_tls_from_the_first_byte(node: BookieNode, held: Certificates) -> None:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", node.port, ssl=held.client))
    assert await client.add(add_of(1, 0)) is Code.OK
    assert isinstance(await client.read(1, 0), bytes)
    client.close()


async def test_start_tls_of_a_client_that_speaks_v3(node: BookieNode, held: Certificates) -> None:
    client = V3Client(*await secured(node, held))
    assert await client.add(1, 0) == OK
    assert (await client.read(1, 0)).status == OK
    again = await client.ask(v3.Op.START_TLS, "startTLSRequest")
    assert again.status == v3.STATUS[Code.BAD_REQUEST], "it is there already"
    client.close()


async def test_start_tls_of_a_client_that_speaks_v2(node: BookieNode, held: Certificates) -> None:
    client = RawClient(*await secured(node, held))
    for entry in range(20):
        assert await client.add(add_of(1, entry, b"x" * 50_000)) is Code.OK
    assert isinstance(await client.read(1, 19), bytes)
    client.close()


async def test_frames_right_behind_the_handshake(node: BookieNode, held: Certificates) -> None:
    for _ in range(10):
        client = RawClient(*await secured(node, held))
        client.send(add_of(2, 0) + add_of(2, 1))
        assert await client.acked(2)
        client.close()


@pytest.mark.parametrize(
    ("data", "answered"),
    [
        (add_of(1, 0), False),
        (add_frame(1, 0), True),
        (START_TLS + add_frame(1, 0), True),
        (request_frame(v3.Op.AUTH, 1, "authRequest", authPluginName="x", payload=b""), True),
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"\0\0\0\0", False),
    ],
    ids=["v2 add", "v3 add", "behind START_TLS", "auth", "http", "empty"],
)
async def test_nothing_else_is_taken_in_the_clear(
    node: BookieNode, held: Certificates, data: bytes, answered: bool
) -> None:
    with capture_logs() as logs:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
        client.send(data)
        if answered:
            assert (await client.answer()).status == v3.STATUS[Code.UNAUTHORIZED]
        assert await client.is_closed()
        client.close()
    assert [one["event"] for one in logs] == ["tls_refused"]
    inside = RawClient(*await secured(node, held))
    assert not isinstance(await inside.read(1, 0), bytes), "nothing was stored"
    inside.close()


async def test_who_asks_for_start_tls_and_says_no_more_is_cut_off(node: BookieNode) -> None:
    for data in (START_TLS[:5], START_TLS):
        client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
        client.send(data)
        if data is START_TLS:
            await client.answer()
        assert await client.is_closed()
        client.close()


async def test_both_are_taken_during_a_change_over(tmp_path: Path) -> None:
    held = certificates(tmp_path / "certs", plain_allowed=True)
    async with running_bookie(tmp_path, tls=held) as node:
        plain = RawClient(*await asyncio.open_connection("127.0.0.1", node.port))
        plain.send(b"".join(add_of(1, entry, b"x" * 100_000) for entry in range(30)))
        assert await plain.acked(30)
        inside = RawClient(*await secured(node, held))
        assert isinstance(await inside.read(1, 29), bytes)
        for client in (plain, inside):
            client.close()


@pytest.mark.parametrize("start_tls", [False, True], ids=["tls", "start_tls"])
async def test_a_ledger_is_written_and_read(tmp_path: Path, start_tls: bool) -> None:
    held = certificates(tmp_path / "certs", mutual=True, start_tls=start_tls)
    async with running_cluster(tmp_path, tls=held) as cluster:
        client = await cluster.client()
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await add_many(writer, 300, size=20_000)
        renew(tmp_path / "certs")
        assert held.refresh()
        await cluster.stop_bookie("b3")
        await add_many(writer, 10)
        await cluster.start_bookie("b3")
        await writer.close()
        reader = await (await cluster.client(2)).open(writer.ledger_id)
        entries = await reader.read(0, 299)
        assert [bytes(one.payload) for one in entries] == [
            payload_of(n, 20_000) for n in range(300)
        ]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another ca", "the CA of its certificate is not trusted here"),
        ("no certificate", "give certificate and key"),
        ("plain bookie", "does that port speak TLS?"),
        ("plain bookie, START_TLS", "does not support START_TLS"),
    ],
)
async def test_why_a_bookie_cannot_be_reached_is_said(tmp_path: Path, how: str, said: str) -> None:
    plain = how.startswith("plain")
    server = None if plain else certificates(tmp_path / "certs", mutual=True)
    folder = tmp_path / "other" if how == "another ca" else tmp_path / "certs"
    make(folder, "client")
    client = certificates(folder, "client", start_tls=how.endswith("START_TLS"))
    if how == "no certificate":
        client = Certificates(type(client.config)(ca=f"{folder}/ca.pem"))
    async with running_cluster(tmp_path, bookies=1, tls=server) as cluster:
        cluster.tls = client
        ledgers = await cluster.client()
        with pytest.raises(BookieUnavailable) as caught:
            await ledgers.bookies.get("b1").connected()
        assert said in str(caught.value)


async def test_tls_at_a_port_without_is_told(tmp_path: Path, held: Certificates) -> None:
    async with running_bookie(tmp_path) as node:
        with capture_logs() as logs:
            with pytest.raises(ConnectionResetError):
                await asyncio.open_connection("127.0.0.1", node.port, ssl=held.client)
            await until(lambda: [one for one in logs if one["event"] == "connection_refused"])
    [told] = [one for one in logs if one["event"] == "connection_refused"]
    assert "this is TLS, and this port has none" in told["reason"]


async def test_the_admin_port_speaks_it_too(node: BookieNode, held: Certificates) -> None:
    for context, expected in ((held.client, b"200 OK"), (None, b"tls-required")):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin.port, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            assert expected in await reader.read()
        writer.close()
