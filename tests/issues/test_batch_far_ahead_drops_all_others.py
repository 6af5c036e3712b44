"""A commit with number 2⁶³−1 made every later batch of its id a repeat: dropped, and answered 200.

Anybody could do it to any id, also with the very next number and nothing in it; and a `begin` with
junk blocked an id for ever. Batches follow one another now, and an id is bound to the token that
its first batch came with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.bulkload import rules
from octavo.broker.bulkload.driver import ANYBODY
from octavo.broker.bulkload.rules import Caller, Standing
from octavo.broker.errors import BatchOutOfOrder, ForeignBulkLoad
from octavo.metadata.bulk_loads import BulkLoadRecord, BulkLoadStore
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.protocol.records import Record, build_batch
from octavo.spark import commit as sink
from octavo.spark.cluster import connected
from octavo.spark.orphans import collect_orphans
from octavo.spark.sink_ledgers import TaskLedgers
from octavo.spark.sink_rows import Target
from tests.support.cluster import Cluster, running_cluster
from tests.support.fake_broker import Answer

HUGE = 2**63 - 1
TOPIC = "/v1/topics/public/one"
MINE = {"Bulk-Load-Token": "only I know this"}
TARGET = Target("public/one", 0)
SHARE = {"topic": "one", "partition": 0, "content": "1-1-a"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        yield cluster


async def ask(
    cluster: Cluster, call: str, batch: int, body: dict[str, Any], token: Any = None
) -> Answer:
    path = f"/v1/bulk-loads/t/batches/{batch}/{call}"
    return await cluster.api.call("POST", path, json=body, headers=token or {})


async def test_a_number_far_ahead_is_refused_with_the_next_one(cluster: Cluster) -> None:
    nothing: dict[str, Any] = {"parts": []}
    for expected in (0, 1):
        for call in ("begin", "commit"):
            for batch in (expected + 1, HUGE):
                said = await ask(cluster, call, batch, nothing)
                assert (said.status, said.json()["code"]) == (409, "batch-out-of-order"), said
                assert said.json()["expected_batch"] == expected
                assert f"is {expected};" in said.json()["detail"]
        said = await ask(cluster, "commit", expected, nothing)
        assert (said.status, said.json()["repeated"]) == (200, False), said
    # Numbers that have gaps on purpose say so, and are held to it.
    said = await ask(cluster, "commit", 9, {**nothing, "after": 0})
    assert (said.status, said.json()["expected_batch"]) == (409, 2), said
    said = await ask(cluster, "commit", 9, {**nothing, "after": 9})
    assert (said.status, said.json()["code"]) == (422, "invalid-body"), said
    said = await ask(cluster, "commit", 9, {**nothing, "after": 1})
    assert (said.status, said.json()["repeated"]) == (200, False), said
    said = await ask(cluster, "commit", 9, {**nothing, "after": 1})
    assert (said.status, said.json()["repeated"]) == (200, True), said


async def test_an_id_is_its_owners(cluster: Cluster) -> None:
    nothing: dict[str, Any] = {"parts": []}
    said = await ask(cluster, "begin", 0, {"parts": [SHARE]}, MINE)
    assert said.status == 200, said
    for token in ({}, {"Bulk-Load-Token": "guessed"}, {"Bulk-Load-Token": "n\udce9"}):
        for call, batch, body in (
            ("begin", 0, {"parts": [SHARE]}),
            ("commit", 0, {**nothing, "published": True}),
            ("commit", 1, nothing),
            ("abort", 0, {"ledgers": [3]}),
            ("begin", HUGE, {"parts": []}),
        ):
            said = await ask(cluster, call, batch, body, token)
            assert (said.status, said.json()["code"]) == (403, "foreign-bulk-load"), said
    said = await ask(cluster, "commit", 0, {**nothing, "published": True}, MINE)
    assert (said.status, said.json()["repeated"]) == (200, False), said
    said = await ask(cluster, "commit", 1, nothing, {"Bulk-Load-Token": "x" * 201})
    assert (said.status, said.json()["code"]) == (400, "invalid-header"), said
    shown = (await cluster.api.get("/v1/bulk-loads/t")).body
    assert b"only I know" not in shown


@pytest.mark.parametrize(
    "share", [{**SHARE, "topic": "none"}, {**SHARE, "partition": 7}], ids=["topic", "partition"]
)
async def test_what_cannot_be_published_is_not_begun(
    cluster: Cluster, share: dict[str, Any]
) -> None:
    said = await ask(cluster, "begin", 0, {"parts": [SHARE | {"partition": 0}, share]})
    assert said.status == 404, said
    assert (await ask(cluster, "commit", 0, {"parts": []})).status == 200


async def test_the_sinks_id_is_the_clusters(cluster: Cluster) -> None:
    """Whoever reads an id in a ledger's metadata cannot commit, begin or abort under it."""
    node = next(iter(cluster.brokers.values()))
    service = cluster.store.url
    async with connected(service) as spark:
        for batch in (7, 8, 12):  # after an id that was forgotten; after batches without a task
            task = TaskLedgers(spark, "t", batch, "0")
            await task.write([(TARGET, build_batch([Record(None, b"%d" % batch)]))])
            written = list(await task.close())
            assert await sink.commit(service, "t", batch, written, 30_000)
            for call, number, body in (
                ("commit", batch + 1, {"parts": []}),
                ("begin", batch + 1, {"parts": []}),
                ("abort", batch, {"ledgers": [written[0].ledger_id]}),
            ):
                said = await ask(cluster, call, number, body)
                assert said.status == 403, said
        numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        content = {TARGET: ("1-1-a", build_batch([Record(None, b"published")], **numbers))}
        assert await sink.publish(service, "t", 20, content, 30_000)
        assert not await sink.publish(service, "t", 20, content, 30_000)
    found, _ = await BulkLoadStore(node.store).read("t")
    assert (found.batch, found.complete) == (20, True)
    values = []
    for offset in range(4):
        shown = (await cluster.api.get(f"{TOPIC}/messages?from={offset}&limit=1")).json()
        (one,) = shown["messages"]
        values.append(one["value_text"] if "value_text" in one else one["value"])
    assert values == [7, 8, 12, "published"]


