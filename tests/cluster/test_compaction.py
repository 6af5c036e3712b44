"""Compaction by the broker, and reads of the compacted view over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.broker import broker as broker_module
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.log import compaction_rules
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName, TopicSettings
from octavo.client.client import AsyncClient
from octavo.ledger.client import LedgerClient
from octavo.metadata.compactions import begun, compacted_ledgers
from octavo.metadata.offloads import change_partition
from octavo.metadata.topics import CompactedLedger, TopicStore
from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch, read_gapped_records
from tests.support.cluster import Cluster, RunningBroker, owned, running_cluster, until
from tests.support.compacted_views import Kept as KeptReads
from tests.support.compacted_views import delete_retired, write_view
from tests.support.http_api import Answer
from tests.support.http_api import until as until_reads

NAME = PartitionName("public", "accounts", 0)
PLACE = (NAME.namespace, NAME.topic, NAME.partition)
ALWAYS: dict[str, Any] = {
    "compaction_after_bytes": 1,
    "compaction_dirty_ratio": 0.0,
    "compaction_tombstones_ms": 0,
    "rollover_entries": 1,
}
Kept = dict[int, tuple[bytes | None, bytes | None]]


async def made(one: RunningBroker, **settings: Any) -> Partition:
    await one.broker.topics.create(NAME.topic_name, TopicSettings(**{**ALWAYS, **settings}))
    return await owned(one.broker, NAME)


class Written:
    def __init__(self) -> None:
        self.all: Kept = {}

    async def publish(self, partition: Partition, keys: str, *, batch: int = 2) -> None:
        """Publish a message for each letter: `-` has no key, a capital is a tombstone of its
        letter."""
        for at in range(0, len(keys), batch):
            records = []
            for letter in keys[at : at + batch]:
                offset = len(self.all)
                key = None if letter == "-" else letter.lower().encode()
                value = None if letter.isupper() else b"%d" % offset
                self.all[offset] = (key, value)
                records.append(Record(key, value, (("n", b"x"),), 1_000 + offset))
            await partition.publish(build_batch(records))

    def newest(self, horizon: int) -> Kept:
        last = {key or offset: offset for offset, (key, _) in self.all.items() if offset < horizon}
        return {offset: self.all[offset] for offset in sorted(last.values())}


async def read_view(partition: Partition) -> Kept:
    compacted = partition.compacted
    at = await compacted.resolve(at="earliest")
    found: Kept = {}
    while True:
        page = await compacted.read(at, bytes_max=300, count_max=7)
        for batch in page.batches:
            for one in read_gapped_records(batch.data):
                offset = batch.base_offset + one.offset_delta
                if offset >= page.start:
                    assert offset not in found
                    assert (one.headers, one.timestamp_ms) == ([("n", b"x")], 1_000 + offset)
                    found[offset] = (one.key, one.value)
        if page.following == at:
            return found
        at = page.following


def horizon_of(partition: Partition) -> int:
    view = partition._record.value.compaction
    return 0 if view is None else view.horizon


async def test_the_newest_of_each_key_run_after_run(tmp_path: Path) -> None:
    rng = random.Random(19)
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", compaction_keys_max=3, compaction_grace_ms=1)
        partition = await made(one, compaction_tombstones_ms=10**15)
        written = Written()
        for _ in range(6):
            await written.publish(partition, "".join(rng.choices("abcdefgBF-", k=14)))
            while partition.compaction_is_due:
                before = horizon_of(partition)
                await partition.compact()
                horizon = horizon_of(partition)
                assert before <= horizon <= partition.next_offset
                assert await read_view(partition) == {
                    **written.newest(horizon),
                    **{at: one for at, one in written.all.items() if at >= horizon},
                }
                cluster.clock.now_ms += 10
        while horizon_of(partition) <= 70 or partition.compaction_is_due:
            await until(lambda: partition.compaction_is_due, "the last ledgers closed")
            await partition.compact()
            cluster.clock.now_ms += 10
        record = partition._record.value
        assert record.compaction is not None
        assert not record.compaction.retired
        left = set(await one.ledgers.list())
        named = {one.ledger_id for one in record.ledgers} | set(compacted_ledgers(record))
        assert left - named <= {record.state_ledger}, "ledgers of earlier views are gone"


async def test_tombstones_go_after_their_delay_and_one_view(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await made(one, compaction_tombstones_ms=1_000)
        written, now_ms = Written(), 2_003
        # Offset 2 has timestamp 1002, offset 4 has 1004; one is older than the delay, one is not.
        context: Any = partition._context
        object.__setattr__(context, "deletion_time", lambda: DeletionTime(now_ms, "", 0, now_ms))
        cluster.clock.now_ms = now_ms
        await written.publish(partition, "abAcBdef", batch=8)
        await until(lambda: horizon_of_closed(partition) == 8, "a ledger is closed")
        await partition.compact()
        everything = await read_view(partition)
        assert everything == written.newest(8), "each tombstone is in one view at least"
        assert not partition.compaction_is_due, "no more often than once a delay for tombstones"
        now_ms = 3_003
        assert partition.compaction_is_due
        await partition.compact()
        assert set(everything) - set(await read_view(partition)) == {2, 4}
        assert not partition.compaction_is_due


def horizon_of_closed(partition: Partition) -> int:
    closed = [one for one in partition._record.ledgers.segments if one.count is not None]
    return closed[-1].base_offset + (closed[-1].count or 0) if closed else 0


async def test_raw_ledgers_go_when_the_view_covers_them_and_nobody_needs_them(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await made(one, compaction_delete_raw=True, retention_bytes=0)
        written = Written()
        await written.publish(partition, "abcabcabc", batch=9)
        await until(lambda: horizon_of_closed(partition) == 9, "a ledger is closed")
        await written.publish(partition, "abcabcabc", batch=9)
        await until(lambda: horizon_of_closed(partition) == 18, "its ledgers are closed")
        await partition.maintain()
        assert partition.earliest_offset == 0, "nothing is in a view yet, so nothing goes"
        sub = await subscription(one.broker, partition)
        await partition.compact()
        assert partition.earliest_offset == 0, "the subscription has not read it"
        second = partition._record.ledgers.segments[1].base_offset
        await sub.acknowledge(up_to=second)
        await partition.maintain()
        assert partition.earliest_offset == second
        await sub.acknowledge(up_to=17)
        await partition.maintain()
        assert partition.earliest_offset == 18
        assert await read_view(partition) == written.newest(18)


async def test_run_follows_run_and_what_each_has_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_rules, "_RUN_MESSAGES_MIN", 5)
    monkeypatch.setattr(broker_module, "_RUN_REST_S", 0.01)
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", trim_interval_ms=3_600_000)
        partition = await made(one, compaction_delete_raw=True, retention_bytes=0)
        written = Written()
        for _ in range(4):
            await written.publish(partition, "abcab", batch=5)
            await until(
                lambda: horizon_of_closed(partition) == len(written.all), "a ledger is closed"
            )
        stats = await partition.stats()
        assert stats.uncompacted == (stats.stored_bytes, True)
        one.broker._look_after(partition)
        await until(lambda: partition.earliest_offset == 20, "everything is in the view and gone")
        assert await read_view(partition) == written.newest(20)
        stats = await partition.stats()
        assert stats.uncompacted == (0, False)


async def subscription(broker: Any, partition: Partition) -> Any:
    from octavo.broker.types import SubscriptionSettings

    info, _ = await broker.topics.create_subscription(
        TopicName("public", "accounts"), "s", SubscriptionSettings()
    )
    return await partition.subscribe(info)


async def test_a_job_of_a_person_is_let_finish(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", compaction_yield_ms=60_000)
        partition = await made(one)
        written = Written()
        await written.publish(partition, "abcabcabc")
        await until(lambda: horizon_of_closed(partition) > 0, "a ledger is closed")
        topics = TopicStore(cluster.store)
        now_ms = cluster.clock.now_ms
        await change_partition(topics, PLACE, lambda record: begun(record, "spark", now_ms))
        await partition.compact()
        assert horizon_of(partition) == 0
        assert not partition.compaction_is_due
        cluster.clock.now_ms += 60_000
        assert partition.compaction_is_due, "it has died"
        await partition.compact()
        assert horizon_of(partition) == horizon_of_closed(partition) > 0


async def test_a_run_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    """Its owner stops in the middle; the next one begins again, and sweeps the first one's
    objects."""
    async with running_cluster(tmp_path) as cluster:
        first = await cluster.start("A", compaction_bytes_per_s=1)
        partition = await made(first)
        written = Written()
        await written.publish(partition, "abcabcabcabc", batch=12)
        await until(lambda: horizon_of_closed(partition) == 12, "a ledger is closed")
        running = asyncio.ensure_future(partition.compact())
        await until(lambda: partition._record.value.compaction is not None, "a run has begun")
        view = partition._record.value.compaction
        assert view is not None
        assert view.run is not None
        orphan = await first.ledgers.create(custom=partition._compactor._labels(view.run))
        await orphan.close()
        await first.vanish()
        running.cancel()
        second = await cluster.start("B", leftover_grace_ms=1)
        taken = await owned(second.broker, NAME)
        sweep = second.broker._sweep_leftovers
        for _ in range(2):
            await sweep()
            await asyncio.sleep(0.01)
        assert orphan.ledger_id in await second.ledgers.list(), "its run may still publish it"
        await taken.compact()
        assert await read_view(taken) == written.newest(12)
        for _ in range(3):
            await sweep()
            await asyncio.sleep(0.01)
        named = set(compacted_ledgers(taken._record.value))
        assert orphan.ledger_id not in await second.ledgers.list()
        assert named <= set(await second.ledgers.list())


BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
PATH = "/v1/topics/public/accounts"
NAME_READS = ("public", "accounts", 0)


class Accounts:
    def __init__(self, cluster: Cluster, ledgers: LedgerClient) -> None:
        self.cluster = cluster
        self.ledgers = ledgers
        self.topics = TopicStore(cluster.store)
        self.written: list[KeptReads] = []

    async def publish(self, keys: str, *, batch: int = 3) -> None:
        """Publish a message for each letter, in batches. Values are offsets, times seconds."""
        for start in range(0, len(keys), batch):
            first = len(self.written)
            records = [
                Record(key.encode(), b"%d" % (first + at), [("n", b"x")], 1_000 * (first + at))
                for at, key in enumerate(keys[start : start + batch])
            ]
            answer = await self.cluster.api.post(PATH + "/messages", build_batch(records), BATCH)
            assert answer.json()["first"]["offset"] == first, answer
            self.written += [(first + at, record) for at, record in enumerate(records)]

    def newest(self, horizon: int | None = None) -> list[KeptReads]:
        last = {record.key: (offset, record) for offset, record in self.written[:horizon]}
        return sorted(last.values())

    async def compact(
        self, horizon: int | None = None, *, entry: int = 2, ledger: int = 2
    ) -> list[CompactedLedger]:
        kept = self.newest(horizon)
        entries = [kept[at : at + entry] for at in range(0, len(kept), entry)]
        contents = [entries[at : at + ledger] for at in range(0, len(entries), ledger)]
        end = len(self.written) if horizon is None else horizon
        return await write_view(self.ledgers, self.topics, NAME_READS, end, contents)

    async def get(self, start: object = "earliest", broker: int = 0, **query: Any) -> Answer:
        asked = "".join(f"&{name}={value}" for name, value in query.items())
        api = list(self.cluster.apis.values())[broker]
        return await api.get(f"{PATH}/messages?from={start}&compacted=true{asked}")

    async def paged(self, start: object = "earliest", **query: Any) -> list[int]:
        found: list[int] = []
        while True:
            answer = await self.get(start, **query)
            if answer.status == 204:
                assert int(answer.headers["Next-Offset"]) == len(self.written), "204 is the end"
                return found
            found += self.checked(answer)
            start = answer.json()["next_offset"]

    def checked(self, answer: Answer) -> list[int]:
        assert answer.status == 200, answer
        body = answer.json()
        assert answer.headers["Next-Offset"] == str(body["next_offset"])
        for one in body["messages"]:
            record = self.written[one["offset"]][1]
            assert (one["key"], one["value"]) == ((record.key or b"").decode(), one["offset"])
            assert (one["timestamp"], one["headers"]) == (record.timestamp_ms, {"n": "x"})
        offsets = [one["offset"] for one in body["messages"]]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] < body["next_offset"]
        return offsets


@pytest.fixture
async def accounts(tmp_path: Path) -> AsyncIterator[Accounts]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        body = {"rollover": {"entries": 3}}
        assert (await cluster.api.put(PATH, json=body)).status == 201
        yield Accounts(cluster, await cluster.client(seed=7))


def offsets(kept: Sequence[KeptReads]) -> list[int]:
    return [offset for offset, _ in kept]


async def test_every_start_and_page_gives_the_view_and_then_the_log(accounts: Accounts) -> None:
    rng = random.Random(3)
    await accounts.publish("".join(rng.choice("abcdefghijklm") for _ in range(40)))
    plain = (await accounts.cluster.api.get(PATH + "/messages?from=earliest")).json()
    without = await accounts.get()
    assert without.json() == plain, "without a view the parameter changes nothing"
    await accounts.compact()
    view = offsets(accounts.newest())
    assert view[0] > 3, "there are gaps"
    assert await accounts.paged() == view, "the horizon is the end"
    await accounts.publish("abcabcabc")
    expected = view + list(range(40, 49))
    assert accounts.checked(await accounts.get()) == expected, "one answer goes over the horizon"
    assert (await accounts.cluster.api.get(PATH + "/messages")).json()["messages"][0]["offset"] == 0
    for start in range(49):
        left = [offset for offset in expected if offset >= start]
        found = accounts.checked(await accounts.get(start, broker=start % 2))
        assert found == left[: len(found)]
    for query in ({"limit": 1}, {"limit": 3}, {"max_bytes": 1}, {"max_bytes": 300, "limit": 5}):
        assert await accounts.paged(rng.randrange(3), **query) == expected
        if "limit" in query:
            answer = await accounts.get(0, **query)
            assert len(answer.json()["messages"]) <= query["limit"]
    answer = await accounts.get("latest")
    assert (answer.status, answer.headers["Next-Offset"]) == (204, "49")
    answer = await accounts.get(50)
    assert (answer.status, answer.json()["next_offset"]) == (416, 49)


@pytest.mark.parametrize("horizon", [15, 14])
async def test_forms_of_answers_and_the_client(accounts: Accounts, horizon: int) -> None:
    """The horizon may lie within a batch of the log, though no job makes it so."""
    await accounts.publish("abcabdabeabfabgx")
    await accounts.compact(horizon)
    expected = [*accounts.newest(horizon), *accounts.written[horizon:]]
    for api in accounts.cluster.apis.values():
        query = f"{PATH}/partitions/0/messages?compacted=true"
        raw = await api.get(query, headers={"Accept": BATCH})
        assert raw.status == 200, raw
        found: list[KeptReads] = []
        for header, data in split_batches(raw.body, gaps=True):
            for record in read_gapped_records(data):
                if not found or header.base_offset + record.offset_delta > found[-1][0]:
                    found.append((header.base_offset + record.offset_delta, record))
        assert [(offset, one.key, one.value, one.timestamp_ms) for offset, one in found] == [
            (offset, one.key, one.value, one.timestamp_ms) for offset, one in expected
        ]
        assert raw.headers["Next-Offset"] == "16"
        lines = (await api.get(query, headers={"Accept": NDJSON})).body.splitlines()
        assert [json.loads(line)["offset"] for line in lines] == offsets(expected)
        async with AsyncClient(api.url) as client:
            for limit in (1, 2, 100):
                read = await client.read("accounts", limit=limit, compacted=True)
                assert [one.offset for one in read] == offsets(expected)[:limit]
            for start in ("earliest", 5, "1970-01-01T00:00:09Z"):
                every = [one async for one in client.messages(
                    "accounts", start=start, compacted=True
                )]  # fmt: skip
                first = {"earliest": 0, 5: 5}.get(start, 9)
                assert [(one.offset, one.value) for one in every] == [
                    (offset, record.value) for offset, record in expected if offset >= first
                ]


async def test_time_and_message_ids(accounts: Accounts) -> None:
    await accounts.publish("abcabdabeabfabgxabab")
    (first, *_) = await accounts.compact(18, entry=3, ledger=1)
    view = offsets(accounts.newest(18))
    for second in range(21):
        at = next((o for o in (*view, 18, 19, 20) if o >= second), 20)
        for suffix in ("", "&compacted=false"):
            found = await accounts.cluster.api.get(
                f"{PATH}/offsets?at=1970-01-01T00:00:{second:02}Z{suffix}"
            )
            assert found.json()["offsets"][0]["offset"] == second
        found = await accounts.cluster.api.get(
            f"{PATH}/offsets?at=1970-01-01T00:00:{second:02}Z&compacted=true"
        )
        assert found.json()["offsets"][0]["offset"] == at
    messages = (await accounts.get()).json()["messages"]
    for one in messages:
        answer = await accounts.get(one["id"], broker=1)
        assert answer.json()["messages"][0] == one
    assert messages[0]["id"].startswith(f"{first.ledger_id}:0:0")
    for wrong in ("from", "at"):
        call = "messages" if wrong == "from" else "offsets"
        answer = await accounts.cluster.api.get(f"{PATH}/{call}?{wrong}={messages[0]['id']}")
        assert (answer.status, answer.json()["code"]) == (404, "message-not-found")
        assert "use the message's offset instead" in answer.json()["detail"]
    await accounts.cluster.api.put(PATH + "/subscriptions/s")
    answer = await accounts.cluster.api.post(
        PATH + "/subscriptions/s/seek", json={"to": messages[0]["id"]}
    )
    assert answer.status == 404
    answer = await accounts.get(f"{first.ledger_id}:0:77")
    assert (answer.status, answer.json()["code"]) == (404, "message-not-found")


async def test_a_view_that_is_replaced_and_deleted_between_two_pages(accounts: Accounts) -> None:
    await accounts.publish("abcdefghijklmnopqrstuvwxyz")
    await accounts.compact()
    page = await accounts.get(limit=3)
    assert accounts.checked(page) == [0, 1, 2]
    await accounts.publish("abcdexyz")
    new = await accounts.compact()
    assert await delete_retired(accounts.ledgers, accounts.topics, NAME_READS)
    # Its owner still has the old view's ledger open, and uses its known record.
    found = await accounts.paged(page.json()["next_offset"], limit=4)
    assert found[0] >= 3
    last = {accounts.written[offset][1].key: offset for offset in found}
    assert sorted(last.values()) == offsets(accounts.newest()), "the newest of every key is seen"
    assert await accounts.paged() == offsets(accounts.newest())
    for ledger in new:
        await accounts.ledgers.delete(ledger.ledger_id)
    partition = await _owner(accounts)
    await partition.compacted.close(None)
    partition._compacted._view._closed = None
    for start in ("earliest", 3, "1970-01-01T00:00:09Z"):
        answer = await accounts.get(start, broker=1)
        assert (answer.status, answer.json()["code"]) == (503, "compacted-view-unreadable"), answer
        assert "is incomplete" in answer.json()["detail"]


async def _owner(accounts: Accounts) -> Any:
    name = await accounts.cluster.owner_of(PATH + "/partitions/0")
    broker = accounts.cluster.brokers[name].broker
    from octavo.broker.types import PartitionName

    return await broker.ownership.partition(PartitionName(*NAME_READS))


async def test_a_topic_trimmed_below_the_horizon(accounts: Accounts) -> None:
    await accounts.publish("abcdabefa")
    partition = await _owner(accounts)
    await until_reads(lambda: len(partition.ledgers) > 1, 60)
    await accounts.publish("bghabcdabefabgh")
    await accounts.compact(18)
    await accounts.cluster.api.put(PATH + "/subscriptions/holds")
    answer = await accounts.cluster.api.post(PATH + "/subscriptions/holds/seek", json={"to": 12})
    assert answer.status == 200, answer
    retention = {"retention": {"size": "0B"}}
    assert (await accounts.cluster.api.call("PATCH", PATH, json=retention)).status == 200
    await until_reads(lambda: partition.earliest_offset == 9, 60)
    answer = await accounts.cluster.api.get(PATH + "/messages?from=0")
    assert answer.status == 410
    expected = offsets(accounts.newest(18)) + list(range(18, 24))
    assert await accounts.paged() == await accounts.paged(0, limit=2) == expected
    assert expected[0] < 9
    await accounts.cluster.api.call("DELETE", PATH + "/subscriptions/holds")
    await accounts.publish("abcdef" * 5)
    await until_reads(lambda: partition.earliest_offset > 18, 60)
    answer = await accounts.get(0)
    assert accounts.checked(answer) == offsets(accounts.newest(18))
    assert answer.json()["next_offset"] == 18
    answer = await accounts.get(18)
    assert (answer.status, answer.json()["code"]) == (410, "offset-trimmed")
    assert answer.json()["earliest_offset"] == partition.earliest_offset
    await accounts.compact()
    assert await accounts.paged() == offsets(accounts.newest())


async def test_the_next_owner_goes_on(accounts: Accounts) -> None:
    await accounts.publish("abcabdabeabfabgx" * 2)
    await accounts.compact(30)
    expected = [*offsets(accounts.newest(30)), 30, 31]
    page = await accounts.get(limit=2)
    assert accounts.checked(page) == expected[:2]
    await accounts.cluster.stop_broker(await accounts.cluster.owner_of(PATH + "/partitions/0"))
    assert await accounts.paged(page.json()["next_offset"], limit=2) == expected[2:]


async def test_a_view_of_nothing_and_a_wrong_parameter(accounts: Accounts) -> None:
    await accounts.publish("aab")
    await write_view(accounts.ledgers, accounts.topics, NAME_READS, 2, [])
    answer = await accounts.get()
    assert accounts.checked(answer) == [2]
    await write_view(accounts.ledgers, accounts.topics, NAME_READS, 3, [])
    answer = await accounts.get()
    assert (answer.status, answer.headers["Next-Offset"]) == (204, "3")
    for wrong in ("yes", "", "TRUE"):
        answer = await accounts.cluster.api.get(f"{PATH}/messages?compacted={wrong}")
        assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")
        assert "one of true, false" in answer.json()["detail"]
