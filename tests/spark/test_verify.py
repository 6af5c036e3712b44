"""`verify` on a live cluster: a topic that keeps its promises, and a topic that breaks each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from octavo import Client
from octavo.ledger.client import LedgerClient
from octavo.metadata.opening import open_store
from octavo.metadata.store import RecordExists
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicStore
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import JobFailed, run_job, selection_of
from octavo.pipeline.verify import verify
from octavo.protocol.batch import with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.support.processes.standalone import Standalone
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
Verify = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="module")
def verified(spark: SparkSession, service: str) -> Verify:
    def of(topics: str) -> Outcome:
        return run_job(
            "verify",
            lambda run: verify(run, selection_of(topics)),
            service=service,
            say=lambda _: None,
        )

    return of


def test_a_topic_as_published(verified: Verify, client: Client, service: str) -> None:
    client.create_topic("kept", partitions=2, rollover={"entries": 4})
    for _ in range(2):
        with (
            seen_by_readers(service, "kept", 150),
            client.producer("kept", batch_bytes=500) as producer,
        ):
            for number in range(150):
                producer.send(b"%d" % number, key=f"k{number % 7}")
    outcome = verified("kept")
    assert outcome.findings == []
    assert outcome.exit is Exit.OK
    assert (outcome.summary["messages"], outcome.summary["producers"]) == (300, 2)
    assert outcome.summary["ledgers"] > 2


def test_a_topic_that_breaks_each_promise(
    verified: Verify, client: Client, cluster: Standalone
) -> None:
    client.create_topic("broken", partitions=2)
    asyncio.run(break_promises(cluster.cluster.metadata_url))
    outcome = verified("broken")
    found = {(finding.kind, finding.where, finding.what) for finding in outcome.findings}
    at = "public/broken/0"
    kinds = {(kind, where) for kind, where, _ in found}
    assert kinds == {
        ("offset-missing", at),
        ("offset-repeated", at),
        ("sequence-missing", at),
        ("sequence-repeated", at),
        ("sequence-begun-again", at),
        ("epoch-back", at),
        ("chain", at),
        ("key-in-several-partitions", at),
    }
    said = "\n".join(sorted(what for _, _, what in found))
    assert "entry 1: offset 5 follows 2" in said
    assert "entry 3: offset 7 follows 7" in said
    assert "producer 1 has epoch 0 sequence 6 after 0 sequence 2" in said
    assert "producer 1 has epoch 0 sequence 0 after 0 sequence 8" in said
    assert "producer 2 has epoch 4 sequence 0 after 5 sequence 2" in said
    assert "producer 3 has epoch 0 sequence 1 after 0 sequence 3" in said
    assert "key k is in partitions 0, 1" in said
    assert "ends before offset 20, the other begins at 22" in said
    assert outcome.exit is Exit.FINDINGS


def test_offsets_out_of_all_order(
    verified: Verify, client: Client, cluster: Standalone, spark: SparkSession, service: str
) -> None:
    """Readers refuse the ledger; `verify` reads on to its last entry and reports each step."""
    client.create_topic("forged", partitions=1)
    forged = [batch(base, 1, -1, -1, -1) for base in (0, 1, 1000, 2, 3, -5, 4)]
    asyncio.run(write_ledgers(cluster.cluster.metadata_url, "forged", [(0, 5, forged)]))
    outcome = verified("forged")
    said = "\n".join(sorted(f"{one.kind}: {one.what}" for one in outcome.findings))
    assert "offset-missing: ledger" in said
    assert "entry 2: offset 1000 follows 1" in said
    assert "entry 3: offset 2 follows 1000" in said
    assert "entry 5: offset -5 follows 3" in said
    assert "entry 6: offset 4 follows -5" in said
    assert "holds offsets -5 to 1000, but the record says 0 to 4" in said
    assert outcome.counts == {"offset-missing": 3, "offset-repeated": 2}
    assert outcome.summary["messages"] == 7

    query = spark.read.format("octavo").option("service", service).option("subscribe", "forged")
    with pytest.raises(Exception, match="entry 2 starts offset 1000; expected is 2"):
        query.load().collect()


def test_an_entry_that_holds_no_message(
    verified: Verify, client: Client, cluster: Standalone
) -> None:
    client.create_topic("hollow", partitions=1)
    wrong = [batch(0, 1, -1, -1, -1), b"no batch", batch(1, 1, -1, -1, -1)]
    asyncio.run(write_ledgers(cluster.cluster.metadata_url, "hollow", [(0, 2, wrong)]))
    with pytest.raises(JobFailed, match=r"is damaged: entry 1 is no record batch"):
        verified("hollow")


def batch(base: int, count: int, producer: int, epoch: int, sequence: int) -> bytes:
    made = build_batch(
        [Record(b"k", b"v")] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return with_base_offset(made, base)


async def break_promises(metadata_url: str) -> None:
    first = [
        batch(0, 3, 1, 0, 0),
        batch(5, 1, 1, 0, 6),
        batch(6, 2, 1, 0, 7),
        batch(7, 1, 1, 0, 0),
        batch(8, 3, 2, 5, 0),
        batch(11, 1, 2, 4, 0),
        batch(12, 4, 3, 0, 0),
        batch(16, 4, 3, 0, 1),
    ]
    second, other = [batch(0, 1, 4, 0, 0)], [batch(0, 1, 5, 0, 0)]
    await write_ledgers(metadata_url, "broken", [(0, 20, first), (22, 1, second)], [(0, 1, other)])


async def write_ledgers(
    metadata_url: str, topic: str, *partitions: list[tuple[int, int, list[bytes]]]
) -> None:
    store = open_store(metadata_url)
    await store.start()
    ledgers = LedgerClient(store, rng=random.Random(7))
    await ledgers.start()

    async def ledger(payloads: list[bytes]) -> int:
        writer = await ledgers.create()
        for one in payloads:
            await writer.append(one)
        await writer.close()
        return writer.ledger_id

    try:
        topics = TopicStore(store)
        for number, wanted in enumerate(partitions):
            links = [
                PartitionLedger(await ledger(payloads), base, count, sum(map(len, payloads)))
                for base, count, payloads in wanted
            ]
            record = PartitionRecord(ledgers=tuple(links))
            try:
                await topics.create_partition("public", topic, number, record)
            except RecordExists:
                _, version = await topics.read_partition("public", topic, number)
                await topics.write_partition("public", topic, number, record, version)
    finally:
        await ledgers.close()
        await store.close()
