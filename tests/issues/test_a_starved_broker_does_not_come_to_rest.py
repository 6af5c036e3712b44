"""A broker whose session had ended stood still for longer than the next session lasts.

Each of its partitions looks who owns it now. Each look that failed had all the others look again:
with thousands of partitions that was millions of looks in one turn of the loop, and no beat of the
new session in between; in the end the process was taken for dead.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.cluster.ownership import Lookup
from octavo.metadata.store import MetadataUnavailable
from tests.support.cluster import make_topic, owned, running_cluster, until

PARTITIONS = 40


async def test_looks_that_fail_do_not_multiply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        first = await make_topic(running.broker, partitions=PARTITIONS)
        names = [first._replace(partition=number) for number in range(PARTITIONS)]
        for name in names:
            await owned(running.broker, name)
        manager = running.broker.ownership
        alarm, check = Lookup.alarm, manager._check_exists
        fails, alarms = PARTITIONS, 0

        async def check_exists(*args: Any) -> Any:
            nonlocal fails
            if fails:
                fails -= 1
                raise MetadataUnavailable("the machine has no time")
            return await check(*args)

        def counted(self: Lookup) -> None:
            nonlocal alarms
            alarms += 1
            alarm(self)

        await running.expire()
        await until(lambda: not manager.open_partitions(), "it has let go")
        monkeypatch.setattr(manager, "_check_exists", check_exists)
        monkeypatch.setattr(manager, "_awaited", dict.fromkeys(names, 1))
        monkeypatch.setattr(Lookup, "alarm", counted)
        looks = [asyncio.create_task(manager._take_if_free(name, used=True)) for name in names]
        await asyncio.wait(looks)
        assert alarms < 10 * PARTITIONS
        served = manager.open_partitions
        await until(lambda: len(served()) == PARTITIONS, "all are served again", 60)
        manager._awaited.clear()  # this test put them there: no call waits
