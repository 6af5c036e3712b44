"""Ledgers and strangers: all have the cluster's password, and a stranger may use ids before
their owner does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.ledgers.ledger_admission import LedgerAdmission
from octavo.bookie.ledgers.limbo import LimboRecord
from octavo.bookie.ledgers.rules import Likeness, likeness
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.node import BookieNode
from octavo.broker.errors import PartitionUnavailable, PublishOutcomeUnknown
from octavo.broker.partition.partition import Partition
from octavo.cli.main import app
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerError, OutcomeUnknown, RecoveryFailed
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.secret import cluster_secret
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.answers import AddRefused
from octavo.protocol.codes import Code, OctavoError, TooManyRequests, Unauthorized, UnknownState
from octavo.protocol.entry import (
    Digest,
    DigestType,
    digest_for,
    master_key,
    pack_entry,
    unpack_entry,
)
from octavo.protocol.extension import Op
from octavo.protocol.frames import Flag, read_request
from octavo.spark.cluster import Cluster as SparkCluster
from octavo.spark.cluster import connected
from octavo.spark.sink import batch_writer
from octavo.spark.splits import Piece
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
from tests.support.raw_bookie import (
    CRC32C,
    KEY,
    OURS,
    RawClient,
    add_of,
    adds_of,
    entry_of,
    running_bookie,
    until,
)
from tests.support.sink_tasks import SCHEMA, TOPIC, messages, options, rows, task


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1, guarded=True) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        await found.secure()
        yield found


async def test_every_ledger_of_the_cluster_has_its_password(cluster: Cluster) -> None:
    """Those of topics, of subscriptions' state, of Spark's tasks, and of `octavo ledger`."""
    writer = batch_writer(options(cluster, bulkLoadId="n"), SCHEMA, overwrite=False)
    told = await task(writer, rows(0, 10))
    await asyncio.to_thread(writer.commit, [told])
    assert sum(map(len, await messages(cluster))) == 10
    api = cluster.api
    assert (await api.post(f"{TOPIC}/messages", json={"value": "a"})).status == 200
    assert (await api.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"})).status == 201
    received = await api.post(f"{TOPIC}/subscriptions/s/receive", json={"wait_ms": 0, "max": 5})
    assert received.status == 200, received
    ids = [one["ack_id"] for one in received.json()["messages"]]
    assert (await api.post(f"{TOPIC}/subscriptions/s/ack", json={"ack_ids": ids})).status == 200
    client = await cluster.client()
    await add_many(await client.create(), 1)
    password = (await cluster_secret(cluster.store)).ledger_password
    assert len(password) == 64
    ledgers = [await client.metadata(number) for number in await client.list()]
    assert len(ledgers) >= 5
    assert {one.password for one in ledgers} == {password}


async def test_a_client_that_was_not_started_makes_no_ledger_without_a_password(
    cluster: Cluster,
) -> None:
    client = LedgerClient(cluster.store, rng=random.Random(1))
    with pytest.raises(LedgerError, match="start this ledger client"):
        await client.create()
    await client.close()


async def test_a_task_reads_the_ledgers_of_its_records_and_no_others(cluster: Cluster) -> None:
    client = await cluster.client()
    ledgers = []
    for _ in range(2):
        writer = await client.create()
        await add_many(writer, 5)
        await writer.close()
        ledgers.append(writer.ledger_id)
    async with connected(cluster.store.url) as service:
        records = await service.records_for(ledgers)
        only_first = await service.records_for(ledgers[:1])

    async def read(of: dict[str, bytes], ledger_id: int) -> int:
        spark = SparkCluster(SnapshotStore(of, "test"))
        await spark.start()
        try:
            reader = await spark.reader(ledger_id)
            return len(await reader.read(0, 4))
        finally:
            await spark.close()

    assert [await read(records, one) for one in ledgers] == [5, 5]
    token = {name: value for name, value in only_first.items() if name.endswith("token")}
    with pytest.raises(OctavoError, match="does not allow this"):
        await read({**records, **token}, ledgers[1])
    without = {name: value for name, value in records.items() if name not in token}
    with pytest.raises(OctavoError, match="prove"):
        await read(without, ledgers[0])


async def test_a_task_cannot_write_by_its_token(cluster: Cluster) -> None:
    async with connected(cluster.store.url) as service:
        records = await service.records_for([1])
    spark = SparkCluster(SnapshotStore(records, "test"))
    await spark.start()
    with pytest.raises(Unauthorized):
        await spark.ledgers.request("b1", Op.WRITE_LAC, {"ledger": 1, "key": b"k" * 20, "lac": 0})
    await spark.close()


async def test_the_source_reads_what_a_topic_holds(cluster: Cluster) -> None:
    for number in range(3):
        path = f"{TOPIC}/partitions/0/messages"
        assert (await cluster.api.post(path, json={"value": str(number)})).status == 200
    async with connected(cluster.store.url) as service:
        async with asyncio.timeout(10):
            while True:
                view = await service.view(TOPIC.removeprefix("/v1/topics/"), 0)
                (span,) = view.spans
                if span.end == 3:
                    break
                await asyncio.sleep(0.05)
        piece = Piece(view.topic, 0, span.ledger_id, span.base, 0, 3)
        found = [batch async for batch in service.entries(piece)]
        assert found


# All ledgers had the empty password: any stranger overwrote acked entries, added to fenced
# ledgers, and made one unrecoverable by claiming a LAC of a million. Now ledgers have a key,
# bookies keep their entries, and believe no LAC at or above the entry that brings it.

STRANGER = master_key(b"")
RECOVERY = OURS | int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)


@contextlib.asynccontextmanager
async def speaking_to(node: BookieNode) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(node)
    try:
        yield client
    finally:
        client.close()


async def payloads(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id, recover=True)
    found = await reader.read(0, reader.last_add_confirmed)
    await reader.close()
    return [bytes(entry.payload) for entry in found]


async def test_a_stranger_can_neither_overwrite_nor_forge_nor_fence(plain_cluster: Cluster) -> None:
    client = await plain_cluster.client()
    writer = await client.create()
    ledger = writer.ledger_id
    await add_many(writer, 5)
    for node in plain_cluster.nodes.values():
        async with speaking_to(node) as stranger:
            for flags in (OURS, RECOVERY, 0):
                for entry_id in (0, 4, 5, 1_000_000):
                    frame = add_of(ledger, entry_id, b"EVIL", flags=flags, key=STRANGER)
                    assert await stranger.add(frame) is Code.UNAUTHORIZED
            fencing = await stranger.read(ledger, 0, int(Flag.FENCE), STRANGER)
            assert fencing is Code.UNAUTHORIZED
    await add_many(writer, 5)
    await writer.close()
    for node in plain_cluster.nodes.values():
        async with speaking_to(node) as stranger:
            frame = add_of(ledger, 10, b"EVIL", flags=RECOVERY, key=STRANGER)
            assert await stranger.add(frame) is Code.UNAUTHORIZED
    assert await payloads(client, ledger) == [payload_of(n) for n in range(10)]


async def test_all_processes_of_a_cluster_use_one_key(plain_cluster: Cluster) -> None:
    one, other = await plain_cluster.client(1), await plain_cluster.client(2)
    password = (await cluster_secret(plain_cluster.store)).ledger_password
    writers = [await client.create() for client in (one, other)]
    assert {writer.metadata.password for writer in writers} == {password}
    assert password.decode() not in repr(writers[0].metadata)
    await add_many(writers[0], 3)
    await (await other.open(writers[0].ledger_id, password=password)).close()
    with pytest.raises(Unauthorized):
        await other.open(writers[0].ledger_id, password=b"")
    with pytest.raises(Unauthorized):
        await other.recover(writers[0].ledger_id, password=b"another")
    assert await payloads(other, writers[0].ledger_id) == [payload_of(n) for n in range(3)]


async def test_ledgers_that_an_older_version_made_stay_what_they_were(
    plain_cluster: Cluster,
) -> None:
    client = await plain_cluster.client()
    writer = await client.create(password=b"")
    await add_many(writer, 5)
    assert await payloads(client, writer.ledger_id) == [payload_of(n) for n in range(5)]
    metadata = await client.metadata(writer.ledger_id)
    assert (metadata.password, metadata.last_entry) == (b"", 4)


async def test_the_command_that_prints_the_password_for_foreign_clients(
    plain_cluster: Cluster,
) -> None:
    made = await (await plain_cluster.client()).create()
    url = f"file://{plain_cluster.folder}/metadata.db"
    command = ["ledger", "password", "--metadata", url]
    said = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert said.stdout.encode() == made.metadata.password + b"\n"


def digests(kind: DigestType) -> Digest:
    return digest_for(kind, b"secret")


def packed(kind: DigestType, entry_id: int, payload: bytes, lac: int, length: int = 100) -> bytes:
    return pack_entry(digests(kind), 7, entry_id, lac, length, payload)


@pytest.mark.parametrize("kind", list(DigestType))
def test_what_makes_an_entry_is_all_but_its_lac_and_its_digest(kind: DigestType) -> None:
    here = packed(kind, 5, b"payload" * 9, 3)
    assert likeness(here, here) is Likeness.SAME
    assert likeness(here, packed(kind, 5, b"payload" * 9, 4)) is Likeness.SAME
    assert likeness(here, packed(kind, 5, b"PAYLOAD" * 9, 3)) is Likeness.OTHER
    assert likeness(here, packed(kind, 5, b"payload" * 8 + b"PAYLOAD", 4)) is Likeness.OTHER
    assert likeness(here, packed(kind, 5, b"payload" * 8, 3)) is Likeness.OTHER
    assert likeness(here, packed(kind, 5, b"payload" * 9, 3, length=101)) is Likeness.OTHER
    assert likeness(here, packed(kind, 5, b"payload" * 9, 4, length=101)) is Likeness.OTHER


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.CRC32])
def test_a_copy_that_does_not_match_its_digest_is_mended_by_one_that_does(kind: DigestType) -> None:
    good = packed(kind, 5, b"payload", 3)
    bad = bytes([*good[:-1], good[-1] ^ 1])
    assert likeness(bad, good) is Likeness.MENDS
    assert likeness(good, bad) is Likeness.OTHER


PLACES = ["journal", "cache", "log", "restart"]
"""Where the entry is when other bytes come for it."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("flags", [OURS, RECOVERY, 0], ids=["ours", "recovery", "foreign"])
async def test_a_bookie_keeps_the_entry_that_it_has(tmp_path: Path, place: str, flags: int) -> None:
    async with running_bookie(tmp_path) as node, speaking_to(node) as client:
        first = adds_of(1, range(6), b"orig")
        forged = adds_of(1, [4], b"EVIL", flags=flags) + add_of(1, 4, b"longer", flags=flags)
        if place == "journal":
            client.send(first + forged)
            await client.acked(6)
        else:
            client.send(first)
            await client.acked(6)
            if place == "log":
                await node.storage.checkpoint()
            client.send(forged)
        for _ in range(2):
            answer = await client.answer()
            assert isinstance(answer, AddRefused)
            assert (answer.ledger_id, answer.code) == (1, Code.BAD_REQUEST)
        assert await client.read(1, 4) == entry_of(1, 4, b"orig")
        for frame in (add_of(1, 4, b"orig", flags=flags), add_of(1, 4, b"orig", lac=0)):
            assert await client.add(frame) is Code.OK
        client.send(adds_of(1, range(3, 9), b"orig"))
        await client.acked(6)
        assert await client.read(1, 8) == entry_of(1, 8, b"orig")
    if place == "restart":
        async with running_bookie(tmp_path) as node, speaking_to(node) as client:
            assert await client.add(add_of(1, 4, b"EVIL", flags=flags)) is Code.BAD_REQUEST
            assert await client.add(add_of(1, 9, b"new", flags=flags)) is Code.OK
            assert await client.read(1, 4) == entry_of(1, 4, b"orig")


