"""Bytes of bodies: a waiter gets room as soon as there is enough, whatever waits before it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from octavo import AsyncClient
from octavo.broker.errors import Overloaded
from octavo.broker.http import held_bytes
from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api import push
from octavo.broker.http.api import read as api_read
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.log.open_batches import RECORDS_A_TURN, Turns
from octavo.broker.operations.kinds import Leases, Receive
from octavo.broker.subscriptions import subscription
from octavo.broker.types import Delivery, MessageId, PartitionName
from octavo.protocol.records import Record
from octavo.protocol.windows import WINDOW_RECORDS
from tests.support.cluster import running_cluster
from tests.support.http_api import Api, until
from tests.support.kit.quiescence import in_use


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_short_body_does_not_wait_for_the_long_one_before_it() -> None:
    """Room goes to a waiter for which it is enough, also the second time."""
    held = HeldBytes(100)
    await held.take("a", 60)
    await held.take("b", 40)
    long = asyncio.create_task(held.take("c", 70))
    short = [asyncio.create_task(held.take("d", 15)) for _ in range(3)]
    await _turns()
    held.give_back("b", 20)
    await _turns()
    assert [one.done() for one in (long, *short)] == [False, True, False, False]
    held.give_back("b", 20)
    await _turns()
    assert [one.done() for one in (long, *short)] == [False, True, True, False]
    held.give_back("a", 60)
    await long
    held.give_back("c", 70)
    await asyncio.gather(*short)
    held.give_back("d", 45)
    assert in_use(held) == {}


@pytest.mark.parametrize(("size", "fits"), [(49, True), (50, True), (51, False)])
async def test_the_half_that_may_go_out_is_room_to_the_byte(size: int, fits: bool) -> None:
    assert HeldBytes(100).has_room_to_send(size) == fits


@pytest.mark.parametrize(("size", "fits"), [(74, True), (75, True), (76, False)])
async def test_a_peer_may_hold_three_quarters_to_the_byte(size: int, fits: bool) -> None:
    assert HeldBytes(100).try_take("a", size) == fits


@pytest.mark.parametrize(("size", "fits"), [(24, True), (25, True), (26, False)])
async def test_all_peers_together_may_hold_all_to_the_byte(size: int, fits: bool) -> None:
    held = HeldBytes(100)
    await held.take("a", 75)
    assert held.try_take("b", size) == fits


@pytest.mark.parametrize(("size", "fits"), [(29, True), (30, True), (31, False)])
def test_a_quota_of_memory_bounds_what_a_principal_holds(size: int, fits: bool) -> None:
    held = HeldBytes(100)
    held.quota_of = {"user:ann": 30}.get
    assert held.try_take("a", size, "user:ann") is fits
    assert held.try_take("b", 50, "user:bob"), "others have no quota"
    held.give_back("b", 50, "user:bob")
    if fits:
        held.give_back("a", size, "user:ann")
    assert in_use(held) == {}


@pytest.mark.parametrize(("size", "fits"), [(29, True), (30, True), (31, False)])
def test_a_quota_of_memory_bounds_what_is_held_for_a_namespace(size: int, fits: bool) -> None:
    """The sum over all its principals is bounded; others still have room."""
    held = HeldBytes(1000)
    held.quota_of = {"namespace:n": 100}.get
    assert held.try_take("a", 70, "user:ann", "namespace:n")
    assert held.try_take("b", size, "user:bob", "namespace:n") is fits
    assert held.try_take("b", 200, "user:bob", "namespace:other"), "no quota"
    assert held.try_take("b", 200, "user:bob")
    held.give_back("b", 200, "user:bob", "namespace:other")
    held.give_back("b", 200, "user:bob")
    if fits:
        held.give_back("b", size, "user:bob", "namespace:n")
    held.give_back("a", 70, "user:ann", "namespace:n")
    assert held.try_take("a", 100, "namespace:n"), "room again, to the byte"
    assert not held.try_take("a", 1, "namespace:n")
    held.give_back("a", 100, "namespace:n")
    assert in_use(held) == {}


@pytest.mark.parametrize("subjects", [("user:ann",), ("namespace:n",), ("user:ann", "namespace:n")])
async def test_the_refusal_names_each_limit_that_is_reached(
    monkeypatch: pytest.MonkeyPatch, subjects: tuple[str, ...]
) -> None:
    monkeypatch.setattr(held_bytes, "ROOM_WAIT_S", 0.0)
    held = HeldBytes(1000)
    held.quota_of = {"user:ann": 60, "namespace:n": 70}.get
    await held.take("a", 50, "user:ann", "namespace:n")
    with pytest.raises(Overloaded) as refusal:
        await held.take("a", 30, *subjects)
    for subject, most in (("user:ann", 60), ("namespace:n", 70)):
        said = f"50 of {subject}, whose quota of memory is {most}"
        assert (said in str(refusal.value)) is (subject in subjects)
    assert "no room for 30 more" in str(refusal.value)
    held.give_back("a", 50, "user:ann", "namespace:n")
    assert in_use(held) == {}, "a refusal leaves nothing behind"


async def test_a_body_waits_for_the_room_of_its_namespace() -> None:
    held = HeldBytes(1000)
    held.quota_of = {"namespace:n": 100}.get
    await held.take("a", 100, "namespace:n")
    waits = asyncio.create_task(held.take("b", 40, "user:bob", "namespace:n"))
    await _turns()
    assert not waits.done()
    held.give_back("a", 40, "namespace:n")
    await waits
    held.give_back("a", 60, "namespace:n")
    held.give_back("b", 40, "user:bob", "namespace:n")
    assert in_use(held) == {}


# Answers of plain reads to clients that took nothing were not counted: 500 of them took a broker
# above a gigabyte, twice the maximum of docs/limits.md.

MIB = 1024 * 1024
BOUND = 32 * MIB
ANSWER = 4 * MIB
"""More than two sockets' buffers take."""
TOPIC = "/v1/topics/public/t"
READ = f"{TOPIC}/partitions/0/messages?from=0&max_bytes={ANSWER}"


