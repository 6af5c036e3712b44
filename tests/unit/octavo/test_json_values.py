"""The client refuses values that JSON cannot express, and names the place and a remedy; an
accepted value is read back equal. Python's encoders made NaN null, a set a list, a time text."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import json
import math
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import AsyncClient, Client, InvalidCall, MessageTooLong, NotJson
from octavo.cli.publish import BadLine, _Reading
from octavo.client.json_values import json_bytes
from octavo.client.types import header_pairs, key_bytes, to_bytes
from tests.support.fake_service import FakeBroker


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
    """The bad message is not sent, and the good ones are stored."""
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
