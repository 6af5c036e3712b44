"""A receive was a 500, and its messages were out at nobody, where the loop paused for a moment.

uvloop gives a plain `Handle`, without `when()`, for a moment that is over already. So the time at
which a key-shared or failover subscription looks again was asked of a handle that does not know it.
Seen at a broker that had just started, beside 5 consumers.
"""

from __future__ import annotations

import asyncio

import uvloop

from tests.unit.broker.test_subscription_types import Log, keyed, made, offsets


def test_a_look_whose_time_is_over_is_planned_as_any() -> None:
    async def run() -> None:
        subscription = made(Log(keyed("a")), "failover")
        for _ in range(2):
            subscription._turns.changes_ms = subscription._now_ms() - 50
            subscription._plan_a_look()
        await asyncio.sleep(0.01)
        assert subscription._look is None
        assert await offsets(subscription, "c") == [0]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