async def test_holes_below_the_highest_entry_are_filled(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as node, speaking_to(node) as client:
        client.send(adds_of(1, [10, 11, 20, 21]))
        await client.acked(4)
        await node.storage.checkpoint()
        client.send(adds_of(1, range(22)))
        await client.acked(22)
        assert await client.read_all(1, 21) == [entry_of(1, n) for n in range(22)]
        assert await client.add(add_of(1, 15, b"EVIL")) is Code.BAD_REQUEST


async def test_a_fence_between_arrival_and_comparison_holds(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as node, speaking_to(node) as client:
        client.send(adds_of(1, [5]))
        await client.acked(1)
        # In one piece: the add has to be compared first, and the fence is quicker.
        client.send(add_of(1, 3) + read_request(1, 5, int(Flag.FENCE), KEY))
        answers = [await client.answer(), await client.answer()]
        refused = next(answer for answer in answers if isinstance(answer, AddRefused))
        assert refused.code == Code.FENCED
        assert await client.read(1, 3) is Code.NO_ENTRY


@pytest.mark.parametrize("lac", [0, 5, 6, 10**6, 2**63 - 1])
async def test_an_add_cannot_claim_that_it_is_confirmed_itself(tmp_path: Path, lac: int) -> None:
    async with running_bookie(tmp_path) as node, speaking_to(node) as client:
        entry_id = min(lac, 5)
        batch = adds_of(1, range(entry_id)) + add_of(1, entry_id, lac=lac)
        client.send(batch)
        for flags in (OURS, 0):
            assert await client.add(add_of(1, entry_id, lac=lac, flags=flags)) is Code.BAD_REQUEST


async def test_copies_of_closed_ledgers_may_have_their_last_lac(tmp_path: Path) -> None:
    """Apache's replicator packs each entry with the ledger's last LAC: accepted, and not
    believed."""
    async with running_bookie(tmp_path) as node, speaking_to(node) as client:
        client.send(b"".join(add_of(1, n, flags=RECOVERY, lac=9) for n in range(3)))
        await client.acked(3)
        assert node.storage.control.last_add_confirmed(1) == 1
        assert unpack_entry(CRC32C, 1, 2, await client.read(1, 2)).known_lac == 1


async def test_what_claims_a_lac_of_a_million_does_not_end_a_ledger(plain_cluster: Cluster) -> None:
    """Also an entry that a bookie of an older version has taken."""
    client = await plain_cluster.client()
    writer = await client.create()
    await add_many(writer, 5)
    key = master_key(writer.metadata.password)
    for node in plain_cluster.nodes.values():
        async with speaking_to(node) as bold:
            frame = add_of(writer.ledger_id, 5, b"EVIL", flags=RECOVERY, key=key, lac=10**6)
            assert await bold.add(frame) is Code.OK
    other = await plain_cluster.client(2)
    reader = await other.open(writer.ledger_id)
    assert await reader.refresh() <= 4
    await reader.close()
    found = await payloads(other, writer.ledger_id)
    assert found[:5] == [payload_of(n) for n in range(5)]


# The first key that a bookie sees is the ledger's: a stranger's entry under each of the next ids
# stopped topics for ever.

FOREIGN = bytes(range(20))
LETTERS = "abcdefghijklmnopqrstuvwxyz"


async def squat(cluster: Cluster, ids: range, bookies: int = 3) -> None:
    for node in list(cluster.nodes.values())[:bookies]:
        client = await RawClient.connect(node)
        try:
            client.send(b"".join(add_of(one, 0, b"mine", key=FOREIGN) for one in ids))
            await client.acked(len(ids))
        finally:
            client.close()


async def publish(partition: Partition, tag: str) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionUnavailable, PublishOutcomeUnknown):
                await partition.publish(batch(tag=tag))
                return
            await asyncio.sleep(0.01)


async def recovered(client: LedgerClient, ledger_id: int) -> LedgerMetadata:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RecoveryFailed):
                return await client.recover(ledger_id)


