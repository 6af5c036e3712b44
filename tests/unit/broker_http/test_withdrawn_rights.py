"""Withdrawing a right ends open streams, at the owner and at the broker that relays them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.kinds import (
    Caller,
    DescribeAccess,
    FindOffset,
    Publish,
    Read,
    Request,
    WriteAudit,
    encode_request,
)
from octavo.broker.operations.large_kinds import AddPiece, BeginUpload, EndBody
from octavo.broker.operations.serving import Serving
from octavo.broker.types import Owner
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import Identity
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.http_api import until
from tests.support.memory_cluster import NOW_MS, Running, running

TOPIC = "/v1/topics/public/one"
SUBSCRIPTION = f"{TOPIC}/subscriptions/s"
RULES = [
    "allow user:ann all *", "allow user:bob consume topic:public/one",
    "allow user:bob consume subscription:public/one/s", "allow user:bob produce topic:public/one",
]  # fmt: skip
SOON_S = 1.0


class World:
    def __init__(self, one: Running) -> None:
        self.one = one
        self.authority = FakeAuthority()
        self.authenticator = FakeAuthenticator()
        self.now_ms = NOW_MS

    def withdraw(self) -> None:
        self.authority.secure(RULES[0])

    def disable(self) -> None:
        self.authenticator.withdrawn.add("bob")

    def expire(self) -> None:
        self.now_ms += 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two brokers; the first owns the topic."""
    found = World(None)  # type: ignore[arg-type]
    found.authority.secure(*RULES)
    found.authenticator.expires_at_s = NOW_MS / 1000 + 60
    async with running(
        2,
        authority=found.authority,
        authenticator=found.authenticator,
        clock=lambda: found.now_ms,
    ) as one:
        found.one = one
        ann = as_user("ann")
        assert (await one.api.put(TOPIC, headers=ann)).status == 201
        await one.api.put(SUBSCRIPTION, json={"start": "earliest"}, headers=ann)
        await one.move("public/one", "b0")
        await one.api.post(f"{TOPIC}/messages", b"first", "text/plain", headers=ann)
        yield found


ENDS: dict[str, tuple[Callable[[World], None], int]] = {
    "the rule is gone": (World.withdraw, 403),
    "the user is disabled": (World.disable, 401),
    "the token's time is over": (World.expire, 401),
}
each_end = pytest.mark.parametrize("end", ENDS)
at_each_broker = pytest.mark.parametrize("broker", [0, 1], ids=["owner", "relay"])


