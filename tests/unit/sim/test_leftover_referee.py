"""The referee of orphan ledgers reports each lie, and no truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.log.orphan_ledgers import custom_of
from octavo.broker.types import PartitionName
from octavo.metadata.topic_records import (
    CompactedLedger,
    CompactionRecord,
    PartitionLedger,
    PartitionRecord,
)
from tests.sim.chain_audit import Owned
from tests.sim.leftover_audit import left_over

NAME = PartitionName("public", "t", 0)


def ledger(incarnation: str = "i", epoch: int = 3, *, deleted: bool = False) -> Any:
    custom = custom_of(NAME, "data", PartitionRecord(incarnation=incarnation, epoch=epoch))
    return SimpleNamespace(deleted=deleted, record=SimpleNamespace(custom=custom))


def judged(history: Any, **record: Any) -> list[str]:
    owned = Owned()
    owned.record = PartitionRecord(**{"incarnation": "i", "epoch": 4, **record})
    return left_over({7: history}, {NAME: owned})


@pytest.mark.parametrize(
    ("history", "record", "said"),
    [
        (ledger(), {}, "made at 3 of 4"),
        (ledger(), {"ledgers": (PartitionLedger(8, 0),), "state_ledger": 9}, "made at 3 of 4"),
        (ledger("earlier", 9), {}, "of an earlier public/t/0"),
    ],
)
def test_a_lie_is_said(history: Any, record: dict[str, Any], said: str) -> None:
    assert [said in one for one in judged(history, **record)] == [True]


def test_what_a_topic_left_that_is_gone_is_said() -> None:
    assert left_over({7: ledger()}, {}) == ["ledger 7 of public/t/0, which is gone"]


@pytest.mark.parametrize(
    ("history", "record"),
    [
        (ledger(deleted=True), {}),
        (ledger(epoch=4), {}),
        (ledger(), {"ledgers": (PartitionLedger(7, 0),)}),
        (ledger(), {"state_ledger": 7}),
        (ledger(), {"compaction": CompactionRecord(ledgers=(CompactedLedger(7, 0, 0, 1, 1),))}),
        (ledger(), {"deleted": True}),
        (SimpleNamespace(deleted=False, record=SimpleNamespace(custom={})), {}),
    ],
)
def test_the_truth_is_not(history: Any, record: dict[str, Any]) -> None:
    assert judged(history, **record) == []
