"""Forged and damaged: calls that pretend to come from a broker, entries of strangers, copies,
batches."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from octavo.bookie.node import BookieNode
from octavo.broker.broker import Broker
from octavo.broker.cluster.registry import encode_broker
from octavo.broker.errors import PartitionDamaged
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.routes import ROUTES
from octavo.broker.operations.upgrade import KEY_USE, Upgrade, headers_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import (
    BrokerInfo,
    MessageId,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicName,
)
from octavo.client.client import AsyncClient
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerDamaged
from octavo.ledger.read.continuity import Continuity
from octavo.ledger.rereplication.comparing import CopyComparer
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.secret import cluster_secret
from octavo.metadata.topics import owner_path
from octavo.process.copies import NodeCopies, kept_copies
from octavo.protocol.batch import HEADER_BYTES, read_header, sealed, with_base_offset
from octavo.protocol.codes import BadRequest
from octavo.protocol.entry import (
    DigestType,
    Entry,
    digest_for,
    master_key,
    pack_entry,
    unpack_entry,
)
from octavo.protocol.extension import Op
from octavo.protocol.odd_records import ERROR_HEADER
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.cluster import (
    Cluster,
    add_many,
    batch,
    make_topic,
    owned,
    payload_of,
    running_cluster,
    values,
)
from tests.support.damaged_batches import ALL, ALONE, AT, KINDS, damaged
from tests.support.former_proofs import BY, ESCAPED, PROOF, SEAL, TO, former_headers
from tests.support.processes.standalone import octavo
from tests.support.raw_bookie import until

# `Octavo-Forwarded-By: anything` made a broker claim another broker's partition.

TOPIC = "/v1/topics/public/flights"
PARTITION = f"{TOPIC}/partitions/0"
NAME = TopicName("public", "flights").partition(0)
KEY = b"k" * 32


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as brokers:
        for number in range(2):
            await brokers.start_broker(f"broker-{number}", moving_wait_ms=1_000)
        await brokers.api.put(TOPIC)
        yield brokers


def preferred(brokers: Cluster) -> tuple[str, str]:
    any_broker = next(iter(brokers.brokers.values())).broker
    (first,) = any_broker.registry.preferred(NAME.topic_name, 1)
    return first.broker_id, next(one for one in brokers.brokers if one != first.broker_id)


async def key_of(brokers: Cluster) -> bytes:
    store = next(iter(brokers.brokers.values())).store
    return (await cluster_secret(store)).key(KEY_USE)


async def test_no_call_over_http_makes_a_broker_take_a_partition(brokers: Cluster) -> None:
    """Brokers ask each other on a connection that they have proved; neither a former proof of a
    call nor the proof of a connection counts over HTTP."""
    first, other = preferred(brokers)
    key = await key_of(brokers)
    former = former_headers(key, first, other, "GET", PARTITION)
    for claimed in (
        {BY: first},
        former,
        {**former, SEAL: "0" * 64, PROOF: "\udcff"},
        headers_of(Upgrade(first, other, "0" * 32), key),
        {**former, **headers_of(Upgrade(first, other, "0" * 32), key), "Connection": "Upgrade"},
    ):
        answer = await brokers.apis[other].get(PARTITION, headers=claimed)
        assert answer.status == 200, (claimed, answer)
        assert answer.json()["owner"] == first, claimed


INNER = [route for route in FormerNames().routes(ROUTES) if route.inner]


def test_calls_from_broker_to_broker_say_that_they_are() -> None:
    assert {route.name for route in INNER} == {
        route.name for route in ROUTES if route.summary.startswith("From broker to broker")
    }
    assert INNER


@pytest.mark.parametrize("route", INNER, ids=lambda route: f"{route.method} {route.path}")
async def test_nobody_else_may_make_them(brokers: Cluster, route: Any) -> None:
    path = route.path.format(namespace="public", topic="flights", partition=0)
    first, other = preferred(brokers)
    key = await key_of(brokers)
    for headers in (
        {},
        {BY: other},
        former_headers(key, other, first, route.method, path),
        headers_of(Upgrade(other, first, "0" * 32), KEY),
    ):
        answer = await brokers.apis[first].call(route.method, path, headers=headers)
        assert (answer.status, answer.json()["code"]) == (403, "brokers-only")
        assert not answer.json()["retryable"]


async def test_former_headers_between_brokers_change_no_message(brokers: Cluster) -> None:
    first, other = preferred(brokers)
    sent = {
        ESCAPED: "octavo-key", "Octavo-Key": "%41", TO: first, BY: other, PROOF: "x",
        "Content-Type": "text/plain",
    }  # fmt: skip
    for broker in (first, other):
        for path in (f"{PARTITION}/messages", f"{TOPIC}/large"):
            answer = await brokers.apis[broker].post(path, b"x", headers=sent)
            assert answer.status == 200, answer
    found = (await brokers.api.get(f"{PARTITION}/messages?from=earliest")).json()["messages"]
    assert [one["key"] for one in found] == ["%41"] * 4


@pytest.mark.parametrize("known", [True, False], ids=["a broker's name", "a foreign name"])
async def test_a_forged_owner_is_sent_nothing(brokers: Cluster, known: bool) -> None:
    first, other = preferred(brokers)
    visits: list[bytes] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.read(4096))
        writer.close()

    trap = await asyncio.start_server(visited, "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    forged = BrokerInfo(first if known else "../evil", f"http://127.0.0.1:{port}")
    store = brokers.brokers[other].store
    await store.create(owner_path(*NAME), encode_broker(forged, "run"))
    with capture_logs() as lines:
        for headers in ({}, {"Prefer": "redirect"}):
            answer = await brokers.apis[other].post(
                f"{PARTITION}/messages", b"x", headers={"Content-Type": "text/plain", **headers}
            )
            assert (answer.status, answer.json()["code"]) == (503, "owner-not-registered"), answer
            assert answer.json()["retryable"]
            assert str(port) not in answer.headers["Octavo-Owner"]
    assert not visits
    assert [line["event"] for line in lines].count("owner_not_registered") == 1
    record = await store.get(owner_path(*NAME))
    await store.delete(owner_path(*NAME), record.version)
    answer = await brokers.apis[other].get(PARTITION)
    assert (answer.status, answer.json()["owner"]) == (200, first), "served as before"
    trap.close()


async def test_a_broker_of_which_nothing_was_heard_yet_is_registered(brokers: Cluster) -> None:
    first, other = preferred(brokers)
    assert (await brokers.apis[first].get(PARTITION)).status == 200
    del brokers.brokers[other].broker.registry.live[first]
    assert (await brokers.apis[other].get(PARTITION)).json()["owner"] == first


# A client that may write an entry can compute its checksum: a stranger's batch was believed, and
# a read silently skipped an acked offset.

CRC32C = digest_for(DigestType.CRC32C, b"")


Forge = Callable[[bytes], bytes]


def forged(
    node: BookieNode, ledger_id: int, entry_id: int, forge: Callable[[bytes], bytes]
) -> None:
    storage: Any = node.storage
    read_many, read_now = storage.reads.read_many, storage.reads.read_now

    def changed(ledger: int, first: int, found: list[bytes]) -> list[bytes]:
        at = entry_id - first
        if ledger != ledger_id or not 0 <= at < len(found):
            return found
        entry = unpack_entry(CRC32C, ledger_id, entry_id, found[at])
        payload = forge(bytes(entry.payload))
        put = pack_entry(CRC32C, ledger_id, entry_id, entry_id - 1, entry.length, payload)
        return [*found[:at], put, *found[at + 1 :]]

    async def many(ledger: int, first: int, *bounds: int, **how: bool) -> list[bytes]:
        return changed(ledger, first, await read_many(ledger, first, *bounds, **how))

    def now(ledger: int, first: int, *bounds: int) -> list[bytes] | None:
        found = read_now(ledger, first, *bounds)
        return found if found is None else changed(ledger, first, found)

    storage.reads.read_many, storage.reads.read_now = many, now


def moved_to(offset: int) -> Forge:
    return lambda payload: with_base_offset(payload, offset)


def longer(payload: bytes) -> bytes:
    return with_base_offset(batch(count=4, tag="evil"), int.from_bytes(payload[:8], "big"))


FORGERIES = {
    "a later offset": moved_to(9),
    "an earlier offset": moved_to(5),
    "more messages": longer,
    "no batch": lambda _: b"nothing",
}


async def filled(cluster: Cluster) -> tuple[Broker, Partition, int]:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    for number in range(10):
        await partition.publish(batch(count=3, tag=f"m{number}"))
    (ledger_id, _) = partition.ledgers[0]
    await first.close()
    second = await cluster.start("B")
    return second.broker, await owned(second.broker, name), ledger_id


EXPECTED = [f"m{number}-{i}" for number in range(10) for i in range(3)]


@pytest.mark.parametrize("what", FORGERIES)
async def test_one_bad_copy_is_read_around(cluster: Cluster, what: str) -> None:
    _, partition, ledger_id = await filled(cluster)
    forged(cluster.nodes["b1"], ledger_id, 4, FORGERIES[what])
    for start in range(0, 30, 7):
        assert await values(partition, start) == EXPECTED[start:]


@pytest.mark.parametrize("what", FORGERIES)
async def test_nothing_is_passed_over_where_all_copies_are_bad(cluster: Cluster, what: str) -> None:
    broker, partition, ledger_id = await filled(cluster)
    other = await owned(broker, await make_topic(broker, TopicName("public", "other")))
    await other.publish(batch(tag="fine"))
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, FORGERIES[what])
    with pytest.raises(PartitionDamaged) as told:
        await values(partition)
    assert str(partition.name) in str(told.value)
    assert f"ledger {ledger_id}" in str(told.value)
    assert "entry 4" in str(told.value) or "entry 5" in str(told.value)
    served = 0
    for offset in range(30):
        try:
            served += 1
            for stored in await partition.read(offset, bytes_max=1, count_max=1):
                record = list(read_records(stored.data))[offset - stored.base_offset]
                assert (record.value or b"").decode() == EXPECTED[offset], "never another one's"
        except PartitionDamaged:
            served -= 1
    assert served >= 9, "what comes before the damage is there"
    assert await values(other) == ["fine-0"], "other partitions go on"
    assert (await partition.publish(batch(tag="after"))).first_offset == 30, (
        "and this one is written"
    )


async def test_message_ids_do_not_pass_it_over(cluster: Cluster) -> None:
    _, partition, ledger_id = await filled(cluster)
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, moved_to(13))
    with pytest.raises(PartitionDamaged, match=r"entry 4 starts offset 13; expected is 12"):
        await partition.position(MessageId(ledger_id, 4, 0))


def test_what_follows_follows() -> None:
    def entry(number: int, offset: int, count: int = 3) -> Entry:
        return Entry(7, number, -1, 0, with_base_offset(batch(count=count), offset))

    order = Continuity(7, base_offset=100, count=9, last_entry=2)
    assert [order.follow(entry(n, 3 * n)).base_offset for n in range(3)] == [0, 3, 6]
    for expected, wrong, what in (
        (None, entry(0, 3), "starts offset 103; expected is 100"),
        (3, entry(1, 6), "starts offset 106; expected is 103"),
        (3, entry(1, 2), "starts offset 102; expected is 103"),
        (6, entry(2, 6, 4), "ends before offset 110; expected is 109"),
        (6, entry(2, 6, 2), "ends before offset 108; expected is 109"),
        (6, Entry(7, 2, -1, 0, b"x"), "is no record batch"),
    ):
        with pytest.raises(LedgerDamaged, match=f"entry {wrong.entry_id} {what}"):
            Continuity(7, base_offset=100, expected=expected, count=9, last_entry=2).follow(wrong)


async def test_a_subscription_does_not_pass_it_over(cluster: Cluster) -> None:
    _, partition, ledger_id = await filled(cluster)
    settings = SubscriptionSettings(start="earliest")
    subscription = await partition.subscribe(SubscriptionInfo("s", settings, 1))
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, moved_to(13))
    for number in range(3):
        got = await subscription.receive("c", messages_max=3)
        assert [(one.record.value or b"").decode() for one in got] == EXPECTED[3 * number :][:3]
    with pytest.raises(PartitionDamaged):
        await subscription.receive("c", messages_max=100)


def test_a_query_of_spark_begins_where_it_should() -> None:
    inside = Entry(7, 4, -1, 0, with_base_offset(batch(count=3), 12))
    order = Continuity(7, base_offset=100)
    order.follow_all([inside], from_or_before=13)
    with pytest.raises(LedgerDamaged, match="starts offset 112; expected is 115"):
        order.follow_all([inside], from_or_before=13)
    with pytest.raises(LedgerDamaged, match="starts offset 112; expected is 111"):
        Continuity(7, base_offset=100).follow_all([inside], from_or_before=11)


COPY_CRC32C = digest_for(DigestType.CRC32C, b"")
ENTRY = 4


@pytest.mark.parametrize("what", FORGERIES)
async def test_one_bad_copy_is_repaired_from_the_others(
    cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reader met the forged copy again: no scrubber finds it, and the bookie refused the
    right bytes as different from its own."""
    monkeypatch.setattr("octavo.process.copies._START_S", 0.0)
    _, partition, ledger_id = await filled(cluster)
    client = await cluster.client(8)
    metadata = await client.metadata(ledger_id)
    node = cluster.nodes["b1"]
    right = await node.storage.reads.read(ledger_id, ENTRY)
    entry = unpack_entry(COPY_CRC32C, ledger_id, ENTRY, right)
    payload = FORGERIES[what](bytes(entry.payload))
    wrong = pack_entry(COPY_CRC32C, ledger_id, ENTRY, ENTRY - 1, entry.length, payload)
    await NodeCopies(node).replace(master_key(metadata.password), wrong)
    assert await node.storage.reads.read(ledger_id, ENTRY) == wrong
    async with AsyncExitStack() as stack:
        for one in cluster.nodes.values():
            keeping = kept_copies(one, cluster.store, rng=random.Random(5))
            keeper = await stack.enter_async_context(keeping)
            assert keeper is not None
            async with asyncio.timeout(30):
                while not keeper.status.walks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        looked: Any = partition
        log = looked._log.reader
        reader = await log._reader(log._record.ledgers.find(0))
        reader._sticky = metadata.fragments[0].bookies.index("b1")
        assert await values(partition) == EXPECTED
        async with asyncio.timeout(30):
            while (found := await node.storage.reads.read(ledger_id, ENTRY)) == wrong:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert unpack_entry(COPY_CRC32C, ledger_id, ENTRY, found).payload == entry.payload
    for name in ("b2", "b3"):
        await cluster.stop_bookie(name)
    entries = await (await client.open(ledger_id)).read(0, 9)
    assert bytes(entries[ENTRY].payload) == entry.payload


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.ledger.rereplication.comparing._PAUSE_S", 0.0)


