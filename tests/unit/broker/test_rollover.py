"""A roll-over with publishes in both ledgers: the new one counts only after the old one is
confirmed.

The test answers the ledgers by hand. Closing the old ledger does not wait: a real ledger gives up
after a while, and closes where it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.errors import PublishOutcomeUnknown
from octavo.broker.log.ledger_list import LedgerList, RolloverPolicy
from octavo.broker.log.record import OwnershipLost
from octavo.broker.partition.rollover import Rollover
from octavo.broker.types import TopicSettings
from octavo.ledger.errors import LedgerClosed, NotEnoughBookies, OutcomeUnknown
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.protocol.codes import OctavoError
from tests.unit.broker.test_publisher import NAME, Bench, FakeWriter, turns


class Writer(FakeWriter):
    """Notes when it was closed."""

    metadata = TopicSettings()  # the number of copies

    def __init__(self, ledger_id: int, said: list[str]) -> None:
        super().__init__(ledger_id)
        self.said = said

    async def close(self) -> None:
        self.said.append(f"closed with {len(self.dones) - self.answered} unanswered")


class Record:
    """The partition's record in memory; `error`: the outcome of its next change."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.value = PartitionRecord()
        self.ledgers = LedgerList((PartitionLedger(1, 100),), 100)
        self.error: OctavoError | None = None

    async def change(self, make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        made = make(PartitionRecord())
        if self.error is not None:
            raise self.error
        self.said.append(f"named {[link.ledger_id for link in made.ledgers]}")
        return made


class Rolling:
    """One publish in each ledger, and a roll-over between them in progress."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.bench = Bench()
        self.old, self.new = Writer(1, self.said), Writer(2, self.said)
        self.bench.publisher.segment.writer = self.old  # type: ignore[assignment]

        async def create(*_: object) -> Any:
            return self.new

        async def delete(_: object, ledger_id: int) -> None:
            self.said.append(f"deleted {ledger_id}")

        monkeypatch.setattr("octavo.broker.partition.rollover.create_ledger", create)

        async def discard(writer: Writer) -> None:
            writer.abandon(LedgerClosed("discarded"))
            self.said.append(f"discarded {writer.ledger_id}")

        monkeypatch.setattr("octavo.broker.partition.rollover.delete_quietly", delete)
        self.unsure: set[int] = set()
        """Ledgers that name a bookie in limbo."""

        def has_unsure_bookie(_: object) -> bool:
            return self.bench.publisher.segment.ledger_id in self.unsure

        ledgers: Any = SimpleNamespace(discard=discard, has_unsure_bookie=has_unsure_bookie)
        self.record = Record(self.said)
        settings: Any = lambda: TopicSettings(  # noqa: E731
            rollover_bytes=1 << 30, rollover_entries=1 << 30, rollover_age_ms=1 << 40
        )
        held: Any = self.record
        unused: Any = None
        self.rollover = Rollover(
            NAME, self.bench.publisher, held, ledgers, settings, lambda: 0,
            asyncio.ensure_future, unused,
        )  # fmt: skip

    async def begin(self) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
        """Begin the publishes into the old ledger and the new one."""
        before = self.bench.publish()
        await turns()
        self.task = asyncio.create_task(self.rollover._run())
        await turns()
        after = self.bench.publish()
        await turns()
        assert (len(self.old.added), len(self.new.added)) == (1, 1)
        self.new.confirm()
        await turns(20)
        return before, after


async def test_a_ledger_that_names_a_bookie_in_limbo_is_rolled_over_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a bookie stayed in limbo until the ledger was old enough, four hours by default."""
    rolling = Rolling(monkeypatch)
    rolling.rollover.look()
    await turns(20)
    assert rolling.bench.publisher.segment.ledger_id == 1
    rolling.unsure = {1}
    rolling.rollover.look()
    await turns(20)
    assert rolling.bench.publisher.segment.ledger_id == 2
    rolling.rollover.look()
    await turns(20)
    assert [line for line in rolling.said if line.startswith("closed")] == [
        "closed with 0 unanswered"
    ]


async def test_the_old_ledger_is_closed_when_all_of_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolling = Rolling(monkeypatch)
    before, after = await rolling.begin()
    assert rolling.said == []
    assert not after.done()
    rolling.old.confirm()
    await rolling.task
    assert rolling.said == ["closed with 0 unanswered", "named [1, 2]"]
    assert (await before).first_offset == 100
    assert (await after).first_offset == 101


async def test_what_the_old_ledger_cannot_confirm_ends_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the record would name the new ledger, with messages that follow a lost one."""
    rolling = Rolling(monkeypatch)
    before, after = await rolling.begin()
    rolling.old.dones[0](0, OutcomeUnknown(1, 0, NotEnoughBookies("ledger 1", 2, ["b3"])))
    await rolling.task
    await turns()
    assert rolling.said == ["discarded 2"]
    for publish in (before, after):
        with pytest.raises(PublishOutcomeUnknown):
            await publish


@pytest.mark.parametrize(
    ("error", "discarded"),
    [
        (OwnershipLost("refused", refused=True), True),
        (OwnershipLost("changed elsewhere, and our own write had no answer"), False),
        (MetadataUnavailable("no answer"), False),
    ],
)
async def test_a_ledger_that_the_record_may_name_is_not_discarded(
    error: OctavoError, discarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolling = Rolling(monkeypatch)
    rolling.record.error = error
    before, after = await rolling.begin()
    rolling.old.confirm()
    await rolling.task
    await turns()
    assert rolling.said == ["closed with 0 unanswered"] + ["discarded 2"] * discarded
    assert (await before).first_offset == 100
    with pytest.raises(PublishOutcomeUnknown):
        await after


@pytest.mark.parametrize(
    ("held", "is_due"),
    [
        ((99, 9, 999), False),
        ((100, 9, 999), True),
        ((101, 9, 999), True),
        ((99, 10, 999), True),
        ((99, 9, 1000), True),
        ((0, 1, 999), False),
        ((100, 0, 1000), False),
    ],
)
def test_a_ledger_is_due_at_each_bound(held: tuple[int, int, int], is_due: bool) -> None:
    """Bytes, entries and age: at the bound, not a step before it; an empty ledger never."""
    assert RolloverPolicy(100, 10, 1000).due(*held) is is_due