def test_ids_of_older_versions_are_bound_by_the_first_token() -> None:
    old = BulkLoadRecord(3, since_ms=1)
    assert decode_record(BulkLoadRecord, "r", encode_record(old)).token_digest == ""
    for caller in (ANYBODY, Caller("mine")):
        rules.check_caller(old, caller)
    bound = rules.committing(old, 4, (), 5, digest="mine")
    rules.check_caller(bound, Caller("mine"))
    for other in (ANYBODY, Caller("other")):
        with pytest.raises(ForeignBulkLoad):
            rules.check_caller(bound, other)
    later = rules.committing(bound, 5, (), 6, digest="mine")
    assert later.token_digest == "mine"
    assert rules.committing(old, 4, (), 5).token_digest == ""
    begun = rules.beginning(old, 4, {}, 5, "mine")
    assert begun is not None
    assert begun.token_digest == "mine"


numbers = st.one_of(st.integers(0, 6), st.integers(0, HUGE))


@given(st.lists(st.tuples(numbers, st.one_of(st.none(), st.integers(-1, 6)))))
def test_no_batch_is_skipped_that_its_writer_did_not_skip(
    calls: list[tuple[int, int | None]],
) -> None:
    record = BulkLoadRecord()
    for batch, after in calls:
        before = record.batch
        try:
            rules.check_order(record, batch, after)
        except BatchOutOfOrder as error:
            expected: int | None = error.expected
        else:
            expected = None
        if expected is not None:
            assert batch > expected == before + 1
            continue
        if rules.standing(record, batch) is Standing.REPEATED:
            assert batch <= before
            continue
        assert batch == before + 1 or after == before or (before == -1 and after is not None)
        record = rules.committing(record, batch, (), 1)


def test_the_batch_that_was_begun_may_go_on_without_after() -> None:
    begun = rules.beginning(BulkLoadRecord(), 7, {}, 1)
    assert begun is not None
    rules.check_order(begun, 7, None)
    with pytest.raises(BatchOutOfOrder):
        rules.check_order(begun, 8, None)


async def test_orphans_of_a_foreign_id_hold_up_nobody(cluster: Cluster) -> None:
    node = next(iter(cluster.brokers.values()))
    assert (await ask(cluster, "commit", 0, {"parts": []}, MINE)).status == 200
    for bulk_load in ("t", "u"):
        writer = await node.ledgers.create(
            custom={
                rules.KIND_KEY: rules.KIND,
                rules.PARTITION_KEY: b"public/one/0",
                rules.BULK_LOAD_KEY: bulk_load.encode(),
                rules.BATCH_KEY: b"1",
            }
        )
        await writer.close()
    found = await collect_orphans(cluster.store.url, grace_ms=-60_000)
    assert {one.bulk_load: len(one.deleted) for one in found} == {"t": 0, "u": 1}
    assert [one.transaction for one in found] == ["t", "u"], "by its name of 0.1, until 0.3"