async def comparer_of(cluster: Cluster, name: str) -> CopyComparer:
    client = await cluster.client(int(name[1:]))
    return CopyComparer(client, NodeCopies(cluster.nodes[name]), retry_s=0.05, bytes_per_s=1e9)


async def forge(
    cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int, payload: bytes
) -> None:
    digest = digest_for(metadata.digest_type, metadata.password)
    data = pack_entry(digest, metadata.ledger_id, entry_id, entry_id - 1, 100, payload)
    await put(cluster, metadata, name, data)


async def put(cluster: Cluster, metadata: LedgerMetadata, name: str, data: bytes) -> None:
    await NodeCopies(cluster.nodes[name]).replace(master_key(metadata.password), data)


async def payload_on(cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int) -> bytes:
    data = await cluster.nodes[name].storage.reads.read(metadata.ledger_id, entry_id)
    digest = digest_for(metadata.digest_type, metadata.password)
    return bytes(unpack_entry(digest, metadata.ledger_id, entry_id, data).payload)


async def written(client: LedgerClient, count: int = 5, **how: Any) -> LedgerMetadata:
    writer = await client.create(**how)
    await add_many(writer, count)
    await writer.close()
    return await client.metadata(writer.ledger_id)


async def of_batches(client: LedgerClient) -> LedgerMetadata:
    writer = await client.create()
    for number in range(5):
        await writer.append(with_base_offset(batch(count=3), 3 * number))
    await writer.close()
    return await client.metadata(writer.ledger_id)


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC])
async def test_the_others_prove_it_wrong(cluster: Cluster, digest: DigestType) -> None:
    metadata = await written(await cluster.client(9), digest_type=digest)
    await forge(cluster, metadata, "b1", 3, b"forged")
    if digest is DigestType.HMAC:
        data = bytearray(await cluster.nodes["b1"].storage.reads.read(metadata.ledger_id, 3))
        data[40] ^= 1
        await put(cluster, metadata, "b1", bytes(data))
    comparer = await comparer_of(cluster, "b1")
    with structlog.testing.capture_logs() as logs:
        comparer.doubt(metadata.ledger_id, 2, 3)
        await until(lambda: comparer.status.replaced)
    assert [log["entry"] for log in logs if log["event"] == "copy_replaced"] == [3]
    assert comparer.status.compared_entries == 2
    assert comparer.status.disagreeing == {}
    await cluster.nodes["b1"].storage.checkpoint()
    for _ in range(2):
        assert await payload_on(cluster, metadata, "b1", 3) == payload_of(3)
        await cluster.stop_bookie("b1")
        await cluster.start_bookie("b1")


