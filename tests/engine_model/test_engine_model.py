from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.write.checkpoint import Checkpointer
from tests.engine_model.machine import Disagreement, run
from tests.sim.disk_handle import SimFile
from tests.sim.mutants import planted

HISTORIES = 40
"""`make engine-model` runs a thousand and more."""


def test_any_history_agrees_with_the_model() -> None:
    done = run(HISTORIES, 1)
    assert done.histories >= HISTORIES
    assert done.steps > 1000
    assert done.deaths > HISTORIES


Patch = Callable[[pytest.MonkeyPatch], None]


def acks_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    real = SimFile.datasync

    def datasync(self: SimFile) -> None:
        if not self.path.endswith(".journal"):
            real(self)

    patch.setattr(SimFile, "datasync", datasync)


def a_fence_is_not_journaled(patch: pytest.MonkeyPatch) -> None:
    async def fence(self: LedgerControl, ledger_id: int, key: bytes) -> None:
        self._authorized(ledger_id, key).fenced = True

    patch.setattr(LedgerControl, "fence", fence)


def copies_are_lost(patch: pytest.MonkeyPatch) -> None:
    async def relocate(self: Checkpointer, live: Any) -> int:
        return 0

    patch.setattr(Checkpointer, "relocate", relocate)


@pytest.mark.parametrize("plant", [acks_before_the_sync, a_fence_is_not_journaled, copies_are_lost])
def test_a_planted_bug_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Disagreement):
        run(HISTORIES, 1, shrink=False)


@pytest.mark.parametrize("name", ["highest-mark-of-several-folders", "checkpoint-skipped"])
def test_a_storage_bug_of_the_field_is_found(name: str) -> None:
    with planted(name), pytest.raises(Disagreement):
        run(400, 1, shrink=False)
