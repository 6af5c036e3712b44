"""The client refuses wrong values and wrong addresses in words."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import decimal
import enum
import inspect
import json
import logging
import math
import pickle
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import (
    AsyncClient,
    Client,
    ClientError,
    InvalidCall,
    MessageTooLong,
    NotJson,
    Unreachable,
)
from octavo.broker.http.problems import Problem
from octavo.broker.http.request_body import in_words
from octavo.broker.http.router import Router
from octavo.broker.http.routes import ROUTES
from octavo.cli import standalone
from octavo.cli.publish import BadLine, _Reading
from octavo.client import client as client_module
from octavo.client import partition_queue, settings, sync, transport
from octavo.client.consumer import TopicsConsumer
from octavo.client.deliveries import WAIT_S_MAX
from octavo.client.durable import AsyncStream
from octavo.client.errors import ApiError, ProducerFailed
from octavo.client.json_values import json_bytes
from octavo.client.producer import Producer
from octavo.client.subscription import Subscription
from octavo.client.types import TopicName, header_pairs, key_bytes, to_bytes
from octavo.client.wire import DefaultUrl
from octavo.protocol.records import Record
from tests.support.fake_service import FakeBroker
from tests.support.memory_cluster import Running, running

NOT_CALLS = {"close", "close_in_time", "forked"}
WRONG = {
    "a number": 5, "a fraction": 1.5, "nothing": None, "a list": ["a"], "a dictionary": {"a": 1},
    "bytes": b"x", "truth": True, "an object": object(), "half a pair": "\ud800",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "value": "v", "messages": [("k", "v")], "ledger_id": 1, "schema": {}, "source": b"x",
    "offset": 0, "message": 0, "rules": [], "roles": [], "before": "latest", "partitions": 1,
}  # fmt: skip
WITHIN_S = 60.0


def arguments(call: Any) -> Iterator[inspect.Parameter]:
    for one in list(inspect.signature(call).parameters.values())[1:]:
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            yield one


CALLS = {
    name: call
    for name, call in inspect.getmembers(AsyncClient, inspect.isfunction)
    if not name.startswith("_") and name not in NOT_CALLS
}
CASES = [(name, one.name) for name, call in CALLS.items() for one in arguments(call)]


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    broker = FakeBroker(partitions=1)
    await broker.start()
    async with AsyncClient(broker.url, retry_s=0.0) as one:
        yield one
    await broker.stop()


async def run(client: AsyncClient, name: str, given: dict[str, Any]) -> None:
    found = CALLS[name](client, **given)
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "__anext__"):
        async with contextlib.aclosing(found):
            async for _ in found:
                break
    elif hasattr(found, "__aenter__"):
        async with found:
            pass


def test_all_calls_are_tried() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize(("name", "argument"), CASES)
async def test_a_wrong_type_is_a_plain_error(client: AsyncClient, name: str, argument: str) -> None:
    for value in WRONG.values():
        given = {
            one.name: GOOD.get(one.name, "x")
            for one in arguments(CALLS[name])
            if one.default is one.empty
        }
        given[argument] = value
        with contextlib.suppress(ClientError):
            async with asyncio.timeout(WITHIN_S):
                await run(client, name, given)


# ---- settings, and what a client makes


SETTINGS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "create_topic": (settings.TopicSettings, ("t",)),
    "update_topic": (settings.TopicChanges, ("t",)),
    "create_namespace": (settings.NamespaceSettings, ("n",)),
    "update_namespace": (settings.NamespaceSettings, ("n",)),
    "set_quota": (settings.Quota, ("user:a",)),
    "producer": (settings.ProducerSettings, ("t",)),
    "subscribe": (settings.SubscriptionSettings, ("t", "s")),
}
SETTING_CASES = [
    (name, setting)
    for name, (kind, _) in SETTINGS.items()
    for setting in (*get_type_hints(kind), "no_such_setting")
]


@pytest.mark.parametrize(("name", "setting"), SETTING_CASES)
async def test_a_setting_of_a_wrong_type_is_a_plain_error(
    client: AsyncClient, name: str, setting: str
) -> None:
    for value in WRONG.values():
        with contextlib.suppress(ClientError):
            async with asyncio.timeout(WITHIN_S):
                call: Any = getattr(client, name)
                found = call(*SETTINGS[name][1], **{setting: value})
                if inspect.isawaitable(found):
                    found = await found
                if isinstance(found, Producer):
                    await found.close()


@pytest.fixture
async def real() -> AsyncIterator[Running]:
    async with running(1) as cluster:
        yield cluster


INNER = {
    "acknowledge", "check", "close_if_forgotten", "forked", "item", "lease_s", "note", "opened",
    "receive_in_turn", "send_pairs", "take", "until_room",
}  # fmt: skip
MAKERS: dict[type, Callable[[AsyncClient], Any]] = {
    Producer: lambda client: client.producer("t"),
    Subscription: lambda client: client.subscription("t", "s"),
    AsyncStream: lambda client: client.stream("u"),
    TopicsConsumer: lambda client: client.consume(["t"], "s"),
}
METHODS = [
    (kind, name, one)
    for kind in MAKERS
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name not in INNER
    for one in inspect.signature(method).parameters.values()
    if one.name != "self"
]


@pytest.mark.parametrize(
    ("kind", "name", "argument"),
    METHODS,
    ids=[f"{kind.__name__}.{name}({one.name})" for kind, name, one in METHODS],
)
async def test_a_method_of_what_a_client_makes_says_what_is_wrong(
    real: Running, kind: type, name: str, argument: inspect.Parameter
) -> None:
    method = getattr(kind, name)
    async with AsyncClient(real.api.url, retry_s=0.0) as client:
        await client.create_topic("t")
        await client.subscribe("t", "s")
        await client.stream("u").create()
        await client.stream("u").append(1)
        for value in WRONG.values():
            given = {
                one.name: GOOD.get(one.name, "x")
                for one in arguments(method)
                if one.default is one.empty
            }
            extra: tuple[Any, ...] = ()
            if argument.kind is argument.VAR_POSITIONAL:
                extra = (value,)
            else:
                given[argument.name] = value
            with contextlib.suppress(ClientError):
                async with asyncio.timeout(WITHIN_S):
                    made = MAKERS[kind](client)
                    if inspect.isawaitable(made):
                        made = await made
                    found = method(made, *extra, **given)
                    if inspect.isawaitable(found):
                        await found
                    elif hasattr(found, "__anext__"):
                        if name == "deliveries":
                            await client.publish("t", "v")
                        async with contextlib.aclosing(found):
                            await anext(found)
                    if kind is Producer:
                        await made.close()


WRONG_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an option": (lambda c: c.producer("t", window="4"), "window must be a whole number from 1 on"),
    "an unknown option": (lambda c: c.producer("t", windows=4), "no option 'windows'; it has"),
    "a wait": (
        lambda c: c.subscription("t", "s").receive(wait_s="1"),
        "wait_s must be a number of",
    ),
    "a partition": (
        lambda c: c.subscription("t", "s").peek(partition=["0"]),
        "a partition must be a n",
    ),
    "a delivery": (
        lambda c: c.subscription("t", "s").ack_up_to("0-1"),
        "delivery must be a Delivery",
    ),
    "a content type": (lambda c: c.stream("u").create(5), "content_type must be text, not 5"),
    "a time": (lambda c: c.stream("u").create(expires_at=5), "expires_at must be a datetime"),
    "a time to live": (lambda c: c.stream("u").create(ttl_s="1"), "ttl_s must be a whole"),
    "an offset": (lambda c: c.stream("u").read(5), "offset must be text, not 5"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
async def test_the_error_names_the_argument_and_what_is_right(real: Running, name: str) -> None:
    """The synchronous client says the same."""
    call, told = WRONG_CALLS[name]

    def run_it() -> None:
        with Client(real.api.url, retry_s=1.0) as client:
            client.create_topic("t")
            with pytest.raises(InvalidCall, match=told):
                call(client)

    await asyncio.to_thread(run_it)


# The client refuses values that JSON cannot express, and names the place and a remedy; an
@dataclass
class Order:
    number: int


class Colour(enum.Enum):
    RED = "red"


class Kind(enum.StrEnum):
    SALE = "sale"


class Struct(msgspec.Struct):
    number: int


class Name(str):
    __slots__ = ()


Pair = namedtuple("Pair", "left right")
endless: list[Any] = []
endless.append(endless)
deep: Any = 1
for _ in range(100_000):
    deep = [deep]

REFUSED: list[tuple[Any, str, str]] = [
    (float("nan"), "value", "null"),
    ({"a": [1, math.inf]}, "value['a'][1]", "null"),
    ({"a": -math.inf}, "value['a']", "null"),
    ({"tags": {"x"}}, "value['tags']", "list"),
    (frozenset(), "value", "list"),
    ([datetime.datetime(2026, 1, 1)], "value[0]", "isoformat"),
    ({"on": datetime.date(2026, 1, 1)}, "value['on']", "isoformat"),
    ({"at": datetime.time(1)}, "value['at']", "isoformat"),
    (datetime.timedelta(1), "value", "total_seconds"),
    ((1, 2), "value", "list"),
    ({"a": ({"b": ()},)}, "value['a']", "list"),
    ([Pair(1, 2)], "value[0]", "list"),
    ({"a": b"raw"}, "value['a']", "base64"),
    ([bytearray(b"raw")], "value[0]", "base64"),
    ([memoryview(b"raw")], "value[0]", "base64"),
    ({"price": decimal.Decimal("1.50")}, "value['price']", "str"),
    (uuid.uuid4(), "value", "str"),
    ({1: "a"}, "value", "text"),
    ({"a": {None: 1}}, "value['a']", "text"),
    ({True: 1}, "value", "text"),
    ({(1, 2): 1}, "value", "text"),
    (Order(1), "value", "asdict"),
    ([Struct(1)], "value[0]", "to_builtins"),
    (Colour.RED, "value", ".value"),
    ({"a": "\ud800"}, "value['a']", "surrogate"),
    ({"\ud800": 1}, "value", "surrogate"),
    ("half of a pair: \udc00", "value", "surrogate"),
    (endless, "value[0][0]", "deep"),
    (deep, "value[0][0]", "deep"),
    (10**6000, "value", "digits"),
    ([object()], "value[0]", "object"),
    (range(3), "value", "list"),
    ([msgspec.Raw(b"nope")], "value[0]", "Raw"),
    ({"a": msgspec.UNSET}, "value['a']", "UnsetType"),
    (lambda: 1, "value", "function"),
    ({"a": [1, (msgspec.Raw(b"1"),)]}, "value['a'][1]", "list"),
    (1j, "value", "complex"),
]


@pytest.mark.parametrize(
    ("value", "place", "remedy"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))]
)
def test_what_json_cannot_say_is_refused(value: Any, place: str, remedy: str) -> None:
    with pytest.raises(NotJson) as told:
        to_bytes(value)
    assert isinstance(told.value, ValueError), "as Python's own errors for such values are"
    assert isinstance(told.value, InvalidCall), "as all errors of arguments are"
    text = str(told.value)
    assert text.startswith(f"{place}: ") or f" {place}: " in text or place in text[:60]
    assert remedy in text
    assert len(text) < 500


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, None, True, 1.5, "é"]},
        10**30,
        -0.0,
        1e300,
        OrderedDict(b=1, a=2),
        defaultdict(list, a=[1]),
        {Kind.SALE: Kind.SALE},
        [],
        {},
        {"a": {"b": {"c": []}}},
        {Name("name"): Name("value")},
        0.1 + 0.2,
    ],
)
def test_what_json_can_say_is_read_back_equal(value: Any) -> None:
    stored = to_bytes(value)
    assert stored is not None
    assert json.loads(stored) == value
    assert msgspec.json.decode(stored) == value


def test_json_as_it_is_written_is_left_alone() -> None:
    assert to_bytes(msgspec.Raw(b"1.50")) == b"1.50"
    assert to_bytes([msgspec.Raw(b"1e400")]) == b"[1e400]"
    assert to_bytes({"price": msgspec.Raw(b"1.50")}) == b'{"price":1.50}'
    assert to_bytes(bytearray(b"\xff")) == b"\xff"
    assert to_bytes(None) is None


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters())
    | st.binary()
    | st.datetimes()
    | st.decimals()
    | st.sets(st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_json)
def test_any_value_is_read_back_equal_or_refused(value: object) -> None:
    try:
        stored = json_bytes(value)
    except NotJson:
        return
    assert json.loads(stored) == value
    assert type(json.loads(stored)) is type(value)


def test_keys_and_headers_say_what_they_can_be() -> None:
    with pytest.raises(InvalidCall, match="surrogate"):
        key_bytes("\ud800")
    for wrong in (1, 1.5, float("nan"), {"a": 1}, ["a"], True):
        with pytest.raises(InvalidCall, match=r"header 'n' is .*write text, bytes or None"):
            header_pairs({"n": wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="surrogate"):
        header_pairs({"n": "\ud800"})
    for unpaired in (["a"], [("a",)], [("a", "b", "c")], "ab", 7, [1], b"ab", {"a"}):
        with pytest.raises(InvalidCall, match=r"headers must be a mapping, or pairs"):
            header_pairs(unpaired)  # type: ignore[arg-type]
    assert header_pairs({"a": "1", "b": b"2", "c": None}) == [("a", b"1"), ("b", b"2"), ("c", None)]
    assert header_pairs([["a", "1"]]) == [("a", b"1")]  # type: ignore[list-item]


# ---- each way in


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=1)
    await one.start()
    yield one
    await one.stop()


async def test_every_way_into_a_topic_refuses(broker: FakeBroker, tmp_path: Path) -> None:
    wrong = {"a": [float("nan")]}
    async with AsyncClient(broker.url) as client:
        with pytest.raises(NotJson, match=r"\['a'\]\[0\]"):
            await client.publish("t", wrong)
        with pytest.raises(NotJson, match=r"message 2: value\['a'\]\[0\]"):
            await client.publish_many("t", [("k", "early"), ("k", wrong)])
        with pytest.raises(MessageTooLong):
            await client.publish_many("t", [("k", "early"), ("k", b"x" * 5_000_000)])
        for unpaired in (["ab"], [b"ab"], [1], [("k", 1, 2)]):
            with pytest.raises(InvalidCall, match=r"message 1 is .*\(key, value\)"):
                await client.publish_many("t", unpaired)  # type: ignore[arg-type]
        for form in ("batch", "ndjson"):
            async with client.producer("t", encoding=form) as producer:  # type: ignore[arg-type]
                good = await producer.send({"good": form})
                with pytest.raises(NotJson):
                    await producer.send(wrong)
                with pytest.raises(NotJson):
                    producer.send_nowait({1: 2})
                assert (await good).offset >= 0
        with pytest.raises(InvalidCall, match=r"bytes or the path of a file"):
            await client.publish_large("t", wrong)  # type: ignore[arg-type]
        stream = client.stream("t")
        stream._content_type = "application/json"
        for call in (stream.append(wrong), stream.append_many([1, wrong]), stream.close(wrong)):
            with pytest.raises(NotJson, match=r"\['a'\]\[0\]"):
                await call
        with pytest.raises(NotJson, match=r"\['ttl'\]"):
            await client.create_topic("t", ttl=float("nan"))
        with pytest.raises(NotJson, match="const"):
            await client.register_schema("t", {"const": {1, 2}})
    stored = [json.loads(record.value or b"") for record in broker.log.partitions[0]]
    assert stored == [{"good": "batch"}, {"good": "ndjson"}], "and nothing else"


async def test_the_synchronous_client_refuses_the_same(broker: FakeBroker) -> None:
    def work() -> None:
        with Client(broker.url) as client:
            with pytest.raises(NotJson, match=r"value\['a'\]"):
                client.publish("t", {"a": {1}})
            with client.producer("t") as producer:
                with pytest.raises(NotJson, match=r"value\[0\]"):
                    producer.send([float("inf")])
                producer.send("good").result()
            with pytest.raises(NotJson, match=r"value\[1\]"):
                client.publish_many("t", [("k", [1, (2,)])])

    await asyncio.to_thread(work)
    assert [record.value for record in broker.log.partitions[0]] == [b"good"]


# ---- lines of `octavo publish`


@pytest.mark.parametrize("line", [b"NaN", b'{"a": Infinity}', b"[-Infinity]"])
def test_lines_of_json_hold_no_constants_of_python(line: bytes) -> None:
    with pytest.raises(BadLine, match=r"line 1 is not JSON: JSON has no -?(NaN|Infinity)"):
        _Reading(None, None, ndjson=True, envelope=False).line(line, "line 1")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"k": 1.50}', "1.50"),
        (b'{"k": 100000000000000000000000}', "100000000000000000000000"),
        (b'{"k": "text"}', "text"),
        (b'{"k": null}', "given"),
        (b"{}", "given"),
    ],
)
def test_a_key_field_is_taken_as_it_is_written(line: bytes, key: str) -> None:
    reading = _Reading("given", "k", ndjson=True, envelope=False)
    assert reading.line(line, "line 1").key == key


@pytest.mark.parametrize("line", [b'{"k": true}', b'{"k": ["a"]}', b'{"k": {"a": 1}}'])
def test_a_key_field_that_is_no_text_is_refused(line: bytes) -> None:
    """It became Python's own text for it: `True`, `['a']`."""
    with pytest.raises(BadLine, match=r"line 1: 'k' is .*a key must be text or a number"):
        _Reading(None, "k", ndjson=True, envelope=False).line(line, "line 1")


