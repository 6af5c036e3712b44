"""A stream was refused where its topic was there and the broker had not heard of it yet.

Seeds 7 and 20 of profile `stream` (X20), without any fault. `PUT` of a stream at a broker that had
not heard of its topic tried to make it, and answered that it was there with other settings. Of a
fork, which one broker had just made and passed on to its owner, the owner asked the source anew,
which had grown: a stream of JSON was refused for good, any other one said that it was forked where
it was not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.cluster.forks import Forks
from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import TopicExists, TopicNotFound
from octavo.broker.types import TopicInfo, TopicName
from tests.support.cluster import Cluster, running_cluster

PATH = "/v1/durable-streams/public/"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Topics of which each broker hears when it looks again; what happens before that."""
    found: dict[str, Any] = {}
    asked: set[tuple[Topics, str]] = set()
    real = Topics.get

    async def get(self: Topics, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        if name.topic in found and (self, name.topic) not in asked:
            asked.add((self, name.topic))
            await found[name.topic]()
            raise TopicNotFound(f"no topic {name}")
        return await real(self, name, incarnation)

    monkeypatch.setattr(Topics, "get", get)
    return found


async def test_of_a_topic_that_was_made_a_moment_ago(
    cluster: Cluster, unheard: dict[str, Any]
) -> None:
    async def nothing() -> None: ...

    made = await cluster.api.put("/v1/topics/public/s", json={"rollover": {"entries": 7}})
    assert made.status == 201, made
    unheard["s"] = nothing
    answer = await cluster.api.call("PUT", PATH + "s", headers=JSON)
    assert answer.status == 201, answer
    found = await cluster.api.get("/v1/topics/public/s")
    assert found.json()["settings"]["rollover"]["entries"] == 7


async def test_a_fork_that_another_broker_has_made(
    cluster: Cluster, unheard: dict[str, Any]
) -> None:
    async def grows() -> None:
        assert (await cluster.api.post(PATH + "source", b"2", JSON["Content-Type"])).status == 204

    await cluster.api.call("PUT", PATH + "source", data=b"1", headers=JSON)
    for name in ("f1", "f2", "f3", "f4"):  # with some of them the owner is not who is asked
        unheard[name] = grows
        words = {**JSON, "Stream-Forked-From": PATH + "source"}
        made = await cluster.api.call("PUT", PATH + name, headers=words)
        assert made.status == 201, made
        offset = made.headers["Stream-Next-Offset"]
        again = {**words, "Stream-Fork-Offset": offset}
        assert (await cluster.api.call("PUT", PATH + name, headers=again)).status == 200
        end = await cluster.api.call("GET", f"{PATH}{name}?offset={offset}")
        assert (end.status, end.json()) == (200, []), end


async def test_while_another_broker_forks_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 404 for a `PUT`, which nobody repeats: seed 42."""

    async def is_there(*_: object, **__: object) -> TopicInfo:
        raise TopicExists("it is there")

    async def is_not_made(*_: object) -> TopicInfo:
        raise TopicNotFound("it is being forked; ask again in a moment")

    await cluster.api.call("PUT", PATH + "source", headers=JSON)
    monkeypatch.setattr(Forks, "make", is_there)
    monkeypatch.setattr(Topics, "newest", is_not_made)
    words = {**JSON, "Stream-Forked-From": PATH + "source"}
    answer = await cluster.api.call("PUT", PATH + "fork", headers=words)
    assert (answer.status, answer.json()["retryable"]) == (503, True), answer
