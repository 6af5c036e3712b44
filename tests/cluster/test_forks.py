"""Forks of topics over real brokers, ledgers and bookies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.log.ledger_list import Cut, ForkPoint, LedgerList
from octavo.broker.types import TopicName
from octavo.metadata.offloads import DROPPED, is_only_copy
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import (
    ForkRecord,
    OffloadRecord,
    PartitionLedger,
    TopicRecord,
    TopicStore,
)
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.batch import split_batches
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.cluster import Cluster, running_cluster

BATCH = "application/vnd.kafka.recordbatch.v2"
ONE = "/v1/topics/public/one"
FORK = "/v1/topics/public/fork"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


async def published(cluster: Cluster, path: str, first: int, count: int, **how: Any) -> None:
    for start in range(first, first + count, 5):
        numbers = range(start, min(start + 5, first + count))
        records = [Record(b"k%d" % n, b"%d" % n, timestamp_ms=1_000 * n) for n in numbers]
        answer = await cluster.api.post(path + "/messages", build_batch(records, **how), BATCH)
        assert answer.status == 200, answer


async def forked(cluster: Cluster, path: str, name: str, at: Any = "latest") -> dict[str, Any]:
    answer = await cluster.api.post(path + "/fork", json={"name": name, "at": at})
    assert answer.status == 201, answer
    found: dict[str, Any] = answer.json()
    return found


async def values(cluster: Cluster, path: str, start: int = 0) -> list[tuple[int, int]]:
    """Return offset and value of all messages; check that JSON and batches agree."""
    found: list[tuple[int, int]] = []
    at = start
    while True:
        answer = await cluster.api.get(f"{path}/messages?from={at}")
        if answer.status == 204:
            break
        assert answer.status == 200, answer
        found += [(one["offset"], one["value"]) for one in answer.json()["messages"]]
        at = answer.json()["next_offset"]
    packed: list[tuple[int, int]] = []
    at = start
    while True:
        answer = await cluster.api.get(
            f"{path}/messages?from={at}&max_bytes=300", headers={"Accept": BATCH}
        )
        if answer.status == 204:
            break
        for header, data in split_batches(answer.body):
            for n, record in enumerate(read_records(bytes(data))):
                if header.base_offset + n >= start:
                    packed.append((header.base_offset + n, int(record.value or b"-1")))
        at = int(answer.headers["Next-Offset"])
    assert packed == found
    return found


def numbered(*spans: range) -> list[tuple[int, int]]:
    return list(enumerate(n for span in spans for n in span))


async def ledgers_of(cluster: Cluster, path: str) -> list[int]:
    answer = await cluster.api.get(path + "/partitions/0")
    assert answer.status == 200, answer
    return [one["id"] for one in answer.json()["ledgers"]]


async def exists(cluster: Cluster, ledger_id: int) -> bool:
    return (await cluster.api.get(f"/v1/ledgers/{ledger_id}")).status == 200


@pytest.mark.parametrize("kind", [Compression.NONE, Compression.ZSTD])
async def test_forked_in_the_middle_of_a_batch(cluster: Cluster, kind: Compression) -> None:
    await published(cluster, ONE, 0, 50, compression=kind)
    made = await forked(cluster, ONE, "fork", 23)
    assert made["forked_from"]["topic"] == "public/one"
    assert made["forked_from"]["offsets"] == {"0": 23}
    assert await values(cluster, FORK) == numbered(range(23))
    await published(cluster, FORK, 1_000, 10)
    await published(cluster, ONE, 50, 10)
    assert await values(cluster, FORK) == numbered(range(23), range(1_000, 1_010))
    assert await values(cluster, ONE) == numbered(range(60))
    assert await values(cluster, FORK, 22) == [(22, 22), *[(23 + n, 1_000 + n) for n in range(10)]]
    for offset in range(23):
        at = (await cluster.api.get(f"{FORK}/offsets?at={_time(offset)}")).json()
        assert at["offsets"][0]["offset"] == offset
    at = (await cluster.api.get(f"{FORK}/offsets?at={_time(30)}")).json()
    assert at["offsets"][0]["offset"] == 23


def _time(second: int) -> str:
    return f"1970-01-01T00:00:{second:02d}Z"


async def test_of_what_is_left_the_last_one_deletes(cluster: Cluster) -> None:
    await published(cluster, ONE, 0, 20)
    await forked(cluster, ONE, "fork", 12)
    shared = (await ledgers_of(cluster, ONE))[0]
    assert (await ledgers_of(cluster, FORK))[0] == shared
    await forked(cluster, FORK, "again", 7)
    again = "/v1/topics/public/again"
    await published(cluster, again, 500, 3)
    assert (await cluster.api.call("DELETE", ONE)).status == 204
    assert await exists(cluster, shared)
    assert await values(cluster, FORK) == numbered(range(12))
    assert (await cluster.api.call("DELETE", FORK)).status == 204
    assert await exists(cluster, shared)
    assert await values(cluster, again) == numbered(range(7), range(500, 503))
    assert (await cluster.api.call("DELETE", again)).status == 204
    assert not await exists(cluster, shared)


async def test_what_cannot_be_forked(cluster: Cluster) -> None:
    await published(cluster, ONE, 0, 10)

    async def refused(status: int, code: str, **body: Any) -> str:
        answer = await cluster.api.post(ONE + "/fork", json=body)
        assert (answer.status, answer.json()["code"]) == (status, code), answer
        detail: str = answer.json()["detail"]
        return detail

    assert "already" in await refused(409, "topic-exists", name="one")
    assert "the next offset is 10" in await refused(416, "offset-beyond-end", name="f", at=11)
    await refused(422, "invalid-position", name="f", at="yesterday")
    await refused(422, "invalid-position", name="f", at={"1": 3})
    await refused(400, "invalid-name", name="a/b")
    answer = await cluster.api.post("/v1/topics/public/none/fork", json={"name": "f"})
    assert answer.status == 404
    four = "/v1/topics/public/four"
    assert (await cluster.api.put(four, json={"partitions": 4})).status == 201
    answer = await cluster.api.post(four + "/fork", json={"name": "f", "at": 3})
    assert answer.status == 422
    await forked(cluster, four, "f", {"2": "earliest"})


async def test_producers_and_subscriptions_are_not_taken_over(cluster: Cluster) -> None:
    sub = "/subscriptions/s"
    assert (await cluster.api.put(ONE + sub, json={"start": "earliest"})).status == 201
    batch = build_batch(
        [Record(None, b"%d" % n) for n in range(5)], producer_id=7, producer_epoch=0,
        base_sequence=0,
    )  # fmt: skip
    assert (await cluster.api.post(ONE + "/messages", batch, BATCH)).status == 200
    await forked(cluster, ONE, "fork", 3)
    assert (await cluster.api.get(FORK + sub)).status == 404
    assert (await cluster.api.post(FORK + "/messages", batch, BATCH)).status == 200
    assert [value for _, value in await values(cluster, FORK)] == [0, 1, 2, 0, 1, 2, 3, 4]
    for owner in list(cluster.apis):
        if await cluster.owner_of(FORK + "/partitions/0") == owner:
            await cluster.stop_broker(owner)
            break
    answer = await cluster.api.post(FORK + "/messages", batch, BATCH)
    assert answer.status == 204, answer


async def test_the_record_is_made_before_the_claim_and_looked_at_again_under_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the name is claimed another client may delete the fork, or finish deleting another
    one."""
    await published(cluster, ONE, 0, 10)
    asked = next(iter(cluster.apis))
    broker = cluster.brokers[asked].broker
    records = TopicStore(cluster.store)
    fork, second = TopicName("public", "fork"), TopicName("public", "second")
    real = broker._deletions.alone

    @asynccontextmanager
    async def late(name: TopicName) -> AsyncIterator[Callable[[], None]]:
        await meanwhile()
        async with real(name) as check:
            yield check

    async def marked() -> None:
        while True:
            await asyncio.sleep(0)
            with contextlib.suppress(RecordNotFound):
                record, version = await records.read_topic(*fork)
                await records.write_topic(*fork, replace(record, deleting=True), version)
                return

    async def no_time() -> None:
        pass

    async def gone() -> None:
        await asyncio.sleep(0.1)
        await records.delete_topic(*second)

    meanwhile = marked
    monkeypatch.setattr(broker._deletions, "alone", late)
    answer = await cluster.apis[asked].post(ONE + "/fork", json={"name": "fork"})
    assert answer.status in (201, 503), "it is made anew, or was not made"
    monkeypatch.setattr(broker._deletions, "alone", real)
    made = (await cluster.api.get(FORK)).status == 200
    assert made == (answer.status == 201)

    await records.create_topic(*second, TopicRecord(StoredSettings(), incarnation="before"))
    meanwhile = gone
    monkeypatch.setattr(broker._deletions, "alone", late)
    answer = await cluster.apis[asked].post(ONE + "/fork", json={"name": "second"})
    if answer.status == 503:
        meanwhile = no_time
        answer = await cluster.apis[asked].post(ONE + "/fork", json={"name": "second"})
    assert answer.status == 201, answer
    assert await values(cluster, "/v1/topics/public/second") == numbered(range(10))


