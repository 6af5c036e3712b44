"""Every node is stopped and started, one after the other, under load: the runbook's loop. No
publish fails, and none is refused for longer than a take-over may last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.cluster import SESSION_S, WAIT_S, Cluster, running_cluster
from tests.containers.images import Images
from tests.containers.watchers import users_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

TAKE_OVER_GOAL_S = SESSION_S + 0.2
LONG = bool(os.environ.get("CONTAINERS_LONG"))


@pytest.fixture
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if not LONG:
        yield request.getfixturevalue("cluster")
        return
    images: Images = request.getfixturevalue("images")
    logs = tmp_path_factory.mktemp("logs")
    with running_cluster(images, logs, bookies=5, brokers=3) as cluster:
        yield cluster


def test_every_node_is_restarted(restarted: Cluster, tmp_path: Path) -> None:
    options = {"partitions": 6, "rate": 80} if LONG else {}
    codes: dict[str, int] = {}
    with users_of(restarted, "rolling", tmp_path, **options) as users:
        users.more(50)
        for name, node in restarted.nodes.items():
            codes[name] = node.stop()
            node.start()
            node.until_healthy()
            users.more(50)
        verdict = users.finish()
    print(f"{len(codes)} restarts: {verdict}; goal {TAKE_OVER_GOAL_S} s")
    # By other work: everything is late then.
    overloaded = os.getloadavg()[0] > 4 * (os.cpu_count() or 1)
    assert set(codes.values()) == {0}, codes
    assert not verdict.wrong, "\n".join(verdict.wrong[:20])
    assert verdict.silence_max <= (WAIT_S if overloaded else TAKE_OVER_GOAL_S)