async def test_answers_that_nobody_takes_are_counted_and_bounded(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=0) as cluster:
        api = await cluster.start_broker("small", bodies_bytes_max=BOUND, stall_timeout_ms=60_000)
        server = cluster.brokers["small"].server
        assert server is not None
        held = server._services.held
        async with AsyncClient(api.url) as client:
            await client.create_topic("t")
            async with client.producer("t", batch_bytes=100_000) as producer:
                for _ in range(100):
                    await producer.send(b"x" * 90_000)
        host, port = api.url.removeprefix("http://").split(":")
        request = (
            f"GET {READ} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            "Accept: application/vnd.kafka.recordbatch.v2\r\n\r\n"
        ).encode()
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.connect((host, int(port)))
                before = held.total
                one.sendall(request)
                await until(lambda before=before: held.total > before, 20)
            assert 3 * ANSWER * 0.9 < held.total <= BOUND * 3 // 8
            refused = await api.get(READ)
            assert (refused.status, refused.json()["code"]) == (429, "overloaded")
            assert "ask for less" in refused.json()["detail"]
            assert refused.headers["Retry-After"]
            assert (await api.get(f"{READ[: -len(str(ANSWER))]}1000")).status == 200, (
                "short ones go"
            )
            body = b"x" * MIB
            stored = await api.post(f"{TOPIC}/messages", body, "application/octet-stream")
            assert stored.status == 200, "there is room for what comes in"
            other = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
            async with (
                aiohttp.ClientSession(connector=other) as session,
                session.get(api.url + READ) as answer,
            ):
                assert answer.status == 200, "one address does not take all of it"
                await answer.read()
        await until(lambda: held.total == 0, 20)
        assert (await api.get(READ)).status == 200


