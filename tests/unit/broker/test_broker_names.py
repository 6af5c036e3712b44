"""Names, ids and settings: what parses, what is refused, and that the refusal says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.cluster.registry import decode_broker, encode_broker
from octavo.broker.config import BrokerConfig, BrokerConfigError
from octavo.broker.errors import INVALID_ACK_ID, INVALID_MESSAGE_ID, InvalidName, InvalidSettings
from octavo.broker.types import (
    AckId,
    BrokerInfo,
    MessageId,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
    checked_name,
)
from tests.support.kit.refusals import raises_code

NAME = TopicName("public", "t")


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "x" * 249, "-", "_"])
def test_good_names(name: str) -> None:
    assert checked_name("topic", name) == name
    assert TopicName.parse(f"ns/{name}") == ("ns", name)
    assert TopicName.parse(name) == ("public", name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\x00", "%00", "a%2Fb", "x" * 250, "a b", "ä", "a\n", "a\\b", "⁄"],
)
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidName, match=r"1 to 249 of A-Z a-z 0-9 \. _ -") as error:
        checked_name("topic", name)
    assert len(str(error.value)) < 300
    with pytest.raises(InvalidName):
        TopicName.of("public", name)
    with pytest.raises(InvalidName):
        TopicName.of(name, "t")


def test_a_second_slash_is_no_way_out() -> None:
    with pytest.raises(InvalidName):
        TopicName.parse("a/b/../c")


@given(st.tuples(*[st.integers(0, 2**63 - 1)] * 4))
def test_ids_print_and_parse(numbers: tuple[int, int, int, int]) -> None:
    assert MessageId.parse(str(MessageId(*numbers[:3]))) == numbers[:3]
    assert AckId.parse(str(AckId(*numbers))) == numbers


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", "1:2:" + "9" * 30, "١:1:1"]
)
def test_no_message_ids(text: str) -> None:
    with raises_code(INVALID_MESSAGE_ID):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["", "1-2-3", "1-2-3-4-5", "1--2-3-4", "a-b-c-d"])
def test_no_ack_ids(text: str) -> None:
    with raises_code(INVALID_ACK_ID):
        AckId.parse(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 10_001}, "partitions"),
        ({"ack_quorum": 4}, "ack_quorum"),
        ({"ack_quorum": 0}, "ack_quorum"),
        ({"ensemble_size": 2}, "ensemble_size"),
        ({"retention_ms": -2}, "retention.time is -0.002 s"),
        ({"rollover_entries": 0}, "rollover.entries is 0"),
    ],
)
def test_senseless_topics_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        TopicSettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "fanout"},
        {"start": "yesterday"},
        {"ack_timeout_ms": 0},
        {"consumer_timeout_ms": 0},
        {"max_unacked": 0},
        {"max_unacked_per_consumer": 2**40},
        {"filter_headers": (("", ("a",)),)},
        {"filter_headers": (("a", ()),)},
        {"filter_headers": (("a", ("b",) * 65),)},
        {"filter_headers": (("a", ("b",)), ("a", ("c",)))},
        {"filter_headers": tuple((f"h{number}", ("a",)) for number in range(17))},
        {"filter_headers": (("a", ("b" * 257,)),)},
        {"filter_key_prefix": "k" * 257},
    ],
)
def test_senseless_subscriptions_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(settings)).partition("_headers")[0][:6]):
        SubscriptionSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["port", "batch_bytes_max", "tail_cache_bytes_max"])
def test_senseless_brokers_are_refused(setting: str) -> None:
    with pytest.raises(BrokerConfigError, match=setting):
        BrokerConfig(**{setting: -1})  # type: ignore[arg-type]


def test_a_brokers_record() -> None:
    info = BrokerInfo("b1", "http://h:1")
    assert decode_broker(encode_broker(info, "run")) == info
    assert encode_broker(info, "run") != encode_broker(info, "another run")
    for foreign in (b"", b"\xc1", b"noise", b"\x80"):
        assert decode_broker(foreign) is None