async def test_the_others_compare_too_and_change_nothing(cluster: Cluster) -> None:
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    comparer = await comparer_of(cluster, "b2")
    comparer.doubt(metadata.ledger_id, 0, 99)
    await until(lambda: not comparer._doubted)
    assert comparer.status.compared_entries == 5
    assert comparer.status.replaced == 0
    assert comparer.status.disagreeing == {}
    assert await payload_on(cluster, metadata, "b1", 3) == b"forged", "b1's own matter"


@pytest.mark.parametrize("how", ["three differ", "two of two differ"])
async def test_where_nobody_can_tell_nothing_is_touched(cluster: Cluster, how: str) -> None:
    quorums = {} if how == "three differ" else {"write_quorum": 2}
    metadata = await written(await cluster.client(9), **quorums)
    holders = [metadata.fragments[0].bookies[(3 + k) % 3] for k in range(metadata.write_quorum)]
    for name in holders[1:]:
        await forge(cluster, metadata, name, 3, f"by {name}".encode())
    before = [await payload_on(cluster, metadata, name, 3) for name in holders]
    for name in holders:
        comparer = await comparer_of(cluster, name)
        with structlog.testing.capture_logs() as logs:
            comparer.doubt(metadata.ledger_id, 0, 4)
            await until(lambda of=comparer: of.status.disagreeing)  # type: ignore[misc]
            await comparer.compare()
        assert list(comparer.status.disagreeing) == [(metadata.ledger_id, 3)]
        (told,) = [log for log in logs if log["event"] == "copies_disagree"]
        assert (told["ledger"], told["entry"], told["bookie"]) == (metadata.ledger_id, 3, name)
        assert all(bookie in told["reason"] for bookie in holders)
    assert [await payload_on(cluster, metadata, name, 3) for name in holders] == before
    await (await cluster.client(9)).delete(metadata.ledger_id)
    await until(lambda: not comparer._doubted)
    assert comparer.status.disagreeing == {}, "it is gone"


