"""A peer whose bytes are no frames makes one log line a minute, however often it comes."""

from __future__ import annotations

import random

from octavo.bookie.wire.refusals import PEERS_MAX, TOLD_EVERY_S, RefusedPeers


def test_a_host_is_told_of_once_a_minute_with_how_often_it_came() -> None:
    peers = RefusedPeers()
    told = [peers.refused(f"10.0.0.7:{port}", 100 + port / 100) for port in range(15_000)]
    assert [times for times in told if times] == [1, 6000, 6000]
    assert peers.refused("10.0.0.7:1", 100 + 4 * TOLD_EVERY_S) == 3000


def test_each_host_has_its_own_line() -> None:
    peers = RefusedPeers()
    hosts = ("10.0.0.7:1", "10.0.0.8:1", "::1:1", "?")
    assert [peers.refused(host, 5) for host in hosts] == [1, 1, 1, 1]
    assert not any(peers.refused(host, 6) for host in hosts)


def test_what_is_remembered_is_bounded() -> None:
    peers, rng = RefusedPeers(), random.Random(1)
    for number in range(5 * PEERS_MAX):
        peers.refused(f"host{number}:1", rng.random())
        assert len(peers._told) <= PEERS_MAX
    assert peers.refused(f"host{5 * PEERS_MAX - 1}:9", 1) == 0
