"""Random bodies and requests: only declared refusals may come back."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.broker.errors import BrokerError
from octavo.broker.http.api.payloads import (
    decode_message,
    decode_messages,
    encode,
    message_out,
    record_of,
)
from octavo.broker.http.api.read import position_of
from octavo.broker.http.call import parse_duration_ms, parse_time_ms
from octavo.broker.http.problems import Problem
from octavo.broker.types import MessageId
from octavo.protocol.records import Record, build_batch
from tests.support.memory_cluster import Running

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["key", "value", "value_base64", "key_base64", "headers", "timestamp", "messages", "x"]
    ),
    JSON,
    max_size=4,
)


@pytest.mark.long
@given(st.binary(max_size=200) | FIELDS.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=2000, deadline=None)
@example(b'{"messages":')
@example(b'{"value":"\\ud800"}')
@example(b'{"value":1,"timestamp":1e400}')
@example(b'{"value":1,"timestamp":"9999-12-31T23:59:59.999999-14:00"}')
@example(b'{"value":1,"timestamp":99999999999999999999999}')
def test_bodies_give_messages_or_a_problem(body: bytes) -> None:
    for decode in (decode_messages, lambda text: [decode_message(text)]):
        problem: Problem | None = None
        try:
            build_batch([record_of(message, 0) for message in decode(body)])
        except Problem as raised:
            problem = raised
        assert problem is None or problem.status in (400, 422)


@pytest.mark.long
@given(
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=100) | JSON.map(lambda v: json.dumps(v).encode()),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=4),
)
@settings(max_examples=1000, deadline=None)
@example(None, b"\t0", [])
def test_what_is_shown_can_be_published_again(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """Publishing a read message again stores the same key and an equal value."""
    shown = message_out(3, 5, MessageId(1, 2, 0), Record(key, value, headers, 7))
    text = encode(shown)
    assert b"\n" not in text
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    again = {k: fields[k] for k in fields if k not in ("partition", "offset", "id")}
    record = record_of(decode_message(encode(again)), 0)
    assert record.key == key
    assert sorted(name for name, _ in record.headers) == sorted(name for name, _ in headers)
    # Blanks around a JSON value belong to the surrounding text, not to the value.
    assert plain(encode(message_out(3, 5, MessageId(1, 2, 0), record))) == plain(text)


def plain(text: bytes) -> bytes:
    """Return JSON without blanks; numbers and strings as written."""
    return msgspec.json.format(text, indent=-1)


@pytest.mark.long
@given(st.text(max_size=40))
@settings(max_examples=2000, deadline=None)
@example("10000-01-01T00:00:00Z")
@example("0001-01-01T00:00:00+23:59")
def test_places_and_times(text: str) -> None:
    with suppress(BrokerError):
        position_of(text)
    found = parse_duration_ms(text)
    assert found is None or found >= 0
    parse_time_ms(text)


async def test_random_requests_never_are_a_5xx(one: Running) -> None:
    rng = random.Random(20261121)
    await one.api.put("/v1/topics/public/t", json={"partitions": 2})
    parts = [
        "v1", "topics", "public", "t", "messages", "partitions", "0", "7", "subscriptions", "s",
        "receive", "ack", "seek", "offsets", "ledgers", "%2F", "..", "%ff", "", "namespaces",
        "x" * 300, "brokers", "openapi.json",
    ]  # fmt: skip
    kinds = ["", "application/json", "application/x-ndjson", "text/plain", "multipart/form-data",
             "application/vnd.kafka.recordbatch.v2", "a/b;c", "é"]  # fmt: skip
    queries = ["", "?from=1", "?from=%00", "?wait=1ms", "?max=0", "?x", "?&&", "?limit=1e9", "?=%"]
    bodies = [
        b"",
        b"{}",
        b"[",
        b'{"value":1}',
        b"\x00\xff",
        b'{"to":"earliest"}',
        b'{"ack_ids":[1]}',
    ]
    headers = ["Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match", "Accept", "Prefer",
               "Octavo-Key", "Octavo-Timestamp", "Octavo-Forwarded-By"]  # fmt: skip
    for number in range(1500):
        path = "/" + "/".join(rng.choice(parts) for _ in range(rng.randint(0, 8)))
        if number % 2:
            path = "/v1/topics/public/t/" + rng.choice(
                ["messages", "partitions/0/messages", "offsets", "subscriptions/s",
                 "subscriptions/s/receive", "subscriptions/s/ack", "subscriptions/s/seek", ""]
            )  # fmt: skip
        answer = await one.api.call(
            rng.choice(["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"])
            if rng.random() < 0.5
            else "POST",
            path + rng.choice(queries),
            data=rng.choice(bodies),
            headers={
                "Content-Type": rng.choice(kinds),
                rng.choice(headers): rng.choice(["", "1", "x", "-1", '"0"', "redirect", "é"]),
            },
        )
        assert answer.status < 500 or b"not-owner" in answer.body, (path, answer)
        if answer.status >= 400 and answer.body:
            assert answer.headers["Content-Type"] == "application/problem+json"
        await one.api.put("/v1/topics/public/t", json={"partitions": 2})
