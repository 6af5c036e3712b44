"""A dead broker stays in the list of brokers for an hour. It used to vanish silently."""

from __future__ import annotations

from octavo.broker.cluster.membership import REMEMBERED_MAX, REMEMBERED_S, GoneBrokers
from octavo.broker.types import BrokerInfo


def infos(*names: str) -> dict[str, BrokerInfo]:
    return {name: BrokerInfo(name, f"http://{name}") for name in names}


def shown(gone: GoneBrokers, now_s: float) -> list[tuple[str, float]]:
    return [(one.info.broker_id, one.since_s) for one in gone.at(now_s)]


def test_one_that_is_missed_is_shown_until_it_is_back() -> None:
    gone = GoneBrokers()
    gone.follow({}, infos("a", "b", "c"), 1.0)
    assert shown(gone, 2.0) == []
    gone.follow(infos("a", "b", "c"), infos("a"), 5.0)
    gone.follow(infos("a"), infos("a"), 9.0)
    assert shown(gone, 10.0) == [("b", 5.0), ("c", 5.0)], "since it was missed first"
    gone.follow(infos("a"), infos("a", "c"), 11.0)
    assert shown(gone, 12.0) == [("b", 5.0)]


def test_it_is_forgotten_after_a_while_and_there_are_never_many() -> None:
    gone = GoneBrokers()
    gone.follow(infos("b"), infos("a"), 5.0)
    assert shown(gone, 5.0 + REMEMBERED_S) == [("b", 5.0)]
    assert shown(gone, 5.1 + REMEMBERED_S) == []
    many = [f"k{number:03}" for number in range(REMEMBERED_MAX + 5)]
    for at, name in enumerate(many):
        gone.follow(infos(name), {}, 9e9 + at)
    assert [name for name, _ in shown(gone, 9e9 + len(many))] == many[5:]
