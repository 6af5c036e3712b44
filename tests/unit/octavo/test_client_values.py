"""The client's values, names and token."""

from __future__ import annotations

import ast
import asyncio
import base64
import dataclasses
import inspect
import json
import random
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import octavo
from octavo.broker.http.api.payloads import decode_message, encode, message_out, record_of
from octavo.broker.types import MessageId
from octavo.cli.consume import _Printer
from octavo.cli.publish import _Reading
from octavo.client import errors, types
from octavo.client.client import AsyncClient
from octavo.client.encoding import BatchEncoding, Identity, NdjsonEncoding
from octavo.client.errors import InvalidCall, MessageTooLong
from octavo.client.producer import ProducerOptions
from octavo.client.settings import ProducerSettings
from octavo.client.sync import Client
from octavo.client.trust import proof_of
from octavo.client.types import Delivery, Message, TopicName, decode_deliveries, to_bytes
from octavo.credentials import TOKEN, TOKEN_FILE, TokenUnusable, bearer
from octavo.protocol.json_message import show_value
from octavo.protocol.limits import (
    JSON_HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    RECORD_HEADERS_MAX,
    TIMESTAMP_MS_MAX,
)
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.kit.examples import examples
from tests.support.memory_cluster import Running, running


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"value": {"a" :1.50}', b'{"a" :1.50}'),
        ('"value": "text \\u00e9"', b'"text \\u00e9"'),
        ('"value_text": "text \\u00e9"', "text é".encode()),
        ('"value": 1.5, "value_text": "1.50"', b"1.50"),
        ('"value": 12345678901234567890', b"12345678901234567890"),
        ('"value": null', None),
        ('"value_base64": "//4="', b"\xff\xfe"),
        ('"key": "k"', None),
    ],
)
def test_values(written: str, value: bytes | None) -> None:
    body = (
        '{"messages": [{"partition": 1, "offset": 2, "id": "3:4:5", "timestamp": 6, '
        f'"ack_id": "x", "delivery_count": 2, {written}}}]}}'
    )
    (found,), _ = decode_deliveries({}, body.encode())
    assert found.value == value
    assert (found.partition, found.offset, found.id, found.timestamp_ms) == (1, 2, "3:4:5", 6)
    assert (found.ack_id, found.delivery_count) == ("x", 2)


def test_keys_and_headers() -> None:
    body = (
        b'{"messages": [{"partition": 0, "offset": 0, "id": "", "ack_id": "", "key_base64": "/w==",'
        b' "value": 1, "headers": {"a": ["1", null], "b": {"base64": "/w=="}}}]}'
    )
    (found,), _ = decode_deliveries({}, body)
    assert found.key == b"\xff"
    assert found.headers == (("a", b"1"), ("a", None), ("b", b"\xff"))
    assert found.json() == 1


def test_values_in() -> None:
    assert to_bytes(b"x") == b"x"
    assert to_bytes("é") == "é".encode()
    assert to_bytes({"a": [1, None]}) == b'{"a":[1,null]}'
    assert to_bytes(None) is None
    assert TopicName.of("a/b") == ("a", "b")
    assert TopicName.of("b") == ("public", "b")


def test_a_client_that_is_closed_says_so() -> None:
    client = Client("http://127.0.0.1:9")
    client.close()
    client.close()
    with pytest.raises(InvalidCall, match="is closed: make a new one"):
        client.topics()


