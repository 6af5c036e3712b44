"""A take-over a little longer than `open_timeout_ms` was begun anew for ever, with the same time.

Each attempt reads the state ledger from its first entry. Seed 1400391: 329 entries, read one by
one, took 1.4 s where 0.6 s were allowed, and nobody served the partition any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import PartitionUnavailable
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.state.dedup import ProducerTable
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.unit.broker.test_partition_record import NAME

ALLOWED_MS = 600
TAKE_OVER, REOPEN = "take-over", "reopen"


class Slow:
    """An opener whose take-overs take a while, and how long each attempt was let go on."""

    def __init__(self, takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.takes_s = takes_s
        self.attempts_s: list[float] = []
        unused: Any = None
        self.opener = PartitionOpener(
            NAME,
            BrokerConfig(broker_id="A", open_timeout_ms=ALLOWED_MS),
            unused,
            unused,
            unused,
            lambda: unused,
            lambda: 0,
            lambda work: work.close(),
        )
        monkeypatch.setattr(self.opener, "_open", self._open)

    async def _open(self, *_: object) -> Any:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.attempts_s.append(round(loop.time() - began_s, 3))

    async def once(self, kind: str) -> bool:
        """Whether it was opened, in time."""
        try:
            if kind == TAKE_OVER:
                await self.opener.take_over()
            else:
                await self.opener.reopen(ProducerTable(8), 0)
        except PartitionUnavailable:
            return False
        return True


def virtual(work: Coroutine[Any, Any, Slow]) -> Slow:
    """What comes of `work`, in virtual time."""
    slow: Slow = SimLoop(1, trace=Trace()).run_until_complete(work)
    return slow


@pytest.mark.parametrize("kind", [TAKE_OVER, REOPEN])
def test_each_attempt_has_twice_the_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def until_open() -> Slow:
        slow = Slow(1.4, monkeypatch)
        opened = [await slow.once(kind) for _ in range(3)]
        assert opened == [False, False, True]
        slow.takes_s = 3600
        assert not await slow.once(kind)
        return slow

    # After one that was in time they begin again with what is configured.
    assert virtual(until_open()).attempts_s == [0.6, 1.2, 1.4, 0.6]


def test_what_is_stuck_is_still_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_open() -> Slow:
        slow = Slow(3600, monkeypatch)
        assert not any([await slow.once(TAKE_OVER) for _ in range(6)])
        return slow

    assert virtual(never_open()).attempts_s == [0.6, 1.2, 2.4, 4.8, 4.8, 4.8]
