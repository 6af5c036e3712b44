"""What was published comes back byte for byte, on every way in and on every way out.

Answers in JSON spliced a stored value in as it was, or showed it as a string: so `null` came back
as no value (a tombstone that nobody wrote), `"hello"` was the same as `hello`, `1` and a line end
lost the line end, and a reader that parsed and wrote again changed numbers, escapes, names that
repeat and white space. The client read subscriptions this way; `octavo consume --json` and
`octavo publish --envelope` parsed and wrote anew.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from octavo.broker.http.api.payloads import decode_message, encode, message_out, record_of
from octavo.broker.types import MessageId
from octavo.cli.consume import _Printer
from octavo.cli.publish import _Reading
from octavo.client.client import AsyncClient
from octavo.client.encoding import BatchEncoding, Identity, NdjsonEncoding
from octavo.client.types import Delivery, Message, decode_deliveries
from octavo.protocol.json_message import show_value
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.fake_broker import Running, running

ONE = "/v1/topics/public/one"
BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"

CHANGED = [
    b"null", b"", b" null", b'"hello"', b"hello", b"1\n", b'{"a": 1}\n', b'{"a": 1}', b'{"a":1}',
    b"12345678901234567890123", b"9007199254740993", b'{"n":9007199254740993}', b"1.0", b"1.50",
    b"1e5", b"1E400", b"-0", b"-0.0", b"0.00001", b"1234567890.123456", b'{"a":1,"a":2}',
    b'"\\u00e9"', b'"\\/"', b'"\\u001F"', b'"\\ud800"', b'"\\ud83d\\ude00"', b"\xef\xbb\xbf{}",
    b"\xef\xbb\xbf1", b"[1,\n 2]", b"[1,\r2]", b"\t1 ", b"true", b"nul", b"NaN", b"\xff\xfe", b"\0",
    b"[" * 101 + b"]" * 101, b"[" * 5000 + b"]" * 5000, b'{"b":1,"a":2}', b'{"2":1,"1":2}',
    '"\u2028\x7f"'.encode(), b"\xed\xa0\x80", b'"\xed\xa0\x80"', None,
]  # fmt: skip

_json_texts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
).flatmap(
    lambda value: st.sampled_from(
        [
            json.dumps(value).encode(),
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"),
            json.dumps(value, separators=(",", ":")).encode(),
            json.dumps(value, indent=1).encode() + b"\n",
            b" " + json.dumps(value).encode().replace(b"e+", b"E"),
        ]
    )
)
VALUES = (
    st.none() | st.binary() | st.sampled_from(CHANGED) | _json_texts | st.text().map(str.encode)
)
PARTS = st.none() | st.binary() | st.text().map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=2), PARTS), max_size=4)
RECORDS = st.tuples(PARTS, VALUES, HEADERS).map(lambda parts: Record(*parts))
quick = settings(max_examples=300)


def by_rule(shown: dict[str, Any]) -> bytes | None:
    """The rule of docs/http.md, with Python's own JSON: a reader that keeps no text."""
    if "value_base64" in shown:
        return base64.b64decode(shown["value_base64"])
    if "value_text" in shown:
        return str(shown["value_text"]).encode()
    if shown["value"] is None:
        return None
    return json.dumps(shown["value"], separators=(",", ":"), ensure_ascii=False).encode()


