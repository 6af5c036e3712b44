"""A tenant that uses its own rights: letters of others are kept, schemas are hidden."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from tests.attack.attempts_requests import BATCH
from tests.attack.secured.attempts import secured
from tests.attack.secured.world import SEALED, SecuredWorld
from tests.attack.world import Said

SHARED = "/v1/topics/shared"
LETTER_S = 20.0
SCHEMA_WORD = "pin-5c1f9be2"
"""A name in a schema that `alice` may not see."""


async def _must(
    world: SecuredWorld, method: str, path: str, body: Any = b"", *, who: str = "root",
    **headers: Any,
) -> Said:  # fmt: skip
    said = await world.ask(method, path, body, who=who, **headers)
    assert 200 <= said.status < 300, (method, path, said)
    return said


async def _values(world: SecuredWorld, path: str, who: str = "root") -> list[str]:
    said = await world.ask("GET", f"{path}/messages?from=earliest&limit=1000", who=who)
    if said.status == 204:
        return []
    assert said.status == 200, said
    return [str(one.get("value_text")) for one in json.loads(said.body)["messages"]]


async def _until_there(world: SecuredWorld, path: str, value: str) -> list[str]:
    until_s = time.monotonic() + LETTER_S
    while value not in (found := await _values(world, path)):
        assert time.monotonic() < until_s, f"{value} is not in {path}: {found}"
        await asyncio.sleep(0.1)
    return found


async def _deadly(world: SecuredWorld, path: str, who: str = "root", **more: Any) -> None:
    settings = {"type": "shared", "max_deliveries": 1, **more}
    await _must(world, "PUT", f"{path}/subscriptions/s", settings, who=who)


async def _refuse(world: SecuredWorld, path: str, value: str, who: str = "root") -> None:
    """Publish it, receive it and give it back: it becomes a dead letter."""
    await _must(world, "POST", f"{path}/messages", value.encode(), who=who)
    said = await _must(world, "POST", f"{path}/subscriptions/s/receive?wait=10", who=who)
    given = [one["ack_id"] for one in json.loads(said.body)["messages"]]
    await _must(world, "POST", f"{path}/subscriptions/s/ack", {"nack": given}, who=who)


async def _taken(world: SecuredWorld, path: str, last: int) -> None:
    """Mallory reads who stored the message at `last`, and publishes the next ids as that
    producer."""
    said = await world.ask(
        "GET", f"{path}/messages?from={last}&limit=1", who="mallory", Accept=BATCH
    )
    assert said.status == 200, said
    head = read_header(said.body)
    for more in range(1, 4):
        for epoch in (head.producer_epoch, head.producer_epoch + 1):
            batch = build_batch(
                [Record(None, b"forged", (), 0)],
                producer_id=head.producer_id,
                producer_epoch=epoch,
                base_sequence=head.base_sequence + more,
            )
            for broker in range(len(world.brokers)):
                said = await world.ask(
                    "POST", f"{path}/messages", batch, who="mallory", broker=broker,
                    Content_Type=BATCH,
                )  # fmt: skip
                assert said.status in (200, 409, 422), said


@secured("letters: forged under the producer id of one that was read")
async def forged_letters(world: SecuredWorld) -> None:
    """The broker's next letter was taken for a duplicate, and lost."""
    path, dead = f"{SHARED}/orders", f"{SHARED}/orders-s-dlq"
    await _must(world, "PUT", path, {})
    await _deadly(world, path)
    await _refuse(world, path, "first")
    await _until_there(world, dead, "first")
    await _taken(world, dead, 0)
    await _refuse(world, path, "second")
    await _until_there(world, dead, "second")