# Bounds of the Python client (docs/limits.md), each at its edge.
async def test_messages_of_one_batch(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_queue, "MESSAGES_PER_BATCH_MAX", 3)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", linger_ms=60_000)
        for number in range(7):
            await producer.send(f"{number}", partition=0)
        await producer.flush()
    assert [method for method, _ in broker.requests].count("POST") == 3
    assert [one.value for one in broker.log.partitions[0]] == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize(
    ("bytes_max", "messages_max", "lengths"),
    [(2**18, 100, [1, 8]), (400, 100, [1, 3, 3, 2]), (2**18, 5, [1, 5, 3])],
)
async def test_what_goes_out_as_one_batch_when_a_producer_catches_up(
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    bytes_max: int,
    messages_max: int,
    lengths: list[int],
) -> None:
    monkeypatch.setattr(partition_queue, "MERGED_BYTES_MAX", bytes_max)
    monkeypatch.setattr(partition_queue, "MESSAGES_PER_BATCH_MAX", messages_max)
    found: list[int] = []
    store = broker.log.store

    def noting(partition: int, who: tuple[int, int, int], records: list[Record]) -> int | str:
        found.append(len(records))
        return store(partition, who, records)

    monkeypatch.setattr(broker.log, "store", noting)
    faults = iter(["503"])
    broker.fault = lambda: next(faults, None)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", batch_bytes=1, window=1)
        receipts = [await producer.send(bytes([number]) * 100) for number in range(9)]
        await producer.flush()
        assert [(await receipt).offset for receipt in receipts] == list(range(9))
        assert found == lengths
        await producer.send("a"), await producer.send("b")
        await producer.close()
    assert found[len(lengths) :] == [1, 1], "it has caught up"