def test_one_answer_is_always_possible() -> None:
    held = HeldBytes(100)
    held.check_answer("a", 1_000)
    held.count_going_out("a", 1_000)
    held.count_going_out("a", -1_000)
    assert held.total == 0


# Each slow reader of a subscription's stream made its broker hold uncounted megabytes: 500 readers
# took more than a gigabyte, twice a broker's stated maximum. A stream asked for 500 messages of any
# length at a time, several times over, and made all frames before it sent the first. Now it asks
# for 64 KiB, and its memory is counted.

MESSAGE_BYTES = 8_000
READERS = 6
STREAM_BOUND = 2 * 1024 * 1024


@pytest.mark.parametrize("form", ["json", "batches"])
async def test_what_slow_sockets_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    found: list[int] = []
    ready = push.Feed._ready_for

    async def noting(self: push.Feed, one: push.Handout) -> None:
        found.append(one.held_bytes)
        await ready(self, one)

    monkeypatch.setattr(push.Feed, "_ready_for", noting)
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await cluster.start_broker(
            "small", bodies_bytes_max=STREAM_BOUND, stall_timeout_ms=60_000
        )
        server = cluster.brokers["small"].server
        assert server is not None
        held = server._services.held
        async with AsyncClient(cluster.api.url) as client, aiohttp.ClientSession() as session:
            await client.create_topic("t")
            async with client.producer("t", batch_bytes=20_000) as producer:
                for _ in range(2_000):
                    await producer.send(b"x" * MESSAGE_BYTES)
            async with contextlib.AsyncExitStack() as stack:
                for number in range(READERS):
                    await client.subscribe("t", f"s{number}", type="shared")
                    path = f"{TOPIC}/subscriptions/s{number}/stream?credits=2000&form={form}"
                    ws = await stack.enter_async_context(
                        session.ws_connect(api.url + path, max_msg_size=0, compress=0)
                    )
                    transport = ws._response.connection.transport  # type: ignore[union-attr]
                    assert transport is not None
                    transport.pause_reading()  # type: ignore[attr-defined]
                    stack.callback(transport.abort)  # type: ignore[attr-defined]
                await until(lambda: held.total >= STREAM_BOUND // 8, 60)
                most = 0
                for _ in range(50):
                    most = max(most, held.total)
                    await asyncio.sleep(0.02)
                assert most < 2 * STREAM_BOUND
            await until(lambda: held.total == 0, 60)
    first = push.FIRST_OF_ALL * (MESSAGE_BYTES + 400)
    if form == "batches":  # stored batches stay whole; after an interruption one has 256 KiB
        first += 2 * 256 * 1024
    longest = 2 * max(first, push.HANDOUT_BYTES + 30_000)
    assert found
    assert max(found) <= longest


def test_half_of_the_room_is_for_bodies() -> None:
    held = HeldBytes(1000)
    assert held.has_room_to_send(500)
    held.count_going_out("a", 500)
    assert not held.has_room_to_send(1)
    assert held.try_take("a", 250), "three quarters are one address's"
    assert held.try_take("b", 250)
    assert not held.try_take("b", 1)
    held.count_going_out("a", -500)
    assert held.total == 500
    assert held.has_room_to_send(500)
    assert not held.has_room_to_send(501)


# Sixty clients that each asked for 4,000 messages, again and again, kept a broker's loop busy for
# 11.7 s: each read left the loop after 2,000 messages, and found 59 others in the next turn. One
# receive of 10,000 tiny messages kept it for 0.14 s, since it unpacked and encoded all of them in
# one go.

MANY_TOPIC = "/v1/topics/public/one"
BATCHES, MESSAGES = 4, 500
MANY_READERS = 20
JSON, NDJSON = "application/json", "application/x-ndjson"
MOST = RECORDS_A_TURN + WINDOW_RECORDS


class LoopTurns:
    """The number of messages processed in each turn of the loop."""

    def __init__(self) -> None:
        self.found: Counter[int] = Counter()
        self._turn = 0

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*about: object) -> Any:
            self.found[self._turn] += 1
            return real(*about)

        return counting

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        async def turn() -> None:
            while True:
                self._turn += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(turn())
        try:
            yield
        finally:
            task.cancel()


