"""10,000 connections, each with a v3 long poll, at one bookie: cost, speed of answers, and
release when clients go."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3 import STATUS
from octavo.protocol.v3_schema import ResponseMessage
from tests.attack.memory import BOOKIE_CONNECTION_BYTES, LONG_POLL_BYTES, MIB
from tests.process.test_bookie_kill import bookie_process
from tests.support.v3_frames import V3Client, read_frame

SHORT_POLLS, POLLS = 1_000, 10_000
LEDGER = 1
OK, TOO_MANY = STATUS[Code.OK], STATUS[Code.TOO_MANY_REQUESTS]
LAST = 2**40
ANSWERED_S_MAX = 60.0
"""Far more than the usual time, for a busy machine."""


async def clients_of(port: int, count: int) -> list[V3Client]:
    made: list[V3Client] = []
    for start in range(0, count, 200):
        some = (asyncio.open_connection("127.0.0.1", port) for _ in range(min(200, count - start)))
        made += [V3Client(*one) for one in await asyncio.gather(*some)]
    return made


async def answer_of(client: V3Client) -> Any:
    length = LENGTH.unpack(await client.reader.readexactly(LENGTH.size))[0]
    return ResponseMessage.FromString(await client.reader.readexactly(length))


def poll(client: V3Client, lac: int) -> None:
    client.send(read_frame(LEDGER, lac + 1, previousLAC=lac, timeOut=60_000))


async def taken(client: V3Client) -> list[int]:
    """Return the statuses of refusals so far: its earlier polls have been accepted now."""
    client.send(read_frame(404, 0, txn=LAST))
    refused = []
    while (answer := await answer_of(client)).header.txnId != LAST:
        refused.append(int(answer.status))
    return refused


async def until_all_are_free(port: int, count: int, lac: int) -> None:
    """Wait until this many polls find a place: no gone client keeps a place."""
    async with asyncio.timeout(60):
        while True:
            (client,) = await clients_of(port, 1)
            for _ in range(count):
                poll(client, lac)
            refused = await taken(client)
            client.writer.transport.abort()
            if not refused:
                return
            assert set(refused) == {TOO_MANY}


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(SHORT_POLLS, marks=pytest.mark.timeout(600)),
        pytest.param(POLLS, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
async def test_what_they_cost_and_that_it_is_given_back(tmp_path: Path, count: int) -> None:
    settings = {"long_polls_max": count, "connections_max": count + 100}
    with bookie_process(tmp_path, **settings) as (process, port):
        writer, other = await clients_of(port, 2)
        for entry in range(2):
            assert await writer.add(LEDGER, entry) == OK
        size = psutil.Process(process.pid).memory_info
        before = size().rss
        allocator = 2 * MIB
        bound = before + count * (BOOKIE_CONNECTION_BYTES + LONG_POLL_BYTES) + allocator
        took, peaks = [], []
        for lac in range(4):
            clients = await clients_of(port, count)
            for client in clients:
                poll(client, lac)
            assert not any(await asyncio.gather(*map(taken, clients)))
            poll(other, lac)
            assert await taken(other) == [TOO_MANY]
            began = time.monotonic()
            assert await writer.add(LEDGER, lac + 2) == OK
            answers = await asyncio.gather(*(map(answer_of, clients)))
            took.append(time.monotonic() - began)
            assert {(one.status, one.readResponse.maxLAC) for one in answers} == {(OK, lac + 1)}
            for client in clients:
                poll(client, lac + 1)
            assert not any(await asyncio.gather(*map(taken, clients)))
            peaks.append(size().rss)
            for client in clients:
                client.writer.transport.abort()
            await until_all_are_free(port, count, lac + 1)
        grown = [f"{(one - before) / MIB:.0f}" for one in peaks]
        print(f"{count} polls: {grown} MiB more, answered in {max(took):.2f} s")
        assert max(peaks) <= bound, f"{max(peaks) / MIB:.0f} MiB; allowed: {bound / MIB:.0f}"
        assert max(took) < ANSWERED_S_MAX
        process.terminate()
        assert process.wait(30) == 0
