"""Schemas by subject over real brokers: registered, compared, checked at publish."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from octavo.broker.cluster import schema_registry
from octavo.broker.errors import SchemaCheckUnavailable
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, Conflict, NotFound
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, running_cluster
from tests.support.schemas import fanned_out

BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
T = "/v1/topics/public/t/messages"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
WIDER = {**SCHEMA, "properties": {"n": {"type": "integer"}, "m": {"type": "string"}}}
AVRO = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


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
            answer = await api.post(T, body, kind)
            assert answer.status == 422, answer
            found = answer.json()
            assert found["code"] == "schema-mismatch", answer
            assert found["message_in_batch"] == index, answer
            assert "version 1" in found["detail"]
        assert (await api.post(T, b'{"n": 5}', "text/plain")).status == 200
        assert (await api.post(T, b'{"value": {"n": 6}}\n{"value": null}\n', NDJSON)).status == 200
        assert (await api.post(T, batch(b'{"n": 7}', None), BATCH)).status == 200
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
        answer = await cluster.api.post(T, body, kind)
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
