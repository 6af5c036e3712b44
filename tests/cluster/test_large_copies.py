"""Dead letters and retries of large messages have their own body, whatever dies or is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.partition.large import BodyReader
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import TopicName
from octavo.protocol.large import BrokenBody, LargeBody
from octavo.protocol.records import Record
from tests.cluster.test_large_messages import (
    BODY,
    ONE,
    SUB,
    body_at,
    in_parts,
    ledgers,
    received,
    shown,
    uploaded,
)
from tests.support.cluster import Cluster, make_topic, owned, running_cluster

QUICK = {"dead_letter_retry_ms": 50, "dead_letter_retry_ms_max": 200}
DEAD = "/v1/topics/public/dead"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, session_timeout_ms=20_000) as found:
        for name in ("A", "B"):
            await found.start_broker(name, QUICK)
        assert (await found.api.put(ONE)).status == 201
        yield found


async def placed(cluster: Cluster, topic: str, broker: str) -> None:
    name = f"/v1/topics/public/{topic}"
    await cluster.api.put(name)
    if await cluster.owner_of(name + "/partitions/0") != broker:
        answer = await cluster.api.post(f"{name}/unload?to={broker}")
        assert answer.status == 200, answer
    assert await cluster.owner_of(name + "/partitions/0") == broker


async def deadly(cluster: Cluster, **settings: Any) -> None:
    made = {"type": "shared", "max_deliveries": 1, "dead_letter_topic": "dead", **settings}
    answer = await cluster.api.put(SUB, json=made)
    assert answer.status == 201, answer


async def given_up(cluster: Cluster, sub: str = SUB, **nack: Any) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while not (got := await received(cluster, sub)):
            pass
    (one,) = got
    nacks = [{"ack_id": one["ack_id"], **nack}]
    answer = await cluster.api.post(sub + "/ack", json={"nack": nacks})
    assert answer.status == 200, answer
    return one


async def letter(cluster: Cluster, sub: str = DEAD + "/subscriptions/s") -> dict[str, Any]:
    async with asyncio.timeout(20):
        while not (got := await received(cluster, sub)):
            pass
    (one,) = got
    return one


async def dies(cluster: Cluster, broker: str) -> None:
    cluster.apis.pop(broker)
    running = cluster.brokers[broker]
    await running.vanish()
    assert running.server is not None
    await running.server._cut_off()


async def all_acked(cluster: Cluster) -> None:
    async with asyncio.timeout(20):
        while (await cluster.api.get(SUB)).json()["backlog"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("where", ["A", "B"])
async def test_a_dead_letter_has_the_body_and_outlives_the_original(
    cluster: Cluster, where: str
) -> None:
    await placed(cluster, "one", "A")
    await placed(cluster, "dead", where)
    await deadly(cluster)
    original = await uploaded(cluster, Octavo_Key="k", Octavo_Header_Kind="film")
    await given_up(cluster)
    copy = await letter(cluster)
    assert copy["large"] == {"size": len(BODY), "crc32c": original["crc32c"]}
    assert (copy["key"], copy["headers"]["kind"]) == ("k", "film")
    assert copy["headers"]["Octavo-Origin-Offset"] == str(original["offset"])
    assert await body_at(cluster, copy["offset"], DEAD) == BODY
    assert await shown(cluster, DEAD) == [(copy["offset"], len(BODY))]
    await all_acked(cluster)
    gone = await cluster.api.call("DELETE", ONE + "/messages?before=latest")
    assert gone.status == 200, gone
    assert (await cluster.api.get(f"{ONE}/messages/{original['offset']}/body")).status == 410
    assert await body_at(cluster, copy["offset"], DEAD) == BODY
    assert (await cluster.api.call("DELETE", ONE)).status == 204
    assert await body_at(cluster, copy["offset"], DEAD) == BODY


async def test_a_retry_is_due_later_with_its_body_and_so_is_its_dead_letter(
    cluster: Cluster,
) -> None:
    await deadly(cluster, max_deliveries=2, retry_deliveries=1, retry_topic="again")
    await uploaded(cluster)
    await given_up(cluster, delay=0.5)
    again = "/v1/topics/public/again"
    retried = await given_up(cluster, again + "/subscriptions/s")
    assert retried["headers"]["Octavo-Retry-Subscription"] == "s"
    assert await body_at(cluster, retried["offset"], again) == BODY
    copy = await letter(cluster)
    assert await body_at(cluster, copy["offset"], DEAD) == BODY
    headers = copy["headers"]
    assert headers["Octavo-Origin-Topic"] == "public/again"
    assert headers["Octavo-Retry-Topic"] == "public/one"


async def test_who_takes_over_between_copy_and_ack_stores_no_second_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await placed(cluster, "one", "B")
    await placed(cluster, "dead", "A")
    copied = asyncio.Event()

    ack = Subscription._ack_spent

    async def first_dies(self: Subscription, offsets: Sequence[int]) -> None:
        if not copied.is_set():
            copied.set()
            await asyncio.Event().wait()
        await ack(self, offsets)

    monkeypatch.setattr(Subscription, "_ack_spent", first_dies)
    await deadly(cluster)
    await uploaded(cluster)
    await given_up(cluster)
    async with asyncio.timeout(20):
        await copied.wait()
    await dies(cluster, "B")
    await given_up(cluster)
    await all_acked(cluster)
    (copy,) = await shown(cluster, DEAD)
    assert await body_at(cluster, copy[0], DEAD) == BODY
    stats = (await cluster.api.get(DEAD + "/subscriptions/s")).json()
    assert stats["backlog"] == 1


@pytest.mark.parametrize("who", ["source", "target"])
async def test_an_owner_that_dies_amid_a_copy_leaves_nothing_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    source, target = ("B", "A") if who == "source" else ("A", "B")
    await placed(cluster, "one", source)
    await placed(cluster, "dead", target)
    await deadly(cluster)
    await uploaded(cluster)
    amid, go_on = asyncio.Event(), asyncio.Event()
    pieces = BodyReader.pieces

    async def slow(self: BodyReader) -> AsyncGenerator[bytes, None]:
        async for number, piece in _numbered(pieces(self)):
            if number == 2:
                amid.set()
                await go_on.wait()
            yield piece

    monkeypatch.setattr(BodyReader, "pieces", slow)
    await given_up(cluster)
    async with asyncio.timeout(20):
        await amid.wait()
    assert await shown(cluster, DEAD) == [], "nothing of it before all of it"
    await dies(cluster, "B")
    go_on.set()
    if who == "source":
        await given_up(cluster)
    copy = await letter(cluster)
    assert await body_at(cluster, copy["offset"], DEAD) == BODY
    await all_acked(cluster)
    assert len(await shown(cluster, DEAD)) == 1


async def _numbered(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[tuple[int, bytes], None]:
    number = 0
    async for piece in pieces:
        yield number, piece
        number += 1


async def test_what_cannot_be_copied_stays_and_says_why(cluster: Cluster) -> None:
    await deadly(cluster)
    assert (await cluster.api.call("DELETE", DEAD)).status == 204
    await uploaded(cluster)
    await given_up(cluster)
    async with asyncio.timeout(20):
        while not (told := (await cluster.api.get(SUB)).json()["dead_letters"])["problem"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "there is no topic public/dead" in told["problem"], told
    assert (told["waiting"], told["sent"]) == (1, 0)
    assert (await cluster.api.put(DEAD)).status == 201
    reader = {"type": "shared", "start": "earliest"}
    assert (await cluster.api.put(f"{DEAD}/subscriptions/s", json=reader)).status == 201
    copy = await letter(cluster)
    assert await body_at(cluster, copy["offset"], DEAD) == BODY


async def test_a_copy_that_has_no_body_is_copied_without(cluster: Cluster) -> None:
    """Older brokers made them; only the partition's record marks a large message."""
    said = LargeBody(len(BODY), 4, "00000000", "x").header()[1].decode()
    await deadly(cluster)
    headers = {"Octavo-Header-octavo-large": said}
    answer = await cluster.api.post(ONE + "/messages", b"", "text/plain", headers=headers)
    assert answer.status == 200, answer
    await given_up(cluster)
    copy = await letter(cluster)
    answer = await cluster.api.get(f"{DEAD}/messages/{copy['offset']}/body")
    assert (answer.status, answer.json()["code"]) == (404, "message-not-found")


async def test_other_bytes_than_the_message_says_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await owned(one.broker, await make_topic(one.broker, TopicName("public", "t")))
        before = await ledgers(cluster)
        large = LargeBody(len(BODY), 4, "00000000", "x")
        for copy in (Record(None, b"", [large.header()]), Record(None, b"", [])):
            with pytest.raises(BrokenBody):
                await partition.copy_large("letter:1", copy, in_parts(BODY))
        async with asyncio.timeout(15):
            while await ledgers(cluster) != before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert partition.next_offset == 0


async def test_an_upload_of_nothing_has_a_body(cluster: Cluster) -> None:
    found = await uploaded(cluster, b"", Octavo_Upload="empty")
    assert await body_at(cluster, found["offset"]) == b""
