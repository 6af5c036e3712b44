"""Attacks through browsers: stored pages, images that lease, frames that a page could choose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

from octavo.broker.http.csrf import SANDBOX
from tests.attack.attempts import TURN_S_MAX, attempt, enter_each, refused
from tests.attack.attempts_requests import T, request
from tests.attack.world import World, exchange, open_to, said_in, whole_length

SCRIPT = (
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
)
PICTURE = "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
SOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CLOSED_S = 10.0


async def _head_of(world: World, path: str, broker: int) -> bytes:
    data = request("GET", path, headers="Accept: text/html,*/*\r\n")
    answer = await exchange(world.brokers[broker], data, CLOSED_S, whole_length, world.tls)
    assert said_in(answer).status == 200, answer[:300]
    return answer.partition(b"\r\n\r\n")[0]


@attempt("browser: pages and pictures with scripts, stored as a stream", turn_s_max=TURN_S_MAX)
async def stored_pages(world: World) -> None:
    for number, kind in enumerate(("text/html", "image/svg+xml", "application/xhtml+xml")):
        path = f"/v1/durable-streams/public/page-{number}"
        said = await world.ask("PUT", path, SCRIPT, Content_Type=kind)
        assert said.status in (200, 201), said
        for broker in range(len(world.brokers)):
            head = await _head_of(world, path, broker)
            for line in (f"Content-Security-Policy: {SANDBOX}", "X-Content-Type-Options: nosniff",
                         "Content-Disposition: attachment"):  # fmt: skip
                assert line.encode().lower() in head.lower(), head


@attempt("browser: a picture whose source is a subscription's stream", turn_s_max=TURN_S_MAX)
async def picture_that_leases(world: World) -> None:
    path = await world.topic("pictured")
    assert (await world.ask("PUT", f"{path}/subscriptions/s")).status in (200, 201)
    said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
    assert said.status == 200, said
    for broker in range(len(world.brokers)):
        for lines in (f"Accept: {PICTURE}\r\n", "Accept: */*\r\nReferer: http://evil.example/\r\n"):
            data = request("GET", f"{path}/subscriptions/s/stream", headers=lines)
            refused(await world.raw(data, broker=broker, wait_s=CLOSED_S), 403)
    said = await world.ask("POST", f"{path}/subscriptions/s/receive", {"wait": "10s"})
    (found,) = json.loads(said.body)["messages"]
    assert found["delivery_count"] == 1, "a picture has leased it"


@attempt("browser: frames of a WebSocket that are not masked", turn_s_max=TURN_S_MAX)
async def unmasked_frames(world: World) -> None:
    path = await world.topic("unmasked")
    assert (await world.ask("PUT", f"{path}/subscriptions/s")).status in (200, 201)
    said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
    assert said.status == 200, said
    call = (
        f"GET {path}/subscriptions/s/stream HTTP/1.1\r\nHost: localhost\r\n{SOCKET}\r\n"
    ).encode()
    for broker in range(len(world.brokers)):
        reader, writer = await open_to(world.brokers[broker], world.tls)
        try:
            async with asyncio.timeout(CLOSED_S):
                writer.write(call)
                found = b""
                while (ack_id := re.search(rb'"ack_id": ?"([^"]+)"', found)) is None:
                    more = await reader.read(1 << 16)
                    assert more, found
                    found += more
                ack = json.dumps({"ack_ids": [ack_id[1].decode()]}).encode()
                writer.write(50 * (bytes((0x81, len(ack))) + ack))
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.transport.abort()
    said = await world.ask("POST", f"{path}/subscriptions/s/receive", {"wait": "20s"})
    assert len(json.loads(said.body)["messages"]) == 1, "a frame without a mask has acked it"


def _lenient() -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for zero in ("00", "+0", "-0", "%D9%A0", "0_0", "%200", "0.0"):
        found += [
            (f"partition {zero}", request("GET", f"{T}/partitions/{zero}")),
            (f"from {zero}", request("GET", f"{T}/messages?from={zero}")),
            (f"batch {zero}", request("POST", f"/v1/bulk-loads/lenient/batches/{zero}/commit",
                                      b'{"parts":[]}')),
        ]  # fmt: skip
    for seven in ("007", "+7", "7_0", " 7 7", "7.0", "\xd9\xa7"):
        numbered = f"Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: {seven}\r\n"
        found += [
            (f"sequence {seven!a}", request("POST", f"{T}/messages", b"x", numbered, "text/plain")),
            (f"epoch {seven!a}", request("POST", f"{T}/messages", b"x", numbered.replace(
                "Epoch: 0", f"Epoch: {seven}").replace(f"Seq: {seven}", "Seq: 0"), "text/plain")),
            (f"ack id {seven!a}", request("POST", f"{T}/subscriptions/s/ack", json.dumps(
                {"ack_ids": [f"0-{seven}-1-1"]}).encode())),
        ]  # fmt: skip
    return found


enter_each("number", _lenient(), (400, 404, 422))


@attempt("two spellings of a producer's id are two producers")
async def two_spellings(world: World) -> None:
    path = await world.topic("spelt")
    for name in ("7", "007", "+7", "٧"):
        said = await world.ask(
            "POST", f"{path}/messages", b"x", Content_Type="text/plain",
            Producer_Id=name, Producer_Epoch="0", Producer_Seq="0",
        )  # fmt: skip
        assert said.status == 200, said
    said = await world.ask("GET", f"{path}/messages?from=earliest")
    assert len(json.loads(said.body)["messages"]) == 4, said
