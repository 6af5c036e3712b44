"""The preferred owner of a partition: even within each topic, and few moves when brokers come and
go.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.cluster.membership import preferred_brokers
from octavo.broker.types import TopicName

BROKERS = st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8)


def topic(number: int) -> TopicName:
    return TopicName("public", f"t{number}")


@given(BROKERS, st.integers(1, 70), st.integers(0, 1_000))
def test_every_broker_gets_as_many_as_any_other_or_one_more(
    brokers: set[str], partitions: int, number: int
) -> None:
    ids = tuple(sorted(brokers))
    chosen = preferred_brokers(topic(number), partitions, ids)
    assert len(chosen) == partitions
    counts = Counter(chosen)
    assert counts.keys() <= brokers
    assert max(counts[one] for one in ids) - min(counts[one] for one in ids) <= 1


def test_a_hundred_topics_of_four_partitions_lie_two_and_two() -> None:
    for number in range(100):
        counts = Counter(preferred_brokers(topic(number), 4, ("A", "B")))
        assert counts == {"A": 2, "B": 2}


def test_topics_of_one_partition_spread_over_the_brokers() -> None:
    ids = tuple(f"broker-{n}" for n in range(5))
    shares = Counter(preferred_brokers(topic(number), 1, ids)[0] for number in range(5_000))
    assert min(shares[one] for one in ids) > 900


def test_the_odd_partitions_of_many_topics_spread_as_well() -> None:
    ids = ("A", "B", "C")
    shares: Counter[str] = Counter()
    for number in range(1_000):
        shares.update(preferred_brokers(topic(number), 4, ids))
    assert min(shares.values()) > 1_250


def _moved(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


def test_few_move_when_a_broker_comes_or_goes() -> None:
    """At least its share must move; at most twice that, on the average of many topics."""
    for partitions, count in ((4, 2), (8, 3), (32, 4), (64, 5)):
        ids = tuple(f"broker-{n}" for n in range(count))
        came = least = 0
        for number in range(100):
            before = preferred_brokers(topic(number), partitions, ids)
            after = preferred_brokers(topic(number), partitions, (*ids, "broker-9"))
            came += _moved(before, after)
            least += partitions // (count + 1)
        assert came <= 2 * least, (partitions, count, came, least)


def test_of_two_brokers_one_goes_and_comes_again_and_all_is_as_before() -> None:
    both = preferred_brokers(topic(0), 32, ("A", "B"))
    assert set(preferred_brokers(topic(0), 32, ("A",))) == {"A"}
    assert preferred_brokers(topic(0), 32, ("A", "B")) == both
