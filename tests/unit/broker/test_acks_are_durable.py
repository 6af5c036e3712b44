"""The next owner finds every answered ack, whatever failed before it.

Subscriptions use a state ledger whose writes, creations and records fail at random, with and
without effect. After each answer the ledger that the record names is replayed, as a take-over
would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import AckOutcomeUnknown, NotOwner, StaleLease, SubscriptionNotFound
from octavo.broker.log.open_batches import OpenBatches, ReadableBatch
from octavo.broker.log.record import OwnershipLost
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import Op, cursor_op, snapshot
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import PartitionName, StoredBatch, SubscriptionInfo, SubscriptionSettings
from octavo.ledger.errors import BookieUnavailable, OutcomeUnknown
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import PartitionRecord
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.support.memory_state_ledgers import (
    NAME,
    MemoryLedgers,
    MemoryRecord,
    MemoryWriter,
    Served,
)

END = 60
DOWN = BookieUnavailable("b1", "gone")


class FlakyWriter(MemoryWriter):
    """Some adds have no answer, and may have taken effect."""

    def __init__(self, ledger_id: int, rng: random.Random) -> None:
        super().__init__(ledger_id)
        self._rng = rng

    async def append(self, payload: bytes) -> int:
        fate = self._rng.random()
        if fate < 0.1:
            raise OutcomeUnknown(self.ledger_id, len(self.entries), DOWN)
        await super().append(payload)
        if fate < 0.2:
            raise OutcomeUnknown(self.ledger_id, self.last_add_confirmed, DOWN)
        return self.last_add_confirmed


class FlakyLedgers(MemoryLedgers):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._last_id = 0

    async def create(self, **_: Any) -> MemoryWriter:
        if self._rng.random() < 0.2:
            raise DOWN
        self._last_id += 1
        made = self.writers[self._last_id] = FlakyWriter(self._last_id, self._rng)
        return made


class FlakyRecord(MemoryRecord):
    """A change without an answer may be stored: then its owner's next one is refused."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.stored = self.value
        self._rng = rng

    async def change(self, make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        if self.stored != self.value:
            raise OwnershipLost("changed elsewhere")
        fate = self._rng.random()
        if fate < 0.15:
            raise MetadataUnavailable("no answer")
        self.stored = make(self.value)
        if fate < 0.25:
            raise MetadataUnavailable("no answer")
        self.value = self.stored
        return self.value


class Log:
    """The parts of a partition that a subscription needs: a log of single messages."""

    name: PartitionName = NAME
    epoch = lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()
    next_offset = END

    def __init__(self, persist: Callable[[Op], Any]) -> None:
        self.persist = persist

    def wall_ms(self) -> int:
        return 0

    async def read(self, offset: int, **_: Any) -> list[StoredBatch]:
        data = with_base_offset(build_batch([Record(None, b"x")]), offset)
        return [StoredBatch(offset, 1, offset, read_header(data), bytes(data))]

    async def large_body(self, offset: int) -> None:
        return None

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return OpenBatches(0).readable(batch)


class Owner:
    """A partition with two subscriptions, until it is lost; and its answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cursors: dict[Any, Cursor] = {"shared": Cursor(), "exclusive": Cursor()}
        self.served = Served(self._snapshot, state_ledger_entries_max=self.rng.choice((1, 4, 99)))
        self.served.ledgers = FlakyLedgers(self.rng)
        self.record = self.served.record = FlakyRecord(self.rng)
        log: Any = self.served.log
        log._ledgers, log._record = self.served.ledgers, self.record
        self.subscriptions = {
            kind: Subscription(
                Log(self.served.log.append),
                SubscriptionInfo(kind, SubscriptionSettings(type=kind), 1),
                cursor,
                BrokerConfig(),
            )
            for kind, cursor in self.cursors.items()
        }
        self.answered: dict[str, set[int]] = {kind: set() for kind in self.cursors}

    def _snapshot(self) -> Iterable[bytes]:
        return snapshot([(name, 1, cursor) for name, cursor in self.cursors.items()], [], 0)

    async def work(self, kind: str) -> None:
        """Receive and ack some messages in random ways; mostly repeat unanswered calls."""
        rng, subscription = self.rng, self.subscriptions[kind]
        given = await subscription.receive("c", messages_max=rng.choice((1, 3, 9)))
        if not given:
            return
        taken = [one for one in given if rng.random() < 0.7]
        call: dict[str, Any] = {"ack_ids": [one.ack_id for one in taken]}
        offsets = {one.offset for one in taken}
        if kind == "exclusive" and rng.random() < 0.5:
            up_to = rng.choice(given).offset
            call, offsets = {"up_to": up_to}, set(range(up_to + 1))
        for _ in range(rng.choice((1, 2, 4))):
            try:
                await subscription.acknowledge(**call)
            except AckOutcomeUnknown:
                continue
            except StaleLease as stale:
                offsets -= {one.offset for one in taken if one.ack_id in stale.stale}
            self.answered[kind] |= offsets
            return

    async def seek(self, kind: str) -> None:
        """Seek anywhere; without an answer the position is unknown."""
        to = self.rng.randrange(END)
        self.answered[kind] = {offset for offset in self.answered[kind] if offset < to}
        try:
            await self.subscriptions[kind].seek(to)
        except AckOutcomeUnknown:
            self.answered[kind].clear()

    def found_by_the_next(self) -> None:
        """Check that the ledger that the record names has everything that was answered."""
        known, self.record.value = self.record.value, self.record.stored
        state = self.served.after_a_restart()
        self.record.value = known
        for kind, offsets in self.answered.items():
            cursor = state.cursors[kind].cursor
            lost = [offset for offset in sorted(offsets) if not cursor.is_acked(offset)]
            assert not lost, f"{kind}: {lost} of {sorted(offsets)}"


@pytest.mark.parametrize("seed", range(150))
async def test_what_was_answered_is_found_by_the_next_owner(seed: int) -> None:
    owner = Owner(seed)
    for kind in owner.cursors:
        while True:
            try:
                await owner.served.log.append(cursor_op(kind, 1, 0))
                break
            except AckOutcomeUnknown:
                continue
            except NotOwner:
                return  # lost before any answer
    for _ in range(40):
        kind = owner.rng.choice(["shared", "exclusive"])
        try:
            await (owner.seek if owner.rng.random() < 0.1 else owner.work)(kind)
        except NotOwner:
            break
        owner.found_by_the_next()
    owner.found_by_the_next()


async def test_a_namesake_starts_afresh() -> None:
    """Earlier acks belonged to the deleted subscription."""
    made: list[Op] = []

    async def persist(op: Op) -> None:
        made.append(op)

    async def lookup(name: str) -> SubscriptionInfo:
        raise SubscriptionNotFound(name)

    log: Any = Log(persist)
    subscriptions = SubscriptionSet(log, BrokerConfig(), lookup, persist)
    settings = SubscriptionSettings(start="earliest")
    old = await subscriptions.make(SubscriptionInfo("s", settings, 1))
    given = await old.receive("c", messages_max=5)
    await old.acknowledge([one.ack_id for one in given])
    new = await subscriptions.make(SubscriptionInfo("s", settings, 2))
    assert new.stats().committed_offset == 0
    assert [one.offset for one in await new.receive("c", messages_max=5)] == [0, 1, 2, 3, 4]
    with pytest.raises(NotOwner):
        await old.receive("c", messages_max=1)
    assert [op[0] for op in made] == ["c", "a", "c"]