def test_a_child_of_fork_has_no_part_of_a_client() -> None:
    """It would wait for ever for a thread that does not exist there."""
    program = """
import os, sys
from octavo import Client, InvalidCall
client = Client("http://127.0.0.1:9", retry_s=0)
child = os.fork()
if child == 0:
    try:
        client.topics()
    except InvalidCall as error:
        print(error, flush=True)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
client.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "does not exist in the forked process" in run.stdout


# A message over the limit failed all messages that were batched with it or after it. The client's
# limit is the broker's, in every encoding.

ONE = "/v1/topics/public/one"
TOO_LONG = bytes(MESSAGE_BYTES_MAX + 1)
LONGEST = bytes(MESSAGE_BYTES_MAX)


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_it_is_refused_at_once_and_alone(encoding: Literal["batch", "ndjson"]) -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(ONE)
        producer = await client.producer("one", encoding=encoding)
        receipts = [await producer.send(b"before")]
        with pytest.raises(MessageTooLong, match="4194304 bytes"):
            await producer.send(TOO_LONG)
        with pytest.raises(MessageTooLong):
            await producer.send(b"", headers={"h": TOO_LONG})
        receipts.append(await producer.send(LONGEST))
        receipts.append(await producer.send(b"behind"))
        assert [(await receipt).offset for receipt in receipts] == [0, 1, 2]
        if encoding == "ndjson":  # control characters in a key take six bytes each
            with pytest.raises(MessageTooLong, match="JSON"):
                await producer.send(b"", key="\1" * 2**20)
        await producer.close()


async def test_who_waits_for_no_answer_hears_of_it_too() -> None:
    async with running(1) as one:
        await one.api.put(ONE)

        def run() -> None:
            with Client(one.api.url) as client:
                producer = client.producer("one")
                producer.send(b"before")
                with pytest.raises(MessageTooLong):
                    producer.send(TOO_LONG)
                behind = producer.send(b"behind")
                producer.flush()
                assert behind.result().offset == 1
                producer.close()

        await asyncio.to_thread(run)


async def test_brokers_have_the_same_limit_for_every_form() -> None:
    async with running(1) as one:
        await one.api.put(ONE)
        for body, kind in (
            (TOO_LONG, "text/plain"),
            (b'{"messages":[{"value":1},{"value":"' + TOO_LONG.replace(b"\0", b"x") + b'"}]}',
             "application/json"),
        ):  # fmt: skip
            answer = await one.api.post(ONE + "/messages", body, kind)
            assert answer.status == 413, answer
            assert answer.json()["bytes_max"] == MESSAGE_BYTES_MAX
            assert answer.json().get("stored", {"count": 0}) == {"count": 0}
        assert (await one.api.get(ONE + "/messages")).status == 204
        assert (await one.api.post(ONE + "/messages", LONGEST, "text/plain")).status == 200


async def test_a_batch_must_fit_an_entry() -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(ONE)
        with pytest.raises(InvalidCall, match="batch_bytes"):
            await client.producer("one", batch_bytes=4 * 2**20)


# One message with a bad key, time or header made others in its batch fail, or stay unsent though
# `flush` succeeded.

Encoding = Literal["batch", "ndjson"]
ENCODINGS: list[Encoding] = ["batch", "ndjson"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_thread() as one:
        yield one


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[Client]:
    with Client(broker.url) as one:
        one.create_topic("t", partitions=2)
        yield one


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "bad",
    [
        {"timestamp_ms": 2**63},
        {"timestamp_ms": TIMESTAMP_MS_MAX + 1},
        {"timestamp_ms": -2},
        {"timestamp_ms": "5"},
        {"timestamp_ms": 5.5},
        {"deliver_at_ms": "tomorrow"},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 2**80},
        {"headers": {"\ud800": b"1"}},
        {"headers": {b"a": b"1"}},
        {"headers": [("a", None)] * (RECORD_HEADERS_MAX + 1)},
        {"key": 5},
        {"key": ["k"]},
        {"partition": 0.0},
        {"partition": "0"},
    ],
    ids=lambda one: f"{one!s:.40}",
)
def test_it_is_refused_alone(client: Client, encoding: Encoding, bad: dict[str, Any]) -> None:
    with client.producer("t", encoding=encoding, linger_ms=1) as producer:
        sent = [producer.send("before", key="k")]
        with pytest.raises((InvalidCall, TypeError)):
            producer.send("x", **bad)
        sent += [producer.send("after", key="k") for _ in range(10)]
        offsets = [one.result(10).offset for one in sent]
    assert offsets == [*range(offsets[0], offsets[0] + 11)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_that_has_bytes_is_taken(client: Client, encoding: Encoding, kind: type) -> None:
    where = client.publish("t", "x", key=b"k\xff")
    with client.producer("t", encoding=encoding) as producer:
        receipt = producer.send(kind(b"v\xff"), key=kind(b"k\xff"), headers={"h": kind(b"\xff")})
    found = receipt.result()
    assert found.partition == where.partition
    (message,) = client.read("t", partition=found.partition, start=found.offset)
    assert (message.key, message.value, message.headers) == (b"k\xff", b"v\xff", (("h", b"\xff"),))


def test_lines_have_bounds_of_their_own(client: Client) -> None:
    with client.producer("t", encoding="ndjson") as producer:
        receipt = producer.send("x", headers=[("a", None)] * JSON_HEADERS_MAX)
        with pytest.raises(InvalidCall, match="headers"):
            producer.send("x", headers=[("a", None)] * (JSON_HEADERS_MAX + 1))
        with pytest.raises(InvalidCall, match="1970"):
            producer.send("x", timestamp_ms=-1)
    assert receipt.result().offset >= 0


def test_what_cannot_be_placed_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = client.producer("t")
    take = producer._inner.take

    def failing(item: Any, size: int, key: bytes | None, partition: int | None) -> Any:
        if key == b"bad":
            raise MemoryError
        return take(item, size, key, partition)

    monkeypatch.setattr(producer._inner, "take", failing)
    receipts = [producer.send("x", key=key) for key in ("good", "bad", "good")]
    assert receipts[0].result(10).offset + 1 == receipts[2].result(10).offset
    with pytest.raises(MemoryError):
        receipts[1].result(10)
    with pytest.raises(MemoryError):
        producer.flush()
    producer.close()


# A client took any text that began like a URL, and counted a list of URLs as one.


@pytest.mark.parametrize(
    "url",
    ["http://a:80x", "http://a:99999", "http://a b:8080", "http://:8080", "http://a:8080/?x=1", ""],
)
async def test_it_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidCall, match="for example http"):
        AsyncClient(url)


async def test_several_may_stand_in_one_text() -> None:
    async with AsyncClient("http://a:8080, http://b:8081/") as client:
        assert client.transport._urls == ["http://a:8080", "http://b:8081"]


# Published bytes come back exactly, on every way in and out. JSON answers showed `null` as a
# tombstone and `"hello"` as `hello`; parsing and writing again changed numbers, escapes, repeated
# names and white space.

BYTES_ONE = "/v1/topics/public/one"
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
quick = settings(max_examples=examples(300))


def by_rule(shown: dict[str, Any]) -> bytes | None:
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
    """There is a `value` for everything that Python reads as equal JSON."""
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
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_way_in_to_every_way_out(records: list[Record], seed: int) -> None:
    asyncio.run(_every_way(records, random.Random(seed)))


async def _every_way(records: list[Record], rng: random.Random) -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(BYTES_ONE)
        for record in records:
            way = rng.randrange(5)
            if way < 3:
                body, kind = WAYS_IN[way](record)
                answer = await one.api.post(BYTES_ONE + "/messages", body, kind)
                assert answer.status == 200, answer
            else:
                producer = await client.producer("one", encoding=("batch", "ndjson")[way - 3])
                await (await producer.send(record.value, key=record.key, headers=record.headers))
                await producer.close()
        expected = [(one.key, one.value, list(one.headers)) for one in records]
        found = (await one.api.get(BYTES_ONE + "/messages")).json()["messages"]
        assert [as_it_was(message) for message in found] == expected
        lines = (await one.api.get(BYTES_ONE + "/messages", headers={"Accept": NDJSON})).body
        assert [as_it_was(json.loads(line)) for line in lines.splitlines()] == expected
        read: list[Message] = await client.read("one")
        assert [(m.key, m.value, list(m.headers)) for m in read] == expected
        received: list[Delivery] = await (await client.subscribe("one", "s")).receive(100)
        assert [(m.key, m.value, list(m.headers)) for m in received] == expected


async def test_a_body_is_a_message_as_it_is(one: Running) -> None:
    await one.api.put(BYTES_ONE)
    bodies = [body for body in CHANGED if body is not None]
    for body in bodies:
        assert (await one.api.post(BYTES_ONE + "/messages", body, "text/plain")).status == 200
    found = (await one.api.get(BYTES_ONE + "/messages")).json()["messages"]
    assert [by_rule(message) for message in found] == bodies


# The names of `from octavo import …`: the clients, what they return, and all that they raise.
CLIENT = Path(inspect.getfile(types)).parent


@pytest.mark.parametrize("name", octavo.__all__)
def test_each_name_is_there(name: str) -> None:
    found = getattr(octavo, name)
    assert name in dir(octavo)
    if name != "__version__":
        assert found.__name__ == name


def test_what_the_client_raises_and_returns_is_among_them() -> None:
    raised = {name for name, one in vars(errors).items() if inspect.isclass(one)}
    raised = {name for name in raised if getattr(errors, name).__module__ == errors.__name__}
    assert len(raised) > 10
    assert raised <= set(octavo.__all__)
    assert octavo.Delivery is types.Delivery
    assert octavo.Message is types.Message
    assert issubclass(octavo.Delivery, octavo.Message)
    assert issubclass(octavo.TopicReplaced, octavo.ClientError)


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="'octavo' has no attribute 'Publisher'"):
        octavo.Publisher  # type: ignore[attr-defined]  # noqa: B018


def test_a_bookie_does_not_pay_for_the_http_client() -> None:
    look = "import sys, octavo; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(CLIENT.glob("*.py")), ids=lambda path: path.stem)
def test_no_call_takes_just_any_options(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg:
            assert node.args.kwarg.annotation is not None
            assert "Unpack[" in ast.unparse(node.args.kwarg.annotation), node.name


def test_a_producers_settings_are_its_options() -> None:
    options = typing.get_type_hints(ProducerOptions)
    of_their_own = {"producer_id", "encoding"}  # calls have these as keywords, in other forms
    assert typing.get_type_hints(ProducerSettings) == {
        name: kind for name, kind in options.items() if name not in of_their_own
    }
    assert {field.name for field in dataclasses.fields(ProducerOptions)} == set(options)


def test_both_clients_take_the_same() -> None:
    for name, call in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            ours = list(inspect.signature(call).parameters.values())
            theirs = inspect.signature(getattr(AsyncClient, name)).parameters.values()
            assert ours == list(theirs), name


# The client's token: an argument, the environment, a file; an invalid one is not sent.
@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TOKEN, TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_token")
def test_without_a_token_nothing_is_shown() -> None:
    assert proof_of(None) == bearer() == {}
    assert proof_of("") == {}


@pytest.mark.usefixtures("no_token")
def test_what_is_given_counts_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("of-the-file\n")
    monkeypatch.setenv(TOKEN_FILE, str(path))
    assert proof_of(None) == {"Authorization": "Bearer of-the-file"}
    path.write_text("another\n")
    assert bearer() == {"Authorization": "Bearer another"}, "read each time"
    monkeypatch.setenv(TOKEN, "of-the-environment")
    assert proof_of(None) == {"Authorization": "Bearer of-the-environment"}
    assert proof_of("mine") == {"Authorization": "Bearer mine"}
    assert proof_of("") == {}


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("token", ["two words", "line\nbreak", "Bearer abc", "tökén", "a\x00b"])
def test_what_is_no_token_is_refused_and_not_told(token: str) -> None:
    with pytest.raises(InvalidCall) as refused:
        Client("http://127.0.0.1:1", token=token)
    assert token not in str(refused.value)


@pytest.mark.usefixtures("no_token")
def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "gone"))
    with pytest.raises(TokenUnusable, match="gone"):
        bearer()
    with pytest.raises(InvalidCall, match="gone"):
        Client("http://127.0.0.1:1")