async def test_most_are_not_believed_against_the_order_of_the_batches(cluster: Cluster) -> None:
    metadata = await of_batches(await cluster.client(9))
    evil = with_base_offset(batch(count=4, tag="evil"), 6)
    for name in ("b2", "b3"):
        await forge(cluster, metadata, name, 2, evil)
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 1, 2)
    await until(lambda: comparer.status.disagreeing)
    assert comparer.status.replaced == 0
    assert await payload_on(cluster, metadata, "b1", 2) == with_base_offset(batch(count=3), 6)


async def test_one_that_breaks_the_order_is_replaced(cluster: Cluster) -> None:
    metadata = await of_batches(await cluster.client(9))
    for entry_id in range(5):
        evil = with_base_offset(batch(count=3, tag="evil"), 3 * entry_id + 1)
        await forge(cluster, metadata, "b1", entry_id, evil)
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 0, 4)
    await until(lambda: comparer.status.replaced == 5)
    for entry_id in range(5):
        good = with_base_offset(batch(count=3), 3 * entry_id)
        assert await payload_on(cluster, metadata, "b1", entry_id) == good


async def test_who_is_away_may_matter(cluster: Cluster) -> None:
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    await cluster.stop_bookie("b3")
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 3, 3)
    await comparer.compare()
    assert (comparer.status.replaced, comparer.status.disagreeing) == (0, {})
    assert comparer._doubted, "it is looked at again"
    await cluster.start_bookie("b3")
    await until(lambda: comparer.status.replaced == 1)
    await until(lambda: not comparer._doubted)


