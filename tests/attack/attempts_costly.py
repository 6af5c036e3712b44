"""Requests that are short to send and long to process, during which a broker's loop must keep
turning."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from tests.attack.attempts import TURN_S_MAX, attempt, refused
from tests.attack.world import World
from tests.support.schemas import fanned_out

SUBJECTS = "/v1/schemas/subjects/public"
NULLS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "b", "type": "boolean"},
            *({"name": f"n{n}", "type": "null"} for n in range(900)),
        ],
    },
}


async def _each(world: World, path: str, body: dict[str, Any], *statuses: int) -> None:
    for broker in range(len(world.brokers)):
        refused(await world.ask("POST", path, body, broker=broker), *statuses)


@attempt("a JSON Schema whose references fan out", turn_s_max=TURN_S_MAX)
async def fan_out(world: World) -> None:
    """4 KB of it, and the message `1`, stopped a broker and each next owner."""
    for call in ("versions", "check"):
        await _each(world, f"{SUBJECTS}/fan/{call}", {"schema": fanned_out(60)}, 422, 503)


@attempt("an Avro schema of 900 nulls for each byte", turn_s_max=TURN_S_MAX)
async def avro_nulls(world: World) -> None:
    await _each(world, f"{SUBJECTS}/nulls/check", {"type": "avro", "schema": NULLS}, 422, 503)


@attempt("a schema that may be, and messages that take long by it", turn_s_max=TURN_S_MAX)
async def slow_messages(world: World) -> None:
    said = await world.ask("POST", f"{SUBJECTS}/slow/versions", {"schema": fanned_out(12)})
    assert said.status in (200, 201), said
    path = await world.topic("slow", schema={"subject": "slow"})
    lines = b'{"value": 1}\n' * 2_000
    for broker in range(len(world.brokers)):
        found = await asyncio.gather(
            *(
                world.ask(
                    "POST",
                    f"{path}/messages",
                    lines,
                    broker=broker,
                    Content_Type="application/x-ndjson",
                )
                for _ in range(5)
            )
        )
        assert {one.status for one in found} <= {200, 422, 503}, found


@attempt("a body of gzip members of nothing", turn_s_max=TURN_S_MAX)
async def empty_members(world: World) -> None:
    """4 MB of them took 11 s."""
    said = await world.ask(
        "POST",
        "/v1/topics/public/attacked/messages",
        gzip.compress(b"") * 200_000,
        Content_Type="text/plain",
        Content_Encoding="gzip",
    )
    refused(said, 0, 400)


@attempt("patterns of a group beside long names", turn_s_max=TURN_S_MAX)
async def long_patterns(world: World) -> None:
    """20 of each took 20 s, and the broker ended."""
    for number in range(20):
        await world.topic("a" * 240 + f"c{number:03}")
    patterns = ["*" + "a" * (100 + n) + "b*" + "?a" * 10 + "*" for n in range(100)]
    for broker in range(len(world.brokers)):
        said = await world.ask(
            "POST", "/v1/groups/public/costly/members/m", {"topics": patterns}, broker=broker
        )
        assert said.status == 200, said
        assert json.loads(said.body)["partitions"] == []


@attempt("the API's document and all figures, again and again", turn_s_max=TURN_S_MAX)
async def documents(world: World) -> None:
    for path in ("/openapi.json", "/metrics"):
        found = await asyncio.gather(*(world.ask("GET", path) for _ in range(100)))
        assert {one.status for one in found} <= {200, 429}, path
