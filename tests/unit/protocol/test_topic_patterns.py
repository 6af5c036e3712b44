"""Topics by name and by pattern."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.subscriptions.dead_letters import with_dead_letters
from octavo.broker.types import SubscriptionSettings, TopicName
from octavo.protocol.topic_patterns import InvalidPattern, TopicPattern


@pytest.mark.parametrize(
    ("text", "shown", "wild"),
    [("orders", "public/orders", False), ("ns/orders", "ns/orders", False),
     ("ns/orders-*", "ns/orders-*", True), ("*", "public/*", True), ("ns/??", "ns/??", True)],
)  # fmt: skip
def test_what_is_one(text: str, shown: str, wild: bool) -> None:
    found = TopicPattern.parse(text)
    assert (str(found), found.is_wild) == (shown, wild)


@pytest.mark.parametrize(
    "text", ["", "/", "a/b/c", "n*/t", "ns/", "ns/a b", "ns/[ab]", "é", "ns/."]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidPattern, match="a name has 1 to 249"):
        TopicPattern.parse(text)


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_it_matches_what_its_regular_expression_matches(pattern: str, name: str) -> None:
    expression = pattern.replace("*", "[ab]*").replace("?", "[ab]")
    assert TopicPattern("ns", pattern).matches(name) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        ("orders-*", ["orders-eu"]),
        ("*", ["orders-eu"]),
        ("orders-*-dlq", ["orders-eu-billing-dlq"]),
        ("*-retry", ["orders-eu-billing-retry"]),
        ("*y", []),
        ("orders-eu-billing-dlq", ["orders-eu-billing-dlq"]),
    ],
)
def test_it_takes_no_letters_in_unless_it_says_so(pattern: str, means: list[str]) -> None:
    """A consumer of `orders-*` got its own dead letters, and made dead letters of them."""
    made = with_dead_letters(
        TopicName("ns", "orders-eu"),
        "billing",
        SubscriptionSettings(max_deliveries=3, retry_deliveries=1),
    )
    letters = [text.partition("/")[2] for text in (made.dead_letter_topic, made.retry_topic)]
    found = TopicPattern.parse(f"ns/{pattern}")
    assert [name for name in ("orders-eu", *letters) if found.matches(name)] == means


@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        ("orders-*", False),
        ("orders-failed", True),
        ("*-dlq", False),
        ("*", False),
        ("orders-faile?", False),
    ],
)
def test_a_topic_of_letters_is_told_by_what_it_is(pattern: str, *, means: bool) -> None:
    """A dead-letter topic with another name was included, because the name does not tell."""
    found = TopicPattern.parse(f"ns/{pattern}")
    assert found.matches("orders-failed", has_letters=True) == means
    assert TopicPattern.parse("ns/*-dlq").matches("orders-x-dlq", has_letters=True)


def test_no_pattern_takes_long() -> None:
    pattern = TopicPattern("ns", "*a" * 124)
    begun_s = time.perf_counter()
    assert not pattern.matches("a" * 248 + "b")
    assert time.perf_counter() - begun_s < 1.0