async def test_a_producer_that_has_used_its_last_epoch_ends(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_queue, "EPOCH_MAX", 1)
    faults = iter(["422", None, "422"])
    broker.fault = lambda: next(faults)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t")
        for stored in (False, True, False):
            receipt = await producer.send("a", partition=0)
            if stored:
                assert (await receipt).offset == 0
            else:
                with pytest.raises(ApiError, match="invalid-batch"):
                    await receipt
        with pytest.raises(ProducerFailed, match="last epoch, 1: go on under another"):
            await (await producer.send("b", partition=0))
    assert len(broker.log.partitions[0]) == 1


async def test_one_receives_wait() -> None:
    waited: list[tuple[float, float]] = []

    async def call(*_: object, query: dict[str, Any], wait_s: float, **__: object) -> Any:
        waited.append((query["wait"], wait_s))
        return SimpleNamespace(body=b"", headers={})

    transport = SimpleNamespace(call=call)
    subscription = Subscription(
        cast(Any, transport), TopicName("public", "t"), "s", "c", 1, {}, cast(Any, None)
    )
    for wait_s in (1.0, WAIT_S_MAX, WAIT_S_MAX + 1, 3600.0):
        assert await subscription.receive(wait_s=wait_s) == []
    assert waited == [(s, s) for s in (1.0, WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MAX)]


