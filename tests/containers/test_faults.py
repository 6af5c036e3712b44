"""Publish and consume while containers are killed, paused and cut off from the network. A killed
container's peers hear of it; a silent container's peers find out by their own clocks. No message
is lost, doubled or reordered, and no call fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.cluster import Cluster, Node, until
from tests.containers.watchers import Users, users_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def a_writing_bookie(cluster: Cluster) -> Node:
    return cluster.writing_bookies()[0]


def the_owner(cluster: Cluster, users: Users) -> tuple[Node, int]:
    until(lambda: cluster.owner_of(users.topic)[0], "partition 0 has an owner")
    owner, epoch = cluster.owner_of(users.topic)
    assert owner is not None
    return owner, epoch


def until_taken_over(cluster: Cluster, users: Users, owner: Node) -> None:
    def taken_over() -> bool:
        now = cluster.owner_of(users.topic, asking_others_than=owner)[0]
        return now not in (None, owner)

    until(taken_over, f"another broker than {owner.name} has partition 0")


def test_killed(cluster: Cluster, tmp_path: Path) -> None:
    with users_of(cluster, "killed", tmp_path) as users:
        users.more(50)
        bookie = a_writing_bookie(cluster)
        bookie.kill()
        users.more(50)
        bookie.start()
        bookie.until_healthy()
        owner, _ = the_owner(cluster, users)
        owner.kill()
        until_taken_over(cluster, users, owner)
        users.more(50)
        owner.start()
        owner.until_healthy()
        users.more(50)
        users.judge()


def test_paused(cluster: Cluster, tmp_path: Path) -> None:
    with users_of(cluster, "paused", tmp_path) as users:
        users.more(50)
        bookie = a_writing_bookie(cluster)
        bookie.container.pause()
        users.more(50)
        bookie.container.unpause()
        owner, _ = the_owner(cluster, users)
        owner.container.pause()
        until_taken_over(cluster, users, owner)
        users.more(50)
        owner.container.unpause()
        owner.until_healthy()
        users.more(50)
        users.judge()


def test_disconnected(cluster: Cluster, tmp_path: Path) -> None:
    with users_of(cluster, "disconnected", tmp_path) as users:
        users.more(50)
        bookie = a_writing_bookie(cluster)
        cluster.disconnect(bookie)
        users.more(50)
        cluster.connect(bookie)
        bookie.until_healthy()
        owner, _ = the_owner(cluster, users)
        cluster.disconnect(owner)
        until_taken_over(cluster, users, owner)
        users.more(50)
        cluster.connect(owner)
        owner.until_healthy()
        users.more(50)
        users.judge()
