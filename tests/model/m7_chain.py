"""M7: a partition changes hands. Brokers run the real take-over, publisher and roll-over."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from octavo.broker.log import record as records
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.partition.publisher import OpenSegment, Publisher
from octavo.metadata.store import VersionConflict
from octavo.metadata.topics import PartitionRecord
from tests.model.chain_nodes import Broker, Ledgers, RecordStore, all_served, check
from tests.model.model import Defect, Model
from tests.model.world import World


def chain_world(brokers: str, *, messages: int, rolls: bool, faults: int = 0) -> World:
    """Each broker claims once, at any time; `faults`: lost answers of the metadata store."""
    nodes = [Broker(name, messages=messages, rolls=rolls, loses=faults > 0) for name in brokers]
    return World(
        [RecordStore(), Ledgers(), *nodes], check, faults=faults, ended=all_served, alike=[brokers]
    )


async def overwrite(
    self: PartitionRecordKeeper, wanted: PartitionRecord
) -> tuple[PartitionRecord, int]:
    while True:
        try:
            return wanted, await self._topics.write_partition(*self._name, wanted, self._version)
        except VersionConflict:
            _, self._version = await self._topics.read_partition(*self._name)


async def look_only(self: PartitionOpener) -> Any:
    """Measure the last ledger without fencing its owner."""
    last = self._record.ledgers.last
    if last is None or last.count is not None:
        return None
    return await self._ledgers.look(last.ledger_id)  # type: ignore[attr-defined]


_switch_to = Publisher.switch_to


def answer_at_once(self: Publisher, segment: OpenSegment) -> None:
    """Answer adds to the new ledger before the record names it."""
    _switch_to(self, segment)
    segment.released = True


OVERWRITES = Defect(
    "the list of ledgers is written whatever its version",
    "record: write: ",
    depth=12,
    plant=lambda: patch.object(PartitionRecordKeeper, "_put", overwrite),
)
LOOKS = Defect(
    "the last ledger is not recovered before the list grows (LedgerChaining)",
    "S9: ",
    depth=18,
    plant=lambda: patch.object(PartitionOpener, "_close_last", look_only),
)
HASTY = Defect(
    "a roll-over answers before the list names the new ledger",
    "S9: ",
    depth=17,
    plant=lambda: patch.object(Publisher, "switch_to", answer_at_once),
    # The second message still goes to the old ledger: its roll-over begins with the first ack.
    world=lambda: chain_world("pq", messages=3, rolls=True),
)
GUESSES = Defect(
    "after a lost answer a take-over that may be another's is taken for one's own",
    "record: write: ",
    depth=13,
    plant=lambda: patch.object(records, "_is_nobody_elses", lambda wanted, known: True),
)

ROLLS = Model(
    name="M7",
    about="a take-over amid publishing and roll-overs, each broker at any time",
    bounds="2 brokers; 2 messages each; a roll-over after each message",
    world=lambda: chain_world("pq", messages=2, rolls=True),
    states=42_106,
    depth=62,
    ci=True,
    defects=(OVERWRITES, LOOKS, HASTY),
)

LOST = Model(
    name="M7-lost",
    about="the same with one answer of the metadata store lost: its write may come late",
    bounds="2 brokers; 1 message each; a roll-over after it; 1 lost answer",
    world=lambda: chain_world("pq", messages=1, rolls=True, faults=1),
    states=300_243,
    depth=74,
    defects=(OVERWRITES, LOOKS, GUESSES),
)

THREE = Model(
    name="M7-three",
    about="two leadership changes: three brokers take over from each other, or race",
    bounds="3 brokers; 1 message each",
    world=lambda: chain_world("pqr", messages=1, rolls=False),
    states=851_960,
    depth=70,
    defects=(OVERWRITES, LOOKS),
)