def test_messages_that_threads_have_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "HANDED_OVER_MAX", 2)
    soon: list[Callable[[], None]] = []
    taken: list[int] = []
    waits: list[str] = []

    class Inner:
        options = SimpleNamespace(pending_bytes_max=100)
        pending_bytes = 0

        def check(self, partition: int | None) -> None: ...

        def item(self, value: str, *_: object) -> tuple[str, int]:
            return value, len(value)

        def take(self, item: str, size: int, *_: object) -> tuple[None, int]:
            taken.append(size)
            return None, 0

        def until_room(self) -> str:
            return "until there is room"

    def call(what: str) -> None:
        waits.append(what)
        while soon:
            soon.pop(0)()

    thread = SimpleNamespace(check=lambda: None, soon=soon.append, call=call)
    producer = sync.Producer(cast(Any, Inner()), cast(Any, thread))
    for _ in range(2):
        producer.send("a")
    assert (len(soon), taken, waits) == (1, [], [])
    producer.send("b" * 99)
    assert (len(soon), taken, len(waits)) == (1, [1, 1], 1)
    producer.send("c")
    assert len(waits) == 1
    producer.send("d")
    assert (taken, len(waits)) == ([1, 1, 99, 1], 2)


# The client's messages to a newcomer: a wrong address, wrong values, the log.
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("urls", [8080, 8080.0, [8080], [None], b"http://a:1", object(), {1: 2}])
def test_an_address_is_text(urls: Any) -> None:
    for kind in (AsyncClient, Client):
        with pytest.raises(InvalidCall, match=r"names no broker: write http://host:port"):
            kind(urls)


