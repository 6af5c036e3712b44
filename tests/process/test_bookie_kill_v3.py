"""kill −9 of a bookie during v3 adds: acked entries are there, as they were sent. One writer
sends runs of adds of a length, which are parsed by columns; the others vary lengths and ledgers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3 import STATUS
from octavo.protocol.v3_schema import ResponseMessage
from tests.process.test_bookie_kill import bookie_process
from tests.support.raw_bookie import KEY, entry_of
from tests.support.v3_frames import FENCE, V3Client, add_frame, read_frame

SHORT_CYCLES, CYCLES = 4, 24
OK, FENCED = STATUS[Code.OK], STATUS[Code.FENCED]
AHEAD = 2_000
Ids = tuple[int, int]


def body_of(ledger: int, entry: int, lengths: tuple[int, ...]) -> bytes:
    return entry_of(ledger, entry, b"%d" % (entry % 10) * lengths[entry % len(lengths)])


async def answers(client: V3Client) -> AsyncIterator[Any]:
    data = b""
    while more := await client.reader.read(1 << 18):
        data, position = data + more, 0
        while len(data) - position >= LENGTH.size:
            end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            yield ResponseMessage.FromString(data[position + LENGTH.size : end])
            position = end
        data = data[position:]


class Victim:
    """The bookie, which is killed once enough adds are acked, some of each writer among them."""

    def __init__(
        self, process: subprocess.Popen[str], kill_after: int, writers: Iterable[Writer]
    ) -> None:
        self._process = process
        self._left = kill_after
        self._writers = writers

    def acked(self) -> None:
        self._left -= 1
        if self._left <= 0 and all(writer.acked for writer in self._writers):
            self._process.kill()


class Writer:
    """Adds to its own ledgers, in turn; after a kill it continues at the first unacked entry."""

    def __init__(
        self, first: int, ledgers: int, lengths: tuple[int, ...], step: int, **how: Any
    ) -> None:
        self._ledgers = range(first, first + ledgers)
        self._lengths = lengths
        self._step = step
        self._how = how
        self.acked: set[Ids] = set()
        self._tried: dict[Ids, None] = {}
        self._number = 0

    def body(self, ids: Ids) -> bytes:
        return body_of(*ids, self._lengths)

    def _next(self) -> Iterator[Ids]:
        yield from [ids for ids in self._tried if ids not in self.acked]
        while True:
            ledger = self._ledgers[self._number % len(self._ledgers)]
            yield ledger, self._number // len(self._ledgers) * self._step
            self._number += 1

    async def write(self, port: int, victim: Victim) -> None:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        under_way: dict[int, Ids] = {}
        following, txn = self._next(), 1
        with contextlib.suppress(ConnectionError):
            arriving = answers(client)
            while True:
                while len(under_way) < AHEAD:
                    some = []
                    for _ in range(100):
                        ids = next(following)
                        under_way[txn] = ids
                        self._tried[ids] = None
                        some.append(add_frame(*ids, txn=txn, body=self.body(ids), **self._how))
                        txn += 1
                    client.send(b"".join(some))
                for _ in range(100):
                    answer = await anext(arriving, None)
                    if answer is None:
                        client.close()
                        return
                    ids = under_way.pop(answer.header.txnId)
                    assert answer.status == OK, (ids, answer)
                    assert (answer.addResponse.ledgerId, answer.addResponse.entryId) == ids
                    self.acked.add(ids)
                    victim.acked()
        client.close()

    async def check(self, port: int, wanted: Iterable[Ids]) -> None:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        arriving, asked = answers(client), list(wanted)
        for start in range(0, len(asked), 200):
            some = asked[start : start + 200]
            client.send(b"".join(read_frame(*ids, txn=n) for n, ids in enumerate(some)))
            for _ in some:
                answer = await anext(arriving)
                ids = some[answer.header.txnId]
                assert answer.status == OK, f"acked {ids}: {answer.status}"
                assert answer.readResponse.body == self.body(ids)
        client.close()

    async def check_tried(self, port: int) -> int:
        """Check that each unacked entry is there as written, or absent; return how many are
        there."""
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        found = 0
        for ids in [one for one in self._tried if one not in self.acked][:300]:
            answer = await client.read(*ids)
            assert answer.status in (OK, STATUS[Code.NO_ENTRY], STATUS[Code.NO_LEDGER])
            assert answer.status != OK or answer.body == self.body(ids)
            found += answer.status == OK
        client.close()
        return found


async def fence(port: int, ledger: int) -> None:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
    assert await client.add(ledger, 0) == OK
    assert (await client.read(ledger, -1, flag=FENCE, masterKey=KEY)).status == OK
    client.close()


async def still_fenced(port: int, ledgers: Iterable[int]) -> None:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
    for ledger in ledgers:
        assert await client.add(ledger, 1) == FENCED
        assert (await client.read(ledger, 0)).body == entry_of(ledger, 0)
    client.close()


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(SHORT_CYCLES, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(CYCLES, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
async def test_what_was_acked_in_v3_survives_kill_9(tmp_path: Path, cycles: int) -> None:
    rng = random.Random(20261124)
    writers = [
        Writer(100, 1, (300,), 1),
        Writer(200, 5, (10, 1000, 0, 40_000, 77), 1, recovery=True, priority=100),
        Writer(300, 3, (50,), 3, write_flags=0),
    ]
    fenced: list[int] = []
    unacked = 0
    for cycle in range(cycles):
        before = [set(writer.acked) for writer in writers]
        with bookie_process(tmp_path) as (process, port):
            await still_fenced(port, fenced)
            await fence(port, 1000 + cycle)
            fenced.append(1000 + cycle)
            victim = Victim(process, rng.randrange(1, 9_000), writers)
            await asyncio.gather(*(writer.write(port, victim) for writer in writers))
        with bookie_process(tmp_path) as (process, port):
            for writer, known in zip(writers, before, strict=True):
                await writer.check(port, sorted(writer.acked - known))
                unacked += await writer.check_tried(port)
            process.kill()
    with bookie_process(tmp_path) as (_, port):
        await still_fenced(port, fenced)
        for writer in writers:
            await writer.check(port, sorted(writer.acked))
    counts = [len(writer.acked) for writer in writers]
    print(f"{cycles} kills, {counts} adds acked, {unacked} stored and not acked")
    assert all(counts)