async def last_words(response: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(SOON_S + 1.0):
        return await response.content.read()


@each_end
@at_each_broker
@pytest.mark.parametrize(
    ("path", "accept"),
    [
        (f"{TOPIC}/messages?follow=true", "application/x-ndjson"),
        (f"{TOPIC}/messages", "text/event-stream"),
        (f"{SUBSCRIPTION}/stream", "application/x-ndjson"),
        (f"{SUBSCRIPTION}/stream", "text/event-stream"),
    ],
)
async def test_a_stream_ends_with_its_reason(
    world: World, end: str, broker: int, path: str, accept: str
) -> None:
    withdraw, status = ENDS[end]
    api = world.one.apis[broker]
    headers = {"Accept": accept, **as_user("bob")}
    async with api.session.get(api.url + path, headers=headers) as response:
        assert response.status == 200
        while b"first" not in await response.content.readline():
            pass
        withdraw(world)
        told = await last_words(response)
    problem = json.loads(told.rpartition(b"data: ")[2] if b"event" in accept.encode() else told)
    problem = problem.get("problem", problem)
    assert problem["status"] == status, problem
    assert (await api.get(path.partition("?")[0], headers=headers)).status == status


@each_end
@at_each_broker
async def test_a_socket_is_closed_as_a_matter_of_policy(
    world: World, end: str, broker: int
) -> None:
    withdraw, status = ENDS[end]
    api = world.one.apis[broker]
    url = api.url + f"{SUBSCRIPTION}/stream"
    async with api.session.ws_connect(url, headers=as_user("bob")) as socket:
        assert b"first" in (await socket.receive()).data.encode()
        withdraw(world)
        async with asyncio.timeout(SOON_S + 1.0):
            word = await socket.receive()
            assert json.loads(word.data)["problem"]["status"] == status
            closing = await socket.receive()
        assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        assert "bob" in str(closing.extra)
    await until(lambda: not lent(world), seconds=3)


def lent(world: World) -> int:
    return world.one.leased("public/one")


@each_end
@at_each_broker
async def test_a_long_poll_is_refused(world: World, end: str, broker: int) -> None:
    withdraw, status = ENDS[end]
    api = world.one.apis[broker]
    bob = as_user("bob")
    paths = [("GET", f"{TOPIC}/messages?from=latest&wait=20s"),
             ("POST", f"{SUBSCRIPTION}/receive?wait=20s")]  # fmt: skip
    await api.post(f"{SUBSCRIPTION}/receive", headers=bob)
    asked = [asyncio.ensure_future(api.call(*path, headers=bob)) for path in paths]
    await until(lambda: world.one.waiting("public/one") == 2)
    withdraw(world)
    async with asyncio.timeout(SOON_S + 1.0):
        answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [status] * 2, answers


@at_each_broker
async def test_a_right_that_stays_ends_nothing(world: World, broker: int) -> None:
    api = world.one.apis[broker]
    headers = {"Accept": "application/x-ndjson", **as_user("bob")}
    async with api.session.get(
        api.url + f"{TOPIC}/messages?follow=true", headers=headers
    ) as response:
        assert b"first" in await response.content.readline()
        for number in range(3):
            world.authority.secure(*RULES, f"allow user:x{number} all cluster")
            await asyncio.sleep(0.02)
            await api.post(f"{TOPIC}/messages", b"more", "text/plain", headers=as_user("ann"))
            assert b"more" in await response.content.readline()


async def test_a_stream_opened_before_the_cluster_was_secured_ends_too(world: World) -> None:
    from octavo.security.rules import OPEN

    world.authority.set(OPEN)
    api = world.one.api
    async with api.session.get(
        api.url + f"{TOPIC}/messages?follow=true", headers={"Accept": "application/x-ndjson"}
    ) as response:
        assert b"first" in await response.content.readline()
        world.authority.secure(*RULES)
        problem = json.loads(await last_words(response))["problem"]
    assert problem["status"] == 401


@at_each_broker
async def test_a_body_without_end_is_taken_no_further(world: World, broker: int) -> None:
    sent = asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        yield b'{"value": 1}\n'
        await sent.wait()
        for _ in range(100):
            yield b'{"value": 2}\n'
            await asyncio.sleep(0.01)

    api = world.one.apis[broker]
    partition = await world.one.partition("public/one")
    headers = {"Content-Type": "application/x-ndjson", **as_user("bob")}
    asked = asyncio.ensure_future(api.post(f"{TOPIC}/messages", lines(), headers=headers))
    await until(lambda: partition.next_offset == 2)
    world.withdraw()
    sent.set()
    answer = await asked
    assert answer.status in (403, 207), answer
    assert partition.next_offset <= 3


async def test_readers_who_share_a_page_share_no_refusal(world: World) -> None:
    """Two readers of the same page at a relaying broker are different callers to the owner."""
    world.authority.secure(*RULES, "allow user:eve consume topic:public/one")
    api = world.one.apis[1]
    path = api.url + f"{TOPIC}/messages?follow=true&from=latest"
    kind = {"Accept": "application/x-ndjson"}
    async with (
        api.session.get(path, headers=kind | as_user("eve")) as eve,
        api.session.get(path, headers=kind | as_user("bob")) as bob,
    ):
        await until(lambda: world.one.waiting("public/one") == 2)
        world.authority.secure(*RULES)
        assert b"forbidden" in await last_words(eve)
        await api.post(f"{TOPIC}/messages", b"new", "text/plain", headers=as_user("ann"))
        assert b"new" in await bob.content.readline()


async def test_who_asks_travels_and_what_they_showed_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world.one.apis[1]
    bob = as_user("bob+staff") | {"Cookie": "session=secret"}
    operations: list[Request] = []
    run = Serving._run

    async def told(self: Serving, request: Request, deadline_s: float, asker: Asker) -> Any:
        operations.append(request)
        return await run(self, request, deadline_s, asker)

    monkeypatch.setattr(Serving, "_run", told)
    for path in ("messages", "partitions/0/messages", "offsets", "partitions/0/producer-access"):
        assert (await api.get(f"{TOPIC}/{path}", headers=bob)).status == 200
    for _ in range(3):  # the last of these on the fast path
        answer = await api.post(f"{TOPIC}/messages", b"x", "text/plain", headers=bob)
        assert answer.status == 200
    assert (await api.post(f"{TOPIC}/large", b"x", "text/plain", headers=bob)).status == 200
    operations = [one for one in operations if type(one.operation) is not WriteAudit]
    asked = [type(one.operation) for one in operations]
    ends = [AddPiece, EndBody]
    assert asked == [
        Read, Read, FindOffset, DescribeAccess, Publish, Publish, Publish, BeginUpload, *ends
    ]  # fmt: skip
    for request in operations:
        if type(request.operation) in ends:  # of the broker that began the body
            assert request.caller.source == "node"
        else:
            assert request.caller == Caller("user:bob", ["group:staff"], "token", 1_700_000_060.0)
        sent = encode_request(request.caller.identity, request.incarnation, request.operation)
        assert not any(shown in sent for shown in (b"bob+staff", b"session=secret"))


async def test_the_owner_decides_for_itself(world: World) -> None:
    """By its own policy: the asked broker may be behind."""
    stale = FakeAuthority()
    stale.secure(*RULES)
    world.one.servers[1]._gate._authority = stale
    bob = as_user("bob")
    assert (await world.one.apis[1].get(f"{TOPIC}/messages", headers=bob)).status == 200
    world.withdraw()
    assert (await world.one.apis[1].get(f"{TOPIC}/messages", headers=bob)).status == 403
    single = await world.one.apis[1].post(f"{TOPIC}/messages", b"x", "text/plain", headers=bob)
    assert single.status == 403


async def test_brokers_speak_for_themselves_as_nodes(world: World) -> None:
    identities: list[Identity] = []
    world.one.servers[0]._gate.on_decision = lambda found: identities.append(found.identity)
    name = world.one.name("public/one")
    owner = Owner("b0", world.one.apis[0].url, False)
    letter = build_batch([Record(None, b"a letter")])
    asks = world.one.servers[1]
    remote = asks._services.remote
    await remote.publish(owner, remote.own, name, [letter])
    await asks._broker.letters.pass_on(owner, name, letter)  # type: ignore[misc]
    assert identities == [Identity("node:b1", source="node")], "a letter needs no right"
