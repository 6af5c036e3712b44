"""Ten thousand readers that take nothing made a bookie occupy 40 MiB more than its bounds allow.

The budget of answers counted what the socket had not taken. The kernel takes some megabytes of the
first answer at once, but its bytes are one object, which is held until the last of them is out: an
entry of 5 MiB counted as 2. And a read that waited for room went on holding what it had found,
which the read cache had dropped meanwhile; each of a thousand held copies of its own. Found by
bench/overload.py, whose slow readers brought a bookie to 267 MiB; 164 MiB after both were mended.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from octavo.bookie.back_pressure import Budget
from octavo.bookie.read.cache import CachedExtent
from octavo.bookie.read.path import ReadPath
from octavo.protocol.codes import Code
from octavo.protocol.frames import read_request
from tests.support.raw_bookie import RawClient, add_of, running_bookie, until

MIB = 1024 * 1024
ENTRY_BYTES = 5 * MIB - 1024


async def test_what_is_held_counts_until_all_of_it_is_out(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie, limit=4096)
        assert await client.add(add_of(1, 0, bytes(ENTRY_BYTES))) is Code.OK
        client._reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(read_request(1, 0))
        [connection] = bookie.server._connections
        await until(lambda: connection.flow.unsent_bytes)
        assert bookie.server.memory()["answers"][0] >= ENTRY_BYTES > connection.flow.unsent_bytes
        client._reader._transport.resume_reading()  # type: ignore[attr-defined]
        await client.answer()
        await until(lambda: bookie.server.memory()["answers"][0] == 0)
        client.close()


class _Run(CachedExtent):
    __slots__ = ("__weakref__",)


class _Nothing:
    """Caches that hold nothing, control that knows everything."""

    wait_s_max = 10.0

    def find(self, *_: int) -> tuple[None, int]:
        return None, 2**63

    def known(self, _: int) -> None:
        pass


class _NothingRead:
    def find(self, *_: int) -> None:
        pass


class _Cold:
    """Brings the run; meanwhile others have filled the budget."""

    wait_s_max = 10.0

    def __init__(self, answers: Budget) -> None:
        self._answers = answers
        self.brought: list[weakref.ref[_Run]] = []

    async def run_with(self, ledger_id: int, entry_id: int, *_: int, **__: bool) -> _Run:
        self._answers.change(10)
        frame = add_of(ledger_id, entry_id)
        run = _Run(ledger_id, entry_id, entry_id, frame)
        self.brought.append(weakref.ref(run))
        return run


async def test_a_read_that_waits_for_room_holds_no_run() -> None:
    answers = Budget(10)
    cold = _Cold(answers)
    reading = ReadPath(
        _Nothing(),  # type: ignore[arg-type]
        _Nothing(),  # type: ignore[arg-type]
        _NothingRead(),  # type: ignore[arg-type]
        cold,  # type: ignore[arg-type]
        answers,
        {"entry_log": 0},
    )
    task = asyncio.create_task(reading.read_many(1, 0, 1, 1000))
    while not cold.brought:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not task.done()
    assert cold.brought[0]() is None, "what it found is held while it waits"
    task.cancel()
