"""A stranger that knows their numbers and names calls other clients' ledgers and bulk loads."""

from __future__ import annotations

import asyncio
import json

from tests.attack.attempts import attempt, refused
from tests.attack.world import Said, World

ROUNDS = 20


@attempt("recover in a loop, of all ledgers of a topic that is published to")
async def recover_in_a_loop(world: World) -> None:
    path = await world.topic("recovered")
    said = await world.ask("POST", f"{path}/messages", b"0", Content_Type="text/plain")
    assert said.status == 200, said

    async def newest_ledger() -> int:
        said = await world.ask("GET", path)
        found: int = json.loads(said.body)["partitions"][0]["ledgers"][-1]["id"]
        return found

    newest = await newest_ledger()

    async def recover(number: int) -> None:
        for ledger in (newest, newest + 1, newest - 1):
            said = await world.ask(
                "POST", f"/v1/ledgers/{max(ledger, 0)}/recover", broker=number % len(world.brokers)
            )
            refused(said, 200, 404, 409, 429)
            if ledger == newest and said.code != "ledger-in-use":
                assert await newest_ledger() != newest, said

    async def publish(number: int) -> None:
        said = await world.ask(
            "POST", f"{path}/messages", b"%d" % number, Content_Type="text/plain"
        )
        assert said.status == 200, said

    for number in range(ROUNDS):
        await asyncio.gather(recover(number), recover(number + 1), publish(number))


async def batch_call(world: World, of: str, body: object, *, token: str = "", at: int = 0) -> Said:
    headers = {"Bulk_Load_Token": token} if token else {}
    path = f"/v1/bulk-loads/{of}"
    return await world.ask("POST", path, json.dumps(body).encode(), broker=at,
                           Content_Type="application/json", **headers)  # fmt: skip


@attempt("a bulk load of another: its next batch, one far ahead, junk begun, its ledgers given up")
async def anothers_bulk_load(world: World) -> None:
    await world.topic("attacked")
    last = len(world.brokers) - 1
    for batch in range(ROUNDS):
        said = await batch_call(world, f"owned/batches/{batch}/commit", {"parts": []}, token="me")
        assert (said.status, json.loads(said.body)["repeated"]) == (200, False), said
        for token in ("", "you"):
            for call in (
                f"owned/batches/{batch + 1}/commit",
                f"owned/batches/{2**63 - 1}/commit",
                f"owned/batches/{batch + 1}/begin",
                f"owned/batches/{2**63 - 1}/begin",
            ):
                said = await batch_call(world, call, {"parts": []}, token=token, at=last)
                refused(said, 403)
        said = await batch_call(
            world, f"owned/batches/{batch + 1}/abort", {"ledgers": list(range(50))}, at=last
        )
        refused(said, 403)


@attempt("batches far ahead, below zero and after themselves, by their owner's mistake")
async def batches_out_of_order(world: World) -> None:
    for at in range(len(world.brokers)):
        for batch, body, statuses in (
            (2**63 - 1, {"parts": []}, (409,)),
            (2**63, {"parts": []}, (400,)),
            (5, {"parts": [], "after": 5}, (422,)),
            (5, {"parts": [], "after": -2}, (422,)),
            (5, {"parts": [], "after": 10**30}, (400, 422)),
            (0, {"parts": [{"topic": "attacked", "partition": -1, "ledgers": []}]}, (422,)),
        ):
            said = await batch_call(world, f"mistaken/batches/{batch}/commit", body, at=at)
            refused(said, *statuses)


@attempt("giving up 10,000 ledgers that are not there")
async def abort_of_nothing(world: World) -> None:
    said = await batch_call(
        world, "never/batches/0/abort", {"ledgers": list(range(10**12, 10**12 + 10_000))}
    )
    assert (said.status, json.loads(said.body)) == (200, {"ledgers": []}), said
    said = await batch_call(
        world, "never/batches/0/abort", {"ledgers": list(range(10**12, 10**12 + 10_001))}
    )
    refused(said, 422)
    assert (await world.ask("GET", "/v1/bulk-loads/never")).status == 404
