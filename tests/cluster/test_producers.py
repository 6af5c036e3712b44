"""Producers over real brokers: exclusive, by sequences, by single messages; and the schemas that
hold for them."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import fastavro
import pytest

from octavo.broker.cluster import schema_registry
from octavo.broker.errors import SchemaCheckUnavailable
from octavo.broker.groups.coordinator import Groups
from octavo.broker.metrics import Metrics
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.authorizer import Authorizer
from octavo.broker.operations.kinds import Refusal
from octavo.broker.operations.producer_ids import ProducerIds
from octavo.broker.operations.quotas import OperationQuotas
from octavo.broker.operations.rules import BrokerRules
from octavo.broker.state.producers import SEQUENCE_MODULUS, ProducerState, Remembered
from octavo.broker.types import PartitionName, SubscriptionSettings, TopicSettings
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, Conflict, InvalidCall, NotFound, ProducerFailed
from octavo.client.producer import Producer
from octavo.client.wire import NoAnswer
from octavo.protocol.codes import OctavoError
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import TOPIC as TOPIC_SECOND
from tests.support.cluster import Cluster, running_cluster
from tests.support.http_api import until
from tests.support.line_protocol import Client, LineProtocol
from tests.support.schemas import fanned_out

T = "/v1/topics/public/exclusive"
ACCESS = T + "/partitions/0/producer-access"
MESSAGES = T + "/messages"
BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(T)).status == 201
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


async def acquire(cluster: Cluster, who: str, query: str = "", **how: Any) -> Any:
    return await cluster.api.call("POST", ACCESS + query, json={"producer": who, **how})


async def publish(cluster: Cluster, epoch: int | None, value: bytes = b"x", kind: str = "") -> Any:
    headers = {} if epoch is None else {"Producer-Access-Epoch": str(epoch)}
    headers["Content-Type"] = kind or "text/plain"
    return await cluster.api.call("POST", MESSAGES, data=value, headers=headers)


BODIES = [
    (b"x", "text/plain"),
    (b'{"value": 1}', "application/json"),
    (b'{"messages": [{"value": 1}, {"value": 2}]}', "application/json"),
    (b'{"value": 1}\n', NDJSON),
    (build_batch([Record(None, b"x", [], 0)]), BATCH),
    (build_batch([Record(None, b"x", [], 0)]) * 2, BATCH),
]


async def test_whoever_has_no_epoch_or_an_old_one_is_refused(cluster: Cluster) -> None:
    assert (await publish(cluster, None)).status == 200
    first = (await acquire(cluster, "a")).json()
    assert (first["producer"], first["next_offset"]) == ("a", 1)
    busy = await acquire(cluster, "b")
    assert (busy.status, busy.json()["code"]) == (409, "producer-busy")
    for body, kind in BODIES:
        assert (await publish(cluster, first["epoch"], body, kind)).status == 200
        none = await publish(cluster, None, body, kind)
        assert (none.status, none.json()["code"]) == (409, "exclusive-producer"), none
    second = (await acquire(cluster, "b", fencing=True)).json()
    for body, kind in BODIES:
        old = await publish(cluster, first["epoch"], body, kind)
        assert (old.status, old.json()["code"]) == (403, "stale-producer-access"), old
        assert (await publish(cluster, second["epoch"], body, kind)).status == 200
    shown = (await cluster.api.get(ACCESS)).json()
    assert (shown["producer"], shown["epoch"]) == ("b", second["epoch"])
    stale = await cluster.api.call("DELETE", f"{ACCESS}?epoch={first['epoch']}")
    assert (stale.status, stale.json()["code"]) == (403, "stale-producer-access")
    for _ in range(2):
        gone = await cluster.api.call("DELETE", f"{ACCESS}?epoch={second['epoch']}")
        assert gone.status == 204
    assert (await publish(cluster, None)).status == 200
    assert (await cluster.api.get(ACCESS)).json()["producer"] is None


async def test_who_waits_gets_it_when_it_is_let_go(cluster: Cluster) -> None:
    first = (await acquire(cluster, "a")).json()
    waiting = asyncio.ensure_future(acquire(cluster, "b", "?wait=20s"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await cluster.api.call("DELETE", f"{ACCESS}?epoch={first['epoch']}")
    async with asyncio.timeout(5):
        assert (await waiting).json()["producer"] == "b"
    short = (await acquire(cluster, "c", fencing=True, session_timeout=1)).json()
    async with asyncio.timeout(10):
        assert (await acquire(cluster, "d", "?wait=20s")).json()["epoch"] > short["epoch"]


async def test_it_survives_take_overs(cluster: Cluster) -> None:
    first = (await acquire(cluster, "a")).json()
    second = (await acquire(cluster, "b", fencing=True)).json()
    owner = await cluster.owner_of(T + "/partitions/0")
    assert (await publish(cluster, second["epoch"], b"before")).status == 200
    await cluster.stop_broker(owner)
    assert (await publish(cluster, first["epoch"])).status == 403
    assert (await publish(cluster, None)).status == 409
    assert (await acquire(cluster, "c")).status == 409
    assert (await publish(cluster, second["epoch"], b"after")).status == 200
    third = (await acquire(cluster, "b")).json()
    assert third["epoch"] > second["epoch"]
    assert (await publish(cluster, second["epoch"])).status == 403


async def test_bad_input(cluster: Cluster) -> None:
    many = "/v1/topics/public/many"
    await cluster.api.put(many, json={"partitions": 2})
    one = many + "/partitions/1/producer-access"
    epoch = (await cluster.api.call("POST", one, json={"producer": "a"})).json()["epoch"]
    headers = {"Producer-Access-Epoch": str(epoch), "Content-Type": NDJSON}
    answer = await cluster.api.call(
        "POST", many + "/messages", data=b'{"value": 1}\n', headers=headers
    )
    assert (answer.status, answer.json()["code"]) == (422, "partition-required")
    for body, status in (
        ({}, 422),
        ({"producer": ".."}, 400),
        ({"producer": "a", "session_timeout": 0.1}, 422),
        ({"producer": "a", "mode": "wait"}, 422),
    ):
        answer = await cluster.api.call("POST", one, json=body)
        assert answer.status == status, answer
    assert (await cluster.api.call("DELETE", one)).status == 400
    headers = {"Producer-Access-Epoch": "x"}
    answer = await cluster.api.call("POST", MESSAGES, data=b"x", headers=headers)
    assert (answer.status, answer.json()["code"]) == (400, "invalid-header")


async def test_the_clients_producer(client: AsyncClient) -> None:
    await client.create_topic("p", partitions=3)
    with pytest.raises(InvalidCall, match="needs a name"):
        client.producer("p", exclusive=True)
    one = await client.producer("p", producer_id="one", exclusive=True)
    await (await one.send("a", key="k"))
    with pytest.raises(ApiError, match="'one' alone"):
        await client.publish("p", "b", key="k")
    with pytest.raises(Conflict, match="'one' alone"):
        await client.producer("p", producer_id="two", exclusive=True)
    async with client.producer("p", producer_id="two", exclusive="fencing") as two:
        with pytest.raises((ApiError, ProducerFailed), match="has ended"):
            await (await one.send("c", key="k"))
        await (await two.send("d", key="k"))
    await one.close(flush=False)
    await client.publish("p", "e", key="k")
    found = [one.text() for number in range(3) for one in await client.read("p", partition=number)]
    assert found == ["a", "d", "e"]


NAME = PartitionName("public", "t", 0)
PRODUCER_ID = 7
BEFORE = SEQUENCE_MODULUS - 90


def lose_answers(client: AsyncClient, rng: random.Random) -> list[str]:
    once: Any = client.transport._once
    lost: list[str] = []

    async def some(url: str, method: str, path: str, *rest: Any) -> Any:
        answer = await once(url, method, path, *rest)
        if method == "POST" and rng.random() < 0.3:
            lost.append(path)
            raise NoAnswer("connection lost")
        return answer

    client.transport._once = some  # type: ignore[method-assign, assignment]
    return lost


async def published_before(cluster: Cluster) -> str:
    owner = await cluster.owner_of("/v1/topics/public/t/partitions/0")
    partition = await cluster.brokers[owner].broker.ownership.partition(NAME)
    publisher = partition._publisher
    assert publisher is not None
    for table in (publisher._producers, publisher.stored_producers):
        table.restore(ProducerState(PRODUCER_ID, 0, (Remembered(BEFORE - 1, BEFORE - 1, -1),)))
    return owner


def going_on(producer: Producer) -> None:
    producer._queues[0]._sequence = BEFORE


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_each_message_once_over_the_end_of_the_numbers(
    tmp_path: Path, encoding: Literal["batch", "ndjson"]
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        urls = [api.url for api in cluster.apis.values()]
        async with AsyncClient(urls, rng=random.Random(3)) as client:
            await client.create_topic("t")
            owner = await published_before(cluster)
            lost = lose_answers(client, random.Random(5))
            producer = await client.producer(
                "t", producer_id=PRODUCER_ID, encoding=encoding, batch_bytes=300, linger_ms=0
            )
            going_on(producer)
            for number in range(100):
                await producer.send(f"{number:03d}")
            await producer.flush()
            assert producer._queues[0]._sequence == 10
            await cluster.stop_broker(owner)
            for number in range(100, 200):
                await producer.send(f"{number:03d}")
            await producer.close()
            assert lost
            stored = [f"{number:03d}" for number in range(200)]
            assert [message.text() async for message in client.messages("t")] == stored
            again = await client.producer(
                "t", producer_id=PRODUCER_ID, encoding=encoding, batch_bytes=450, linger_ms=0
            )
            going_on(again)
            receipts = [await again.send(text) for text in [*stored, "more"]]
            await again.close()
            places = [await receipt for receipt in receipts]
            assert all(one.duplicate for one in places[:-1])
            assert [message.text() async for message in client.messages("t")] == [*stored, "more"]


TOPIC = "/v1/topics/public/t"
CALLERS = 200


@pytest.mark.parametrize("partitions", [1, 3])
async def test_each_has_its_own_place(tmp_path: Path, partitions: int) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": partitions})
        apis = [*cluster.apis.values()]

        async def publish(number: int) -> tuple[int, int, str]:
            api = apis[number % 2]
            path, text = f"{TOPIC}/messages", f"m{number}"
            if number % 3 == 0:
                body = json.dumps({"value": text, "key": f"k{number}"}).encode()
                answer = await api.post(path, body, "application/json")
            else:
                answer = await api.post(path, text.encode(), "text/plain")
            assert answer.status == 200, answer
            said = answer.json()
            assert said["count"] == 1
            assert said["first"] == said["last"]
            return said["first"]["partition"], said["first"]["offset"], said["first"]["id"]

        places = await asyncio.gather(*(publish(number) for number in range(CALLERS)))
        assert (
            len({place[:2] for place in places}) == len({place[2] for place in places}) == CALLERS
        )
        for number, (partition, offset, message_id) in enumerate(places):
            path = f"{TOPIC}/partitions/{partition}/messages?limit=1&from="
            for where in (str(offset), message_id):
                (found,) = (await apis[number % 2].get(path + where)).json()["messages"]
                assert (found["offset"], found["id"]) == (offset, message_id)
                assert found.get("value", found.get("value_text")) == f"m{number}"
        entries = {message_id.rpartition(":")[0] for _, _, message_id in places}
        assert len(entries) < CALLERS, "some shared theirs"


@pytest.mark.long
@pytest.mark.parametrize("vanishes", [False, True])
async def test_passed_on_through_the_end_of_their_owner(tmp_path: Path, vanishes: bool) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        owner = await cluster.owner_of(f"{TOPIC}/partitions/0")
        front = next(api for name, api in cluster.apis.items() if name != owner)
        acked: dict[str, dict[str, Any]] = {}
        refused = set[str]()
        enough = asyncio.Event()

        async def publish(name: int) -> None:
            number = 0
            while not enough.is_set():
                text = f"m{name:02}-{number:05}"
                number += 1
                answer = await front.post(f"{TOPIC}/messages", text.encode(), "text/plain")
                if answer.status == 200:
                    acked[text] = answer.json()["first"]
                else:
                    refused.add(answer.json()["code"])

        callers = [asyncio.ensure_future(publish(name)) for name in range(12)]
        await until(lambda: len(acked) >= 400, 30)
        if vanishes:
            await cluster.brokers[owner].vanish()
        else:
            await cluster.stop_broker(owner)
        before = len(acked)
        await until(lambda: len(acked) >= before + 400, 30)
        enough.set()
        await asyncio.gather(*callers)
        assert refused <= {"outcome-unknown", "partition-moving", "not-owner"}, refused
        found: dict[str, list[dict[str, Any]]] = {}
        offset = 0
        while True:
            answer = await front.get(f"{TOPIC}/partitions/0/messages?limit=1000&from={offset}")
            if answer.status == 204:
                break
            for message in answer.json()["messages"]:
                found.setdefault(message["value_text"], []).append(message)
                offset = message["offset"] + 1
        for text, place in acked.items():
            (message,) = found[text]
            assert (message["offset"], message["id"]) == (place["offset"], place["id"])


T_SCHEMAS = "/v1/topics/public/t/messages"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
WIDER = {**SCHEMA, "properties": {"n": {"type": "integer"}, "m": {"type": "string"}}}
AVRO = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}


async def test_a_subject_has_versions(client: AsyncClient) -> None:
    made = await client.register_schema("s", SCHEMA)
    assert (made["version"], made["subject"], made["schema"]) == (1, "public/s", SCHEMA)
    again = await client.register_schema("s", json.dumps(SCHEMA))
    assert (again["version"], again["id"]) == (1, made["id"])
    assert await client.check_schema("s", WIDER) == []
    assert (await client.register_schema("s", WIDER))["version"] == 2
    [problem] = await client.check_schema("s", SCHEMA) or [""]
    assert "version 2" in problem
    with pytest.raises(Conflict) as refused:
        await client.register_schema("s", {**SCHEMA, "required": ["n", "m"]})
    assert refused.value.code == "incompatible-schema"
    assert refused.value.problem["problems"]
    with pytest.raises(Conflict, match="of type json"):
        await client.register_schema("s", AVRO, type="avro")
    await client.set_schema_compatibility("s", "NONE")
    assert (await client.register_schema("s", {"type": "string"}))["version"] == 3
    subject = await client.schema_subject("s")
    assert (subject["compatibility"], len(subject["versions"])) == ("NONE", 3)
    for which in ("1", made["id"]):
        assert (await client.schema("s", which))["schema"] == SCHEMA
    assert (await client.schema("s"))["version"] == 3
    assert await client.schema_subjects() == ["s"]
    with pytest.raises(NotFound, match="no version '9'"):
        await client.schema("s", 9)
    with pytest.raises(ApiError, match="no JSON Schema"):
        await client.register_schema("s", {"type": "strin"})
    with pytest.raises(ApiError):
        await client.set_schema_compatibility("s", "SOMEHOW")
    await client.delete_schema_subject("s")
    for call in (client.delete_schema_subject("s"), client.schema_subject("s")):
        with pytest.raises(NotFound, match="no schema subject"):
            await call


async def test_two_brokers_register_at_once(cluster: Cluster) -> None:
    async def register(number: int) -> int:
        api = list(cluster.apis.values())[number % 2]
        body = {"schema": {"enum": list(range(number + 1))}}
        path = "/v1/schemas/subjects/public/s/versions"
        answer = await api.call("POST", path, json=body)
        assert answer.status in (201, 409), answer
        return answer.status

    await cluster.api.call("PUT", "/v1/schemas/subjects/public/s", json={"compatibility": "NONE"})
    found = await asyncio.gather(*map(register, range(6)))
    shown = (await cluster.api.get("/v1/schemas/subjects/public/s")).json()
    assert len(shown["versions"]) == found.count(201)
    assert [one["version"] for one in shown["versions"]] == list(
        range(1, len(shown["versions"]) + 1)
    )


def batch(*values: bytes | None, packed: Compression = Compression.NONE) -> bytes:
    return build_batch([Record(None, value, [], 1_000) for value in values], compression=packed)


async def test_what_does_not_fit_is_not_stored(cluster: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", schema={"subject": "s"})
    with pytest.raises(ApiError, match="has no version") as none:
        await client.publish("t", {"n": 1})
    assert (none.value.status, none.value.code) == (422, "schema-mismatch")
    await client.register_schema("s", SCHEMA)
    for api in cluster.apis.values():
        bad: list[tuple[Any, str, int]] = [
            (b'{"value": {"n": "x"}}', "application/json", 0),
            (b'{"messages": [{"value": {"n": 1}}, {"value": {"n": "x"}}]}', "application/json", 1),
            (b'{"value": {"n": 1}}\n{"value": {"n": 2}}\n{"value": {}}\n', NDJSON, 2),
            (b"plain", "text/plain", 0),
            (batch(b'{"n": 1}', b'{"n": "x"}'), BATCH, 1),
            (batch(b'{"n": 1}', b'{"n": "x"}', packed=Compression.GZIP), BATCH, 1),
        ]
        for body, kind, index in bad:
            answer = await api.post(T_SCHEMAS, body, kind)
            assert answer.status == 422, answer
            found = answer.json()
            assert found["code"] == "schema-mismatch", answer
            assert found["message_in_batch"] == index, answer
            assert "version 1" in found["detail"]
        assert (await api.post(T_SCHEMAS, b'{"n": 5}', "text/plain")).status == 200
        assert (
            await api.post(T_SCHEMAS, b'{"value": {"n": 6}}\n{"value": null}\n', NDJSON)
        ).status == 200
        assert (await api.post(T_SCHEMAS, batch(b'{"n": 7}', None), BATCH)).status == 200
    values = [one.value for one in await client.read("t")]
    assert values == [b'{"n": 5}', b'{"n": 6}', None, b'{"n": 7}', None] * 2
    await client.update_topic("t", schema=None)
    await client.publish("t", "anything")
    assert (await client.topic("t")).settings.get("schema") is None


async def test_a_header_says_which_version_a_message_is_of(client: AsyncClient) -> None:
    await client.create_topic("t", schema={"subject": "s", "validate": True})
    first = await client.register_schema("s", SCHEMA)
    await client.set_schema_compatibility("s", "NONE")
    await client.register_schema("s", {"type": "string"})

    async def publish(value: Any, schema: str | None) -> None:
        headers = {} if schema is None else {"octavo-schema": schema}
        async with asyncio.timeout(5):
            while True:
                try:
                    await client.publish("t", value, headers=headers)
                    return
                except ApiError as error:
                    if "version 2" in str(error) or "is not JSON" in str(error):
                        raise
                    await asyncio.sleep(0.02)

    await publish(b'"text"', None)
    await publish({"n": 1}, first["id"])
    await publish({"n": 1}, "1")
    with pytest.raises(ApiError, match="version 2"):
        await publish({"n": 1}, None)


async def test_avro_values(client: AsyncClient) -> None:
    await client.register_schema("s", AVRO, type="avro")
    await client.create_topic("t", schema={"subject": "s"})
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), {"n": 1})
    await client.publish("t", stream.getvalue())
    with pytest.raises(ApiError, match="follow after the value"):
        await client.publish("t", stream.getvalue() + b"x")


async def test_a_topic_keeps_its_schema_after_a_take_over(
    cluster: Cluster, client: AsyncClient
) -> None:
    await client.register_schema("s", SCHEMA)
    await client.create_topic("t", schema={"subject": "s"})
    await client.publish("t", {"n": 1})
    owner = await cluster.owner_of("/v1/topics/public/t/partitions/0")
    await cluster.stop_broker(owner)
    with pytest.raises(ApiError, match="version 1"):
        await client.publish("t", {"n": "x"})
    assert (await client.publish("t", {"n": 2})).offset == 1
    with pytest.raises(ApiError, match=r"schema\.validate|subject"):
        await client.create_topic("u", schema={"subject": ".."})


async def test_a_subject_has_bounds(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "VERSIONS_MAX", 2)
    monkeypatch.setattr(schema_registry, "RECORD_CHARS_MAX", 100)
    await client.set_schema_compatibility("s", "NONE")
    await client.register_schema("s", {"const": 1})
    with pytest.raises(Conflict, match="at most 2 versions and 100 characters"):
        await client.register_schema("s", {"const": "x" * 100})
    await client.register_schema("s", {"const": 2})
    with pytest.raises(Conflict, match="has 2 versions"):
        await client.register_schema("s", {"const": 3})


async def test_what_cannot_be_proved_is_an_answer(client: AsyncClient) -> None:
    """`{"not": {"const": [1]}}`, then `{}`: the library raises an exception for it, and the
    answer was a 500."""
    await client.register_schema("s", {"not": {"const": [1]}})
    [problem] = await client.check_schema("s", {}) or [""]
    assert "cannot be proved" in problem
    with pytest.raises(Conflict, match="cannot be proved") as refused:
        await client.register_schema("s", {})
    assert refused.value.code == "incompatible-schema"


async def test_a_schema_that_costs_too_much_is_refused(
    cluster: Cluster, client: AsyncClient
) -> None:
    """A schema of 4 KB and the message `1` stopped a broker for good, and each next owner."""
    with pytest.raises(ApiError, match="costs too much") as refused:
        await client.register_schema("s", fanned_out(60))
    assert (refused.value.status, refused.value.code) == (422, "invalid-schema")
    path = "/v1/schemas/subjects/public/s/check"
    long = {"schema": {"description": "x" * schema_registry.GIVEN_BYTES_MAX}}
    assert (await cluster.api.call("POST", path, json=long)).status == 413
    for text in ('{"minimum": NaN}', '{"const": "\\ud800"}'):
        with pytest.raises(ApiError, match="not JSON"):
            await client.register_schema("s", text)


class Away:
    async def ask(self, key: object, question: object) -> Any:
        raise SchemaCheckUnavailable("it is away; try again")

    async def aclose(self) -> None:
        pass


async def test_a_check_that_is_away_concerns_its_topic_alone(
    cluster: Cluster, client: AsyncClient
) -> None:
    await client.register_schema("s", {"type": "string", "pattern": "^a+$"})
    await client.register_schema("plain", SCHEMA)
    await client.create_topic("t", schema={"subject": "s"})
    await client.create_topic("plain", schema={"subject": "plain"})
    await client.create_topic("free")
    engines = {one.broker.schemas: one.broker.schemas._engine for one in cluster.brokers.values()}
    for registry in engines:
        registry._engine = Away()
    for body, kind in ((b'"aaa"', "text/plain"), (batch(b'"aaa"'), BATCH)):
        answer = await cluster.api.post(T_SCHEMAS, body, kind)
        assert answer.status == 503, answer
        assert answer.json()["code"] == "schema-check-unavailable"
        assert answer.json()["retryable"]
    await client.publish("plain", {"n": 1})
    await client.publish("free", {"n": 1})
    for registry, engine in engines.items():
        registry._engine = engine
    assert (await client.publish("t", b'"aaa"')).offset == 0
    with pytest.raises(ApiError, match="does not match"):
        await client.publish("t", b'"b"')


SCHEMA_SECOND = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_the_schema_of_a_topic_holds_at_each_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
            await client.register_schema("s", SCHEMA_SECOND)
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
        await broker.topics.create(TOPIC_SECOND, TopicSettings(partitions=1))
        await broker.topics.create_subscription(TOPIC_SECOND, "s", SubscriptionSettings())
        line = await Client.connect(await protocol.start())
        here = f"{TOPIC_SECOND} 0"
        assert await line.ask(f"SUB {here} s") == "OK"
        assert (await line.ask(f"PUB {here} {'x' * 1001}")).startswith("ERR message-too-long ")
        assert await line.ask(f"PUB {here} hello") == "OK 0"
        word, ack_id, text = (await line.ask(f"RECV {here} s c")).split(" ", 2)
        assert (word, text) == ("MSG", "hello")
        assert await line.ask(f"ACK {here} s {ack_id}") == "OK 1"
        assert await line.ask(f"JOIN public/g m {TOPIC_SECOND}") == f"HAS 1 {TOPIC_SECOND}/0"
        assert (await line.ask(f"JOIN public/g n {TOPIC_SECOND}")).startswith("ERR group-full ")
        assert await line.ask("LEAVE public/g m") == "OK"
        assert (await line.ask("JOIN public/g n public/none")).startswith("ERR topic-not-found ")
        await line.close()
        await protocol.close()
