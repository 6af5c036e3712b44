"""Rates of topics: independent of each other, a debt for later-known costs, new bounds hold at
once.
"""

from __future__ import annotations

from octavo.broker.topic_rates import INTO, OUT_OF, Rates, has_rates
from octavo.metadata.topics import Policies

SLOW = Policies(publish_bytes=1000, publish_messages=10, dispatch_messages=5)


def test_a_topic_waits_for_the_rate_that_is_furthest_away() -> None:
    rates = Rates()
    assert rates.wait("t", SLOW, INTO, 0.0).wait_s == 0
    rates.charge("t", SLOW, INTO, 1500, 40, 0.0)
    found = rates.wait("t", SLOW, INTO, 0.0)
    assert (found.wait_s, found.limit, found.most, found.subject) == (
        3.0, "publish_messages", 10, "topic:t",
    )  # fmt: skip
    assert rates.wait("t", SLOW, OUT_OF, 0.0).wait_s == 0, "the other way is free"
    assert rates.wait("other", SLOW, INTO, 0.0).wait_s == 0
    assert rates.wait("t", SLOW, INTO, 3.1).wait_s == 0
    rates.charge("t", SLOW, OUT_OF, 10**9, 6, 4.0)
    assert rates.wait("t", SLOW, OUT_OF, 4.0).limit == "dispatch_messages"


def test_new_bounds_hold_at_once_and_silence_is_no_bound() -> None:
    rates = Rates()
    rates.charge("t", SLOW, INTO, 10**6, 10**6, 0.0)
    assert rates.wait("t", SLOW, INTO, 0.0).wait_s > 10
    assert rates.wait("t", Policies(publish_bytes=5), INTO, 0.0).wait_s == 0
    assert not has_rates(Policies(ttl_ms=1))
    assert has_rates(SLOW)


def test_no_more_topics_are_remembered_than_the_bound() -> None:
    rates = Rates(topics_kept=2)
    for topic in "abc":
        rates.charge(topic, SLOW, INTO, 0, 100, 0.0)
    assert [rates.wait(topic, SLOW, INTO, 0.0).wait_s > 0 for topic in "bc"] == [True, True]
    assert rates.wait("a", SLOW, INTO, 0.0).wait_s == 0
