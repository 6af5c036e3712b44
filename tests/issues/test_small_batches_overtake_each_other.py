"""After an interruption small batches were sent again one after the other, a round trip each.

The batches of one partition go out over several connections. Where the way takes longer for some
than for others they overtake each other, and the owner refuses what comes early. Each refused batch
waited until it was the first, and went alone; then four new ones went out at once, and overtook
each other again. What gathered behind them went out as small as it had been sealed. Through a
rolling restart beside other work messages waited for five to seven seconds and more.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest

from octavo.client.client import AsyncClient
from octavo.client.producer import Receipt
from octavo.client.wire import Body, Reply, Streamed
from octavo.protocol.batch import check_batch
from octavo.protocol.records import read_records
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.fake_service import SharedLog

URL = "http://a:1"
WAY_S = (0.02, 0.25)
"""To the owner, on a busy machine: of two that leave together the second may arrive first."""
BACK_S = 0.02


class UnevenWire:
    """The way to one owner, which refuses everything in the seconds of `away`."""

    def __init__(self, seed: int, away: tuple[float, float]) -> None:
        self.log = SharedLog(1)
        self.trips = 0
        """Publishes that were answered, whatever they were told."""
        self.gaps = 0
        self._rng = random.Random(seed)
        self._away = away

    async def send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        follow: bool = True,
    ) -> Reply:
        if method == "GET":
            return _reply(200, {"name": "public/t", "settings": {"partitions": 1}})
        assert isinstance(body, bytes)
        await asyncio.sleep(self._rng.uniform(*WAY_S))
        reply = self._store(body)
        self.trips += 1
        await asyncio.sleep(BACK_S)
        return reply

    def _store(self, body: bytes) -> Reply:
        if self._away[0] <= asyncio.get_running_loop().time() < self._away[1]:
            return _reply(503, {"code": "partition-moving", "retryable": True})
        header, records = check_batch(body), list(read_records(body))
        who = (header.producer_id, header.producer_epoch, header.base_sequence)
        first = self.log.store(0, who, records)
        if isinstance(first, str):
            self.gaps += 1
            expected = self.log.expected(0, who[0])
            return _reply(409, {"code": first, "retryable": False, "expected_sequence": expected})
        if first < 0:
            return Reply(204, {"Octavo-Owner": URL})
        ends = [{"offset": one, "id": f"7:0:{one}"} for one in (first, first + len(records) - 1)]
        return _reply(200, {"first": ends[0], "last": ends[1]})

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        raise NotImplementedError

    async def close(self) -> None: ...


def _reply(status: int, found: object) -> Reply:
    headers = {"Octavo-Owner": URL, "Content-Type": "application/json"}
    return Reply(status, headers, json.dumps(found).encode())


class Told(NamedTuple):
    """What came of it."""

    trips: int
    gaps: int
    waits_s: list[float]


def virtual(work: Coroutine[Any, Any, Told]) -> Told:
    told: Told = SimLoop(1, trace=Trace()).run_until_complete(work)
    return told


async def publish_through(away: tuple[float, float], seed: int, messages: int = 3_000) -> Told:
    """The users of the test of rolling restarts: small batches, and `send` waits behind 100 kB."""
    wire = UnevenWire(seed, away)
    loop = asyncio.get_running_loop()
    waits_s: list[float] = []
    receipts: list[Receipt] = []
    async with AsyncClient(URL, rng=random.Random(seed), wire=wire) as client:
        producer = await client.producer(
            "t", batch_bytes=1_000, linger_ms=5, pending_bytes_max=100_000
        )
        texts = [f"{number:0150}" for number in range(messages)]
        for number, text in enumerate(texts):
            due_s = 0.002 * number
            if loop.time() < due_s:
                await asyncio.sleep(due_s - loop.time())
            began_s = loop.time()
            receipt = await producer.send(text)
            receipt.on_done(lambda _, began_s=began_s: waits_s.append(loop.time() - began_s))
            receipts.append(receipt)
        await producer.close()
        offsets = [(await receipt).offset for receipt in receipts]
    assert offsets == list(range(messages)), "each receipt tells its own message's place"
    assert [record.value for record in wire.log.partitions[0]] == [text.encode() for text in texts]
    assert len(waits_s) == messages
    return Told(wire.trips, wire.gaps, waits_s)


@pytest.mark.parametrize("seed", range(3))
def test_messages_wait_little_longer_than_the_owner_was_away(seed: int) -> None:
    told = virtual(publish_through((1.0, 3.0), seed))
    print(
        f"{told.trips} round trips, {told.gaps} refused as gaps, longest {max(told.waits_s):.2f} s"
    )
    assert max(told.waits_s) < 2.0 + 3.0
    assert told.trips < 100
