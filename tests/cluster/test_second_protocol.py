"""A second protocol over real brokers: a topic's schema is checked, and HTTP is not needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from octavo.broker.groups.coordinator import Groups
from octavo.broker.metrics import Metrics
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.authorizer import Authorizer
from octavo.broker.operations.kinds import Refusal
from octavo.broker.operations.producer_ids import ProducerIds
from octavo.broker.operations.quotas import OperationQuotas
from octavo.broker.operations.rules import BrokerRules
from octavo.broker.types import SubscriptionSettings, TopicSettings
from octavo.client.client import AsyncClient
from octavo.protocol.codes import OctavoError
from tests.support.cluster import TOPIC, running_cluster
from tests.support.line_protocol import Client, LineProtocol

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_the_schema_of_a_topic_holds_at_each_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
            await client.register_schema("s", SCHEMA)
            await client.create_topic("t", schema={"subject": "s"})
        for running in cluster.brokers.values():
            assert running.server is not None
            protocol = LineProtocol(running.server.operations)
            line = await Client.connect(await protocol.start())
            assert (await line.ask('PUB public/t 0 {"n": "x"}')).startswith("ERR schema-mismatch ")
            assert (await line.ask('PUB public/t 0 {"n": 1}')).startswith("OK ")
            await line.close()
            await protocol.close()


def refusal_of(error: BaseException) -> Refusal:
    assert isinstance(error, OctavoError)
    return Refusal(0, error.name, str(error))


async def test_a_broker_without_http_serves_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        running = await cluster.start("A")
        broker = running.broker
        metrics = Metrics(list, broker.duties, broker.deletion_time)
        authorizer = Authorizer(None, cluster.clock, lambda _: None)
        quotas = OperationQuotas(running.store, broker, metrics)
        ids = ProducerIds(b"k" * 32, lambda: False)
        alone: Any = None
        rules = BrokerRules(broker, authorizer, quotas, ids, metrics, 1000, 1000, alone)
        limits: Any = SimpleNamespace(group_members_max=1, groups_max=1, group_partitions_max=1)
        groups = Groups(limits)
        protocol = LineProtocol(Operations(broker, alone, rules, refusal_of, 1.0, "1", groups))
        await broker.topics.create(TOPIC, TopicSettings(partitions=1))
        await broker.topics.create_subscription(TOPIC, "s", SubscriptionSettings())
        line = await Client.connect(await protocol.start())
        here = f"{TOPIC} 0"
        assert await line.ask(f"SUB {here} s") == "OK"
        assert (await line.ask(f"PUB {here} {'x' * 1001}")).startswith("ERR message-too-long ")
        assert await line.ask(f"PUB {here} hello") == "OK 0"
        word, ack_id, text = (await line.ask(f"RECV {here} s c")).split(" ", 2)
        assert (word, text) == ("MSG", "hello")
        assert await line.ask(f"ACK {here} s {ack_id}") == "OK 1"
        assert await line.ask(f"JOIN public/g m {TOPIC}") == f"HAS 1 {TOPIC}/0"
        assert (await line.ask(f"JOIN public/g n {TOPIC}")).startswith("ERR group-full ")
        assert await line.ask("LEAVE public/g m") == "OK"
        assert (await line.ask("JOIN public/g n public/none")).startswith("ERR topic-not-found ")
        await line.close()
        await protocol.close()
