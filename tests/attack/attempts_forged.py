"""Strangers that claim to be brokers, and records that claim it for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from octavo.broker.cluster.registry import encode_broker
from octavo.broker.types import BrokerInfo
from octavo.metadata.opening import open_store
from octavo.metadata.topics import owner_path
from tests.attack.attempts import attempt, refused
from tests.attack.world import World

BY, TO, PROOF = "Octavo-Forwarded-By", "Octavo-Forwarded-To", "Octavo-Forwarded-Proof"


@attempt("calls that say they come from a broker")
async def forged_callers(world: World) -> None:
    path = await world.topic("forged")
    owner = await world.owner(path)
    other = (owner + 1) % len(world.brokers)
    for proof in ("", "0" * 64, "\udcff" * 64):
        headers: dict[str, Any] = {BY: world.names[owner], TO: world.names[other]}
        if proof:
            headers[PROOF] = proof
        said = await world.ask("GET", f"{path}/partitions/0", broker=other, **headers)
        assert json.loads(said.body)["owner"] == world.names[owner], said
        refused(await world.ask("GET", "/v1/operations", broker=owner, **headers), 403)
    assert await world.owner(path) == owner


@attempt("an owner's record that leads elsewhere", long=True)
async def forged_owner(world: World) -> None:
    path = await world.topic("astray")
    visits: list[str] = []

    def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append("visited")
        writer.close()

    trap = await asyncio.start_server(visited, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}"
    store = open_store(world.cluster.cluster.metadata_url)
    await store.start()
    try:
        record = owner_path("public", "astray", 0)
        await store.create(record, encode_broker(BrokerInfo(world.names[0], url), "run"))
        for broker in range(len(world.brokers)):
            said = await world.ask("GET", f"{path}/messages?from=earliest", broker=broker)
            assert said.status == 503, said
        assert not visits
        await store.delete(record, (await store.get(record)).version)
    finally:
        await store.close()
        trap.close()
    assert (await world.ask("GET", f"{path}/messages?from=earliest")).status in (200, 204)
