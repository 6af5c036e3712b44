"""Clients of a real cluster while brokers die, restart and hand over, and topics are made again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import operator
import os
import random
import signal
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from octavo import AsyncClient, Client
from octavo.client.errors import ApiError, Conflict, NotFound, Unreachable
from tests.support.processes.standalone import Standalone, octavo, standalone, until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("client") / "data"
    with standalone(folder, "--session-timeout-ms", "2000") as one:
        yield one


@pytest.fixture
def client(running: Standalone) -> Iterator[Client]:
    with Client(running.cluster.urls) as one:
        yield one


def test_topics(client: Client) -> None:
    made = client.create_topic("topics", partitions=2, ack_quorum=3)
    assert (str(made.name), made.partitions, made.settings["ack_quorum"]) == ("public/topics", 2, 3)
    assert client.create_topic("topics", partitions=2, ack_quorum=3).partitions == 2
    with pytest.raises(Conflict):
        client.create_topic("topics", partitions=3)
    assert "topics" in client.topics()
    assert client.update_topic("topics", partitions=3).partitions == 3
    found = client.topic("topics")
    assert [one["partition"] for one in found.stats["partitions"]] == [0, 1, 2]
    client.delete_topic("topics")
    with pytest.raises(NotFound, match="topics"):
        client.topic("topics")
    client.create_namespace("else")
    assert {"public", "else"} <= set(client.namespaces())
    with pytest.raises(ApiError, match="ensemble"):
        client.create_topic("bad", ensemble_size=1)


def test_cluster(client: Client) -> None:
    assert {one["id"] for one in client.bookies()} == {"bookie-1", "bookie-2", "bookie-3"}
    assert {one["id"] for one in client.brokers()} == {"broker-1", "broker-2"}
    assert client.cluster()


def test_values_come_back_as_they_went(client: Client) -> None:
    client.create_topic("values")
    values: list[Any] = [b"\x00\xff", "text é", {"a": [1, None, "x"]}, 17, None, b""]
    headers: dict[str, Any] = {"h": "1", "b": b"\xff"}
    first = client.publish("values", values[0], headers=headers, timestamp_ms=5)
    assert (first.partition, first.offset, first.duplicate) == (0, 0, False)
    assert first.id.count(":") == 2
    for value in values[1:]:
        client.publish("values", value, key="k")
    found = list(client.messages("values"))
    assert [one.value for one in found] == [
        b"\x00\xff", "text é".encode(), b'{"a":[1,null,"x"]}', b"17", None, b"",
    ]  # fmt: skip
    assert found[0].headers == (("h", b"1"), ("b", b"\xff"))
    assert (found[0].timestamp_ms, found[0].key, found[1].key) == (5, None, b"k")
    assert found[2].json() == {"a": [1, None, "x"]}
    consumer = client.subscribe("values", "all")
    received = consumer.receive(100)
    assert [one.value for one in received] == [one.value for one in found]
    assert received[0].headers == found[0].headers
    assert received[0].id == first.id


def test_reading_from_places(client: Client) -> None:
    client.create_topic("places")
    stamps = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    with client.producer("places", batch_bytes=10) as producer:
        futures = [
            producer.send(f"d{stamp.day}", timestamp_ms=int(stamp.timestamp() * 1000))
            for stamp in stamps
        ]
    places = [future.result() for future in futures]

    def texts(start: str | int) -> list[str]:
        return [message.text() for message in client.messages("places", start=start)]

    assert texts("earliest") == ["d1", "d2", "d3", "d4"]
    assert texts(2) == ["d3", "d4"]
    assert texts(places[1].id) == ["d2", "d3", "d4"]
    assert texts("2026-01-03T00:00:00Z") == ["d3", "d4"]
    assert texts("latest") == []
    assert client.offset("places") == 4
    assert client.offset("places", at="2026-01-02T00:00:00Z") == 1
    assert [one.text() for one in client.read("places", start=1, limit=2)] == ["d2", "d3"]
    with pytest.raises(ApiError, match="4"):
        client.read("places", start=400)


def test_subscription(client: Client) -> None:
    client.create_topic("subs", partitions=2)
    client.publish_many("subs", [(f"k{n % 7}", f"{n}") for n in range(20)])
    consumer = client.subscribe("subs", "s", type="shared", ack_timeout_s=30)
    first = consumer.receive(10)
    assert 1 <= len(first) <= 10
    consumer.ack(first)
    rest = consumer.receive(100)
    consumer.nack(rest[0])
    with pytest.raises(Conflict):
        consumer.ack(rest[0])
    consumer.ack(rest[1:])
    again = consumer.receive(100, wait_s=5)
    assert [(one.offset, one.delivery_count) for one in again] == [(rest[0].offset, 2)]
    consumer.extend(again)
    consumer.ack(again)
    assert consumer.stats()["backlog"] == 0
    consumer.seek("earliest")
    everything = list(consumer.deliveries(idle_s=0.5))
    assert sorted(int(one.text()) for one in everything) == [*range(20)]
    assert consumer.stats()["backlog"] == 0
    consumer.delete()
    with pytest.raises(NotFound):
        consumer.stats()


def test_cumulative_ack(client: Client) -> None:
    client.create_topic("cumulative")
    client.publish_many("cumulative", [(None, f"{n}") for n in range(10)])
    consumer = client.subscribe("cumulative", "s")
    received = consumer.receive(10)
    consumer.ack_up_to(received[6])
    assert consumer.stats()["backlog"] == 3


async def test_following_sees_what_comes(running: Standalone) -> None:
    async with AsyncClient(running.cluster.urls) as client:
        await client.create_topic("follow")
        seen: list[str] = []

        async def follow() -> None:
            async for message in client.messages("follow", follow=True):
                seen.append(message.text())  # noqa: PERF401

        task = asyncio.create_task(follow())
        for n in range(5):
            await client.publish("follow", f"{n}")
        async with asyncio.timeout(20):
            while len(seen) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert seen == ["0", "1", "2", "3", "4"]


def test_a_named_producer_repeats_itself(running: Standalone, client: Client) -> None:
    client.create_topic("imports")
    url = running.cluster.urls[0]
    for count in (300, 500):
        lines = "".join(f"line {n}\n" for n in range(count))
        done = octavo(
            "publish", "imports", "--key", "k", "--producer-id", "job", "--url", url, stdin=lines
        )
        assert done.returncode == 0, done.stderr
    assert [one.text() for one in client.messages("imports")] == [f"line {n}" for n in range(500)]


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
def test_the_owner_dies_while_a_producer_sends(
    running: Standalone, encoding: Literal["batch", "ndjson"]
) -> None:
    """Its last requests have unknown outcomes; the next owner knows which were stored."""
    topic = f"public/owner-dies-{encoding}"

    async def run() -> tuple[list[list[str]], list[list[str]]]:
        async with AsyncClient(running.cluster.urls, attempt_s=5.0) as client:
            await client.create_topic(topic, partitions=2)
            producer = await client.producer(topic, encoding=encoding, batch_bytes=1_000)
            expected: list[list[str]] = [[], []]
            for n in range(6_000):
                await producer.send(f"{n}", partition=n % 2)
                expected[n % 2].append(f"{n}")
                if n == 2_000:
                    await producer.flush()
                    url = client.transport.owner((topic, 0))
                if n == 3_000:
                    brokers = running.cluster.of_kind("broker")
                    running.kill(next(one.name for one in brokers if one.address == url))
            await producer.close()
            found = [
                [message.text() async for message in client.messages(topic, partition=number)]
                for number in range(2)
            ]
            return expected, found

    expected, found = asyncio.run(run())
    assert found == expected
    until(lambda: len(running.pids()) == 5, "the killed broker is back")
    until(
        lambda: all(member.state == "running" for member in running.cluster.members),
        "all are ready",
    )


@pytest.mark.long
@pytest.mark.zookeeper
def test_the_same_cluster_on_zookeeper(
    zookeeper: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = zookeeper.new_url()  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("zk") / "data"
    with standalone(folder, "--metadata", url, "--session-timeout-ms", "2000") as one:
        with Client(one.cluster.urls) as client:
            client.create_topic("zk", partitions=2)
            client.publish_many("zk", [(f"k{n}", f"{n}") for n in range(100)])
            one.kill("broker-1")
            one.kill("bookie-1")
            client.publish_many("zk", [(f"k{n}", f"{n}") for n in range(100, 200)])
            received = [
                int(delivery.text())
                for delivery in client.subscribe("zk", "s").deliveries(idle_s=2.0)
            ]
        assert sorted(received) == [*range(200)]
        listed = octavo("bookies", "--metadata", url)
        assert "of 3 up" in listed.stderr


ROUNDS = int(os.environ.get("OCTAVO_ROUNDS", "6"))
PARTITIONS = 2
TOPIC = "/v1/topics/public/t"
LEASE_S = 5
SETTLE_S = 60
Place = tuple[int, int]


@pytest.mark.long
@pytest.mark.timeout(150 + 15 * ROUNDS)
def test_nothing_is_lost_and_nothing_acked_comes_again(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--session-timeout-ms", "2000") as one:
        asyncio.run(Rounds(one).run())


class Followed:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.begun = 0

    async def run(self, url: str) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.offsets:
            headers["Last-Event-ID"] = str(self.offsets[-1])
        path = f"{url}{TOPIC}/partitions/0/messages"
        async with opened("GET", path, headers) as response:
            self.begun += 1
            async for line in response.content:
                if line.startswith(b"id: "):
                    self.offsets.append(int(line[4:]))


class Consumed:
    def __init__(self, name: str) -> None:
        self.name = name
        self.acked: set[Place] = set()
        self.times: dict[Place, int] = defaultdict(int)
        self.begun = 0
        self.wrong: list[str] = []
        self._last: dict[int, int] = {}

    def begins(self) -> None:
        self.begun += 1
        self._last.clear()

    def delivered(self, message: Any) -> str:
        place = partition, offset = message["partition"], message["offset"]
        self.times[place] += 1
        if place in self.acked:
            self.wrong.append(f"{self.name}: {place} came after its ack was answered")
        if message["delivery_count"] == 1:
            epoch = message["ack_id"].split("-")[2]
            at = hash((partition, epoch))
            if self._last.get(at, -1) >= offset:
                self.wrong.append(f"{self.name}: {place} came after {self._last[at]}")
            self._last[at] = offset
        return str(message["ack_id"])

    async def lines(self, url: str, acks: AsyncClient) -> None:
        subscription = acks.subscription("t", self.name)
        path = f"{url}{TOPIC}/subscriptions/{self.name}/stream?credits=200"
        async with opened("GET", path, {"Accept": "application/x-ndjson"}) as response:
            self.begins()
            async for line in response.content:
                found = json.loads(line)
                if "problem" in found:
                    return
                ack_id = self.delivered(found)
                with contextlib.suppress(Conflict):
                    await subscription.acknowledge({"ack_ids": [ack_id]})
                    self.acked.add((found["partition"], found["offset"]))

    async def socket(self, url: str, _: AsyncClient) -> None:
        path = f"{url}{TOPIC}/subscriptions/{self.name}/stream?credits=200"
        asked: dict[int, list[Place]] = {}
        numbers = itertools.count()
        async with aiohttp.ClientSession() as session, session.ws_connect(path) as ws:
            self.begins()
            async for frame in ws:
                said = json.loads(frame.data)
                if "messages" in said:
                    number = next(numbers)
                    asked[number] = [(one["partition"], one["offset"]) for one in said["messages"]]
                    ack_ids = [self.delivered(one) for one in said["messages"]]
                    await ws.send_json({"ack_ids": ack_ids, "request": number})
                elif "acked" in said:
                    self.acked.update(asked.pop(said["request"]))


@contextlib.asynccontextmanager
async def opened(
    method: str, url: str, headers: dict[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, url, headers=headers) as response,
    ):
        response.raise_for_status()
        yield response


class Rounds:
    """One cluster, one publisher, three streams, and a killer of brokers."""

    def __init__(self, cluster: Standalone) -> None:
        self.cluster = cluster
        self.rng = random.Random(ROUNDS)
        self.followed = Followed()
        self.by_client: list[int] = []
        self.lines, self.socket = Consumed("lines"), Consumed("socket")
        self.sent: list[Place] = []
        self.over = False
        self.kept: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        async with AsyncClient(self.cluster.cluster.urls) as client:
            await client.create_topic("t", partitions=PARTITIONS)
            for name in ("lines", "socket"):
                await client.subscribe("t", name, type="shared", ack_timeout_s=LEASE_S)
            publisher = asyncio.create_task(self._publish(client))
            self.kept = [
                asyncio.create_task(one)
                for one in (
                    self._follow(client),
                    self._keep(self.followed.run),
                    self._keep(lambda url: self.lines.lines(url, client)),
                    self._keep(lambda url: self.socket.socket(url, client)),
                )
            ]
            for number in range(ROUNDS):
                await self._round(number)
            self.over = True
            await publisher
            await self._settle(client)
            for task in self.kept:
                task.cancel()
            await asyncio.gather(*self.kept, return_exceptions=True)
        self._judge()

    async def _round(self, number: int) -> None:
        before = self._progress()
        name = self.rng.choice([one.name for one in self.cluster.cluster.of_kind("broker")])
        await asyncio.sleep(self.rng.random())
        with contextlib.suppress(KeyError):
            self.cluster.kill(name)
        await self._until(lambda: all(map(operator.gt, self._progress(), before)), self._progress)
        wrong = self.lines.wrong + self.socket.wrong
        assert not wrong, (number, wrong[:5])

    async def _until(self, condition: Callable[[], bool], shown: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while not condition():
            for task in self.kept:
                if task.done():
                    task.result()
                    raise AssertionError("a stream ended by itself")
            assert loop.time() < deadline, f"not within {SETTLE_S} s: {shown()}"
            await asyncio.sleep(0.05)

    def _progress(self) -> list[int]:
        return [
            len(one)
            for one in (
                self.sent, self.followed.offsets, self.by_client, self.lines.acked,
                self.socket.acked,
            )
        ]  # fmt: skip

    async def _follow(self, client: AsyncClient) -> None:
        async for message in client.messages("t", partition=0, follow=True):
            self.by_client.append(message.offset)

    async def _publish(self, client: AsyncClient) -> None:
        producer = await client.producer("t", linger_ms=1)
        while not self.over:
            receipts = [
                await producer.send("m", partition=partition) for partition in range(PARTITIONS)
            ]
            for receipt in receipts:
                found = await receipt
                self.sent.append((found.partition, found.offset))
            await asyncio.sleep(0.01)
        await producer.close()

    async def _keep(self, run: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Keep a stream open: open it at any broker when its own is gone, or when an ack is not
        answered in time."""
        while True:
            url = self.rng.choice(self.cluster.cluster.urls)
            try:
                await run(url)
            except (aiohttp.ClientError, TimeoutError, OSError, Unreachable):
                pass
            except ApiError as error:
                if not error.can_retry:
                    raise
            await asyncio.sleep(0.1)

    async def _settle(self, client: AsyncClient) -> None:
        sent = set(self.sent)
        of_first = sum(partition == 0 for partition, _ in sent)

        def left() -> Any:
            return (
                sorted(sent - self.lines.times.keys())[:5],
                sorted(sent - self.socket.times.keys())[:5],
                of_first - len(self.followed.offsets),
                of_first - len(self.by_client),
            )

        try:
            await self._until(lambda: not any(left()), left)
        except AssertionError as error:
            for name in ("lines", "socket"):
                error.add_note(f"{name}: {await client.subscription('t', name).stats()}")
            error.add_note(f"sent: {len(sent)}, streams begun: {self.lines.begun}")
            raise
        # An ack whose answer was lost with its broker may have taken effect: then the message
        # never comes.
        for name in ("lines", "socket"):
            backlog = -1
            async with asyncio.timeout(SETTLE_S):
                while backlog:
                    backlog = (await client.subscription("t", name).stats())["backlog"]
                    await asyncio.sleep(0.1)

    def _judge(self) -> None:
        assert len(self.sent) == len(set(self.sent)) > 5 * ROUNDS
        for partition in range(PARTITIONS):
            offsets = sorted(offset for number, offset in self.sent if number == partition)
            assert offsets == [*range(len(offsets))]
        assert self.followed.offsets == [*range(len(self.followed.offsets))]
        assert self.by_client == [*range(len(self.by_client))]
        again = {
            one.name: sum(times - 1 for times in one.times.values())
            for one in (self.lines, self.socket)
        }
        wrong = self.lines.wrong + self.socket.wrong
        print(
            f"{ROUNDS} kills, {len(self.sent)} messages; streams begun: "
            f"{self.followed.begun}, {self.lines.begun}, {self.socket.begun}; "
            f"delivered again: {again}"
        )
        assert not wrong, wrong[:5]


