"""Encrypted ledgers and topics: what needs a key and what does not, and what is left on disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.node import BookieNode
from octavo.broker.errors import BrokerError
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.encryption import plain_length, wrapped_of
from octavo.ledger.errors import EntryTampered, LedgerFenced, OutcomeUnknown
from octavo.ledger.offload.format import About
from octavo.ledger.write.explicit_ids import ExplicitIds
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bookies import encode_service_info
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT, LedgerMetadata
from octavo.metadata.offloads import COPYING, OFFLOADED, begun, change_partition, dropped, finished
from octavo.metadata.paths import join
from octavo.metadata.topics import OffloadRecord, TopicSettings, TopicStore
from octavo.pipeline.compact_rules import CompactPolicy
from octavo.pipeline.compact_tasks import Place, Work, copied, keys_of
from octavo.pipeline.offload_copy import CopyTask, copy
from octavo.process.copies import NodeCopies
from octavo.protocol.codes import NoSuchEntry, OctavoError
from octavo.protocol.encrypted import OVERHEAD_BYTES, looks_sealed
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.rewrap import needed, rewrap
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.errors import KeyMissing, KeySourceUnavailable
from octavo.security.keys.wrapped import ENCRYPTION_KEY
from octavo.spark import commit as driver
from octavo.spark.options import source_options
from octavo.spark.reading import Split
from octavo.spark.sink import batch_writer
from tests.cluster.test_copies import keeper_of, wipe
from tests.cluster.test_orphan_ledgers import LIMITS
from tests.support.cluster import (
    Cluster,
    add_many,
    batch,
    make_topic,
    owned,
    payload_of,
    running_cluster,
    until,
    values,
)
from tests.support.keys import KMS, RECHECK_MS, add_key, forget, key_file, key_of
from tests.support.sink_tasks import SCHEMA, messages, options, rows, task
from tests.support.spark_place import reader_of, values_of

NAMESPACE = "secret"
TOPIC = TopicName(NAMESPACE, "plans")
CANARY = b"canary-7f3a9c"


@pytest.fixture
def keys(cluster: Cluster, tmp_path: Path) -> Path:
    cluster.keys = key_file(tmp_path, key_of(1, NAMESPACE))
    return Path(cluster.keys.file)


def found_in(folder: Path, canary: bytes = CANARY) -> list[str]:
    return [
        str(path) for path in folder.rglob("*") if path.is_file() and canary in path.read_bytes()
    ]


async def without_end(work: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while True:
            await work()
            await asyncio.sleep(0)


def is_rid_of(writer: LedgerWriter, bookie: str) -> bool:
    return bookie not in writer.metadata.fragments[-1].bookies


async def secret_topic(cluster: Cluster, broker: Any, **settings: Any) -> PartitionName:
    await broker.topics.create_namespace(NAMESPACE, encrypted=True)
    return await make_topic(broker, TOPIC, **settings)


async def stored(cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int) -> bytes:
    data = await cluster.nodes[name].storage.reads.read(metadata.ledger_id, entry_id)
    digest = digest_for(metadata.digest_type, metadata.password)
    return bytes(unpack_entry(digest, metadata.ledger_id, entry_id, data).payload)


async def forge(
    cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int, payload: bytes
) -> None:
    digest = digest_for(metadata.digest_type, metadata.password)
    data = pack_entry(digest, metadata.ledger_id, entry_id, entry_id - 1, 100, payload)
    await NodeCopies(cluster.nodes[name]).replace(master_key(metadata.password), data)


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC])
async def test_bookies_hold_no_message_and_the_key_gives_it_back(
    cluster: Cluster, keys: Path, tmp_path: Path, digest: DigestType
) -> None:
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE, digest_type=digest)
    payloads = [CANARY * n for n in (0, 1, 2, 2000, 50_000)]
    for payload in payloads:
        await writer.append(payload)
    reader = await (await cluster.client(2)).open(writer.ledger_id)
    assert await reader.wait_for(3, 10) == 4
    assert [e.payload for e in await reader.read(0, 4)] == payloads, "while it is open"
    metadata = await writer.close()
    assert metadata.length == sum(map(len, payloads)) + 5 * OVERHEAD_BYTES
    assert plain_length(metadata) == sum(map(len, payloads))
    reader = await (await cluster.client(3)).open(writer.ledger_id)
    assert [e.payload async for e in reader.entries(0, 4)] == payloads
    for name in cluster.nodes:
        await cluster.nodes[name].storage.checkpoint()
    assert not found_in(tmp_path), "journals, entry logs and indexes"


async def test_without_the_key_all_but_the_messages_is_there(cluster: Cluster, keys: Path) -> None:
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 20)
    cluster.keys = None
    stranger = await cluster.client(2)
    reader = await stranger.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 19
    with pytest.raises(KeyMissing, match=r"key k1 of namespace secret.*OCTAVO_KEYS_FILE"):
        await reader.read(0, 0)
    with pytest.raises(KeyMissing, match="namespace secret are encrypted"):
        await stranger.create(encrypted_for=NAMESPACE)
    raw = await stranger.open(writer.ledger_id, as_stored=True)
    assert all(looks_sealed(e.payload) for e in await raw.read(0, 19))
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 19)] == [payload_of(n) for n in range(20)]


async def test_a_ledger_whose_writer_died_is_recovered_without_a_key(
    cluster: Cluster, keys: Path
) -> None:
    writer = await (await cluster.client()).create(encrypted_for=NAMESPACE)
    await add_many(writer, 50)
    raw = await (await cluster.client()).open(writer.ledger_id, as_stored=True)
    assert await raw.wait_for(48, 10) == 49
    before = [one.payload for one in await raw.read(0, 49)]
    cluster.keys = None
    stranger = await cluster.client(2)
    metadata = await stranger.recover(writer.ledger_id)
    assert metadata.last_entry == 49
    assert wrapped_of(metadata) == wrapped_of(writer.metadata)
    for bookie in cluster.nodes:
        for n in range(50):
            with contextlib.suppress(NoSuchEntry):
                assert await stored(cluster, metadata, bookie, n) == before[n], "to the bit"
    with pytest.raises((LedgerFenced, OutcomeUnknown)):
        await without_end(lambda: writer.append(b"late"))


async def test_lost_copies_come_back_without_a_key(cluster: Cluster, keys: Path) -> None:
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 30)
    await writer.close()
    cluster.keys = None
    await wipe(cluster, "b2")
    await (await keeper_of(cluster, "b2")).walk()
    for name in ("b1", "b3"):
        await cluster.stop_bookie(name)
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 29)] == [payload_of(n) for n in range(30)]


async def test_what_was_not_written_so_there_is_told_by_its_name(
    cluster: Cluster, keys: Path
) -> None:
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 5)
    metadata = await writer.close()
    swapped = await stored(cluster, metadata, "b1", 3)
    for bookie in metadata.fragments[0].bookies:
        await forge(cluster, metadata, bookie, 2, swapped)
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 1)) == 2
    with pytest.raises(EntryTampered, match=f"ledger {writer.ledger_id} is damaged: entry 2"):
        await reader.read(0, 4)
    with pytest.raises(EntryTampered):
        await reader.read(2, 2)
    for bookie in metadata.fragments[0].bookies:
        await forge(cluster, metadata, bookie, 4, b"in the clear, for all to read, and longer")
    with pytest.raises(EntryTampered, match="begins with 0x69"):
        await reader.read(4, 4)
    other = await client.create(encrypted_for=NAMESPACE)
    await other.append(b"another ledger's")
    there = await stored(cluster, await other.close(), "b1", 0)
    for bookie in metadata.fragments[0].bookies:
        await forge(cluster, metadata, bookie, 0, there)
    with pytest.raises(EntryTampered):
        await reader.read(0, 0)


async def test_no_nonce_comes_twice_through_failures_and_resends(
    cluster: Cluster, keys: Path
) -> None:
    """Ensemble changes resend the same bytes, of forced and ordinary writers."""
    for spare in ("b4", "b5"):
        await cluster.start_bookie(spare)
    client = await cluster.client()
    seen: dict[bytes, bytes] = {}
    for deferred in (False, True):
        writer = await client.create(encrypted_for=NAMESPACE, deferred_sync=deferred)
        await add_many(writer, 200)
        victim = writer.metadata.fragments[0].bookies[0]
        for number in range(200, 400):
            writer.add(payload_of(number), lambda *_: None)
            if number == 300:
                await cluster.stop_bookie(victim)
        await writer.append(payload_of(400))
        await until(partial(is_rid_of, writer, victim), "another ensemble")
        await writer.force()
        metadata = await writer.close()
        for name in cluster.nodes:
            for entry_id in range(metadata.last_entry + 1):
                try:
                    payload = await stored(cluster, metadata, name, entry_id)
                except OctavoError:
                    continue
                nonce = b"%d " % metadata.ledger_id + payload[1:13]
                assert seen.setdefault(nonce, payload) == payload
        reader = await client.open(writer.ledger_id)
        got = [e.payload for e in await reader.read(0, 400)]
        assert got == [payload_of(n) for n in range(401)]
        await cluster.start_bookie(victim)
    assert len(seen) == 2 * 401


async def test_ids_that_callers_choose_are_sealed_once_each(cluster: Cluster, keys: Path) -> None:
    client = await cluster.client()
    writer = ExplicitIds(await client.create(encrypted_for=NAMESPACE))
    order = [4, 2, 0, 3, 1, 5]
    await asyncio.gather(*(writer.append(number, payload_of(number)) for number in order))
    metadata = await writer.close()
    reader = await client.open(metadata.ledger_id)
    assert [e.payload for e in await reader.read(0, 5)] == [payload_of(n) for n in range(6)]
    raw = await client.open(metadata.ledger_id, as_stored=True)
    nonces = [bytes(one.payload[5:13]) for one in await raw.read(0, 5)]
    assert nonces == [number.to_bytes(8, "big") for number in range(6)]


async def test_restarts_and_moved_entries_change_nothing(
    cluster: Cluster, keys: Path, tmp_path: Path
) -> None:
    client = await cluster.client()
    kept = await client.create(encrypted_for=NAMESPACE)
    gone = await client.create(encrypted_for=NAMESPACE)
    for number in range(60):
        await kept.append(CANARY * 5 + b"%d" % number)
        await gone.append(CANARY * 2000 + b"%d" % number)
    await kept.close()
    await gone.close()
    for name in tuple(cluster.nodes):
        await cluster.stop_bookie(name)
        await cluster.start_bookie(name, **LIMITS)
        await cluster.nodes[name].storage.checkpoint()
    await client.delete(gone.ledger_id)
    for node in cluster.nodes.values():
        await until(partial(has_only, node, kept.ledger_id), "the other one is collected")
    reader = await (await cluster.client(9)).open(kept.ledger_id)
    wanted = [CANARY * 5 + b"%d" % number for number in range(60)]
    assert [e.payload for e in await reader.read(0, 59)] == wanted
    assert not found_in(tmp_path)


def has_only(node: BookieNode, ledger_id: int) -> bool:
    return list(node.storage.ledgers()) == [ledger_id]


async def test_a_key_service_gives_keys_that_no_file_has(cluster: Cluster) -> None:
    cluster.keys = KeysConfig(service="tests.support.keys:connect", recheck_ms=RECHECK_MS)
    KMS.add(NAMESPACE, "arn:kms/1")
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 10)
    metadata = await writer.close()
    assert metadata.custom[ENCRYPTION_KEY].startswith(b"1 secret arn:kms/1 ")
    reader = await (await cluster.client(2)).open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 9)] == [payload_of(n) for n in range(10)]
    KMS.away = ConnectionError("down")
    try:
        with pytest.raises(KeySourceUnavailable, match="failed for"):
            await without_end(lambda: reader.read(0, 9))
        with pytest.raises(KeySourceUnavailable):
            await client.create(encrypted_for=NAMESPACE)
    finally:
        KMS.away = None
    assert len(await reader.read(0, 9)) == 10
    KMS.keys.clear()
    with pytest.raises(KeyMissing, match=r"arn:kms/1 of namespace secret"):
        await without_end(lambda: reader.read(0, 9))


async def test_forgetting_the_key_ends_reading_within_a_second(
    cluster: Cluster, keys: Path
) -> None:
    client = await cluster.client()
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 100)
    reader = await client.open(writer.ledger_id)
    assert await reader.wait_for(50, 10) > 50
    await reader.read(0, 50)
    forget(keys, NAMESPACE)
    forgotten_s = time.monotonic()
    with pytest.raises(KeyMissing, match="k1 of namespace secret"):
        await without_end(lambda: reader.read(0, 50))
    assert time.monotonic() - forgotten_s < 1
    with pytest.raises(KeyMissing):
        await without_end(lambda: writer.append(b"more"))


async def test_a_topic_of_an_encrypted_namespace_works_like_any_other(
    cluster: Cluster, keys: Path, tmp_path: Path
) -> None:
    running = await cluster.start("A", tail_cache_bytes_max=1)
    broker = running.broker
    partition = await owned(broker, await secret_topic(cluster, broker, rollover_entries=7))
    tag = CANARY.decode()
    for number in range(30):
        await partition.publish(batch(2, tag=f"{tag}{number}", time_ms=1_000 + number))
    wanted = [f"{tag}{n}-{i}" for n in range(30) for i in range(2)]
    assert await values(partition) == wanted
    assert await partition.offset_at(1_021) == 41
    await running.vanish()
    successor = (await cluster.start("B", tail_cache_bytes_max=1)).broker
    partition = await owned(successor, PartitionName(*TOPIC, 0))
    assert await values(partition) == wanted, "taken over: recovered, measured, read"
    for name in cluster.nodes:
        await cluster.nodes[name].storage.checkpoint()
    assert not found_in(tmp_path)


async def test_of_a_forged_copy_another_one_is_read(cluster: Cluster, keys: Path) -> None:
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    partition = await owned(broker, await secret_topic(cluster, broker))
    for number in range(6):
        published = await partition.publish(batch(1, tag=f"n{number}"))
    metadata = await (await cluster.client(5)).metadata(published.ledger_id)
    for bookie in metadata.fragments[0].bookies[:2]:
        await forge(cluster, metadata, bookie, 3, await stored(cluster, metadata, bookie, 2))
    assert await values(partition) == [f"n{n}-0" for n in range(6)]


async def test_a_broker_without_the_key_refuses_to_write_in_the_clear(
    cluster: Cluster, keys: Path, tmp_path: Path
) -> None:
    cluster.keys = None
    broker = (await cluster.start("A")).broker
    name = await secret_topic(cluster, broker)
    with pytest.raises(OctavoError, match=r"namespace secret are encrypted.*no keys"):
        await (await owned(broker, name)).publish(batch(1))
    ledgers = await cluster.client(3)
    assert await ledgers.list() == []


async def test_what_is_in_a_brokers_memory_is_not_given_away_either(
    cluster: Cluster, keys: Path
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await secret_topic(cluster, broker))
    await partition.publish(batch(3))
    assert len(await values(partition)) == 3, "from the tail cache"
    forget(keys, NAMESPACE)
    forgotten_s = time.monotonic()
    with pytest.raises(KeyMissing, match="k1 of namespace secret"):
        await without_end(lambda: partition.read(0, bytes_max=1, count_max=1))
    assert time.monotonic() - forgotten_s < 1
    with pytest.raises(BrokerError, match="k1 of namespace secret"):
        await partition.publish(batch(1))
    add_key(keys, key_of(1, NAMESPACE))

    async def again() -> bool:
        try:
            await partition.publish(batch(1, tag="after"))
        except OctavoError:
            return False
        return True

    async with asyncio.timeout(10):
        while not await again():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert (await values(partition))[:3] == ["m-0", "m-1", "m-2"], "it was brought back"


async def test_a_namespace_decides_for_the_topics_it_has(cluster: Cluster, keys: Path) -> None:
    broker = (await cluster.start("A")).broker
    await broker.topics.create_namespace(NAMESPACE)
    await make_topic(broker, TOPIC)
    assert not (await broker.topics.get(TOPIC)).settings.encrypted
    await broker.topics.create_namespace(NAMESPACE, encrypted=True)
    assert (await broker.topics.newest(TOPIC)).settings.encrypted
    await broker.topics.create_namespace(NAMESPACE)
    assert await broker.topics.is_encrypted(NAMESPACE), "a PUT that says nothing changes nothing"
    await broker.topics.create_namespace(NAMESPACE, encrypted=False)
    assert not (await broker.topics.newest(TOPIC)).settings.encrypted


async def test_after_a_rewrap_the_old_key_may_go_and_nobody_notices(
    cluster: Cluster, keys: Path
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await secret_topic(cluster, broker, rollover_entries=5))
    for number in range(12):
        await partition.publish(batch(1, tag=f"n{number}"))
    client = await cluster.client(7)
    assert client.keys is not None
    writer = await client.create(encrypted_for=NAMESPACE)
    await add_many(writer, 3)
    reader = await client.open(writer.ledger_id)
    add_key(keys, key_of(2, NAMESPACE))
    before = await needed(cluster.store)
    assert set(before) == {(NAMESPACE, "k1")}
    assert (await rewrap(cluster.store, client.keys, "other")).changed == 0
    found = await rewrap(cluster.store, client.keys, None)
    assert (found.changed, found.unchanged) == (before.total(), 0)
    assert set(await needed(cluster.store)) == {(NAMESPACE, "k2")}
    assert (await rewrap(cluster.store, client.keys, NAMESPACE)).changed == 0
    await writer.append(b"its writer did not notice")
    metadata = await writer.close()
    assert metadata.custom[ENCRYPTION_KEY].startswith(b"1 secret k2 "), "nor took it back"
    forget(keys, NAMESPACE, "k1")
    await asyncio.sleep(2 * RECHECK_MS / 1000)
    assert (await reader.read(0, 2))[2].payload == payload_of(2)
    wanted = [f"n{number}-0" for number in range(12)]
    assert await values(partition) == wanted, "an old key that some have is looked up anew"

    async def published() -> bool:
        with contextlib.suppress(OctavoError):
            return (await partition.publish(batch(1, tag="more"))).first_offset == 12
        return False

    async with asyncio.timeout(10):
        while not await published():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await values(partition) == [*wanted, "more-0"]


async def test_an_object_holds_no_message_and_is_read_with_the_key(
    cluster: Cluster, keys: Path, tmp_path: Path
) -> None:
    client = await cluster.client()
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    name = await secret_topic(cluster, broker, rollover_entries=8)
    partition = await owned(broker, name)
    tag = CANARY.decode()
    for number in range(20):
        await partition.publish(batch(2, tag=f"{tag}{number}", time_ms=1_000 + 10 * number))
    wanted = [f"{tag}{n}-{i}" for n in range(20) for i in range(2)]
    assert await values(partition) == wanted
    topics = TopicStore(cluster.store)
    record, _ = await topics.read_partition(*name)
    link = record.ledgers[0]
    metadata = await client.metadata(link.ledger_id)
    about = About(link.ledger_id, "u1", str(TOPIC), 0, 0, metadata.last_entry + 1)
    records = {
        ledger_path(LEDGERS_ROOT, link.ledger_id): encode_ledger_metadata(metadata),
        **{
            join(LEDGERS_ROOT, "available", info.bookie_id): encode_service_info(info)
            for info in client.bookies.available.values()
        },
    }
    task = CopyTask(about, f"file://{tmp_path}/objects", "ledger-u1", records, "none", None)
    with pytest.MonkeyPatch.context() as patched:
        assert "OCTAVO_KEYS_FILE" not in os.environ
        refused = await copy(task)
        assert refused.failed is not None
        assert "k1 of namespace secret" in refused.failed
        patched.setenv("OCTAVO_KEYS_FILE", str(keys))
        copied = await copy(task)
    assert copied.written is not None, copied.failed
    whole = OffloadRecord(
        "u1", OFFLOADED, copied.url, 1, copied.written.entries, copied.written.bytes,
        copied.written.crc, copied.written.footer_crc, copied.encryption,
    )  # fmt: skip
    copying = OffloadRecord("u1", COPYING, task.folder, 1)
    key = (name.namespace, name.topic, name.partition)
    await change_partition(topics, key, lambda one: begun(one, link.ledger_id, copying))
    await change_partition(topics, key, lambda one: finished(one, link.ledger_id, whole))
    await change_partition(topics, key, lambda one: dropped(one, link.ledger_id, "u1", 2))
    await client.delete(link.ledger_id)
    assert await values(partition) == wanted, "from the object"
    assert await partition.offset_at(1_031) == 7
    add_key(keys, key_of(2, NAMESPACE))
    assert client.keys is not None
    await rewrap(cluster.store, client.keys, NAMESPACE)
    assert set(await needed(cluster.store)) == {(NAMESPACE, "k2")}, "the copy's as well"
    forget(keys, NAMESPACE, "k1")
    await asyncio.sleep(2 * RECHECK_MS / 1000)
    assert await values(partition) == wanted
    for node in cluster.nodes.values():
        await node.storage.checkpoint()
    assert not found_in(tmp_path)
    forget(keys, NAMESPACE)
    await asyncio.sleep(2 * RECHECK_MS / 1000)
    with pytest.raises(KeyMissing, match="k2 of namespace secret"):
        await partition.read(0, bytes_max=1, count_max=1)


async def test_over_http_an_entry_says_that_it_is_encrypted(cluster: Cluster, keys: Path) -> None:
    api = await cluster.start_broker("broker-0")
    body = {"encrypted": True}
    assert (await api.put(f"/v1/namespaces/{NAMESPACE}", json=body)).status == 201
    assert (await api.put(f"/v1/topics/{NAMESPACE}/plans")).status == 201
    answer = await api.post(f"/v1/topics/{NAMESPACE}/plans/messages", data=CANARY)
    assert answer.status == 200, answer
    messages = f"/v1/topics/{NAMESPACE}/plans/partitions/0/messages?from=0"
    assert CANARY in (await api.get(messages)).body
    client = await cluster.client()
    made = {one: await client.metadata(one) for one in await client.list()}
    (ledger,) = [one for one, found in made.items() if ENCRYPTION_KEY in found.custom]
    entry = f"/v1/ledgers/{ledger}/entries/0"

    async def shown() -> Any:
        return (await api.get(entry)).json()

    async with asyncio.timeout(10):
        while (found := await shown()).get("encrypted") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert found["encrypted"] == "k1 of namespace secret"
    assert found["batch"]["record_count"] == 1
    forget(keys, NAMESPACE)
    await asyncio.sleep(2 * RECHECK_MS / 1000)
    found = await shown()
    assert found["encrypted"] == "k1 of namespace secret"
    assert "has no key k1" in found["unreadable"]
    assert "payload_base64" not in found
    answer = await api.get(messages)
    assert (answer.status, answer.json()["code"]) == (503, "encryption-key-missing")
    assert "k1 of namespace secret" in answer.json()["detail"]
    answer = await api.get(entry, headers={"Accept": "application/octet-stream"})
    assert answer.json()["code"] == "encryption-key-missing"
    assert (await api.call("DELETE", f"/v1/topics/{NAMESPACE}/plans")).status == 204
    assert ledger not in await client.list(), "what cannot be read can be deleted"


NAME = f"{NAMESPACE}/flights"
TOPIC_SPARK = f"/v1/topics/{NAME}"


@pytest.fixture
async def cluster_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    config = key_file(tmp_path, key_of(1, NAMESPACE))
    async with running_cluster(tmp_path) as found:
        found.keys = config
        for name in ("broker-0", "broker-1"):
            await found.start_broker(name)
        body = {"encrypted": True}
        assert (await found.api.put(f"/v1/namespaces/{NAMESPACE}", json=body)).status == 201
        assert (await found.api.put(TOPIC_SPARK, json={"partitions": 2})).status == 201
        monkeypatch.setenv("OCTAVO_KEYS_FILE", config.file)
        monkeypatch.setenv("OCTAVO_KEYS_RECHECK_MS", str(RECHECK_MS))
        yield found


def writer_of(cluster: Cluster, name: str) -> Any:
    given = options(cluster, bulkLoadId=name, batchBytes="200", topic=NAME)
    return batch_writer(given, SCHEMA, overwrite=False)


async def loaded(cluster: Cluster, count: int) -> list[int]:
    writer = writer_of(cluster, "n")
    told = await task(writer, rows(0, count))
    await asyncio.to_thread(writer.commit, [told])
    return [one.ledger_id for one in told.written]


async def test_the_sink_encrypts_and_the_source_reads(
    cluster_spark: Cluster, tmp_path: Path
) -> None:
    made = await loaded(cluster_spark, 60)
    client = await cluster_spark.client()
    for ledger in made:
        assert ENCRYPTION_KEY in (await client.metadata(ledger)).custom
    found = await messages(cluster_spark, TOPIC_SPARK)
    assert sorted(int(one) for part in found for one in part) == list(range(60))
    reader = reader_of(cluster_spark.api.url, subscribe=NAME)
    splits: Any = await asyncio.to_thread(reader.partitions)
    got = [
        value
        for split in splits
        for value in values_of(list(await asyncio.to_thread(lambda s=split: list(reader.read(s)))))
    ]
    assert sorted(map(int, got)) == list(range(60))
    forget(tmp_path / "keys", NAMESPACE)
    with pytest.raises(KeyMissing, match="k1 of namespace secret"):
        await asyncio.to_thread(lambda: list(reader.read(splits[0])))


async def test_a_task_without_the_key_writes_nothing_in_the_clear(
    cluster_spark: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(cluster_spark, "m")
    with monkeypatch.context() as without:
        without.delenv("OCTAVO_KEYS_FILE")
        without.delenv("OCTAVO_KEYS_RECHECK_MS")
        with pytest.raises(KeyMissing, match="namespace secret are encrypted"):
            await task(writer, rows(0, 10))
    assert await (await cluster_spark.client()).list() == []


async def test_a_load_in_the_clear_is_not_taken_in(
    cluster_spark: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(cluster_spark, "old")
    with monkeypatch.context() as older:
        original = LedgerClient.create

        async def in_the_clear(self: LedgerClient, **how: Any) -> Any:
            return await original(self, **{**how, "encrypted_for": None})

        older.setattr(LedgerClient, "create", in_the_clear)
        told = await task(writer, rows(0, 10))
    with pytest.raises(driver.SinkFailed, match="not encrypted for namespace secret"):
        await asyncio.to_thread(writer.commit, [told])
    assert await messages(cluster_spark, TOPIC_SPARK) == [[], []]


async def test_a_compacted_ledger_is_encrypted_as_well(cluster_spark: Cluster) -> None:
    await loaded(cluster_spark, 40)
    reader = reader_of(cluster_spark.api.url, subscribe=NAME)
    splits: Any = await asyncio.to_thread(reader.partitions)
    (split,) = [one for one in splits if one.parts[0].partition == 0]
    assert isinstance(split, Split)
    place = Place(NAME, 0, 0, TopicSettings(encrypted=True))
    options = source_options({"service": cluster_spark.api.url, "subscribe": NAME}, streaming=False)
    work = Work("run", options, (place,), ((0, split),), CompactPolicy(), 0, None)
    offsets = [
        number
        for some in await asyncio.to_thread(lambda: list(keys_of(work, 0)))
        for number in some.column("offset").to_pylist()
    ]
    made = await asyncio.to_thread(copied, work, 0, offsets[::2])
    assert made.messages == len(offsets[::2])
    client = await cluster_spark.client()
    assert ENCRYPTION_KEY in (await client.metadata(made.ledger_id)).custom
    opened = await client.open(made.ledger_id)
    assert len(await opened.read(0, opened.last_add_confirmed)) == opened.last_add_confirmed + 1