def test_of_what_is_cut_it_is_known_where_it_lies() -> None:
    """A fork that ends within an offloaded ledger was made though the bookies had that ledger no
    more (seed 5247 of `topic`)."""
    gone = OffloadRecord("u", DROPPED, "file:///o")
    source = LedgerList((PartitionLedger(7, 0, count=5, offload=gone),))
    for at, cut in ((3, Cut(7, 2, 10, 1)), (5, None)):
        (one,) = source.forked(ForkPoint(at, cut), 9).segments
        assert is_only_copy(one.offload), at


async def test_the_source_is_whole_when_the_fork_was_read_first(tmp_path: Path) -> None:
    """Brokers cache open batches by ledger and entry, which a fork shares with its source: each
    was shown the other's part of a batch that the fork cuts."""
    async with running_cluster(tmp_path, brokers=1) as cluster:
        assert (await cluster.api.put(ONE)).status == 201
        records = [Record(None, b"%d" % n) for n in range(300)]
        assert (
            await cluster.api.post(ONE + "/messages", build_batch(records), BATCH)
        ).status == 200
        await forked(cluster, ONE, "fork", 3)
        for path, count in ((FORK, 3), (ONE, 300), (FORK, 3)):
            answer = await cluster.api.get(path + "/messages?limit=999")
            assert answer.status == 200, answer
            values = [one["value"] for one in answer.json()["messages"]]
            assert values == list(range(count)), path


