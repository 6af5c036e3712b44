"""A callback of `add` that abandoned its writer got the callbacks confirmed with it called twice.

First with "unknown", then with success: the first was a lie about what was durable. Found by
reading.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from octavo.ledger.errors import ClientClosed
from octavo.protocol.codes import OctavoError
from tests.support.cluster import running_cluster


async def test_each_callback_comes_once_and_tells_the_truth(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        writer = await (await cluster.client()).create()
        answers: list[tuple[int, bool]] = []

        def done(entry_id: int, error: OctavoError | None) -> None:
            answers.append((entry_id, error is None))
            if entry_id == 0:
                writer.abandon(ClientClosed("enough"))

        for number in range(5):
            writer.add(b"%d" % number, done)
        async with asyncio.timeout(10):
            while len(answers) < 5 or writer.error is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert [entry_id for entry_id, _ in answers] == [0, 1, 2, 3, 4]
        confirmed = [entry_id for entry_id, durable in answers if durable]
        assert confirmed == list(range(writer.last_add_confirmed + 1))
