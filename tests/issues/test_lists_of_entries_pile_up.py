"""A few requests for the list of a ledger full of holes, whose answers nobody took, cost a bookie
1.5 GB and stood its loop still for 19 s: answers counted when they were made, and nobody asked
before a list was made whether there was room.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.protocol import extension, v3
from octavo.protocol.codes import Code
from tests.support.raw_bookie import RawClient, add_of, running_bookie, until
from tests.support.v3_frames import V3Client, request_frame

MIB = 1 << 20
RUNS = [(3 * n, 3 * n + n % 2) for n in range(20_000)]
CONNECTIONS, REQUESTS = 5, 100
LIST_BYTES = 24 * len(RUNS) + 1_000
V3 = request_frame(v3.Op.LIST_ENTRIES, 1, "getListOfEntriesOfLedgerRequest", ledgerId=1)
V2 = extension.encode_request(extension.Op.LIST_ENTRIES, 1, {"ledger": 1})


@pytest.mark.parametrize("request_of", [V2, V3], ids=["v2", "v3"])
async def test_no_list_is_made_while_answers_are_not_taken(
    tmp_path: Path, request_of: bytes
) -> None:
    async with running_bookie(tmp_path, answer_bytes_max=MIB, read_wait_ms_max=200) as bookie:
        at_once = [0, 0]

        async def held(_: int) -> list[tuple[int, int]]:
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(0.001)
            at_once[0] -= 1
            return RUNS

        reads: Any = bookie.storage.reads
        reads.held = held
        clients = [await RawClient.connect(bookie) for _ in range(CONNECTIONS)]
        assert await clients[0].add(add_of(1, 0)) is Code.OK
        for client in clients:
            reading: Any = client.writer.transport
            reading.pause_reading()
            client.send(request_of * REQUESTS)
        server = bookie.server
        # Some are refused for the time that they waited; what is held back by answers that its peer
        # does not take may wait on.
        await until(lambda: at_once[1] > 0 and server.reads.tasks == 0)
        await asyncio.sleep(0.5)
        assert at_once[1] <= 2
        assert server.answers.peak <= MIB + 3 * LIST_BYTES
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: not server.answers.used)


async def test_none_is_made_without_room(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, answer_bytes_max=MIB, read_wait_ms_max=200) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == v3.STATUS[Code.OK]
        made: list[int] = []
        reads: Any = bookie.storage.reads
        held = reads.held
        reads.held = lambda ledger: (made.append(ledger), held(ledger))[1]
        for used, code in ((MIB, Code.TOO_MANY_REQUESTS), (-MIB, Code.OK)):
            bookie.server.answers.change(used)
            answer = await client.ask(
                v3.Op.LIST_ENTRIES, "getListOfEntriesOfLedgerRequest", ledgerId=1
            )
            assert answer.status == v3.STATUS[code]
        assert made == [1], "the one that was answered"
        client.close()