TOPICS = 20
PARTITIONS_BALANCE = 32
BALANCE_AFTER_MS = 1_500
EVEN_WITHIN_S = 40.0
"""Twenty times the time on an idle machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(
        tmp_path / "data",
        "--set",
        f"broker.balance_after_ms={BALANCE_AFTER_MS}",
        "--session-timeout-ms",
        "2000",
    ) as one:
        yield one


def served(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=5) as answer:
            found: list[str] = json.load(answer)["partitions_here"]
            return found
    except OSError:
        return []


def shares(cluster: Standalone, topic: str) -> list[int]:
    prefix = f"{topic}/"
    return sorted(
        sum(name.startswith(prefix) for name in served(broker.address))
        for broker in cluster.cluster.of_kind("broker")
    )


@pytest.mark.long
def test_each_topic_lies_evenly_on_two_brokers(cluster: Standalone) -> None:
    async def make() -> None:
        async with AsyncClient(cluster.cluster.urls) as client:
            for number in range(TOPICS):
                await client.create_topic(f"t{number}", partitions=4)
                producer = await client.producer(f"t{number}")
                for partition in range(4):
                    await producer.send("m", partition=partition)
                await producer.close()

    asyncio.run(make())
    found = [
        Counter(name.rpartition("/")[0] for name in served(broker.address))
        for broker in cluster.cluster.of_kind("broker")
    ]
    for number in range(TOPICS):
        assert [one[f"public/t{number}"] for one in found] == [2, 2], number


@pytest.mark.long
def test_a_rolling_restart_ends_even_by_itself(cluster: Standalone) -> None:
    topic, half = "public/many", [PARTITIONS_BALANCE // 2, PARTITIONS_BALANCE // 2]
    over = asyncio.Event()
    waits_s: list[float] = []

    async def publish() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            await client.create_topic(topic, partitions=PARTITIONS_BALANCE)
            producer = await client.producer(topic)
            sent = 0
            while not over.is_set():
                for partition in range(PARTITIONS_BALANCE):
                    await producer.send(f"{sent}", partition=partition)
                    sent += 1
                began_s = time.monotonic()
                await producer.flush()
                waits_s.append(time.monotonic() - began_s)
                await asyncio.sleep(0.02)
            await producer.close()
            return sent

    def restart_both() -> list[float]:
        took = []
        until(lambda: shares(cluster, topic) == half, "even at first", EVEN_WITHIN_S)
        for name in [broker.name for broker in cluster.cluster.of_kind("broker")]:
            pid = cluster.pids()[name]
            os.kill(pid, signal.SIGTERM)
            until(lambda name=name, pid=pid: cluster.pids().get(name) not in (None, pid), name)  # type: ignore[misc]
            began_s = time.monotonic()
            until(lambda: shares(cluster, topic) == half, f"even after {name}", EVEN_WITHIN_S)
            took.append(time.monotonic() - began_s)
        return took

    async def run() -> tuple[int, list[float]]:
        publishing = asyncio.create_task(publish())
        try:
            took = await asyncio.to_thread(restart_both)
        finally:
            over.set()
        return await publishing, took

    sent, took = asyncio.run(run())

    async def count() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            found = 0
            for partition in range(PARTITIONS_BALANCE):
                texts = [m.text() async for m in client.messages(topic, partition=partition)]
                assert len(texts) == len(set(texts)), f"doubled in partition {partition}"
                found += len(texts)
            return found

    assert asyncio.run(count()) == sent
    waits_s.sort()
    print(
        f"even {took[0]:.1f} and {took[1]:.1f} s after the restarts; {sent} messages, a round of "
        f"all partitions waited at most {waits_s[-1]:.3f} s"
    )


@pytest.mark.long
def test_a_broker_that_is_stopped_hands_everything_on_first(cluster: Standalone) -> None:
    """Each partition is handed over, not recovered, while a publisher runs."""
    topic, partitions = "public/left", 12
    names = [f"{topic}/{number}" for number in range(partitions)]
    one, two = cluster.cluster.of_kind("broker")
    over = asyncio.Event()

    async def publish() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            producer = await client.producer(topic)
            sent = 0
            while not over.is_set() or sent < partitions:
                await producer.send(f"{sent}", partition=sent % partitions)
                sent += 1
                if not sent % partitions:
                    await producer.flush()
            await producer.close()
            return sent

    def stop_one() -> list[str]:
        until(lambda: len(served(one.address) + served(two.address)) == partitions, "all open")
        mine = served(one.address)
        os.kill(cluster.pids()[one.name], signal.SIGTERM)
        until(lambda: set(served(two.address)) == set(names), "the other has all", EVEN_WITHIN_S)
        return mine

    async def run() -> tuple[list[str], int]:
        async with AsyncClient(cluster.cluster.urls) as client:
            await client.create_topic(topic, partitions=partitions)
        publishing = asyncio.create_task(publish())
        try:
            mine = await asyncio.to_thread(stop_one)
        finally:
            over.set()
        return mine, await publishing

    mine, sent = asyncio.run(run())
    log = [json.loads(line) for line in Path(two.log).read_text().splitlines()]
    left = {one["partition"] for one in log if one["event"] == "partition_taken_as_left"}
    assert mine
    assert left >= set(mine), "none of them was recovered"

    async def count() -> int:
        async with AsyncClient([two.address]) as client:
            found = 0
            for partition in range(partitions):
                texts = [m.text() async for m in client.messages(topic, partition=partition)]
                assert len(texts) == len(set(texts)), f"doubled in partition {partition}"
                found += len(texts)
            return found

    assert asyncio.run(count()) == sent


ROUNDS_AGAIN = int(os.environ.get("OCTAVO_ROUNDS", "12"))
TOPICS_AGAIN = 5
MESSAGES = 10


@pytest.mark.long
@pytest.mark.timeout(60 + 6 * ROUNDS_AGAIN)
def test_nothing_is_lost_and_nothing_old_is_seen(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--session-timeout-ms", "2000") as one:
        urls = one.cluster.urls
        assert len(urls) == 2
        asyncio.run(rounds(urls))


async def rounds(urls: list[str]) -> None:
    stored: dict[str, list[str]] = {}
    for turn in range(ROUNDS_AGAIN + TOPICS_AGAIN):
        topic = f"t{turn % TOPICS_AGAIN}"
        here, there = urls[turn % 2], urls[1 - turn % 2]
        if topic in stored:
            for url in urls:
                assert await found(url, topic) == stored[topic], (turn, topic, "by and by")
        # New clients, which know no owner yet; they connect before the deletion begins.
        async with AsyncClient([here]) as deleter, AsyncClient([there]) as maker:
            await asyncio.gather(deleter.topics(), maker.topics())
            if topic in stored:
                await deleter.delete_topic(topic)
            await maker.create_topic(topic)
            texts = [f"{turn}-{number}" for number in range(MESSAGES)]
            publisher = (deleter, maker)[turn // 2 % 2]
            await publisher.publish_many(topic, [(None, text) for text in texts])
        stored[topic] = texts
        for url in urls:
            assert await found(url, topic) == texts, (turn, topic)


async def found(url: str, topic: str) -> list[str]:
    async with AsyncClient([url]) as client:
        return [message.text() async for message in client.messages(topic)]
