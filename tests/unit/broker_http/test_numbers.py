"""A number in a header, a path or a query has one spelling; every other is refused by its name.

`Producer-Id: 7` and `007` were one producer, so the second one's message was a "duplicate" and was
not stored. The tables below name every parameter of every call, so a new one needs an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from octavo.broker.http.call import JSON
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from tests.support.memory_cluster import Running

ONE = "/v1/topics/public/one"
WAIT = aiohttp.ClientTimeout(total=20)
"""A call that takes a wrong number may wait for ever."""

WRONG = ["+7", "007", "1_000", "1e3", "0x7", "nan", "inf", "٧", "７", "²", "7.", "--7", "-0", "7 "]
r"""Texts that `int`, `float` or a pattern with `\d` take for a number, or nearly do."""

NUMBERS = {
    ("path", "partition"), ("path", "batch"), ("path", "ledger"), ("path", "entry"),
    ("query", "limit"), ("query", "max_bytes"), ("query", "max"), ("query", "credits"),
    ("query", "generation"), ("query", "priority"), ("query", "partition"), ("query", "epoch"),
    ("query", "after"),
    ("header", "Producer-Epoch"), ("header", "Producer-Seq"), ("header", "Producer-Access-Epoch"),
    ("header", "If-Match"), ("header", "Last-Event-ID"), ("header", "Stream-TTL"),
    ("header", "Stream-Fork-Sub-Offset"),
}  # fmt: skip
PLACES = {
    ("path", "message"), ("query", "from"), ("query", "before"), ("query", "at"),
    ("query", "offset"), ("header", "Stream-Fork-Offset"),
}  # fmt: skip
"""An offset, or a message id, or a time."""
TIMES = {("header", "Octavo-Timestamp"), ("header", "Octavo-Deliver-At")}
SPANS = {
    ("query", "wait"), ("header", "Octavo-Deliver-After"),
}  # fmt: skip
"""A number of seconds, optionally with a fraction and a unit."""
NO_NUMBERS = {
    ("path", "namespace"), ("path", "topic"), ("path", "subscription"), ("path", "group"),
    ("path", "member"), ("path", "schema_subject"), ("path", "version"), ("path", "bulk_load"),
    ("path", "broker"), ("path", "subject"), ("path", "user"),
    ("query", "results"), ("query", "compacted"), ("query", "follow"), ("query", "live"),
    ("query", "cursor"), ("query", "auto"), ("query", "force"),
    ("query", "subscription"), ("query", "to"), ("query", "consumer"),
    ("query", "request"), ("query", "form"), ("query", "letters"),
    ("header", "Octavo-Key"), ("header", "Producer-Id"), ("header", "Prefer"),
    ("header", "Octavo-Upload"), ("header", "Stream-Expires-At"), ("header", "Stream-Closed"),
    ("header", "Stream-Forked-From"), ("header", "Stream-Seq"), ("header", "If-None-Match"),
    ("header", "Bulk-Load-Token"), ("header", "Bulk-Load-Cluster"), ("header", "Octavo-Entries"),
}  # fmt: skip
TEXTS_ELSEWHERE = {("list_topics", "after"), ("put_policy", "If-Match")}
"""A name and an ETag, though other calls have a number of that name."""


def test_every_parameter_has_its_kind() -> None:
    known = NUMBERS | PLACES | TIMES | SPANS | NO_NUMBERS
    used = {(one.place, one.name) for route in ROUTES for one in route.parameters}
    assert used == known


def wrong_calls() -> Iterator[tuple[Route, str, str]]:
    for route in ROUTES:
        for one in route.parameters:
            kind = (one.place, one.name)
            if kind in NUMBERS | PLACES | TIMES | SPANS and (
                (route.name, one.name) not in TEXTS_ELSEWHERE
            ):
                yield route, one.place, one.name


EXAMPLES = {
    "namespace": "public", "topic": "one", "partition": "0", "subscription": "s", "batch": "0",
    "bulk_load": "b", "ledger": "1", "entry": "0", "message": "0", "subject": "user:a",
    "group": "g", "member": "m",
}  # fmt: skip
BESIDE = {
    "Producer-Epoch": {"Producer-Id": "p", "Producer-Seq": "0"},
    "Producer-Seq": {"Producer-Id": "p", "Producer-Epoch": "0"},
    "Last-Event-ID": {"Accept": "text/event-stream"},
    "Stream-Fork-Sub-Offset": {"Stream-Forked-From": "/v1/durable-streams/public/one"},
    "Stream-Fork-Offset": {"Stream-Forked-From": "/v1/durable-streams/public/one"},
}
"""Further parameters that a call needs, so that only the number is wrong."""
QUERY_BESIDE = {
    ("truncate_of_partition", "partition"): "before=latest",
    ("release_access", "partition"): "epoch=1",
}
OF_ONE_PARTITION = {("receive", "generation"), ("stream", "generation")}
"""They are valid only where the path names a partition; other calls are refused for that."""


def request_of(route: Route, place: str, name: str, text: str) -> tuple[str, bytes, dict[str, str]]:
    path = route.path
    for variable, example in EXAMPLES.items():
        given = quote(text) if (place, name) == ("path", variable) else example
        path = path.replace(f"{{{variable}}}", given)
    headers = dict(BESIDE.get(name, {}))
    query = [QUERY_BESIDE.get((route.name, name), "")]
    if place == "query":
        query.append(f"{name}={quote(text)}")
    if name == "Last-Event-ID":
        query.append("follow=true")
    if place == "header":
        headers[name] = text
    body = b"1"
    for content in () if name.startswith("Octavo-") else route.body:  # for raw messages
        if content.media_type == JSON and content.example is not None:
            headers["Content-Type"], body = JSON, json.dumps(content.example).encode()
    asked = "&".join(filter(None, query))
    return path + (f"?{asked}" if asked else ""), body, headers


@pytest.mark.parametrize(
    ("route", "place", "name"),
    [pytest.param(*one, id=f"{one[0].name}-{one[2]}") for one in wrong_calls()],
)
async def test_a_number_has_one_spelling(one: Running, route: Route, place: str, name: str) -> None:
    await one.api.put(ONE)
    await one.api.put(ONE + "/subscriptions/s")
    for text in WRONG:
        if place == "header" and text != text.strip():
            continue  # HTTP itself strips spaces around a header's value
        target, body, headers = request_of(route, place, name, text)
        answer = await one.api.call(route.method, target, data=body, headers=headers, timeout=WAIT)
        assert answer.status in (400, 422), (text, answer)
        problem = answer.json()
        said = "partition-required" if (route.name, name) in OF_ONE_PARTITION else name
        said = "in the path" if name == "message" else said
        assert said in problem["detail"] + problem["code"], (text, problem)


@pytest.mark.parametrize("name", ["Producer-Id"])
async def test_each_spelling_of_a_producer_is_a_producer_of_its_own(
    one: Running, name: str
) -> None:
    await one.api.put(ONE)
    spellings = ["7", *(text for text in WRONG if text == text.strip())]
    for text in spellings:
        headers = {name: text, "Producer-Epoch": "0", "Producer-Seq": "0"}
        answer = await one.api.post(ONE + "/messages", text.encode(), headers=headers)
        assert answer.status == 200, (text, answer)
    found = (await one.api.get(ONE + "/messages?limit=100")).json()["messages"]
    assert len(found) == len(spellings)


@pytest.mark.parametrize(
    "body",
    [
        {"ack_ids": ["0-{0}-1-1"]},
        {"ack_ids": ["0-0:{0}-1-1"]},
        {"ack_ids": ["{0}-0-1-1"]},
        {"ack_ids": ["0-0-{0}-1"]},
        {"ack_ids": ["0-0-1-{0}"]},
        {"nack": ["0-{0}-1-1"]},
        {"up_to": "{0}"},
        {"up_to": "1:{0}:0"},
    ],
)
async def test_ack_ids_have_one_spelling(one: Running, body: dict[str, Any]) -> None:
    await one.api.put(ONE)
    await one.api.put(ONE + "/subscriptions/s", json={"type": "exclusive"})
    for text in WRONG:
        sent = {
            key: [value.format(text) for value in found]
            if isinstance(found, list)
            else found.format(text)
            for key, found in body.items()
        }
        answer = await one.api.post(ONE + "/subscriptions/s/ack", json=sent)
        assert answer.status in (400, 422), (sent, answer)


@pytest.mark.parametrize(
    "settings",
    [{"retention": {"time": "{0}s"}}, {"retention": {"size": "{0}MB"}}, {"ttl": "{0}d"}],
)
async def test_times_and_sizes_of_settings_have_plain_digits(
    one: Running, settings: dict[str, Any]
) -> None:
    for text in WRONG[:-1]:
        sent = json.loads(json.dumps(settings).replace("{0}", text))
        answer = await one.api.put("/v1/topics/public/set", json=sent)
        assert answer.status == 422, (sent, answer)
