"""The cases of partitions, and where a publish may not be acked: by the graph alone."""

from __future__ import annotations

import pytest

from tests.network.cases import BY_NAME, CASES, DELAYS, Roles, between, hear_each_other, silent
from tests.network.hosts import CLIENT
from tests.support.processes.chaos import SESSION_MS

ROLES = Roles(
    owner="broker-2",
    other="broker-1",
    brokers=("broker-1", "broker-2", "broker-3"),
    bookies=("bookie-4", "bookie-1", "bookie-2", "bookie-3"),
    zk_leader="zk-3",
    zookeepers=("zk-1", "zk-2", "zk-3"),
)


def test_there_are_twenty_and_those_of_delay_and_each_has_a_name_of_its_own() -> None:
    assert len(CASES) == 20
    assert len(BY_NAME) == len(CASES) + len(DELAYS)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_case_loses_packets_of_real_links_in_both_phases_of_the_owner(name: str) -> None:
    for roles in (ROLES, Roles(**{**vars(ROLES), "brokers": ("broker-1", "broker-2")})):
        loss, late = BY_NAME[name].loss(roles), BY_NAME[name].late(roles)
        assert bool(loss) != bool(late), "either lost or late"
        for sender, receiver in (*loss, *late):
            assert sender != receiver
            assert {sender, receiver} <= set(roles.everybody)
        assert all(0 < share <= 1 for share in loss.values())
        assert all(0 < one.ms >= one.jitter_ms >= 0 for one in late.values())


def test_metadata_comes_later_than_a_session_ends() -> None:
    late = BY_NAME["late-metadata"].late(ROLES)
    assert {*late} == {*between([ROLES.owner], ROLES.zookeepers)}
    assert all(one.ms > SESSION_MS for one in late.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bookie", []),
        ("owner", ["broker-2"]),
        ("owner-deaf", ["broker-2"]),
        ("owner-mute", ["broker-2"]),
        ("owner-without-metadata", []),
        ("client", [CLIENT]),
        ("owner-in-minority", ["broker-2"]),
        ("client-in-minority", ["broker-2", CLIENT]),
        ("halves", []),
        ("pieces", ["broker-1", "broker-2"]),
        ("zookeeper", []),
        ("loss-60", []),
    ],
)
def test_nobody_acknowledges_without_an_ack_quorum(name: str, expected: list[str]) -> None:
    assert silent(BY_NAME[name].loss(ROLES), ROLES) == expected


def test_one_closed_direction_is_enough_not_to_hear_each_other() -> None:
    assert hear_each_other({}, "a", "b")
    assert hear_each_other({("a", "b"): 0.6}, "a", "b")
    assert not hear_each_other({("a", "b"): 1.0}, "b", "a")
    assert hear_each_other(between(["a"], ["b"]), "a", "a")
