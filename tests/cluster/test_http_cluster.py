"""The HTTP API over real brokers: order, repetition, retention, cursors, full disks, callers
that leave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo.bookie.disk.files import DiskFull
from octavo.broker.partition.partition import Partition
from octavo.broker.types import SubscriptionSettings
from octavo.ledger.client import LedgerClient
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch, partition_for
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster
from tests.support.cluster import until as until_cancelled
from tests.support.http_api import until
from tests.support.kit.cancelling import cancelled_at
from tests.support.kit.quiescence import Unrest
from tests.support.raw_bookie import TroubledDisk

BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
ONE = "/v1/topics/public/one"
FOUR = "/v1/topics/public/four"


@pytest.fixture
async def cluster_http(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        assert (await found.api.put(FOUR, json={"partitions": 4})).status == 201
        yield found


async def eventually(
    cluster: Cluster, method: str, path: str, *, meanwhile: tuple[int, ...] = (404,)
) -> Any:
    async with asyncio.timeout(20):
        while True:
            answer = await cluster.api.call(
                method, path, data=b"after" if method == "POST" else None
            )
            if answer.status == 200:
                return answer.json()
            assert answer.status in meanwhile, answer
            await asyncio.sleep(0.05)


async def read_all(cluster: Cluster, path: str) -> list[Any]:
    found: list[Any] = []
    at = 0
    while True:
        answer = await cluster.api.get(f"{path}/messages?from={at}&limit=10000&max_bytes=8000000")
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        assert answer.json()["messages"][0]["offset"] == at
        found += answer.json()["messages"]
        at = answer.json()["next_offset"]


async def test_ndjson_over_partitions_of_two_brokers(cluster_http: Cluster) -> None:
    owners = {await cluster_http.owner_of(f"{FOUR}/partitions/{n}") for n in range(4)}
    assert owners <= set(cluster_http.apis)
    lines = [json.dumps({"key": f"k{n % 50}", "value": n}).encode() for n in range(20_000)]
    answer = await cluster_http.api.post(FOUR + "/messages", b"\n".join(lines), NDJSON)
    assert answer.status == 200, answer
    assert answer.json()["count"] == 20_000
    seen: dict[str, list[int]] = {}
    for number in range(4):
        for message in await read_all(cluster_http, f"{FOUR}/partitions/{number}"):
            assert partition_for(message["key"].encode(), 4) == number
            seen.setdefault(message["key"], []).append(message["value"])
    assert seen == {f"k{k}": list(range(k, 20_000, 50)) for k in range(50)}


async def test_idempotence_survives_a_planned_take_over(cluster_http: Cluster) -> None:
    batch = build_batch(
        [Record(None, b"%d" % n) for n in range(10)],
        producer_id=5, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    path = ONE + "/partitions/0"
    assert (await cluster_http.api.post(path + "/messages", batch, BATCH)).status == 200
    assert (await cluster_http.api.post(path + "/messages", batch, BATCH)).status == 204
    owner = await cluster_http.owner_of(path)
    await cluster_http.stop_broker(owner)
    answer = await cluster_http.api.post(path + "/messages", batch, BATCH)
    assert answer.status == 204, answer
    assert answer.headers["Next-Offset"] == "10"
    gap = build_batch([Record(None, b"x")], producer_id=5, producer_epoch=0, base_sequence=12)
    answer = await cluster_http.api.post(path + "/messages", gap, BATCH)
    assert (answer.status, answer.json()["expected_sequence"]) == (409, 10)
    stale = build_batch([Record(None, b"x")], producer_id=5, producer_epoch=1, base_sequence=0)
    assert (await cluster_http.api.post(path + "/messages", stale, BATCH)).status == 200
    answer = await cluster_http.api.post(path + "/messages", gap, BATCH)
    assert answer.status == 403, answer


async def test_subscription_across_brokers_and_take_over(cluster_http: Cluster) -> None:
    sub = FOUR + "/subscriptions/work"
    assert (await cluster_http.api.put(sub, json={"type": "shared"})).status == 201
    body = b"\n".join(b'{"key":"k%d","value":%d}' % (n, n) for n in range(400))
    assert (await cluster_http.api.post(FOUR + "/messages", body, NDJSON)).status == 200
    seen: list[int] = []

    async def consume(until: int) -> None:
        while len(seen) < until:
            for api in tuple(cluster_http.apis.values()):
                answer = await api.post(sub + "/receive?max=50&wait=2s&consumer=me")
                assert answer.status in (200, 204), answer
                messages = answer.json()["messages"] if answer.status == 200 else []
                ids = [message["ack_id"] for message in messages]
                acked = await api.post(sub + "/ack", json={"ack_ids": ids})
                assert acked.status == 200, acked
                seen.extend(message["value"] for message in messages)

    async with asyncio.timeout(60):
        await consume(200)
        await cluster_http.stop_broker(await cluster_http.owner_of(FOUR + "/partitions/0"))
        await consume(400)
    assert sorted(seen) == list(range(400))
    found = (await cluster_http.api.get(sub)).json()
    assert found["backlog"] == 0, found


async def test_ledgers_nodes_and_page(cluster_http: Cluster) -> None:
    await cluster_http.api.post(ONE + "/messages", b"seen", "text/plain")
    topic = (await cluster_http.api.get(ONE)).json()
    ledger = topic["partitions"][0]["ledgers"][0]["id"]
    assert ledger in (await cluster_http.api.get("/v1/ledgers")).json()["ledgers"]
    found = (await cluster_http.api.get(f"/v1/ledgers/{ledger}")).json()
    assert found["state"] == "OPEN"
    assert len(found["fragments"][0]["bookies"]) == 3
    entry = await eventually(cluster_http, "GET", f"/v1/ledgers/{ledger}/entries/0")
    assert entry["batch"]["record_count"] == 1
    answer = await cluster_http.api.get(
        f"/v1/ledgers/{ledger}/entries/0", headers={"Accept": "application/octet-stream"}
    )
    assert b"seen" in answer.body
    assert (await cluster_http.api.get(f"/v1/ledgers/{ledger}/entries/77")).status == 404
    assert (await cluster_http.api.get("/v1/ledgers/123456")).status == 404
    bookies = (await cluster_http.api.get("/v1/bookies")).json()["bookies"]
    assert [one["id"] for one in bookies] == ["b1", "b2", "b3"]
    brokers = (await cluster_http.api.get("/v1/brokers")).json()["brokers"]
    assert {one["url"] for one in brokers} == {api.url for api in cluster_http.apis.values()}
    whole = (await cluster_http.api.get("/v1/cluster")).json()
    assert "public/one" in whole["topics"]
    assert whole["clock"]["doubt"] is None
    assert whole["clock"]["deletion_time"] > 1_700_000_000_000
    assert (await cluster_http.api.post("/v1/cluster/clock")).json()["late_ms"] == 0
    page = await cluster_http.api.get("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"public/one/0" in page.body or b"public/four" in page.body
    assert b"b1" in page.body


async def test_forced_recovery_fences_the_owner_and_it_goes_on(cluster_http: Cluster) -> None:
    await cluster_http.api.post(ONE + "/messages", b"before", "text/plain")
    ledger = (await cluster_http.api.get(ONE)).json()["partitions"][0]["ledgers"][-1]["id"]
    answer = await cluster_http.api.post(f"/v1/ledgers/{ledger}/recover?force=true")
    assert answer.status == 200, answer
    assert answer.json()["state"] == "CLOSED"
    assert {step["step"] for step in answer.json()["steps"]} >= {1, 2, 3}

    await eventually(cluster_http, "POST", ONE + "/messages", meanwhile=(503, 504))
    values = [message["value_text"] for message in await read_all(cluster_http, ONE)]
    assert values[0] == "before"
    assert "after" in values


async def test_too_few_bookies_say_which_are_up(cluster_http: Cluster) -> None:
    await cluster_http.stop_bookie("b3")
    await cluster_http.api.put("/v1/topics/public/late")
    answer = await cluster_http.api.post("/v1/topics/public/late/messages", b"x", "text/plain")
    assert answer.status == 503, answer
    detail = answer.json()["detail"]
    assert "b1" in detail, detail
    assert "b2" in detail, detail
    assert "3" in detail, detail
    assert answer.json()["retryable"] is True
    await cluster_http.start_bookie("b3")

    await eventually(cluster_http, "POST", "/v1/topics/public/late/messages", meanwhile=(503,))


async def test_a_bookie_that_is_down_stays_on_the_page_with_a_warning(
    cluster_http: Cluster,
) -> None:
    whole = (await cluster_http.api.get("/v1/cluster")).json()
    assert whole["bookies_down"] == []
    assert b"Warning" not in (await cluster_http.api.get("/")).body
    port = cluster_http.nodes["b2"].port
    await cluster_http.stop_bookie("b2")
    async with asyncio.timeout(20):
        while not (found := (await cluster_http.api.get("/v1/bookies")).json())["bookies_down"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [one["id"] for one in found["bookies"]] == ["b1", "b3"]
    (down,) = found["bookies_down"]
    assert (down["id"], down["port"]) == ("b2", port)
    assert down["missing_since"] > 1_700_000_000_000
    page = (await cluster_http.api.get("/")).body.decode()
    assert "Warning. Down: b2." in page
    assert "down, missed for " in page
    assert f"127.0.0.1:{port}" in page
    await cluster_http.start_bookie("b2")
    async with asyncio.timeout(20):
        while (await cluster_http.api.get("/v1/bookies")).json()["bookies_down"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "Warning" not in (await cluster_http.api.get("/")).body.decode()


async def test_a_broker_that_dies_is_shown_as_gone(cluster_http: Cluster) -> None:
    assert (await cluster_http.api.get("/v1/brokers")).json()["brokers_gone"] == []
    dead, living = sorted(cluster_http.apis)
    url = cluster_http.apis[dead].url
    await cluster_http.brokers[dead].vanish()
    api = cluster_http.apis[living]
    async with asyncio.timeout(60):
        while len((found := (await api.get("/v1/brokers")).json())["brokers"]) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    (gone,) = found["brokers_gone"]
    assert (gone["id"], gone["url"]) == (dead, url)
    assert (await api.get("/v1/cluster")).json()["brokers_gone"][0]["id"] == dead
    assert f"No longer registered: broker {dead}." in (await api.get("/")).body.decode()


def producer(sequence: int, epoch: int = 0, name: str = "writer-1") -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}


async def test_trimmed_offsets_are_410_with_the_earliest(cluster_http: Cluster) -> None:
    topic = "/v1/topics/public/short"
    body = {"retention": {"size": "1KiB"}, "rollover": {"entries": 3}}
    assert (await cluster_http.api.put(topic, json=body)).status == 201
    for n in range(20):
        answer = await cluster_http.api.post(topic + "/messages", b"x" * 200, "text/plain")
        assert answer.status == 200, answer
        assert answer.json()["first"]["offset"] == n
    async with asyncio.timeout(20):
        while True:
            answer = await cluster_http.api.get(topic + "/messages?from=0")
            if answer.status == 410:
                break
            await asyncio.sleep(0.1)
    earliest = answer.json()["earliest_offset"]
    assert 0 < earliest < 20
    for api in cluster_http.apis.values():
        while (answer := await api.get(f"{topic}/messages?from={earliest}")).status == 410:
            assert answer.json()["earliest_offset"] > earliest, "it was trimmed meanwhile"
            earliest = answer.json()["earliest_offset"]
        assert answer.json()["messages"][0]["offset"] == earliest
        answer = await api.get(topic + "/messages?from=earliest&limit=1")
        assert answer.json()["messages"][0]["offset"] >= earliest
        answer = await api.get(topic + "/messages?from=0")
        assert (answer.status, answer.json()["code"]) == (410, "offset-trimmed")
        assert answer.headers["Earliest-Offset"] == str(answer.json()["earliest_offset"])


async def test_only_one_of_many_wins_a_compare_and_append(cluster_http: Cluster) -> None:
    answers = await asyncio.gather(
        *(
            api.post(ONE + "/messages", b"%d" % n, "text/plain", headers={"If-Match": '"0"'})
            for n in range(10)
            for api in cluster_http.apis.values()
        )
    )
    assert sorted(answer.status for answer in answers) == [200] + [412] * 19
    assert (await cluster_http.api.get(ONE + "/offsets")).json()["offsets"][0]["offset"] == 1


async def test_a_half_stored_stream_is_completed_by_repeating_it(
    cluster_http: Cluster,
) -> None:
    lines = [b'{"value":%d}\n' % n for n in range(30_000)]

    async def dying() -> AsyncIterator[bytes]:
        for start in range(0, 20_000, 500):
            yield b"".join(lines[start : start + 500])
            await asyncio.sleep(0)
        raise RuntimeError("killed")

    with pytest.raises(aiohttp.ClientError, match="killed"):
        await cluster_http.api.post(ONE + "/messages", dying(), NDJSON, headers=producer(0))
    node = next(iter(cluster_http.brokers.values()))
    server = node.server
    assert server is not None
    await until(lambda: not server._services.in_hand.count, 10)
    answer = await cluster_http.api.post(
        ONE + "/messages", b"".join(lines), NDJSON, headers=producer(0)
    )
    assert answer.status == 200, answer
    assert answer.json()["count"] == 30_000
    at, values = 0, []
    while True:
        found = await cluster_http.api.get(
            f"{ONE}/messages?from={at}&limit=10000&max_bytes=8000000"
        )
        if found.status == 204:
            break
        at = found.json()["next_offset"]
        values += [message["value"] for message in found.json()["messages"]]
    assert values == list(range(30_000))


async def test_dead_letters_over_http_whoever_serves_their_topic(
    cluster_http: Cluster,
) -> None:
    """For some originals another broker serves the dead-letter topic."""
    apis = list(cluster_http.apis.values())
    for number in range(4):
        topic = f"/v1/topics/public/poison{number}"
        sub = f"{topic}/subscriptions/s"
        await cluster_http.api.put(topic, json={})
        settings = {"type": "shared", "max_deliveries": 2, "dead_letter_topic": "all-dead"}
        answer = await apis[number % len(apis)].put(sub, json=settings)
        assert answer.status == 201, answer
        await cluster_http.api.post(f"{topic}/messages", json={"key": "k", "value": {"n": number}})
        for _ in range(2):
            (message,) = (await cluster_http.api.post(f"{sub}/receive")).json()["messages"]
            await cluster_http.api.post(f"{sub}/ack", json={"nack": [message["ack_id"]]})
    letters: list[dict[str, object]] = []
    async with asyncio.timeout(20):
        while len(letters) < 4:
            answer = await apis[0].post(
                "/v1/topics/public/all-dead/subscriptions/s/receive?max=10&wait=1s"
            )
            letters += answer.json()["messages"] if answer.status == 200 else []
    assert sorted(one["value"]["n"] for one in letters) == [0, 1, 2, 3]  # type: ignore[index]
    figures = (await apis[0].get("/v1/topics/public/poison0/subscriptions/s")).json()
    assert figures["settings"]["max_deliveries"] == 2
    assert figures["dead_letters"] == {"waiting": 0, "sent": 1, "problem": None}
    assert figures["backlog"] == 0
    metrics = [(await api.get("/metrics")).body.decode() for api in apis]
    assert any("octavo_subscription_dead_letters_total{" in text for text in metrics)


TOPIC = "/v1/topics/public/full"


class Disks:
    def __init__(self) -> None:
        self.full: set[str] = set()
        self._lock = threading.Lock()

    def of(self, name: str) -> TroubledDisk:
        disk = TroubledDisk()

        def hook(call: str, path: str) -> None:
            if name in self.full and call in ("pwritev", "preallocate"):
                raise DiskFull(f"{call} {path}: no space left on device")

        disk.hook = hook
        return disk


@pytest.fixture
async def disks() -> Disks:
    return Disks()


@pytest.fixture
async def cluster_full(tmp_path: Path, disks: Disks) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 0, brokers=2) as found:
        for name in ("b1", "b2", "b3"):
            await found.start_bookie(
                name, disk=disks.of(name), disk_check_interval_ms=50, flush_interval_ms=100
            )
        assert (await found.api.put(TOPIC)).status == 201
        yield found


async def publish(cluster: Cluster, text: str) -> tuple[int, dict[str, object]]:
    answer = await cluster.api.post(TOPIC + "/messages", text.encode(), "text/plain")
    return answer.status, answer.json()


async def read_all_full(cluster: Cluster) -> list[str]:
    found: list[str] = []
    while True:
        answer = await cluster.api.get(f"{TOPIC}/messages?from={len(found)}&limit=1000")
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        found += [message["value_text"] for message in answer.json()["messages"]]


async def read_only_ones(cluster: Cluster) -> set[str]:
    bookies = (await cluster.api.get("/v1/bookies")).json()["bookies"]
    return {one["id"] for one in bookies if one["read_only"]}


async def acked(cluster: Cluster, text: str) -> None:
    async with asyncio.timeout(40):
        while True:
            status, said = await publish(cluster, text)
            if status == 200:
                return
            assert status in (503, 504), said
            assert said["retryable"] is True
            assert said["detail"]
            await asyncio.sleep(0.05)


async def test_one_full_disk_of_three_stops_nobody(cluster_full: Cluster, disks: Disks) -> None:
    for n in range(5):
        await acked(cluster_full, f"a{n}")
    disks.full = {"b2"}
    for n in range(5):
        await acked(cluster_full, f"b{n}")
    async with asyncio.timeout(20):
        while await read_only_ones(cluster_full) != {"b2"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    found = await read_all_full(cluster_full)
    wanted = [f"{group}{n}" for group in "ab" for n in range(5)]
    assert [text for text in found if text in wanted] == wanted


async def test_full_disks_below_the_ack_quorum(cluster_full: Cluster, disks: Disks) -> None:
    for n in range(5):
        await acked(cluster_full, f"before-{n}")
    disks.full = {"b1", "b2", "b3"}
    status, said = await asyncio.wait_for(publish(cluster_full, "lost or not"), 40)
    assert status in (503, 504), said
    assert said["retryable"] is True
    status, said = await asyncio.wait_for(publish(cluster_full, "refused"), 40)
    assert status in (503, 504), said
    assert (await read_all_full(cluster_full))[:5] == [f"before-{n}" for n in range(5)]
    disks.full = set()
    for n in range(5):
        await acked(cluster_full, f"after-{n}")
    found = await read_all_full(cluster_full)
    wanted = [f"{when}-{n}" for when in ("before", "after") for n in range(5)]
    assert [text for text in found if text in wanted] == wanted
    assert {*found} - {*wanted} <= {"lost or not", "refused"}


async def test_a_small_disk_is_named_where_nothing_can_be_published(tmp_path: Path) -> None:
    """The error said `0 usable (none)`, but not that all three bookies were read-only, nor why."""
    async with running_cluster(tmp_path, 0, brokers=1) as cluster:
        for name in ("b1", "b2", "b3"):
            disk = TroubledDisk()
            disk.free = 999
            await cluster.start_bookie(
                name, disk=disk, disk_free_bytes_min=1000, disk_free_bytes_resume=2000
            )
        assert (await cluster.api.put(TOPIC)).status == 201
        status, said = await asyncio.wait_for(publish(cluster, "refused"), 40)
        assert status == 503, said
        assert said["retryable"] is True
        detail = str(said["detail"])
        for told in ("3 registered", "b1 is read-only", "b2 is read-only", "b3 is read-only"):
            assert told in detail, detail
        assert "has 999 of" in detail
        assert "fewer than bookie.disk_free_bytes_min (1,000)" in detail


_STEPS_MAX = 60


async def _publish(partition: Partition) -> object:
    return await partition.publish(batch(2))


async def _receive(partition: Partition) -> object:
    subscription = await partition.subscription("s")
    given = await subscription.receive("c", messages_max=5, wait_s=5.0)
    if not given:
        return None
    first, *others = given
    release = [other.ack_id for other in others]
    await subscription.acknowledge([first.ack_id], release=release)
    return given


async def _read(partition: Partition) -> object:
    return await partition.read(
        partition.next_offset, bytes_max=100_000, count_max=100, wait_s=10.0
    )


async def _seek(partition: Partition) -> object:
    subscription = await partition.subscription("s")
    return await subscription.seek(partition.earliest_offset)


CALLS: dict[str, Callable[[Partition], Awaitable[object]]] = {
    "publish": _publish,
    "receive": _receive,
    "read": _read,
    "seek": _seek,
}


async def _comes_to_rest(*parts: object) -> None:
    unrest = Unrest(lambda: parts)
    await until_cancelled(lambda: not unrest.look(), f"all is given back: {unrest.left()}")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_partition_is_cancelled_at_each_await(
    cluster: Cluster, name: str, late: bool
) -> None:
    running = await cluster.start("A")
    topic = await make_topic(running.broker)
    info, _ = await running.broker.topics.create_subscription(
        topic.topic_name, "s", SubscriptionSettings(type="shared", ack_timeout_ms=1_000)
    )
    partition = await owned(running.broker, topic)
    await partition.subscribe(info)
    await partition.publish(batch(4))
    work: Any = CALLS[name]
    for step in range(1, _STEPS_MAX):
        published: list[asyncio.Task[object]] = []

        def meanwhile(told: list[asyncio.Task[object]] = published) -> None:
            told.append(asyncio.create_task(_publish(partition)))

        waited = await cancelled_at(lambda: work(partition), step, late=late, meanwhile=meanwhile)
        await asyncio.gather(*published)
        await _comes_to_rest(running.broker, running.ledgers)
        if not waited:
            break
    else:
        pytest.fail("it has no end")
    assert step > 1, "it waits somewhere"
    async with asyncio.timeout(20):
        asked = asyncio.create_task(work(partition))
        await _publish(partition)
        assert await asked is not None


async def _write(client: LedgerClient) -> object:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    try:
        await writer.append(b"x")
        await writer.drain()
        return await writer.close()
    finally:
        if writer.error is None:
            writer.abandon(OctavoError("given up"))


@pytest.mark.parametrize("late", [False, True])
async def test_a_writer_of_a_ledger_is_cancelled_at_each_await(
    cluster: Cluster, late: bool
) -> None:
    client = await cluster.client()
    for step in range(1, _STEPS_MAX):
        waited = await cancelled_at(lambda: _write(client), step, late=late)
        await _comes_to_rest(client, *cluster.nodes.values())
        if not waited:
            break
    assert 3 < step < _STEPS_MAX - 1
    assert await _write(client) is not None