@secured("producer ids: another's is read from its batch, and its next number taken")
async def taken_ids(world: SecuredWorld) -> None:
    path = f"{SHARED}/numbered"
    await _must(world, "PUT", path, {})
    numbered: dict[str, str] = {"Producer_Id": "till-4", "Producer_Epoch": "0"}
    first = await _must(
        world, "POST", f"{path}/messages", b"first", who="alice", Producer_Seq="0", **numbered
    )
    await _taken(world, path, 0)
    for broker in range(len(world.brokers)):
        said = await world.ask(
            "POST", f"{path}/messages", b"second", who="alice", broker=broker, Producer_Seq="1",
            **numbered,
        )  # fmt: skip
        assert said.status == (204 if broker else 200), (first, said)
    found = await _values(world, path)
    assert found.count("first") == found.count("second") == 1, found


@secured("letters: of an encrypted namespace, which would lie in a clear one")
async def clear_letters(world: SecuredWorld) -> None:
    """A dead letter or a retry was stored in clear text, where its copy was sent."""
    word = f"sealed-{secrets.token_hex(12)}"
    path = f"/v1/topics/{SEALED}/plans"
    await _must(world, "PUT", path, {})
    await _must(world, "PUT", f"{SHARED}/clear", {})
    for field in ("dead_letter_topic", "retry_topic"):
        for target in ("shared/clear", "shared/clear-and-new"):
            settings = {"type": "shared", "max_deliveries": 1, field: target}
            for broker in range(len(world.brokers)):
                said = await world.ask(
                    "PUT", f"{path}/subscriptions/s", settings, who="root", broker=broker
                )
                assert said.status == 422, (field, target, said)
    await _deadly(world, path)
    await _refuse(world, path, word)
    await _until_there(world, f"{path}-s-dlq", word)
    assert word not in await _values(world, f"{SHARED}/clear")
    found = await asyncio.to_thread(_files_with, world.cluster.folder, word.encode())
    assert not found, f"in clear text in {found}"


def _files_with(folder: Path, word: bytes) -> list[str]:
    found = []
    for path in folder.glob("bookie-*/**/*"):
        if path.is_file():
            with contextlib.suppress(OSError), path.open("rb") as file:
                last = b""
                while part := file.read(1 << 20):
                    if word in last + part:
                        found.append(str(path))
                        break
                    last = part[-len(word) :]
    return found


@secured("letters: a tenant whose letters cannot be stored delays no other tenant's", long=True)
async def stuck_letters(world: SecuredWorld) -> None:
    """16 turns of a broker waited a minute for a topic that takes nothing."""
    for number in range(20):
        path = f"/v1/topics/tenant/stuck-{number}"
        await _must(world, "PUT", path, {}, who="mallory")
        await _deadly(world, path, who="mallory", dead_letter_topic="tenant/full")
        if not number:
            await _must(world, "PUT", "/v1/topics/tenant/full", {}, who="mallory")
    await _must(world, "DELETE", "/v1/topics/tenant/full", who="mallory")
    for number in range(20):
        await _refuse(world, f"/v1/topics/tenant/stuck-{number}", "stuck", who="mallory")
    path = f"{SHARED}/beside"
    await _must(world, "PUT", path, {})
    await _deadly(world, path)
    began = time.monotonic()
    await _refuse(world, path, "letter")
    await _until_there(world, f"{SHARED}/beside-s-dlq", "letter")
    assert time.monotonic() - began < LETTER_S
    for number in range(20):
        await _must(world, "DELETE", f"/v1/topics/tenant/stuck-{number}", who="mallory")


