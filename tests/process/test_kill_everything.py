"""kill −9 of all processes at once while messages are published; then a restart: nothing lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import AsyncClient, Client
from tests.support.kit.history import Call
from tests.support.processes.audit import problems, stored, texts
from tests.support.processes.chaos import SETTLE_S, SMALL_BOOKIE, SMALL_BROKER
from tests.support.processes.standalone import Standalone, standalone, until
from tests.support.processes.users import SUBSCRIPTION, Consumer, Publisher, Record, note_read
from tests.support.processes.users import TOPIC as CHAOS_TOPIC

TOPIC = "kills"
PARTITIONS = 2
KILLS = int(os.environ.get("KILLS", "4"))


def small() -> Iterator[str]:
    for section, settings in (("bookie", SMALL_BOOKIE), ("broker", SMALL_BROKER)):
        for name, value in settings.items():
            yield f"--set={section}.{name}={value}"


def read_all(urls: list[str]) -> dict[tuple[int, int], str]:
    with Client(urls) as client:
        return {
            (partition, message.offset): message.text()
            for partition in range(PARTITIONS)
            for message in client.messages(TOPIC, partition=partition)
        }


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_nothing_acked_is_lost(tmp_path: Path) -> None:
    """Publishers repeat unanswered messages under the same sequences: in the end every message
    is there exactly once, in order per key, at its acked offset, and was delivered."""
    rng = random.Random(20131224)
    one = Standalone(tmp_path / "data", "--session-timeout-ms", "2000", *small())
    record = Record()
    interrupted = 0
    try:
        await asyncio.to_thread(one.start)
        async with AsyncClient(one.cluster.urls, attempt_s=5, retry_s=SETTLE_S) as client:
            await client.create_topic(CHAOS_TOPIC, partitions=PARTITIONS, rollover={"entries": 100})
            await client.subscribe(CHAOS_TOPIC, SUBSCRIPTION, type="shared", ack_timeout_s=3)
            publishers = [Publisher(client, record, f"p{n}") for n in range(2)]
            consumer = Consumer(
                client.subscription(CHAOS_TOPIC, SUBSCRIPTION), record, rng, PARTITIONS
            )
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(each.run(rate=400)) for each in publishers]
                consuming = group.create_task(consumer.run())
                for _ in range(KILLS):
                    goal = record.acked + rng.randrange(1, 1_000)
                    async with asyncio.timeout(SETTLE_S):
                        while record.acked < goal:  # noqa: ASYNC110
                            await asyncio.sleep(0.005)
                    await asyncio.to_thread(one.kill_everything)
                    interrupted += record.sent - record.acked
                    await asyncio.to_thread(one.start)
                for each in publishers:
                    each.stopping = True
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*publishing)
                    found = await stored(one.cluster.urls, PARTITIONS)
                    while record.consumed != set(found):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                consuming.cancel()
        assert interrupted, "the kills came while it published"
        record.history.add_done("auditor", Call.DRAIN, group=SUBSCRIPTION)
        note_read(record, "auditor", texts(found))
        wrong = problems(record, found)
        assert not wrong, "\n".join(wrong[:20])
        assert record.acked == record.sent
        assert "Traceback" not in await asyncio.to_thread(one.stop)
    finally:
        one.clean_up()


@pytest.mark.long
def test_a_bookie_dies_for_good(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--no-restart") as one:
        with Client(one.cluster.urls) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
            expected = [f"m{n}" for n in range(600)]
            client.publish_many(TOPIC, [("k", text) for text in expected[:300]])
            one.kill("bookie-3")
            client.publish_many(TOPIC, [("k", text) for text in expected[300:]])
        found = sorted(read_all(one.cluster.urls).items())
        assert [text for _, text in found] == expected
        member = one.cluster.member("bookie-3")
        assert member is not None
        until(lambda: one.cluster.member("bookie-3").state == "dead", "it counts as dead")  # type: ignore[union-attr]
        assert member.restarts == 0


@pytest.mark.long
def test_the_supervisor_alone_is_killed(tmp_path: Path) -> None:
    """Its children notice and stop; a new supervisor on the same folder waits for them."""
    one = Standalone(tmp_path / "data")
    try:
        one.start()
        with Client(one.cluster.urls) as client:
            client.create_topic(TOPIC)
            client.publish(TOPIC, "before")
        assert one.process is not None
        one.process.kill()
        one.process.wait(10)
        one.start()
        with Client(one.cluster.urls) as client:
            client.publish(TOPIC, "after")
            assert [message.text() for message in client.messages(TOPIC)] == ["before", "after"]
        one.stop()
    finally:
        one.clean_up()
