"""Ledgers and transactions of others: called upon by whoever knows their numbers and names."""

from __future__ import annotations

import asyncio
import json

from tests.attack.attempts import attempt, refused
from tests.attack.world import World

ROUNDS = 20


@attempt("recover in a loop, of all ledgers of a topic that is published to")
async def recover_in_a_loop(world: World) -> None:
    path = await world.topic("recovered")
    said = await world.ask("POST", f"{path}/messages", b"0", Content_Type="text/plain")
    assert said.status == 200, said
    said = await world.ask("GET", path)
    newest = json.loads(said.body)["partitions"][0]["ledgers"][-1]["id"]

    async def recover(number: int) -> None:
        # Its state ledger was made beside it: the numbers around are tried as well.
        for ledger in (newest, newest + 1, newest - 1):
            said = await world.ask(
                "POST", f"/v1/ledgers/{max(ledger, 0)}/recover", broker=number % len(world.brokers)
            )
            refused(said, 200, 404, 409, 429)  # 200: one that is closed already
            if ledger == newest:
                assert said.code == "ledger-in-use", said

    async def publish(number: int) -> None:
        said = await world.ask(
            "POST", f"{path}/messages", b"%d" % number, Content_Type="text/plain"
        )
        assert said.status == 200, said

    for number in range(ROUNDS):
        await asyncio.gather(recover(number), recover(number + 1), publish(number))