async def test_topics_go_on_when_the_next_300_ids_are_taken(plain_cluster: Cluster) -> None:
    running = await plain_cluster.start("A")
    partition = await owned(running.broker, await make_topic(running.broker, rollover_entries=3))
    await squat(plain_cluster, range(2, 302))
    for tag in LETTERS:
        await publish(partition, tag)
    found = [one.removesuffix("-0") for one in await values(partition)]
    assert "".join(dict.fromkeys(found)) == LETTERS, found
    assert running.ledgers.taken.count < 5, "it does not try them one after the other"


@pytest.mark.parametrize("bookies", [1, 2, 3])
async def test_a_ledger_whose_id_was_taken_is_closed(plain_cluster: Cluster, bookies: int) -> None:
    client = await plain_cluster.client()
    writer = await client.create()
    await squat(plain_cluster, range(writer.ledger_id, writer.ledger_id + 1), bookies)
    with pytest.raises(OutcomeUnknown):
        await asyncio.gather(*[writer.append(b"%d" % one) for one in range(2_000)])
    found = await recovered(client, writer.ledger_id)
    assert found.state is LedgerState.CLOSED
    assert found.last_entry == -1 or bookies < 3


async def test_what_bookies_acked_before_others_came_stays(plain_cluster: Cluster) -> None:
    client = await plain_cluster.client()
    writer = await client.create()
    await writer.append(b"first")
    raw = await RawClient.connect(plain_cluster.nodes["b1"])
    assert (await raw.add(add_of(writer.ledger_id, 1, key=FOREIGN))).name == "UNAUTHORIZED"
    raw.close()
    assert (await client.recover(writer.ledger_id)).last_entry == 0