async def publish(api: Api) -> None:
    lines = b"".join(b'{"value":%d}\n' % n for n in range(MESSAGES))
    for _ in range(BATCHES):
        answer = await api.post(f"{MANY_TOPIC}/messages", lines, NDJSON)
        assert answer.status == 200, answer


@pytest.mark.parametrize("kind", [JSON, NDJSON])
async def test_many_reads_do_not_share_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    turns = LoopTurns()
    for name in ("message_out", "encode"):
        monkeypatch.setattr(api_read, name, turns.counted(getattr(api_read, name)))
    async with running_cluster(tmp_path, brokers=1) as cluster:
        await cluster.api.put(MANY_TOPIC)
        await publish(cluster.api)
        path = f"{MANY_TOPIC}/messages?from=earliest&limit=10000"
        async with turns.counting():
            answers = await asyncio.gather(
                *(cluster.api.get(path, headers={"Accept": kind}) for _ in range(MANY_READERS))
            )
    for one in answers:
        assert one.body.count(b'"offset"') == BATCHES * MESSAGES
    if kind == JSON:
        assert all(len(one.json()["messages"]) == BATCHES * MESSAGES for one in answers)
    assert sum(turns.found.values()) == 2 * MANY_READERS * BATCHES * MESSAGES
    assert max(turns.found.values()) <= 2 * MOST, turns.found.most_common(3)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_nor_do_many_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    turns = LoopTurns()
    for module, name in ((api_deliveries, "message_out"), (subscription, "Delivery")):
        monkeypatch.setattr(module, name, turns.counted(getattr(module, name)))
    names = [f"s{number}" for number in range(MANY_READERS // 4)]
    async with running_cluster(tmp_path, brokers=1) as cluster:
        await cluster.api.put(MANY_TOPIC, json={"partitions": partitions})
        for name in names:
            await cluster.api.put(f"{MANY_TOPIC}/subscriptions/{name}", json={"type": "shared"})
        await publish(cluster.api)
        path = f"{MANY_TOPIC}/subscriptions/{{}}/receive?max=10000"
        async with turns.counting():
            answers = await asyncio.gather(*(cluster.api.post(path.format(name)) for name in names))
    assert [len(one.json()["messages"]) for one in answers] == [BATCHES * MESSAGES] * len(names)
    assert sum(turns.found.values()) == 2 * len(names) * BATCHES * MESSAGES
    assert max(turns.found.values()) <= MOST, turns.found.most_common(3)


async def test_what_was_not_handed_over_in_its_turn_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receive from several partitions gives late messages back."""
    given_back: list[str] = []
    deliveries = [
        Delivery(f"0-{n}-1-1", n, MessageId(1, n, 0), Record(None, b"x"), 1) for n in range(3)
    ]

    async def operate(*_: object, **__: object) -> Leases:
        return Leases(deliveries, None, [], None, 1)

    async def give_back(*_: object, unread: list[str]) -> None:
        given_back.extend(unread)

    monkeypatch.setattr(api_deliveries, "operate", operate)
    monkeypatch.setattr(api_deliveries, "give_back", give_back)
    turns = Turns()
    await turns.take(RECORDS_A_TURN)
    broker = SimpleNamespace(open_batches=SimpleNamespace(turns=turns))
    call = SimpleNamespace(services=SimpleNamespace(broker=broker), client_is_gone=False)
    asked = Receive(PartitionName("public", "t", 0), "s", "c", 10)

    async def receive() -> None:
        async with api_deliveries.HeldLeases(cast(Any, call), asked) as handover:
            await handover.shown(await handover.leases())

    receiving = asyncio.create_task(receive())
    await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert given_back == [one.ack_id for one in deliveries]
