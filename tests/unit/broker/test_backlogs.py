"""The driver of time to live and quotas: the clock of its marks, and the order of subscriptions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import BacklogQuotaExceeded
from octavo.broker.partition.backlogs import Backlogs
from octavo.broker.partition.context import PassedOver
from octavo.broker.policies import Ages, Stored
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.topics import Policies

NAME = PartitionName("public", "t", 0)


class Bench:
    """A subscription `s` over a log of 100 messages of 10 bytes."""

    def __init__(self, policies: Policies, hold_ms: int = 5_000) -> None:
        self.policies = policies
        self.cursor = 0
        self.end = 100
        self.time: DeletionTime | None = DeletionTime(1_000, "", 0, 1_000)
        self.written: list[Any] = []
        context: Any = SimpleNamespace(
            config=SimpleNamespace(backlog_hold_ms=hold_ms),
            topics=SimpleNamespace(list_subscriptions=self._names),
            deletion_time=lambda: self.time,
            passed_over=PassedOver(),
        )
        subscriptions: Any = SimpleNamespace(
            committed=lambda: {"s": self.cursor}, bounded=lambda: {"s": self.cursor},
            pass_over=self._pass_over, follow=self._follow, know_letters=self._know_letters,
        )  # fmt: skip
        self.backlogs = Backlogs(
            NAME, context, lambda: TopicSettings(policies=self.policies), subscriptions,
            self._persist, lambda: [Stored(0, self.end, 10 * self.end)], Ages(),
        )  # fmt: skip
        self.passed_over = context.passed_over

    async def _names(self, *_: str) -> list[str]:
        return ["s"]

    async def _follow(self, _: object) -> None:
        pass

    async def _know_letters(self) -> None:
        pass

    async def _persist(self, op: Any) -> None:
        self.written.append(op)

    async def _pass_over(self, _: str, end: int) -> int:
        passed, self.cursor = max(0, end - self.cursor), max(end, self.cursor)
        return passed


async def test_marks_are_made_by_a_time_that_is_not_behind_and_judged_by_one_that_is_not_ahead(
) -> None:  # fmt: skip
    bench = Bench(Policies(ttl_ms=1_000))
    bench.time = DeletionTime(5_000, "", 0, 9_000)
    await bench.backlogs.keep()
    assert bench.written == [[50, 100, 9_000]]
    bench.time = DeletionTime(9_500, "", 0, 9_500)
    await bench.backlogs.keep()
    assert bench.cursor == 0, "the clock was behind when it was marked"
    bench.time = DeletionTime(10_000, "", 0, 12_000)
    await bench.backlogs.keep()
    assert bench.cursor == 0, "the bound itself is no excess"
    bench.time = DeletionTime(10_002, "", 0, 12_000)
    await bench.backlogs.keep()
    assert bench.cursor == 100
    assert bench.passed_over.expired == 100


async def test_while_clocks_do_not_agree_nothing_is_marked_and_without_time_nothing_goes() -> None:
    bench = Bench(Policies(ttl_ms=1_000))
    bench.time = DeletionTime(5_000, "they do not agree", 0, 5_000)
    await bench.backlogs.keep()
    assert not bench.written
    bench.time = None
    bench.backlogs.ages.note(100, 1)
    await bench.backlogs.keep()
    assert bench.cursor == 0


async def test_nothing_is_written_where_nothing_is_unacked() -> None:
    bench = Bench(Policies(ttl_ms=1_000))
    bench.cursor = 100
    await bench.backlogs.keep()
    assert not bench.written


async def test_who_comes_while_others_go_on_waits_behind_them() -> None:
    bench = Bench(Policies(backlog_bytes=500))
    bench.backlogs.judge()
    done: list[int] = []

    async def publish(number: int) -> None:
        await bench.backlogs.admit()
        done.append(number)

    waiting = [asyncio.create_task(publish(number)) for number in range(3)]
    await asyncio.sleep(0)
    bench.cursor = 60
    bench.backlogs.acked()
    waiting.append(asyncio.create_task(publish(3)))
    for _ in range(2):
        await asyncio.sleep(0)
    waiting.append(asyncio.create_task(publish(4)))
    await asyncio.gather(*waiting)
    assert done == [0, 1, 2, 3, 4]
    await bench.backlogs.admit()


async def test_who_waits_is_let_go_when_the_partition_closes() -> None:
    bench = Bench(Policies(backlog_bytes=500), hold_ms=60_000)
    bench.backlogs.judge()
    waiting = asyncio.create_task(bench.backlogs.admit())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    bench.backlogs.close()
    async with asyncio.timeout(2):
        await waiting


async def test_whoever_waits_in_vain_is_told_so() -> None:
    bench = Bench(Policies(backlog_bytes=500), hold_ms=10)
    bench.backlogs.judge()
    told = await asyncio.gather(*(bench.backlogs.admit() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, BacklogQuotaExceeded) for one in told)
    assert all("1000 bytes are kept for it, and the quota is 500" in str(one) for one in told)
    bench.policies = Policies(backlog_bytes=500, backlog_policy="evict")
    await bench.backlogs.keep()
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.cursor == 50
    assert bench.backlogs._over is None
