"""A tailing reader never saw the last entry when the message that tells of it was lost.

The last entry's confirmation travels with the next add, or alone when the writer idles (explicit
LAC). Alone it was sent once, and nobody looked at the answer: with bookies that were busy or whose
connection had just broken it was lost, and readers waited for the next add. Found by the simulator
(topic seed 177): the state ledger of a quiet partition could not be followed to its end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from octavo.protocol.codes import TooManyRequests
from tests.support.cluster import running_cluster


async def test_an_idle_writer_tells_its_last_entry_until_it_is_known(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        refused: list[str] = []

        def refuse_twice(name: str) -> None:
            storage = cluster.nodes[name].storage
            told = storage.control.set_explicit_lac

            async def set_explicit_lac(ledger_id: int, key: bytes, lac: int) -> None:
                if refused.count(name) < 2:
                    refused.append(name)
                    raise TooManyRequests("busy")
                await told(ledger_id, key, lac)

            storage.control.set_explicit_lac = set_explicit_lac  # type: ignore[method-assign]

        for name in cluster.nodes:
            refuse_twice(name)
        client = await cluster.client(explicit_lac_interval_ms=20.0)
        writer = await client.create()
        await writer.append(b"the only one")
        reader = await (await cluster.client(seed=2)).open(writer.ledger_id)
        async with asyncio.timeout(15):
            while reader.last_add_confirmed < 0:
                await reader.wait_for(-1, 0.2)
        assert len(refused) >= 2
        await reader.close()


async def test_bookies_that_were_away_are_told_when_they_come_back(tmp_path: Path) -> None:
    async def refuse(ledger_id: int, key: bytes, lac: int) -> None:
        raise TooManyRequests("busy")

    async with running_cluster(tmp_path) as cluster:
        for node in cluster.nodes.values():  # until they are away; else one may know it by then
            node.storage.control.set_explicit_lac = refuse  # type: ignore[method-assign]
        client = await cluster.client(explicit_lac_interval_ms=20.0, stall_timeout_s=30.0)
        writer = await client.create()
        await writer.append(b"the only one")
        ensemble_writer = writer._ensemble_writer
        for name in ("b1", "b2", "b3"):
            await cluster.stop_bookie(name)
        looks = 0
        look = ensemble_writer._announce_lac

        def counted(now: float) -> bool:
            nonlocal looks
            looks += not ensemble_writer.core.live
            return look(now)

        ensemble_writer._announce_lac = counted  # type: ignore[method-assign]
        async with asyncio.timeout(15):
            while looks < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for name in ("b1", "b2", "b3"):
            await cluster.start_bookie(name)
        reader = await (await cluster.client(seed=2)).open(writer.ledger_id)
        async with asyncio.timeout(15):
            while reader.last_add_confirmed < 0:
                await reader.wait_for(-1, 0.2)
        await reader.close()


async def test_each_last_entry_is_told_until_all_know_it_and_then_no_more(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client(explicit_lac_interval_ms=20.0)
        writer = await client.create()
        for entry_id in range(2):
            await writer.append(b"the newest one")
            async with asyncio.timeout(15):
                while client._ticking:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            states = [node.storage._states.get(writer.ledger_id) for node in cluster.nodes.values()]
            lacs = [state.last_add_confirmed for state in states if state is not None]
            assert lacs == [entry_id] * 3
