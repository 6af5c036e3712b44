"""Long polls were counted once they waited, not when they came: before that each had a task, and
one client had a bookie make as many as its frames could name, 7,000 with each chunk it read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from octavo.bookie.wire.in_flight import InFlight
from octavo.protocol.codes import Code
from octavo.protocol.extension import Answer, Op, encode_request
from octavo.protocol.v3 import STATUS
from tests.support.raw_bookie import RawClient, add_of, running_bookie, until
from tests.support.v3_frames import V3Client, read_frame

POLLS = 5_000
POLLS_MAX = 3
TASKS_MAX = POLLS_MAX + 64 + 32
"""Besides the polls those of a connection's other requests (in_flight.py)."""


class Peak:
    tasks = 0


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    """The most tasks that a connection had at once."""
    found, spawn = Peak(), InFlight._spawn

    def counted(self: InFlight, *work: object) -> asyncio.Task[None]:
        task = spawn(self, *work)  # type: ignore[arg-type]
        found.tasks = max(found.tasks, len(self._tasks))
        return task

    monkeypatch.setattr(InFlight, "_spawn", counted)
    return found


@pytest.mark.parametrize("satisfied", [False, True], ids=["waits", "answered"])
async def test_of_v3_reads(tmp_path: Path, peak: Peak, satisfied: bool) -> None:
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await V3Client.connect(bookie)
        for entry in range(2):
            assert await client.add(1, entry) == STATUS[Code.OK]
        lac = -1 if satisfied else 0
        frames = (
            read_frame(1, 0, txn=txn, previousLAC=lac, timeOut=60_000) for txn in range(POLLS)
        )
        client.send(b"".join(frames))
        parked = 0 if satisfied else POLLS_MAX
        found = [await client.answer() for _ in range(POLLS - parked)]
        wanted = Code.OK if satisfied else Code.TOO_MANY_REQUESTS
        assert {answer.status for answer in found} == {STATUS[wanted]}
        assert len({answer.header.txnId for answer in found}) == len(found)
        assert peak.tasks <= TASKS_MAX
        assert bookie.server.requests.polls == parked
        client.writer.transport.abort()
        await until(lambda: not bookie.server.requests.polls)


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
async def test_who_is_gone_keeps_no_place(tmp_path: Path, reset: bool) -> None:
    """With a reset nothing else comes of the connection: no end of what it sends."""
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == STATUS[Code.OK]
        for _ in range(POLLS_MAX):
            client.send(read_frame(1, 0, previousLAC=5, timeOut=60_000))
        await until(lambda: bookie.server.requests.polls == POLLS_MAX)
        if reset:
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await until(lambda: not bookie.server.requests.polls)


@pytest.mark.parametrize("satisfied", [False, True], ids=["waits", "answered"])
async def test_of_v2_requests(tmp_path: Path, peak: Peak, satisfied: bool) -> None:
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert await client.add(add_of(1, 1)) is Code.OK
        body = {"ledger": 1, "after": -1 if satisfied else 0, "timeout_ms": 60_000}
        client.send(b"".join(encode_request(Op.WAIT_LAC, n, body) for n in range(POLLS)))
        parked = 0 if satisfied else POLLS_MAX
        found = [await client.answer() for _ in range(POLLS - parked)]
        wanted = Code.OK if satisfied else Code.TOO_MANY_REQUESTS
        assert {answer.code for answer in found if isinstance(answer, Answer)} == {wanted}
        assert peak.tasks <= TASKS_MAX
        client.close()
        await until(lambda: not bookie.server.requests.polls)
