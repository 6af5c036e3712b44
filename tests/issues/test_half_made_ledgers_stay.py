"""Ledgers that were made and then not used stayed in the metadata store until a sweep found them.

The state ledger whose snapshot failed or was broken off, and the data ledger of a roll-over that
was broken off, or met a bug, before any record could name it. Found by reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from octavo.broker.errors import AckOutcomeUnknown, NotOwner, PublishOutcomeUnknown
from octavo.broker.state.format import Op, snapshot
from octavo.ledger.errors import BookieUnavailable, NotEnoughBookies
from octavo.metadata.store import MetadataUnavailable
from tests.support.memory_state_ledgers import MemoryLedgers, MemoryWriter, Served
from tests.unit.broker.test_publisher import turns
from tests.unit.broker.test_rollover import Rolling

NOTHING: Op = []


def empty() -> Iterable[bytes]:
    return snapshot([], [], 0)


class HeldUp(MemoryLedgers):
    """Every snapshot waits until it is told to go on."""

    async def create(self, **settings: object) -> MemoryWriter:
        writer = await super().create(**settings)
        writer.go_on.clear()
        return writer


@pytest.mark.parametrize("how", ["fails", "is broken off"])
async def test_of_a_snapshot_that(how: str) -> None:
    served = Served(empty)
    served.ledgers = served.log._ledgers = HeldUp()  # type: ignore[assignment]
    asked = asyncio.create_task(served.log.append(NOTHING))
    await turns()
    (writer,) = served.ledgers.writers.values()
    if how == "fails":
        writer.ended = BookieUnavailable("b1", "gone")
        writer.go_on.set()
        with pytest.raises(AckOutcomeUnknown):
            await asked
    else:
        await served.log.close(drain=False)
        with pytest.raises(NotOwner):
            await asked
    await turns()
    assert writer.ended is not None
    assert not served.ledgers.writers, "it is deleted: no record can name it"


async def test_one_that_the_record_may_name_is_let_go_of_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(empty)

    async def no_answer(_: object) -> None:
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(served.record, "change", no_answer)
    with pytest.raises(AckOutcomeUnknown):
        await served.log.append(NOTHING)
    await turns()
    (writer,) = served.ledgers.writers.values()
    assert writer.ended is not None


async def test_of_a_roll_over_that_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher has failed meanwhile: so it is when the partition is lost, or opened anew."""
    rolling = Rolling(monkeypatch)
    before, after = await rolling.begin()
    rolling.bench.publisher.fail(NotEnoughBookies("ledger 1", 2, ["b3"]))
    rolling.rollover._task = rolling.task
    await rolling.rollover.cancel()
    await turns()
    assert rolling.said == ["discarded 2"]
    for publish in (before, after):
        with pytest.raises(PublishOutcomeUnknown):
            await publish


async def test_of_a_roll_over_that_meets_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    rolling = Rolling(monkeypatch)

    async def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rolling.old, "close", broken)
    before, after = await rolling.begin()
    rolling.old.confirm()
    await rolling.task
    await turns()
    assert rolling.said == ["discarded 2"]
    assert (await before).first_offset == 100
    with pytest.raises(PublishOutcomeUnknown):
        await after
