"""Objects of offloaded ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.types import TopicSettings
from octavo.clock import wall_clock_ms
from octavo.metadata.topics import TopicStore
from octavo.pipeline.offload import begin, finish, remove_orphans
from octavo.pipeline.offload_copy import copy_in_task
from octavo.pipeline.offload_rules import OffloadPolicy, planned
from octavo.spark.cluster import connected
from tests.support.cluster import TOPIC
from tests.support.spark_place import Place, running_place

# A run that began a copy again removed the intent of the run before, which might still live and
# write its object: then nothing named that object. Now an intent stays until no run can be
# writing.

NAME = ("public", "flights", 0)
SOON = OffloadPolicy(grace_ms=0)
LATER = OffloadPolicy(grace_ms=0, forget_ms=0)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path / "cluster") as made:
        yield made


async def begun_by(cluster: Any, place: Place, out: Path) -> Any:
    record = await cluster.record(str(TOPIC), 0)
    job = planned({NAME: record}, OffloadPolicy(), wall_clock_ms()).copies[0]
    return await begin(cluster, job, out.as_uri(), place.service)


def objects_in(out: Path) -> list[str]:
    return [path.as_uri() for path in out.rglob("*.parquet")]


@pytest.mark.timeout(600)
async def test_the_run_before_lives_and_dies_after_its_object(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with connected(place.service) as one, connected(place.service) as other:
        late = await begun_by(one, place, out)
        ours = await begun_by(other, place, out)
        await asyncio.to_thread(copy_in_task, late)
        done = await asyncio.to_thread(copy_in_task, ours)
        assert await finish(other, done)
        assert len(objects_in(out)) == 2
        assert await remove_orphans(other, LATER) == 1
        assert await TopicStore(place.cluster.store).list_intents() == [ours.about.uuid]
    assert objects_in(out) == [done.url]


@pytest.mark.timeout(600)
async def test_an_orphan_whose_object_comes_later(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    topics = TopicStore(place.cluster.store)
    async with connected(place.service) as cluster:
        late = await begun_by(cluster, place, out)
        await place.broker.topics.delete(TOPIC)
        await place.broker.topics.create(TOPIC, TopicSettings())
        assert await remove_orphans(cluster, SOON) == 0
        path = out / "public" / "flights" / "0" / f"{late.stem}-12345678.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"whole")
        assert await remove_orphans(cluster, SOON) == 1
        assert objects_in(out) == []
        assert await topics.list_intents() == [late.about.uuid], "another try of it may write yet"
        assert await remove_orphans(cluster, LATER) == 0
    assert await topics.list_intents() == []


@pytest.mark.timeout(600)
async def test_a_finish_that_comes_too_late_leaves_its_intent(place: Place, tmp_path: Path) -> None:
    """Spark may have given up an attempt of the task that still writes."""
    out = tmp_path / "out"
    async with connected(place.service) as cluster:
        task = await begun_by(cluster, place, out)
        done = await asyncio.to_thread(copy_in_task, task)
        assert not await finish(cluster, done._replace(written=None, failed="no room"))
        assert objects_in(out) == []
        await asyncio.to_thread(copy_in_task, task)
        assert await remove_orphans(cluster, LATER) == 1
    assert objects_in(out) == []
    assert await TopicStore(place.cluster.store).list_intents() == []