async def test_the_cluster_leaves_the_ids_that_others_take(plain_cluster: Cluster) -> None:
    client = await plain_cluster.client()
    first = await client.create()
    await squat(plain_cluster, range(first.ledger_id, first.ledger_id + 2_000))
    with pytest.raises(OutcomeUnknown):
        await first.append(b"x")
    second = await client.create()
    assert second.ledger_id >= 1 << 32, "the cluster has left the ids that others take"
    assert await second.append(b"x") == 0
    assert (await (await plain_cluster.client()).create()).ledger_id == second.ledger_id + 1, (
        "all of it"
    )

    await squat(plain_cluster, range(second.ledger_id + 2, second.ledger_id + 300))
    third = await client.create()
    assert third.ledger_id >= 2 << 32, "bookies were asked before it was made"
    assert await third.append(b"x") == 0
    assert client.taken.count == 2


class _Journals:
    def of(self, _: int) -> _Journals:
        return self

    def append(self, buffers: list[bytes], _length: int, done: Callable[[None], None]) -> None:
        self.written += buffers
        done(None)

    def __init__(self) -> None:
        self.written: list[bytes] = []


@pytest.mark.parametrize("lost", [False, True])
async def test_a_wrong_key_is_refused_for_good_or_not_at_all(lost: bool) -> None:
    """Recovery takes the refusal for a denial: it rests on a durable key."""
    journals = _Journals()
    control = LedgerControl(LedgerStates(), journals, lambda _: None)  # type: ignore[arg-type]
    await control.fence(7, FOREIGN)
    fenced = len(journals.written)
    if lost:
        control.limbo.take(LimboRecord(9, 0, "lost", "x"))
    with pytest.raises(UnknownState if lost else Unauthorized):
        await control.fence(7, KEY)
    assert lost or len(journals.written) == fenced + 1


