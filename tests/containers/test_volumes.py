"""A bookie's container is replaced: with its volume it continues; an empty volume under a known
id is refused, as in the runbook. Started once with the loss accepted the bookie is in limbo,
says *unknown* where it cannot know, and everything is read from others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.containers.cluster import Cluster, Node, until
from tests.containers.watchers import users_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def limbo_of(bookie: Node) -> float:
    """Its metric: 1 while it cannot tell what it held."""
    found = re.search(
        r"^octavo_bookie_limbo(?:\{.*\})? (\S+)$", bookie.get(":9181/metrics") or "", re.M
    )
    assert found, "the bookie has no metric octavo_bookie_limbo"
    return float(found[1])


def test_replaced_with_its_volume(cluster: Cluster, tmp_path: Path) -> None:
    with users_of(cluster, "with-volume", tmp_path) as users:
        users.more(50)
        bookie = cluster.writing_bookies()[0]
        former = bookie.container.id
        bookie.kill()
        bookie.remove()
        users.more(50)
        bookie.create()
        bookie.until_healthy()
        assert bookie.container.id != former
        assert limbo_of(bookie) == 0
        users.more(50)
        users.judge()


def test_replaced_without_its_volume(cluster: Cluster, tmp_path: Path) -> None:
    with users_of(cluster, "without-volume", tmp_path) as users:
        users.more(50)
        bookie = cluster.writing_bookies()[0]
        bookie.kill()
        bookie.remove()
        cluster.lose_volume(bookie)
        users.more(50)

        bookie.create()
        until(lambda: bookie.status == "exited", f"{bookie.name} refuses to start")
        (failed,) = bookie.events("process_failed")
        assert "--accept-loss" in failed["reason"]
        gone = f"{bookie.name}'s registration of before ends with its session, and no other comes"
        until(lambda: bookie not in cluster.registered_bookies(), gone)
        bookie.remove()

        bookie.create("--accept-loss")
        bookie.until_healthy()
        assert bookie.events("data_loss_accepted")
        assert limbo_of(bookie) == 1
        assert bookie.stop() == 0
        bookie.remove()

        bookie.create()
        bookie.until_healthy()
        assert limbo_of(bookie) == 1, "limbo lasts, however often it is started"
        users.more(50)
        users.judge()
