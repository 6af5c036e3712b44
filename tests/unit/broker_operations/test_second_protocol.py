"""A second protocol gets all rules of the brokers from the operations, at each broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator
from types import ModuleType

import pytest

from octavo.broker import operations
from octavo.broker.types import TopicName
from octavo.security.audit import Decided
from octavo.security.rules import Kind, Operation, Resource
from tests.support import line_protocol
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.line_protocol import Client, LineProtocol
from tests.support.memory_cluster import Running, running
from tests.unit.broker_http.test_http_quotas import Frozen, set_quota

TOPIC = "/v1/topics/public/one"
HERE = "public/one 0"
RULES = [
    "allow user:ann all *", "allow user:bob consume topic:public/one",
    "allow user:bob consume subscription:public/one/s",
    "allow user:bob create subscription:public/one/s",
]  # fmt: skip


class World:
    """Two brokers, of which the first owns the topic, and a client of each."""

    def __init__(self) -> None:
        self.authority = FakeAuthority()
        self.authenticator = FakeAuthenticator()
        self.decided: list[Decided] = []
        self.brokers: Running
        self.clients: list[Client] = []


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    async with running(
        2, authority=found.authority, authenticator=found.authenticator
    ) as found.brokers:
        brokers, ann = found.brokers, as_user("ann")
        await brokers.api.put(TOPIC, headers=ann)
        await brokers.api.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"}, headers=ann)
        await brokers.move("public/one", "b0")
        protocols = []
        for server in brokers.servers:
            server._gate.on_decision = found.decided.append
            protocol = LineProtocol(server.operations, found.authenticator.identify)
            protocols.append(protocol)
            found.clients.append(await Client.connect(await protocol.start()))
        yield found
        for client in found.clients:
            await client.close()
        for protocol in protocols:
            await protocol.close()


def imports_of(module: ModuleType) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def test_it_knows_nothing_of_http() -> None:
    asked = imports_of(line_protocol)
    assert not [name for name in asked if "http" in name]
    assert [name for name in asked if name.startswith(operations.__name__)]


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_a_message_is_published_received_and_acked(world: World, at: int) -> None:
    client = world.clients[at]
    assert await client.ask(f"PUB {HERE} hello there") == "OK 0"
    assert await client.ask(f"SUB {HERE} s") == "OK"
    word, ack_id, text = (await client.ask(f"RECV {HERE} s c")).split(" ", 2)
    assert (word, text) == ("MSG", "hello there")
    assert await client.ask(f"ACK {HERE} s {ack_id}") == "OK 1"
    assert (await client.ask(f"ACK {HERE} s {ack_id}")).startswith(("OK 0", "ERR stale"))
    assert (await client.ask("PUB public/none 0 x")).startswith("ERR topic-not-found ")


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_rights_are_asked_and_told_to_the_audit_log(world: World, at: int) -> None:
    world.authority.secure(*RULES)
    client = world.clients[at]
    assert (await client.ask(f"PUB {HERE} x")).startswith("ERR unauthenticated ")
    assert (await client.ask("AUTH bad")).startswith("ERR unauthenticated ")
    assert await client.ask("AUTH bob") == "OK user:bob"
    world.decided.clear()
    refused = await client.ask(f"PUB {HERE} x")
    assert refused.startswith("ERR forbidden user:bob may not produce topic:public/one")
    topic = Resource(Kind.TOPIC, "public/one")
    (denial,) = world.decided
    assert (denial.identity.name, denial.operation) == ("user:bob", Operation.PRODUCE)
    assert (denial.resource, denial.allowed) == (topic, False)
    assert (denial.peer, denial.call) == ("127.0.0.1", "operation")
    world.decided.clear()
    assert await client.ask(f"SUB {HERE} s") == "OK"
    told = [(one.operation, one.allowed) for one in world.decided]
    assert told == [(Operation.CREATE, True), (Operation.CONSUME, True)], "once, and not at both"


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_nobody_writes_to_the_topics_of_the_brokers(world: World, at: int) -> None:
    assert (await world.clients[at].ask("PUB octavo/audit 0 x")).startswith("ERR audit-topic")


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
@pytest.mark.parametrize(("subject", "taken"), [("anonymous", 2), ("namespace:public", 3)])
async def test_quotas_of_clients_and_namespaces(
    world: World, at: int, subject: str, taken: int
) -> None:
    """A namespace is charged after storing, so it may leave a debt of a message."""
    clock = Frozen(world.brokers)
    await set_quota(world.brokers, subject, publish_messages=2)
    said = [await world.clients[at].ask(f"PUB {HERE} x") for _ in range(taken + 1)]
    assert [one.partition(" ")[0] for one in said] == ["OK"] * taken + ["ERR"]
    assert said[-1].startswith(f"ERR quota-exceeded {subject} is over its quota of 2 publish")
    clock.now_s += 1.0
    assert await world.clients[at].ask(f"PUB {HERE} x") == f"OK {taken}"


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_what_a_client_was_given_is_charged(world: World, at: int) -> None:
    clock, client = Frozen(world.brokers), world.clients[at]
    await client.ask(f"PUB {HERE} {'x' * 1000}")
    await set_quota(world.brokers, "anonymous", read_bytes=500)
    assert (await client.ask(f"RECV {HERE} s c")).startswith("MSG ")
    assert (await client.ask(f"RECV {HERE} s c")).startswith("ERR quota-exceeded anonymous ")
    clock.now_s += 3.0
    assert not (await client.ask(f"RECV {HERE} s d")).startswith("ERR quota-exceeded")


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_the_rates_of_a_topic(world: World, at: int) -> None:
    Frozen(world.brokers)
    await world.brokers.api.call("PATCH", TOPIC, json={"rates": {"publish_messages": 1}})
    client = world.clients[at]
    assert [await client.ask(f"PUB {HERE} x") for _ in range(2)] == ["OK 0", "OK 1"]
    assert (await client.ask(f"PUB {HERE} x")).startswith(
        "ERR quota-exceeded topic:public/one is over its rate of 1 "
    )


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
async def test_the_longest_message_of_a_topic(world: World, at: int) -> None:
    await world.brokers.api.call("PATCH", TOPIC, json={"message_bytes_max": 100})
    topics, name = world.brokers.brokers[f"b{at}"].topics, TopicName("public", "one")
    async with asyncio.timeout(20):
        while (await topics.get(name)).settings.policies.message_bytes_max != 100:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client = world.clients[at]
    assert (await client.ask(f"PUB {HERE} {'x' * 101}")).startswith(
        "ERR message-too-long a message may have 100 bytes of key, value and headers"
    )
    assert await client.ask(f"PUB {HERE} {'x' * 100}") == "OK 0"


@pytest.mark.parametrize("at", [0, 1])
async def test_a_consumer_group(world: World, at: int) -> None:
    """Its coordinator is found, its rights are checked and told once, whichever broker it is."""
    world.authority.secure(*RULES, "allow user:bob consume subscription:public/g")
    client, other = world.clients[at], world.clients[1 - at]
    assert (await client.ask("JOIN public/g m public/one")).startswith("ERR unauthenticated ")
    await client.ask("AUTH bob")
    await other.ask("AUTH ann")
    world.decided.clear()
    refused = await client.ask("JOIN public/g m public/one")
    assert refused.startswith("ERR forbidden user:bob may not consume subscription:public/one/g")
    told = [(str(one.resource), one.allowed) for one in world.decided]
    assert told == [
        ("subscription:public/g", True), ("topic:public/one", True),
        ("subscription:public/one/g", False),
    ]  # fmt: skip
    world.decided.clear()
    assert await other.ask("JOIN public/g m public/one") == "HAS 1 public/one/0"
    assert [one.allowed for one in world.decided] == [True] * 3, "once, and not at both"
    assert await client.ask("JOIN public/g n public/o*") == "HAS 2", "left out"
    assert (await client.ask("JOIN public/g m public/o*")).startswith("ERR foreign-member ")
    assert (await client.ask("LEAVE public/g m")).startswith("ERR foreign-member ")
    assert await other.ask("LEAVE public/g m") == "OK"
    assert (await other.ask("JOIN public/h m public/none")).startswith("ERR topic-not-found ")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("subject", ["user:ann", "namespace:public"])
async def test_the_quota_of_groups(world: World, at: int, subject: str) -> None:
    client = world.clients[at]
    await client.ask("AUTH ann")
    await set_quota(world.brokers, subject, groups=1)
    said = [await client.ask(f"JOIN public/g{number} m public/one") for number in range(9)]
    kept = [server._services.groups.of_namespace("public") for server in world.brokers.servers]
    assert kept == [1, 1], "each broker keeps one of them"
    assert sorted({one.split(" ")[0] for one in said}) == ["ERR", "HAS"]
    refused = [one for one in said if one.startswith("ERR")]
    assert all(one.startswith(f"ERR quota-exceeded {subject} has 1 groups") for one in refused)
