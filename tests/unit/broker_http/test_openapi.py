"""The OpenAPI document is valid, has every route, and its examples work when sent."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from octavo.broker.errors import PartitionUnavailable
from octavo.broker.http.routes import ROUTES
from tests.support.memory_cluster import Running

SWITCHES = "operations"
"""The call that turns a connection between brokers into one of frames."""
METHODS = {"get", "put", "post", "patch", "delete"}


async def fetch(one: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await one.api.get("/openapi.json")).json()
    return found


async def test_every_route_is_in_it_and_nothing_else(one: Running) -> None:
    document = await fetch(one)
    assert document["openapi"].startswith("3.1")
    written = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert written == {(route.method, route.path) for route in ROUTES}


async def test_its_structure(one: Running) -> None:
    document = await fetch(one)
    names = set()
    for path, item in document["paths"].items():
        assert set(item) <= METHODS
        for operation in item.values():
            assert operation["operationId"] not in names
            names.add(operation["operationId"])
            assert operation["summary"]
            assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}
            in_path = {p["name"] for p in operation["parameters"]} if "{" in path else set()
            assert set(re.findall(r"{(\w+)}", path)) <= in_path
            for parameter in operation.get("parameters", []):
                assert parameter["in"] in ("path", "query", "header")
                assert parameter["schema"]
                assert parameter["required"] or parameter["in"] != "path"
            good = "1" if operation["operationId"] == SWITCHES else "2"
            assert any(status.startswith(good) for status in operation["responses"])
            for response in operation["responses"].values():
                assert response["description"]


async def test_every_reference_leads_somewhere(one: Running) -> None:
    document = await fetch(one)
    text = json.dumps(document)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(document["components"]["schemas"]) - {"Any"} | (names & {"Any"})


@pytest.mark.long
async def test_the_official_schema_of_openapi_accepts_it(one: Running) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(await fetch(one))


def fits(document: dict[str, Any], described: dict[str, Any], answer: Any) -> None:
    """Check that an answer matches its description."""
    schema = described.get("content", {}).get("application/json", {}).get("schema")
    if schema is not None and answer.body:
        whole = {**schema, "components": document["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(answer.json())


async def test_answers_are_as_described(two: Running) -> None:
    """Answers with members that the examples lack: of several partitions, partial, refused."""
    document = await fetch(two)
    operations = {
        operation["operationId"]: operation
        for item in document["paths"].values()
        for operation in item.values()
    }
    api, topic = two.api, "/v1/topics/public/four"
    await api.put(topic, json={"partitions": 4})
    await api.put(topic + "/subscriptions/s")
    many = {"messages": [{"key": f"k{n}", "value": n} for n in range(40)]}
    calls = [
        ("publish", await api.call("POST", topic + "/messages?results=all", json=many)),
        ("get_topic", await api.get(topic)),
        ("offsets", await api.get(topic + "/offsets?at=latest")),
        ("receive", await api.call("POST", topic + "/subscriptions/s/receive?max=5")),
        ("get_subscription", await api.get(topic + "/subscriptions/s")),
        ("get_partition", await api.get(topic + "/partitions/1")),
    ]
    for name, answer in calls:
        assert answer.status == 200, (name, answer)
        fits(document, operations[name]["responses"]["200"], answer)

    def refuse() -> None:
        raise PartitionUnavailable("1 bookie is up, 2 are needed")

    await two.before_publish("four", refuse, 1)
    answer = await api.call("POST", topic + "/messages?results=all", json=many)
    assert answer.status == 207, answer
    assert answer.json()["errors"][0]["partition"] == 1
    fits(document, operations["publish"]["responses"]["207"], answer)


async def test_every_example_works(one: Running) -> None:
    """Calls in the order of the table's dependencies; each example as the document has it."""
    document = await fetch(one)
    operations = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    first = ["put_namespace", "put_topic", "publish", "publish_of_partition", "put_subscription"]
    last = ["delete_schema_subject", "delete_subscription", "delete_topic", "delete_namespace"]
    needs_ledgers = {"list_ledgers", "get_ledger", "get_entry", "recover_ledger"}
    elsewhere = {"delete_namespace": "/v1/namespaces/lab", "put_namespace": "/v1/namespaces/lab"}
    endless = {"stream", "stream_of_partition", "put_policy"}  # or of secured clusters only
    endless |= {"drain_broker", SWITCHES}  # or of two brokers
    middle = [name for name in operations if name not in {*first, *last, *needs_ledgers, *endless}]
    asked = 0
    for name in (*first, *middle, *last):
        method, path, operation = operations[name]
        query = []
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
            elif parameter["in"] == "query" and "example" in parameter:
                query.append(f"{parameter['name']}={parameter['example']}")
        path = elsewhere.get(name, path)
        if name in ("read", "read_body"):  # it has four partitions
            path = path.replace("/messages", "/partitions/0/messages")
        if name.startswith("read_body"):
            path = path.replace("/42/", "/0/")  # the topic has fewer messages
        target = path + ("?" + "&".join(query) if query else "")
        contents = operation.get("requestBody", {}).get("content", {}) or {"": {}}
        for kind, content in contents.items():
            if kind and "example" not in content:
                continue
            body = content.get("example")
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            headers = {"Content-Type": kind} if kind else {}
            answer = await one.api.call(
                method, target, data=data if kind else None, headers=headers
            )
            assert answer.status < 300, (name, answer)
            assert str(answer.status) in operation["responses"], (name, answer)
            fits(document, operation["responses"][str(answer.status)], answer)
            asked += 1
    assert asked >= len(ROUTES) - len(needs_ledgers) - len(endless)
