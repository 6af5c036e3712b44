"""A live move: three of ours replace three Apache bookies under load, and back.

It runs the commands of docs/compatibility.md as they are.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.ledger.client import LedgerClient
from octavo.standalone.ports import free_port
from tests.apache.grounds import (
    SESSION_MS,
    Ask,
    Grounds,
    LongWriter,
    OurBroker,
    Users,
    auto_recovery,
    metadata_of,
)
from tests.apache.matrix import PAGE, Matrix
from tests.interop.processes import OCTAVO, VERSION, ApacheBookie, Process, store_at
from tests.interop.talk import Checks

BROKERS = "Octavo's brokers"
THEIRS = f"Apache's client {VERSION}"
MODE = "live move, E/Qw/Qa 3/3/2"
GONE_S = 400
HASTE = {
    "OCTAVO_BOOKIE_LOST_BOOKIE_MS": "3000",
    "OCTAVO_BOOKIE_COPIES_RETRY_MS": "1000",
    "OCTAVO_SESSION_TIMEOUT_MS": str(SESSION_MS),
}
"""The page leaves these at their defaults, such as ten minutes until a bookie is lost."""


def pasted(label: str) -> str:
    found = re.findall(rf"^```sh {label}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{PAGE.name} has {len(found)} commands {label}"
    return str(found[0])


class Mover:
    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._ours: list[tuple[str, Process]] = []
        self._theirs: list[ApacheBookie] = []

    def _environment(self, **words: str) -> list[str]:
        path = f"{OCTAVO.parent}:{os.environ['PATH']}"
        given = {**HASTE, "PATH": path, "METADATA": metadata_of(self._grounds), **words}
        return ["env", *(f"{name}={text}" for name, text in given.items())]

    def begin(self) -> None:
        self._theirs = [self._grounds.add_apache() for _ in range(3)]

    def to_ours(self) -> None:
        port = str(free_port())
        data = str(self._grounds.folder / f"moved-{port}")
        command = self._environment(DATA=data, PORT=port)
        start = f"exec {pasted('octavo-bookie')}"
        process = self._grounds.start(f"moved-{port}", [*command, "bash", "-c", start])
        process.wait_until_serving(int(port))
        self._ours.append((f"127.0.0.1:{port}", process))
        old = self._theirs.pop(0)
        old.kill()
        self._forget(old.bookie_id)

    def to_theirs(self) -> None:
        """Go the other way. Apache's AutoRecovery copies what ours held."""
        self._theirs.append(self._grounds.add_apache())
        bookie_id, process = self._ours.pop(0)
        process.kill()
        self._forget(bookie_id)

    def _forget(self, bookie_id: str) -> None:
        command = [*self._environment(OLD=bookie_id), "bash", "-c", pasted("forget")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GONE_S)
        assert done.returncode == 0, f"{bookie_id} is not forgotten: {done.stdout}{done.stderr}"


def move(matrix: Matrix, ask: Ask) -> None:
    with ask.grounds() as grounds:
        mover = Mover(grounds)
        mover.begin()
        asyncio.run(_rows(matrix, grounds, mover))


async def _rows(matrix: Matrix, grounds: Grounds, mover: Mover) -> None:
    served = [OurBroker(grounds, f"broker-{number}") for number in (1, 2)]
    for broker in served:
        await asyncio.to_thread(broker.start)
    urls = [broker.url for broker in served]
    there = Moving(matrix, grounds, urls, "there", "v3")
    await there.run("three bookies of Apache's give way to three of ours", [mover.to_ours] * 3)
    await asyncio.to_thread(auto_recovery, grounds)
    back = Moving(matrix, grounds, urls, "back", "v2")
    await back.run("three bookies of ours give way to three of Apache's", [mover.to_theirs] * 3)
    with matrix.row(
        BROKERS, MODE, "what was written before both moves is read after them"
    ) as checks:
        checks.equal("topics", await there.users.read_again(), [])
        async with store_at(grounds.zookeeper.port) as store:
            client = LedgerClient(store, rng=random.Random(3))
            await client.start()
            try:
                for one in (there, back):
                    checks.equal(
                        "ledgers of Apache's client", await one.writer.wrong_by_us(client), []
                    )
            finally:
                await client.close()


class Moving:
    def __init__(
        self, matrix: Matrix, grounds: Grounds, urls: list[str], topic: str, wire: str
    ) -> None:
        self._matrix = matrix
        self._wire = wire
        self.users = Users(urls, topic)
        self.writer = LongWriter(grounds)

    async def run(self, what: str, steps: Sequence[Callable[[], None]]) -> None:
        try:
            with self._matrix.row(BROKERS, MODE, what) as checks:
                await self._exchange(checks, steps)
            acked, longest_s = self.users.record.acked, self.users.singles.longest_s
            self._note(f"{acked:,} messages; the longest answer took {longest_s:.1f} s")
            with self._matrix.row(THEIRS, f"{self._wire}, {MODE}", what) as checks:
                await self.writer.finish()
                result = self.writer.result
                checks.equal("no add failed", self.writer.errors, [])
                checks.equal(
                    f"{result['written']:,} entries were read back",
                    (result["read"], result["wrong"]),
                    (result["written"], 0),
                )
            if result := self.writer.result:
                longest_s = result["longest_ms"] / 1000
                self._note(f"{result['written']:,} entries; the longest wait was {longest_s:.1f} s")
        finally:
            await self.users.stop()
            await self.writer.kill()

    async def _exchange(self, checks: Checks, steps: Sequence[Callable[[], None]]) -> None:
        await self.users.start(30, rollover={"entries": 500})
        await self.writer.start(self._wire)
        for step in steps:
            await self.users.more(300)
            await asyncio.to_thread(step)
        await self.users.more(300)
        wrong = await self.users.finish()
        checks.equal(f"{self.users.record.acked:,} messages, none lost or out of order", wrong, [])
        checks.equal("none sent alone, once, got an error", self.users.singles.failed, [])

    def _note(self, note: str) -> None:
        rows = self._matrix.rows
        rows[-1] = replace(rows[-1], note=note)