def headers_of(shown: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    found = shown.get("headers", [])
    pairs = found if isinstance(found, list) else found.items()
    return [
        (name, base64.b64decode(value["base64"]) if isinstance(value, dict) else encoded(value))
        for name, values in pairs
        for value in (values if isinstance(values, list) else [values])
    ]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def key_of(shown: dict[str, Any]) -> bytes | None:
    return base64.b64decode(shown["key_base64"]) if "key_base64" in shown else encoded(shown["key"])


def as_it_was(shown: dict[str, Any]) -> tuple[Any, ...]:
    return key_of(shown), by_rule(shown), headers_of(shown)


@given(RECORDS)
@quick
def test_an_answer_in_json_tells_each_byte(record: Record) -> None:
    line = encode(message_out(0, 7, MessageId(1, 2, 3), record))
    assert b"\n" not in line
    assert b"\r" not in line
    assert as_it_was(json.loads(line)) == (record.key, record.value, list(record.headers))


@given(RECORDS)
@quick
def test_the_client_reads_it_as_it_was(record: Record) -> None:
    out = message_out(0, 7, MessageId(1, 2, 3), record)
    out.ack_id = "x"
    (found,), _ = decode_deliveries({}, encode({"messages": [out]}))
    assert (found.key, found.value, list(found.headers)) == (
        record.key, record.value, list(record.headers),
    )  # fmt: skip


@given(RECORDS)
@quick
def test_what_the_client_publishes_is_stored_so(record: Record) -> None:
    who = Identity(1, 0, 0)
    expected = [record.key, record.value, list(record.headers)]
    for encoding in (NdjsonEncoding(), BatchEncoding()):
        item, size = encoding.item(record.key, record.value, list(record.headers), 5)
        data = encoding.body([item], who).data
        if isinstance(encoding, NdjsonEncoding):
            stored = record_of(decode_message(data), 5)
            assert size == len(data)
        else:
            (stored,) = read_records(data)
        assert [stored.key, stored.value, list(stored.headers)] == expected


@given(RECORDS)
@quick
def test_what_the_command_prints_it_publishes_again(record: Record) -> None:
    printed: list[bytes] = []
    message = Message(0, 7, "", record.key, record.value, tuple(record.headers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.cli.consume.emit_raw", printed.append)
        _Printer(None, raw=False, as_json=True).show(message)
        _Printer(None, raw=True, as_json=False).show(message)
    line, raw = printed
    assert as_it_was(json.loads(line)) == (record.key, record.value, list(record.headers))
    assert raw == (record.value or b"")
    again = _Reading(None, None, False, True).line(line, "line 1")
    assert [again.key, again.value, list(again.headers)] == [
        record.key, record.value, list(record.headers),
    ]  # fmt: skip


@given(_json_texts)
@example(b'{"a": 1.50, "a": [12345678901234567890]}')
@quick
def test_a_value_written_in_json_is_stored_as_it_was_written(text: bytes) -> None:
    try:
        message = decode_message(b'{"value":' + text.replace(b"\n", b" ") + b"}")
    except Exception:
        assert b"\\ud" in text or b"\xed" in text  # half a surrogate pair is no text
        return
    written = text.replace(b"\n", b" ").strip()
    assert record_of(message, 5).value == (None if written == b"null" else written)


@pytest.mark.parametrize("value", CHANGED)
def test_json_stays_json_for_who_looks(value: bytes | None) -> None:
    """A `value` is there for whatever Python reads as JSON to the same end."""
    shown = show_value(value)
    if isinstance(shown.value, msgspec.Raw):
        assert value is not None
        assert json.loads(bytes(shown.value)) == json.loads(value)


# ---- over real HTTP, all ways at once


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running(1) as found:
        yield found


def _in_json(record: Record) -> tuple[bytes, str]:
    out = message_out(0, 0, MessageId(0, 0, 0), record)
    found = json.loads(encode(out))
    if "value_text" in found:
        found.pop("value", None)
    wanted = ("key", "key_base64", "value", "value_text", "value_base64", "headers")
    members = [
        f'"{name}": {json.dumps(found[name], ensure_ascii=False, separators=(",", ":"))}'
        for name in wanted
        if name in found
    ]
    return ("{" + ", ".join(members) + "}").encode(), "application/json"


WAYS_IN: list[Callable[[Record], tuple[bytes, str]]] = [
    _in_json,
    lambda record: (_in_json(record)[0] + b"\n", NDJSON),
    lambda record: (build_batch([record]), BATCH),
]


@given(st.lists(RECORDS, min_size=1, max_size=8), st.integers(0, 2**32))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_way_in_to_every_way_out(records: list[Record], seed: int) -> None:
    asyncio.run(_every_way(records, random.Random(seed)))


async def _every_way(records: list[Record], rng: random.Random) -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(ONE)
        for record in records:
            way = rng.randrange(5)
            if way < 3:
                body, kind = WAYS_IN[way](record)
                answer = await one.api.post(ONE + "/messages", body, kind)
                assert answer.status == 200, answer
            else:
                producer = await client.producer("one", encoding=("batch", "ndjson")[way - 3])
                await (await producer.send(record.value, key=record.key, headers=record.headers))
                await producer.close()
        expected = [(one.key, one.value, list(one.headers)) for one in records]
        found = (await one.api.get(ONE + "/messages")).json()["messages"]
        assert [as_it_was(message) for message in found] == expected
        lines = (await one.api.get(ONE + "/messages", headers={"Accept": NDJSON})).body
        assert [as_it_was(json.loads(line)) for line in lines.splitlines()] == expected
        read: list[Message] = await client.read("one")
        assert [(m.key, m.value, list(m.headers)) for m in read] == expected
        received: list[Delivery] = await (await client.subscribe("one", "s")).receive(100)
        assert [(m.key, m.value, list(m.headers)) for m in received] == expected


async def test_a_body_is_a_message_as_it_is(one: Running) -> None:
    await one.api.put(ONE)
    bodies = [body for body in CHANGED if body is not None]
    for body in bodies:
        assert (await one.api.post(ONE + "/messages", body, "text/plain")).status == 200
    found = (await one.api.get(ONE + "/messages")).json()["messages"]
    assert [by_rule(message) for message in found] == bodies