PATH = "/v1/durable-streams/public/"
MESSAGES = "/v1/topics/public/{}/messages?from=earliest"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def common_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def shown(cluster: Cluster, name: str) -> tuple[list[int], list[int]]:
    stream = await cluster.api.get(PATH + name)
    topic = await cluster.api.get(MESSAGES.format(name))
    assert (stream.status, topic.status) == (200, 200), (stream, topic)
    return stream.json(), [one["value"] for one in topic.json()["messages"]]


@pytest.mark.parametrize("first", ["source", "fork"])
async def test_each_is_shown_its_own(common_cluster: Cluster, first: str) -> None:
    """Fork and source were shown each other's part of an entry that the fork cuts (seed 16 of
    `stream`)."""
    await common_cluster.api.call("PUT", PATH + "source", headers=JSON)
    assert (
        await common_cluster.api.post(PATH + "source", b"[1, 2]", JSON["Content-Type"])
    ).status == 204
    at = f"{0:016d}_{1:016d}"
    words = {**JSON, "Stream-Forked-From": PATH + "source", "Stream-Fork-Offset": at}
    assert (await common_cluster.api.call("PUT", PATH + "fork", headers=words)).status == 201
    has = {"source": ([1, 2], [1, 2]), "fork": ([1], [1])}
    for name in sorted(has, key=lambda one: one != first):
        assert await shown(common_cluster, name) == has[name]


# The record of a fork whose maker died answered `409 topic-exists`, not retryable, though the
# topic was a 404 to every other call.

HALF_FORK = TopicName("public", "fork")


@pytest.fixture
async def half_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put("/v1/topics/public/t", json={})).status == 201
        said = await found.api.post("/v1/topics/public/t/messages", json={"value": 1})
        assert said.status == 200
        yield found


async def _left_half_made(cluster: Cluster) -> None:
    """Leave it as a broker that died during step 3 does."""
    records = TopicStore(cluster.store)
    record, _ = await records.read_topic("public", "t")
    fork = ForkRecord("t", record.incarnation, {0: 1})
    await records.create_topic(*HALF_FORK, replace(record, incarnation="dead-1", fork=fork))


@pytest.mark.parametrize("how", ["fork", "put"])
async def test_whoever_wants_the_name_gets_it(half_cluster: Cluster, how: str) -> None:
    await _left_half_made(half_cluster)

    async def asked() -> int:
        if how == "put":
            return (await half_cluster.api.put("/v1/topics/public/fork", json={})).status
        body = {"name": "fork"}
        return (await half_cluster.api.post("/v1/topics/public/t/fork", json=body)).status

    answers = [await asked()]
    async with asyncio.timeout(10):
        while answers[-1] == 503:
            await asyncio.sleep(0.05)
            answers.append(await asked())
    assert (answers[0], answers[-1]) == (503, 201)
    found = await half_cluster.api.get("/v1/topics/public/fork/messages")
    assert found.status == (200 if how == "fork" else 204)


async def test_one_that_is_there_is_told_as_there(half_cluster: Cluster) -> None:
    for wanted in (201, 409):
        found = await half_cluster.api.post("/v1/topics/public/t/fork", json={"name": "fork"})
        assert found.status == wanted
