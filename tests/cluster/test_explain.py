"""Explanations of a cluster: owners, limits, and what each consumer gets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.cli.explained import show_explained
from octavo.client.errors import NotFound
from tests.cluster.test_balance import share
from tests.cluster.test_drain import SLOW, spread
from tests.support.cluster import TOPIC, Cluster, make_topic, owned, running_cluster, until

TOPIC_PATH = "/v1/topics/public/orders"
EXPLAIN = "/v1/explain/public/orders"


async def explained(cluster: Cluster, query: str = "") -> dict[str, Any]:
    """Return the explanation; check that every broker gives the same."""
    found = []
    for api in cluster.apis.values():
        answer = await api.get(EXPLAIN + query)
        assert answer.status == 200, answer
        found.append(answer.json())
    for one in found[1:]:
        assert [p["owner"] for p in one["partitions"]] == [
            p["owner"] for p in found[0]["partitions"]
        ]
    first: dict[str, Any] = found[0]
    return first


async def test_who_serves_what_and_why_is_said_alike_by_every_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        names = set(cluster.apis)
        await cluster.api.put(TOPIC_PATH, json={"partitions": 4})
        found = await explained(cluster)
        assert found["topic"] == "public/orders"
        assert {one["id"] for one in found["brokers"]} == names
        assert [part["partition"] for part in found["partitions"]] == [0, 1, 2, 3]
        for part in found["partitions"]:
            assert part["owner"] == part["preferred"]
            assert "even spread" in part["why"]
            assert not part["placed"]
            assert part["ledgers"] == [], "none is made before something is published"
            assert part["publishing"]["held_back"] == []
            assert "subscription" not in part
        owner = found["partitions"][0]["owner"]
        other = (names - {owner}).pop()
        moved = await cluster.api.post(f"{TOPIC_PATH}/partitions/0/unload?to={other}")
        assert moved.status == 200, moved
        part = (await explained(cluster))["partitions"][0]
        assert (part["owner"], part["preferred"], part["placed"]) == (other, owner, True)
        assert part["epoch"] == found["partitions"][0]["epoch"] + 1
        assert f"it was put on {other}" in part["why"]
        one = await cluster.api.get(f"{TOPIC_PATH}/partitions/0/explain")
        assert one.json()["why"] == part["why"]


async def test_what_holds_consumers_back_is_named_with_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC_PATH, json={"partitions": 2})
        sub = f"{TOPIC_PATH}/subscriptions/s"
        made = await cluster.api.put(sub, json={"type": "key_shared", "max_unacked": 3})
        assert made.status == 201, made
        for number in range(40):
            await cluster.api.post(
                TOPIC_PATH + "/messages", b"x", "text/plain", headers={"Octavo-Key": f"k{number}"}
            )
        for consumer in ("one", "two"):
            got = await cluster.api.post(f"{sub}/receive?consumer={consumer}&max=20&wait=1")
            assert got.status == 200, got
        found = await explained(cluster, "?subscription=s")
        assert (found["subscription"], found["type"]) == ("s", "key_shared")
        held = [why for p in found["partitions"] for why in p["subscription"]["held_back"]]
        assert any("at most 3 out" in why for why in held), held
        for part in found["partitions"]:
            told = part["subscription"]
            assert told["unacked_max"] == 3
            assert told["figures"]["leased"] <= 3
            slots = {one["name"]: one["slots"] for one in told["figures"]["consumers"]}
            assert sum(slots.values()) == 65_536, slots
            assert all(one["slot_ranges"] for one in told["figures"]["consumers"] if one["slots"])
        async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
            again = await client.explain_topic("orders", subscription="s")
            with pytest.raises(NotFound):
                await client.explain_topic("orders", subscription="nobody")
            with pytest.raises(NotFound):
                await client.explain_topic("nothing")
        show_explained(again)
        said = capsys.readouterr().out
        assert "subscription s (key_shared)" in said
        assert "of 65536 slots" in said
        assert "at most 3 out in one partition" in said
        assert "is on" in said
        assert json.dumps(again)


async def test_what_holds_publishers_back_is_named_with_its_limit(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        rates = {"rates": {"publish_messages": 1}}
        made = await cluster.api.put(TOPIC_PATH, json={"partitions": 1, **rates})
        assert made.status == 201, made
        body = b"".join(b'{"value": %d}\n' % number for number in range(100))
        stored = await cluster.api.post(TOPIC_PATH + "/messages", body, "application/x-ndjson")
        assert stored.status == 200, stored
        access = await cluster.api.post(
            f"{TOPIC_PATH}/partitions/0/producer-access", json={"producer": "loader"}
        )
        assert access.status == 200, access
        found = (await explained(cluster))["partitions"][0]["publishing"]
        assert found["producer"] == "loader"
        assert any("publish_messages is 1 a second" in why for why in found["held_back"]), found
        assert any("'loader' has exclusive access" in why for why in found["held_back"]), found


async def test_a_broker_that_is_emptied_says_so(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    assert "even spread" in one.broker.balance.place_of(mine).why

    async def never(*_: Any) -> None:
        await asyncio.sleep(600)

    one.broker.announce_to_peer = never
    await one.broker.drain()
    held = one.broker.ownership.open_partitions()
    await until(
        lambda: one.broker.ownership.describe()["offered"] == len(held), "all are on their way"
    )
    assert "being handed on" in one.broker.balance.place_of(mine).why
    assert "even spread" in two.broker.balance.place_of(
        two.broker.ownership.open_partitions()[0].name
    ).why  # fmt: skip


async def test_who_should_have_it_and_why_it_has_not_yet(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    await make_topic(one.broker, partitions=8)
    for number in range(8):
        await owned(one.broker, TOPIC.partition(number))
    await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "A sees B")
    told = [one.broker.balance.place_of(TOPIC.partition(number)) for number in range(8)]
    later = [place for place in told if place.preferred == "B"]
    assert len(later) == 4
    for place in later:
        assert "B should have it" in place.why
        assert "stays for 600 s" in place.why


async def test_what_waits_is_named_with_its_consumer_and_until_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said `nothing is held back` of messages that were filtered, delayed, or leased by a
    silent consumer."""
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC_PATH, json={"partitions": 1})
        sub = f"{TOPIC_PATH}/subscriptions/s"
        settings = {"type": "shared", "filter": {"key_prefix": "eu-"}, "ack_timeout": "30s"}
        assert (await cluster.api.put(sub, json=settings)).status == 201
        messages = [{"key": "us-1", "value": 0}, {"key": "us-2", "value": 1}]
        messages += [{"key": f"eu-{number}", "value": number} for number in range(6)]
        body = "\n".join(json.dumps(one) for one in messages).encode()
        stored = await cluster.api.post(TOPIC_PATH + "/messages", body, "application/x-ndjson")
        assert stored.status == 200, stored
        later = {"Octavo-Deliver-After": "1h", "Octavo-Key": "eu-late"}
        stored = await cluster.api.post(TOPIC_PATH + "/messages", b"x", "text/plain", headers=later)
        assert stored.status == 200, stored
        got = await cluster.api.post(f"{sub}/receive?consumer=silent&max=5&wait=1")
        assert len(got.json()["messages"]) == 5, got
        got = await cluster.api.post(f"{sub}/receive?consumer=other&max=5&wait=1")
        assert got.status == 200, (got, got.json())
        (one,) = got.json()["messages"]
        back = {"nack": [{"ack_id": one["ack_id"], "delay": "10m"}]}
        answer = await cluster.api.post(f"{sub}/ack", json=back)
        assert answer.status == 200, answer
        assert (await cluster.api.post(f"{sub}/receive?consumer=other&wait=0")).status == 204
        found = await explained(cluster, "?subscription=s")
        waiting = found["partitions"][0]["subscription"]["waiting"]
        leased, delayed, not_due, refused = waiting
        assert leased.startswith("5 messages are leased to consumer 'silent' (offsets 2 to 6)")
        assert "the first of its leases ends in " in leased
        assert delayed.startswith("1 message is to be delivered again after a delay: offset 7")
        assert "in 59" in delayed or "in 600" in delayed
        assert not_due.startswith("1 message is not due yet: the first is due in")
        assert refused.startswith("the filter does not pass 2 messages")
        show_explained(found)
        said = capsys.readouterr().out
        assert "nothing is held back" not in said
        assert "leased to consumer 'silent'" in said


async def test_a_drain_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    """It named the even spread, which follows only because the drained broker does not count."""
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    first = one.broker.balance.place_of(mine).why
    assert first.startswith("A should have it by the even spread"), first
    await one.broker.drain()
    await until(lambda: share(two.broker) == 6, "A is empty")
    why = two.broker.balance.place_of(mine).why
    assert why.startswith("A handed it over: A is being drained; "), why


async def test_a_stop_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    await one.broker.give_away()
    await until(lambda: share(two.broker) == 6, "A is empty")
    why = two.broker.balance.place_of(mine).why
    assert why.startswith("A handed it over: A stops; "), why


async def test_a_killed_broker_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    assert (await two.broker.ownership.owner_of(mine)).broker_id == "A"
    await one.vanish()
    async with asyncio.timeout(30):
        while not (await two.broker.ownership.owner_of(mine)).local:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    why = two.broker.balance.place_of(mine).why
    told = "B took it over, because A, which served it before, ended or lost its session; "
    assert why.startswith(told), why
    again = await cluster.start("A", **SLOW)
    await until(lambda: "A" in two.broker.registry.live, "A is back")
    assert two.broker.balance.place_of(mine).why.startswith(told), "it is another A"
    assert again.broker.broker_id == "A"
