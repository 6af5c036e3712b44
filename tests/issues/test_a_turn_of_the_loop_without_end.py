"""A turn of a bookie's loop read all that had come on all sockets. 100,000 requests of 26 bytes, on
20 connections took 8 s; on a busy machine more than 20 s, and then a process ends itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.bookie import back_pressure
from octavo.bookie.back_pressure import Turns
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.extension import Op, encode_request
from octavo.protocol.frames import read_request
from tests.support.raw_bookie import RawClient, add_of, running_bookie
from tests.support.v3_frames import read_frame, request_frame

SCRATCH_BYTES = 4096
REQUESTS_PER_TURN, REQUESTS_PER_CHUNK = 200, 20
CONNECTIONS, REQUESTS = 20, 1_000
KINDS = {
    "reads": read_request(1, 0),
    "reads in v3": read_frame(1, 0),
    "long polls": encode_request(Op.WAIT_LAC, 1, {"ledger": 1, "after": 5}),
    "long polls in v3": read_frame(1, 0, previousLAC=5, timeOut=60_000),
    "unknown operations in v3": request_frame(99),
    "adds to ledgers in turn": add_of(1, 0, b"") + add_of(2, 0, b""),
    "versions that are none": read_request(1, 0)[:4] + b"\x01" + read_request(1, 0)[5:],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_takes_so_many_requests_and_others_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(back_pressure, "REQUESTS_PER_TURN", REQUESTS_PER_TURN)
    monkeypatch.setattr(back_pressure, "REQUESTS_PER_CHUNK", REQUESTS_PER_CHUNK)
    monkeypatch.setattr(back_pressure, "CHUNK_BYTES_MIN", 64)
    took: list[int] = [0]
    count, begin = Turns.took, Turns._next

    def counted(self: Turns, requests: int) -> None:
        took[-1] += requests
        count(self, requests)

    def begun(self: Turns) -> None:
        took.append(0)
        begin(self)

    monkeypatch.setattr(Turns, "took", counted)
    monkeypatch.setattr(Turns, "_next", begun)
    async with running_bookie(tmp_path, scratch_bytes=SCRATCH_BYTES, long_polls_max=1) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0, b"")) is Code.OK
        others = [await asyncio.open_connection("127.0.0.1", bookie.port) for _ in range(20)]
        first = KINDS[kind]
        for _, writer in others:
            writer.write(first * REQUESTS)
            writer.write_eof()
        for reader, _ in others:
            async with asyncio.timeout(60):
                while await reader.read(1 << 20):
                    pass
        assert await client.read(1, 0) != Code.NO_ENTRY
        in_a_chunk = SCRATCH_BYTES // len(first) * (2 if "adds" in kind else 1) + 1
        by_a_byte = CONNECTIONS  # which may be the last one of a request
        assert max(took) <= REQUESTS_PER_TURN + in_a_chunk + by_a_byte
        full = [
            turn for turn in took if turn > REQUESTS_PER_TURN + 2 * REQUESTS_PER_CHUNK + by_a_byte
        ]
        assert len(full) <= CONNECTIONS, "a socket has one long chunk, its first"
        assert sum(took) >= CONNECTIONS * REQUESTS
        for _, writer in others:
            writer.close()
        client.close()


async def test_who_is_gone_waits_for_no_turn(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        turns = bookie.server.turns
        turns._over_at = 0
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
            writer.write(request_frame(v3.Op.READ))
            writer.transport.abort()
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert not turns._waiting
        client.close()