# A bookie kept a stranger's ledgers in memory until a garbage collection: 300,000 of them took
# 176 MB.

BOUND = 50


@pytest.fixture
async def squatter_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, unlisted_ledgers_max=BOUND) as found:
        yield found


@pytest.mark.long
async def test_who_makes_ledgers_in_metadata_goes_on(squatter_cluster: Cluster) -> None:
    client = await squatter_cluster.client()
    old = await client.create()
    await add_many(old, 1)
    for node in squatter_cluster.nodes.values():
        raw = await RawClient.connect(node)
        codes = [await raw.add(add_of(1_000 + one, 0, b"mine")) for one in range(4 * BOUND)]
        assert set(codes) == {Code.OK, Code.TOO_MANY_REQUESTS}
        assert len(node.storage.ledgers()) <= BOUND + 1, "and the one that has a record"
        raw.close()
    for _ in range(5):
        new = await client.create()
        await add_many(new, 10)
        fresh = await client.create()
        assert (await client.recover(fresh.ledger_id)).last_entry == -1, "fenced before any add"
        assert (await client.recover(new.ledger_id)).last_entry == 9
    await add_many(old, 10)
    for node in squatter_cluster.nodes.values():
        assert len(node.storage.ledgers()) <= BOUND + 11


async def test_what_has_a_record_does_not_count() -> None:
    states = LedgerStates()
    admission = LedgerAdmission(states, BOUND)
    for one in range(BOUND):
        assert admission.may_begin(one)
        states.create(one, KEY)
    assert admission.may_begin(BOUND), "nobody can be asked yet"
    listings = 0
    away = True

    async def listing() -> list[int]:
        nonlocal listings
        listings += 1
        if away:
            raise MetadataUnavailable("away")
        return list(range(10, 2 * BOUND))

    admission.ask(listing)
    assert not admission.may_begin(BOUND)
    await until(lambda: listings == 1)
    assert not admission.may_begin(BOUND), "without an answer nothing begins"
    away = False
    while not admission.may_begin(BOUND):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert listings == 2
    states.create(BOUND, KEY)
    for one in range(1_000, 1_000 + BOUND - 10):
        assert admission.may_begin(one), "ten were not listed"
        states.create(one, KEY)
    assert not admission.may_begin(2_000)
    await admission.close()


async def test_a_fence_waits_as_well() -> None:
    """A denial would be taken for a fence."""
    unasked: Any = None
    control = LedgerControl(LedgerStates(), unasked, lambda _: None, unlisted_max=0)

    async def listing() -> list[int]:
        return []

    control.ledger_admission.ask(listing)
    with pytest.raises(TooManyRequests):
        await control.fence(7, KEY)
    await control.ledger_admission.close()
