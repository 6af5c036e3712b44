"""`POST …/recover` of a topic's open ledger in a loop: 148 of 148 publishes ended in a 504.

Each recovery fences the ledger that a healthy owner writes. Now a ledger of a partition whose owner
lives is refused, by HTTP and by command, unless it is forced; and that, once a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.broker.cluster import in_use
from octavo.broker.cluster.in_use import RecoveryDoor, writes
from octavo.broker.cluster.registry import encode_broker
from octavo.broker.errors import TooManyRecoveries
from octavo.broker.log.leftover import custom_of, partition_of
from octavo.broker.types import BrokerInfo, PartitionName
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import ANY_VERSION
from octavo.metadata.topics import (
    NamespaceRecord,
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    TopicSettings,
    TopicStore,
    owner_path,
)
from tests.support.cluster import Cluster, running_cluster
from tests.support.fake_broker import Answer
from tests.support.raw_bookie import open_metadata

TOPIC = "/v1/topics/public/one"
NAME = PartitionName("public", "one", 0)
LEDGER = 7


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        yield cluster


async def named(cluster: Cluster) -> tuple[int, int]:
    """The open ledger of the partition, and its state ledger."""
    await cluster.api.put(f"{TOPIC}/subscriptions/s")
    for node in cluster.brokers.values():
        for partition in node.broker.ownership.open_partitions():
            record = partition._record.value
            assert record.state_ledger is not None
            return record.ledgers[-1].ledger_id, record.state_ledger
    raise AssertionError("nobody serves it")


async def recover(cluster: Cluster, ledger: int, query: str = "") -> list[Answer]:
    """At each broker, whether it is the owner or not."""
    path = f"/v1/ledgers/{ledger}/recover{query}"
    return [await api.post(path) for api in cluster.apis.values()]


async def test_the_ledgers_of_a_living_owner_are_refused_and_publishing_goes_on(
    cluster: Cluster,
) -> None:
    assert (await cluster.api.post(f"{TOPIC}/messages", b"first", "text/plain")).status == 200
    for ledger in await named(cluster):
        for number in range(10):
            for answer in await recover(cluster, ledger):
                problem = answer.json()
                assert (answer.status, problem["code"]) == (409, "ledger-in-use"), answer
                assert problem["owner"] in cluster.brokers
                assert "public/one/0" in problem["detail"]
                assert "force=true" in problem["detail"]
            said = await cluster.api.post(f"{TOPIC}/messages", b"%d" % number, "text/plain")
            assert said.status == 200, said
        assert (await cluster.api.get(f"/v1/ledgers/{ledger}")).json()["state"] == "OPEN"


async def test_an_operator_may_force_it_once_a_minute(cluster: Cluster) -> None:
    await cluster.api.post(f"{TOPIC}/messages", b"first", "text/plain")
    data, _ = await named(cluster)
    api = cluster.api
    forced = await api.post(f"/v1/ledgers/{data}/recover?force=true")
    assert (forced.status, forced.json()["state"]) == (200, "CLOSED"), forced
    async with asyncio.timeout(30):
        while (await api.post(f"{TOPIC}/messages", b"more", "text/plain")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    data, _ = await named(cluster)
    again = await api.post(f"/v1/ledgers/{data}/recover?force=true")
    assert (again.status, again.json()["code"]) == (429, "too-many-recoveries"), again
    assert 1 <= int(again.headers["Retry-After"]) <= in_use.FORCED_EVERY_S
    odd = await api.post(f"/v1/ledgers/{data}/recover?force=yes")
    assert odd.status == 400, odd


async def test_what_no_living_owner_writes_is_recovered(cluster: Cluster) -> None:
    node = next(iter(cluster.brokers.values()))
    record = PartitionRecord(incarnation="x", epoch=3)
    for custom in ({}, custom_of(PartitionName("public", "gone", 0), "data", record)):
        writer = await node.ledgers.create(custom=custom)
        await writer.append(b"one")
        for answer in await recover(cluster, writer.ledger_id):
            assert answer.status == 200, answer
            assert (answer.json()["state"], answer.json()["last_entry"]) == ("CLOSED", 0)


async def test_it_is_in_use_as_long_as_a_claim_stands(tmp_path: Path) -> None:
    async with open_metadata(tmp_path) as store:
        topics = TopicStore(store)
        await topics.create_namespace("public", NamespaceRecord())
        await topics.create_topic("public", "one", TopicRecord(TopicSettings(), incarnation="x"))
        await topics.create_partition(*NAME, record(LEDGER))
        fragments = (Fragment(0, ("b1", "b2", "b3")),)
        ledger = LedgerMetadata(
            LEDGER, 3, 3, 2, fragments, custom=custom_of(NAME, "data", record(LEDGER))
        )
        assert await in_use.user_of(store, ledger) is None, "nobody owns it"
        await store.create(owner_path(*NAME), encode_broker(BrokerInfo("broker-9", "u"), "run"))
        assert await in_use.user_of(store, ledger) == (NAME, "broker-9")
        closed = replace(ledger, state=LedgerState.CLOSED, last_entry=3)
        assert await in_use.user_of(store, closed) is None
        await store.put(owner_path(*NAME), b"?", ANY_VERSION)
        assert (await in_use.user_of(store, ledger)) is not None, "somebody, who says no name"


def record(*ledgers: int, state: int | None = None, epoch: int = 3) -> PartitionRecord:
    links = tuple(PartitionLedger(one, 0) for one in ledgers)
    return PartitionRecord(links, state_ledger=state, epoch=epoch, incarnation="x")


@pytest.mark.parametrize(
    ("made_at", "now", "expected"),
    [
        (record(), record(1, LEDGER), True),
        (record(), record(1, state=LEDGER), True),
        (record(), record(1, 2), True),  # made, and about to be named
        (record(), record(1, 2, epoch=4), False),  # its maker is history
        (record(), record(1, state=LEDGER, epoch=4), True),
        (record(), record(LEDGER, epoch=4), True),  # the last owner's, taken over just now
    ],
)
def test_an_owner_writes_what_its_record_names_or_may_name(
    made_at: PartitionRecord, now: PartitionRecord, expected: bool
) -> None:
    assert writes(LEDGER, custom_of(NAME, "data", made_at), now) is expected


def test_ledgers_of_older_versions_go_by_the_record_alone() -> None:
    custom = {"octavo.partition": b"public/one/0", "octavo.kind": b"data"}
    assert partition_of(custom) == NAME
    assert writes(LEDGER, custom, record(LEDGER))
    assert not writes(LEDGER, custom, record(1))


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"octavo.partition": b"public/one/0", "octavo.kind": b"transaction"},
        {"octavo.partition": b"public/one", "octavo.kind": b"data"},
        {"octavo.partition": b"public/\xff/0", "octavo.kind": b"data"},
        {"octavo.partition": b"public/one/-1", "octavo.kind": b"state"},
        {"octavo.partition": b"public/one/00", "octavo.kind": b"state"},
        {"octavo.partition": b"public/../0", "octavo.kind": b"state"},
    ],
)
def test_whatever_else_a_ledger_says_it_is_of_no_partition(custom: dict[str, bytes]) -> None:
    assert partition_of(custom) is None


def test_recoveries_are_limited_in_number_and_rate() -> None:
    door = RecoveryDoor()
    inside = []
    for _ in range(in_use.RECOVERIES_AT_ONCE):
        inside.append(door.entered(0.0))
        inside[-1].__enter__()
    with pytest.raises(TooManyRecoveries, match="at once") as full, door.entered(0.0):
        raise AssertionError
    assert full.value.retry_after_s == 1
    for one in inside:
        one.__exit__(None, None, None)
    for _ in range(in_use.RECOVERIES_A_MINUTE - len(inside)):
        with door.entered(0.5):
            pass
    with pytest.raises(TooManyRecoveries, match="a minute") as many, door.entered(1.0):
        raise AssertionError
    assert many.value.retry_after_s == 59
    with door.entered(60.1):
        pass


def test_forced_ones_are_a_minute_apart() -> None:
    door = RecoveryDoor()
    door.force(10.0)
    with pytest.raises(TooManyRecoveries, match="forced") as early:
        door.force(30.0)
    assert early.value.retry_after_s == 40
    door.force(70.0)