@secured("schemas: one that may not be seen is told by no error, whichever broker owns the topic")
async def schema_by_errors(world: SecuredWorld) -> None:
    schema = {"type": "object", "properties": {SCHEMA_WORD: {"type": "integer"}},
              "required": [SCHEMA_WORD]}  # fmt: skip
    await _must(world, "POST", "/v1/schemas/subjects/strict/kept/versions", {"schema": schema})
    hers = "/v1/topics/strict/hers"
    await _must(world, "PUT", hers, {})
    body = {"schema": {"subject": "kept"}}
    for broker in range(len(world.brokers)):
        said = await world.ask("PATCH", hers, body, who="alice", broker=broker)
        assert said.status == 403, said
    strict = [f"/v1/topics/strict/t{n}" for n in range(4)]
    bodies: Mapping[str, bytes] = {
        "text/plain": b"{}", "application/json": b'{"value":{}}',
        "application/x-ndjson": b'{"value":{}}\n', BATCH: build_batch([Record(None, b"{}", (), 0)]),
    }  # fmt: skip
    for path in strict:
        await _must(world, "PUT", path, {"schema": {"subject": "kept"}})
        for broker in range(len(world.brokers)):
            for kind, data in bodies.items():
                said = await world.ask(
                    "POST", f"{path}/messages", data, who="alice", broker=broker,
                    Content_Type=kind,
                )  # fmt: skip
                assert said.code == "schema-mismatch", said
                assert SCHEMA_WORD.encode() not in said.body, said
                said = await world.ask(
                    "POST", f"{path}/messages", data, broker=broker, Content_Type=kind
                )
                assert SCHEMA_WORD.encode() in said.body, "who may see it is told"


@secured("streams: a PUT with a time to live, of a topic that another has made and not used")
async def stream_over_topic(world: SecuredWorld) -> None:
    """With `create` alone it removed the topic."""
    path = f"{SHARED}/unused"
    await _must(world, "PUT", path, {})
    for broker in range(len(world.brokers)):
        for lines in ({"Stream_TTL": "1"}, {"Stream_Expires_At": "2027-01-01T00:00:00Z"}, {}):
            said = await world.ask(
                "PUT", path.replace("topics", "durable-streams"), b"", who="mallory",
                broker=broker, Content_Type="text/plain", **lines,
            )  # fmt: skip
            assert said.status in (403, 409), said
    await asyncio.sleep(2.5)
    said = await _must(world, "GET", path)
    assert not json.loads(said.body).get("stream"), said


async def _quota(world: SecuredWorld, subject: str, **amounts: int) -> None:
    await _must(world, "PUT", f"/v1/quotas/{subject}", amounts)


@secured("quotas: topics of letters count, and so do groups, subscriptions and memory")
async def quotas_of_counts(world: SecuredWorld) -> None:
    tenant = "namespace:tenant"
    said = await _must(world, "GET", "/v1/topics/tenant?limit=10000", who="mallory")
    topics = len(json.loads(said.body)["topics"])
    try:
        await _quota(world, tenant, topics=topics)
        await asyncio.sleep(1.0)
        said = await world.ask(
            "PUT", "/v1/topics/tenant/own/subscriptions/lettered",
            {"type": "shared", "max_deliveries": 2}, who="mallory",
        )  # fmt: skip
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        said = await world.ask("PUT", "/v1/durable-streams/tenant/one-more", b"", who="mallory",
                               Content_Type="text/plain")  # fmt: skip
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        await _quota(world, tenant, subscriptions=1)
        await asyncio.sleep(1.0)
        said = await world.ask(
            "PUT", "/v1/topics/tenant/own/subscriptions/one-more", {}, who="mallory"
        )
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        await _quota(world, "user:mallory", groups=1, memory=1_000_000)
        await asyncio.sleep(1.0)
        body = {"topics": ["own"]}
        statuses = [
            (await world.ask("POST", f"/v1/groups/tenant/q{n}/members/m", body, who="mallory")).code
            for n in range(4)
        ]
        assert "quota-exceeded" in statuses, statuses
        said = await world.ask(
            "POST", "/v1/topics/tenant/own/messages", b"x" * 2_000_000, who="mallory"
        )
        assert said.status == 429, said
    finally:
        for subject in (tenant, "user:mallory"):
            await _must(world, "DELETE", f"/v1/quotas/{subject}")
        for n in range(4):
            await world.ask("DELETE", f"/v1/groups/tenant/q{n}/members/m", who="mallory")
