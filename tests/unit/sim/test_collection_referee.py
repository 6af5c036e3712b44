"""The referee of deleted ledgers on disk waits for a slow collector, and fails a hanging one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.ledger_settle import Judge

LEDGERS = 300
LIVE = 7


class Bookie:
    """Knows ledgers, all but one deleted, and drops `pace` every three seconds."""

    name = "b1"
    refused = None

    def __init__(self, pace: int, stops_at: int) -> None:
        self.now_s = 0.0
        self.pace = pace
        self.stops_at = stops_at
        self.said: list[str] = []
        self.node: Any = SimpleNamespace(storage=self)
        self.disk: Any = SimpleNamespace(names={})
        self._checkpointer: Any = SimpleNamespace(mark=None)
        audit = SimpleNamespace(
            ledgers=range(LEDGERS),
            damaged={},
            is_deleted=lambda ledger_id: ledger_id != LIVE,
            fail=self.said.append,
        )
        loop = SimpleNamespace(stream=lambda _: None, time=lambda: self.now_s)
        self.cluster: Any = SimpleNamespace(audit=audit, loop=loop, bookies={"b1": self})

    def ledgers(self) -> list[int]:
        gone = min(int(self.now_s / 3) * self.pace, self.stops_at)
        return [found for found in range(LEDGERS) if found == LIVE or found >= gone]


async def judged(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async def sleep(s: float) -> None:
        bookie.now_s += s

    monkeypatch.setattr(asyncio, "sleep", sleep)
    nothing: Any = None
    await Judge(bookie.cluster, nothing, nothing)._clean()
    return bookie.said


async def test_fifteen_ledgers_a_round_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 2500050 of `topic`: 250 deleted ledgers took 37 s, with nothing wrong."""
    bookie = Bookie(15, LEDGERS)
    assert await judged(bookie, monkeypatch) == []
    assert bookie.now_s == pytest.approx(60, abs=1)


@pytest.mark.parametrize("stops_at", [0, 150])
async def test_who_hangs_is_told_of(stops_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = Bookie(15, stops_at)
    [said] = await judged(bookie, monkeypatch)
    assert said.startswith("S8 for 24.0 s nothing went: b1 holds ledgers [")
    assert bookie.now_s == pytest.approx(stops_at / 5 + 24, abs=1)
