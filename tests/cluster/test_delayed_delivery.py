"""Messages with a due time: over HTTP, by every way in, through a take-over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.broker.types import PartitionName, SubscriptionSettings, TopicName, TopicSettings
from octavo.clock import wall_clock_ms
from octavo.protocol.due import due_header
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, owned, running_cluster
from tests.support.http_api import Api

PATH = "/v1/topics/public/flights"
BATCH = "application/vnd.kafka.recordbatch.v2"


async def subscribed(cluster: Cluster, kind: str = "shared") -> Api:
    api = cluster.api
    assert (await api.put(PATH)).status == 201
    body = {"type": kind, "start": "earliest", "ack_timeout": 60}
    assert (await api.put(PATH + "/subscriptions/s", json=body)).status == 201
    return api


async def received(api: Api, wait: str = "0s", most: int = 100, accept: str = "") -> list[Any]:
    headers = {"Accept": accept} if accept else {}
    answer = await api.post(
        f"{PATH}/subscriptions/s/receive?max={most}&consumer=c&wait={wait}", headers=headers
    )
    return [] if answer.status == 204 else [one["value"] for one in answer.json()["messages"]]


async def test_by_every_way_in_and_in_the_order_of_due_times(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed(cluster)
        now_ms = wall_clock_ms()
        late = {"deliver_at": now_ms + 1_200}
        messages = [
            {"value": 0, "deliver_after": "900ms"},
            {"value": 1},
            {"value": 2, "deliver_after": 0.6},
            {"value": 3, **late},
            {"value": 4, "deliver_at": "2001-01-01T00:00:00Z"},
        ]
        assert (await api.post(PATH + "/messages", json={"messages": messages})).status == 200
        for name, value, body in (
            ("Octavo-Deliver-After", "300ms", b"5"),
            ("Octavo-Deliver-At", str(now_ms + 1_500), b"6"),
        ):
            for _ in range(2):
                headers = {name: value, "Content-Type": "application/octet-stream"}
                answer = await api.post(PATH + "/messages", body, headers=headers)
                assert answer.status == 200, answer
        assert await received(api) == [1, 4]
        found: list[Any] = []
        while len(found) < 7:
            got = await received(api, wait="2s")
            assert got, "what is due wakes who waits"
            found += got
        assert found == [5, 5, 2, 0, 3, 6, 6]
        assert wall_clock_ms() >= now_ms + 1_500
        stats = (await api.get(PATH + "/subscriptions/s")).json()["partitions"][0]
        assert (stats["leased"], stats["delayed"], stats["backlog"]) == (9, 0, 9)


async def test_a_batch_of_a_client_is_opened_only_where_it_says_so(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed(cluster)
        due_ms = wall_clock_ms() + 700
        plain = build_batch([Record(None, b"%d" % n) for n in range(3)])
        mixed = [
            Record(None, b"%d" % n, [due_header(due_ms + 10 * (9 - n))] if n % 2 else ())
            for n in range(3, 9)
        ]
        for batch in (plain, build_batch(mixed)):
            assert (await api.post(PATH + "/messages", batch, BATCH)).status == 200
        assert await received(api) == [0, 1, 2, 4, 6, 8]
        assert await received(api, wait="2s", most=2) == [7]
        assert await received(api, wait="2s", most=2) == [5]
        assert await received(api, wait="2s", most=2) == [3]


async def test_an_exclusive_subscription_does_not_wait(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed(cluster, "exclusive")
        message = {"value": 1, "deliver_after": "1h"}
        assert (await api.post(PATH + "/messages", json=message)).status == 200
        assert await received(api) == [1]


async def test_a_take_over_loses_none(tmp_path: Path) -> None:
    topic = TopicName("public", "flights")
    async with running_cluster(tmp_path) as cluster:
        first = await cluster.start("A", pending_messages_max=40)
        name = PartitionName(*topic, 0)
        await first.broker.topics.create(topic, TopicSettings())
        partition = await owned(first.broker, name)
        info, _ = await first.broker.topics.create_subscription(
            topic, "s", SubscriptionSettings(type="shared")
        )
        subscription = await partition.subscribe(info)
        now_ms = cluster.clock.now_ms
        for start in range(0, 50, 10):
            records = [
                Record(None, b"%d" % n, [due_header(now_ms + 1_000 - n)])
                for n in range(start, start + 10)
            ]
            await partition.publish(build_batch(records))
        await partition.publish(build_batch([Record(None, b"now")]))
        assert await subscription.receive("c", messages_max=3) == []
        assert "not due yet" in (subscription.held_back() or "")
        assert subscription.stats().delayed == 40
        await first.vanish()
        second = await cluster.start("B")
        taken = await owned(second.broker, name)
        again = await taken.subscription("s")
        found = await again.receive("c", messages_max=3)
        assert [one.record.value for one in found] == [b"now"]
        cluster.clock.now_ms += 980
        found = await again.receive("c", messages_max=30)
        assert [int(one.record.value or b"") for one in found] == list(range(49, 19, -1))
        await again.acknowledge([one.ack_id for one in found])
        cluster.clock.now_ms += 20
        rest = await again.receive("c", messages_max=30)
        assert len(rest) == 20
        assert {one.offset for one in found} | {one.offset for one in rest} == set(range(50))