async def test_an_open_ledger_is_compared_once_it_is_closed(cluster: Cluster) -> None:
    client = await cluster.client(9)
    writer = await client.create()
    await add_many(writer, 5)
    metadata = await client.metadata(writer.ledger_id)
    await forge(cluster, metadata, "b1", 3, b"forged")
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(writer.ledger_id, 2, 3)
    await comparer.compare()
    assert comparer.status.compared_entries == 0
    await writer.close()
    await until(lambda: comparer.status.replaced == 1)


@pytest.mark.long
async def test_a_person_has_a_ledger_compared(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.process.copies._START_S", 0.0)
    await cluster.stop_bookie("b1")
    node = await cluster.start_bookie("b1", admin_port=0)
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    url = f"http://127.0.0.1:{node.admin.port}"

    async def shown(*more: str) -> Any:
        found = await asyncio.to_thread(octavo, "bookie", "copies", "--url", url, "--json", *more)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    async with kept_copies(node, cluster.store, rng=random.Random(5)):
        assert (await shown())["replaced"] == 0
        await shown("--compare", str(metadata.ledger_id))
        async with asyncio.timeout(60):
            while not (told := await shown())["replaced"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert (told["replaced"], told["compared_entries"], told["disagreeing"]) == (1, 5, [])
        assert b"octavo_bookie_replaced_copies_total 1.0" in node.metrics.exposition()
        assert await payload_on(cluster, metadata, "b1", 3) == payload_of(3)
        for name in ("b1", "b2"):
            await forge(cluster, metadata, name, 3, f"by {name}".encode())
        await shown("--compare", str(metadata.ledger_id))
        async with asyncio.timeout(60):
            while not (told := await shown())["disagreeing"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert told["disagreeing"][0]["entry"] == 3
        plain = await asyncio.to_thread(octavo, "bookie", "copies", "--url", url)
        assert "copies of entry 3: b" in plain.stdout
        assert b"octavo_bookie_copies_disagree 1.0" in node.metrics.exposition()


async def test_anybody_may_ask_and_nobody_can_say_by_what(cluster: Cluster) -> None:
    client = await cluster.client(9)
    metadata = await written(client)
    span = {"ledger": metadata.ledger_id, "first": 3, "last": 2**62}
    with pytest.raises(BadRequest, match="keeps no copies"):
        await client.request("b1", Op.FETCH_COPIES, span)
    async with AsyncExitStack() as stack:
        node = cluster.nodes["b1"]
        await stack.enter_async_context(kept_copies(node, cluster.store, rng=random.Random(5)))
        seen: list[tuple[int, int, int]] = []
        node.server.requests.compare_copies = lambda *doubted: seen.append(doubted)
        assert await client.request("b1", Op.FETCH_COPIES, span) == {}
        assert seen == [(metadata.ledger_id, 3, 102)], "one request has so much looked at"


TOPIC_DAMAGED = TopicName.parse("public/t").partition(0)
FEW = [*ALONE[:2], *(name for name in ALL if name not in ALONE)]


@pytest.fixture
async def cluster_damaged(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def fill(cluster: Cluster, client: AsyncClient, kind: int) -> dict[int, bytes | None]:
    await client.create_topic("t")
    await client.subscribe("t", "s", start="earliest")
    await client.publish("t", b"first")
    wanted: dict[int, bytes | None] = {0: b"first"}
    (running,) = cluster.brokers.values()
    partition = await owned(running.broker, TOPIC_DAMAGED)
    for name in FEW:
        batch = damaged(name, kind)
        published = await partition.publish(batch)
        first, count = published.first_offset, published.last_offset - published.first_offset + 1
        for index in range(count):
            is_sound = name in ALONE and index != AT
            wanted[first + index] = b"v%d" % index if is_sound else None
        wanted[first + count] = name.encode()
        await client.publish("t", name.encode())
    return wanted


@pytest.mark.parametrize("kind", KINDS)
async def test_it_goes_on_behind_each_kind_of_damage(cluster_damaged: Cluster, kind: int) -> None:
    async with AsyncClient(cluster_damaged.api.url) as client:
        wanted = await fill(cluster_damaged, client, kind)
        for messages in (
            await client.read("t"),
            [one async for one in client.messages("t")],
            [one for offset in wanted for one in await client.read("t", start=offset, limit=1)],
        ):
            assert {one.offset: one.value for one in messages} == wanted
            for one in messages:
                names = [name for name, _ in one.headers]
                assert names == ([ERROR_HEADER] if wanted[one.offset] is None else [])
        subscription = client.subscription("t", "s")
        got: dict[int, bytes | None] = {}
        while len(got) < len(wanted):
            deliveries = await subscription.receive(100, wait_s=2)
            assert deliveries
            got |= {one.offset: one.value for one in deliveries}
            await subscription.ack(deliveries)
        assert got == wanted
        assert await subscription.lag() == {0: 0}


async def test_what_cannot_be_unpacked_is_marked_too(cluster_damaged: Cluster) -> None:
    async with AsyncClient(cluster_damaged.api.url) as client:
        await client.create_topic("t")
        packed = bytearray(build_batch([Record(None, b"x" * 500)] * 3, compression=4))
        del packed[70:]
        body = bytes(packed[HEADER_BYTES:])
        head = read_header(bytes(packed))._replace(batch_length=HEADER_BYTES - 12 + len(body))
        await client.publish("t", b"before")
        (running,) = cluster_damaged.brokers.values()
        partition = await owned(running.broker, TOPIC_DAMAGED)
        await partition.publish(sealed(head, body))
        await client.publish("t", b"behind")
        found = await client.read("t")
        assert [one.value for one in found] == [b"before", None, None, None, b"behind"]