async def test_nothing_at_the_default_address_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command waited a minute for a broker at :8080, where none was ever started."""
    monkeypatch.delenv("OCTAVO_URL", raising=False)
    monkeypatch.setattr(client_module, "DEFAULT_URL", DefaultUrl(NOWHERE))
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.05)
    async with AsyncClient(retry_s=100_000) as client:
        with pytest.raises(Unreachable, match=r"default address, and nothing listens.*OCTAVO_URL"):
            await client.topics()


async def test_an_address_that_was_named_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker may be about to start."""
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.0)
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    monkeypatch.setattr(transport, "PAUSE_S_MAX", 0.001)
    tries = 0

    def count(_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            raise asyncio.CancelledError

    monkeypatch.setenv("OCTAVO_URL", NOWHERE)
    for client in (AsyncClient(NOWHERE, on_retry=count), AsyncClient(on_retry=count)):
        tries = 0
        async with client:
            with pytest.raises(asyncio.CancelledError):
                await client.topics()
        assert tries == 5


async def test_the_environment_names_the_broker(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_URL", broker.url)
    async with AsyncClient() as client:
        assert (await client.topic("t")).partitions == 1


async def test_reprs_say_where_and_what(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url, token="secret") as client:
        assert repr(client) == f"AsyncClient({broker.url})"
        producer = await client.producer("t", linger_ms=60_000)
        await producer.send("x")
        assert repr(producer) == "Producer(public/t, 1 unanswered)"
        assert repr(client.stream("s")) == "AsyncStream(public/s)"
        subscription = client.subscription("t", "s", consumer="c")
        assert repr(subscription) == "Subscription(public/t, s, consumer c)"
        consumer = client.consume(["t", "u-*"], "s", consumer="c")
        assert repr(consumer) == "TopicsConsumer(public/t, public/u-*, s, consumer c)"

    def work() -> None:
        with Client(broker.url, token="secret") as client:
            assert repr(client) == f"Client({broker.url})"
            assert repr(client.stream("s")) == "Stream(public/s)"
            subscription = client.subscription("t", "s", consumer="c")
            assert repr(subscription) == "Subscription(public/t, s, consumer c)"
        assert repr(client) == f"Client({broker.url}, closed)"

    await asyncio.to_thread(work)


async def test_values_of_the_wrong_kind_are_told_in_words(broker: FakeBroker) -> None:
    """Instead of Python's `'NoneType' object has no attribute 'split'`."""
    wrong: Any
    async with AsyncClient(broker.url) as client:
        subscription = client.subscription("t", "s")
        for wrong in (None, 5, b"t"):
            with pytest.raises(InvalidCall, match=r"a topic's name must be text"):
                await client.publish(wrong, "x")
        for wrong in ("0", 1.5, True, -1):
            with pytest.raises(InvalidCall, match=r"a partition must be a number from 0 on"):
                await client.publish("t", "x", partition=wrong)
        for wrong in (5, None, b"id", {"a": 1}):
            for call in (subscription.ack, subscription.nack):
                with pytest.raises(InvalidCall, match=r"a delivery, an ack id or a list"):
                    await call(wrong)
    with pytest.raises(InvalidCall, match=r"a token must be text, not int"):
        AsyncClient(broker.url, token=5)  # type: ignore[arg-type]


async def test_none_of_it_is_pickled_or_copied(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t")
        for one in (client, producer, client.stream("s"), client.subscription("t", "s")):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InvalidCall, match=r"cannot be pickled or copied: pass the URL"):
                    attempt(one)
    synchronous = Client(broker.url)
    with pytest.raises(InvalidCall, match=r"cannot be pickled"):
        pickle.dumps(synchronous)
    await asyncio.to_thread(synchronous.close)


async def test_repeated_calls_are_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    faults = iter(["503"])
    broker.fault = lambda: next(faults, None)
    with caplog.at_level(logging.DEBUG, logger="octavo"):
        async with AsyncClient(broker.url, token="t0ken") as client:
            await client.publish("t", "a value", key="a key")
    told = [(one.name, one.levelname) for one in caplog.records]
    assert ("octavo.client", "INFO") in told, "that a call is repeated"
    assert ("octavo.client", "DEBUG") in told, "each answer"
    assert not any(word in caplog.text for word in ("t0ken", "a value", "a key"))


async def test_a_long_message_is_told_of_the_large_call(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        with pytest.raises(MessageTooLong, match=r"publish_large \(octavo publish --large FILE\)"):
            await client.publish("t", b"x" * 5_000_000)


# ---- what a broker says, in words


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/v1/topics/hello/messages", "POST /v1/topics/public/hello/messages"),
        ("PUT", "/v1/topics/hello", "PUT /v1/topics/public/hello"),
        ("DELETE", "/v1/topics/hello", "DELETE /v1/topics/public/hello"),
        (
            "POST",
            "/v1/topics/hello/subscriptions/me/receive",
            "POST /v1/topics/public/hello/subscriptions/me/receive",
        ),
        ("PUT", "/v1/durable-streams/story", "PUT /v1/durable-streams/public/story"),
        ("GET", "/v1/explain/hello", "GET /v1/explain/public/hello"),
    ],
)
def test_a_namespace_that_was_forgotten_is_told(method: str, path: str, meant: str) -> None:
    with pytest.raises(Problem) as told:
        Router(ROUTES).find(method, path)
    assert told.value.status in (404, 405)
    assert f"was the namespace forgotten? {meant} is possible" in str(told.value)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/nothing"), ("BREW", "/v1/topics/hello/messages"), ("PUT", "/v1/topics/public")],
)
def test_no_namespace_is_told_where_none_would_help(method: str, path: str) -> None:
    with pytest.raises(Problem) as told:
        Router(ROUTES).find(method, path)
    assert "forgotten" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Expected `object | null`, got `str` - at `$.retention`",
            "retention must be an object or null, not text",
        ),
        ("Expected `int` >= 1 - at `$.partitions`", "partitions must be a whole number >= 1"),
        ("Expected `object`, got `array`", "the body must be an object, not a list"),
        ("Object missing required field `name` - at `$[0].x`", "[0].x lacks `name`"),
        ("Object contains unknown field `a`", "the body has a field `a`, which is not known"),
        ("something else", "something else"),
    ],
)
def test_a_body_that_does_not_fit_is_told_in_words(said: str, words: str) -> None:
    assert in_words(said) == words


def _cluster(url: str, token_file: str = "") -> Any:
    return SimpleNamespace(urls=[url], folder="/data/here", token_file=token_file, shown=())


def test_the_banner_says_how_commands_find_the_cluster() -> None:
    told = standalone._how_commands_find_it
    assert told(_cluster("http://127.0.0.1:8080")) == ""
    assert "export OCTAVO_URL=http://127.0.0.1:18080" in told(_cluster("http://127.0.0.1:18080"))
    assert "export OCTAVO_DATA=/data/here" in told(_cluster("https://a:1", "/data/here/t"))
