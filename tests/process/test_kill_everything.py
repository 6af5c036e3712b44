"""kill −9 of all processes at once while messages are published; then a restart: nothing lost."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from octavo import AsyncClient, Client
from octavo.client.errors import ClientError
from octavo.client.types import Position
from tests.process.cluster import Standalone, standalone, until

TOPIC = "kills"
PARTITIONS = 2


class Publisher:
    """Publishes from a thread until told to stop; remembers what was acked."""

    def __init__(self, urls: list[str]) -> None:
        self.acked: dict[tuple[int, int], str] = {}
        self.sent = 0
        self._urls = urls
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        async with AsyncClient(self._urls, attempt_s=2.0) as client:
            producer = await client.producer(
                TOPIC, batch_bytes=2_000, linger_ms=1, delivery_timeout_ms=1_500
            )
            waiting: set[asyncio.Task[None]] = set()
            while not self._stopping.is_set():
                text = f"m{self.sent}"
                receipt = await producer.send(text, key=f"k{self.sent % 50}")
                self.sent += 1
                task = asyncio.create_task(self._note(receipt, text))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                await asyncio.sleep(0)
            await asyncio.gather(*waiting)
            await producer.close(flush=False)

    async def _note(self, receipt: object, text: str) -> None:
        try:
            position: Position = await receipt  # type: ignore[misc]
        except ClientError:
            return  # not acked: it may be there or not
        self.acked[position.partition, position.offset] = text


def read_all(urls: list[str]) -> dict[tuple[int, int], str]:
    """Every message that is stored."""
    with Client(urls) as client:
        return {
            (partition, message.offset): message.text()
            for partition in range(PARTITIONS)
            for message in client.messages(TOPIC, partition=partition)
        }


def test_nothing_acked_is_lost(tmp_path: Path) -> None:
    one = Standalone(tmp_path / "data")
    acked: dict[tuple[int, int], str] = {}
    try:
        for round_number in range(2):
            one.start()
            urls = one.cluster.urls
            with Client(urls) as client:
                client.create_topic(TOPIC, partitions=PARTITIONS)
            publisher = Publisher(urls)
            publisher.start()
            try:
                until(lambda p=publisher: len(p.acked) > 2_000, "2,000 acked")  # type: ignore[misc]
                one.kill_everything()
            finally:
                publisher.stop()
            assert publisher.sent > len(publisher.acked), "the kill came while it published"
            taken = set(acked) & set(publisher.acked)
            assert not taken, f"round {round_number}: an offset was given out twice: {taken}"
            acked |= publisher.acked
        one.start()
        found = read_all(one.cluster.urls)
        lost = {place: text for place, text in acked.items() if found.get(place) != text}
        assert not lost, f"{len(lost)} acked messages lost, for example {sorted(lost)[:5]}"
        for partition in range(PARTITIONS):
            offsets = sorted(offset for number, offset in found if number == partition)
            assert offsets == [*range(len(offsets))]
        one.stop()
    finally:
        one.clean_up()


def test_a_bookie_dies_for_good(tmp_path: Path) -> None:
    """With three bookies and an ack quorum of two, publishing and reading go on."""
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


def test_the_supervisor_alone_is_killed(tmp_path: Path) -> None:
    """Its children notice and stop; a new one on the same folder waits for them and goes on."""
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
