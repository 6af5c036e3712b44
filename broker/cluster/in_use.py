"""Refuse to recover a ledger for a caller while a live broker writes it.

Recovery is safe but fences, so repeated recoveries would make a topic unavailable. A ledger is in
use when its label names a partition whose record names it, or may yet name it
(log/orphan_ledgers.py), and an owner's claim stands. Recoveries of other ledgers only cost reads,
and are limited.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from octavo.broker.cluster.registry import decode_broker
from octavo.broker.errors import LEDGER_IN_USE, BrokerError, TooManyRecoveries
from octavo.broker.log.orphan_ledgers import label_of, named_ledgers, partition_of
from octavo.broker.types import PartitionName
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.metadata.topics import PartitionRecord, TopicStore, owner_path

RECOVERIES_AT_ONCE = 4
RECOVERIES_A_MINUTE = 60
FORCED_EVERY_S = 60.0
"""Forced recoveries are this far apart: each costs a topic a second or so."""
_MINUTE_S = 60.0
_UNKNOWN = "a broker that does not say its name"


class User(NamedTuple):
    partition: PartitionName
    owner: str


def writes(ledger_id: int, custom: Mapping[str, bytes], record: PartitionRecord) -> bool:
    if ledger_id in named_ledgers(record):
        return True
    label = label_of(custom)
    return (
        label is not None
        and label.incarnation == record.incarnation
        and label.epoch >= record.epoch
    )


async def user_of(store: MetadataStore, ledger: LedgerMetadata) -> User | None:
    partition = partition_of(ledger.custom)
    if ledger.state is LedgerState.CLOSED or partition is None:
        return None
    topics = TopicStore(store)
    await topics.sync()
    try:
        record, _ = await topics.read_partition(*partition)
        if not writes(ledger.ledger_id, ledger.custom, record):
            return None
        owner = decode_broker((await store.get(owner_path(*partition))).value)
    except RecordNotFound:
        return None
    return User(partition, owner.broker_id if owner else _UNKNOWN)


def in_use(ledger: LedgerMetadata, user: User, way_out: str) -> BrokerError:
    return LEDGER_IN_USE(
        f"ledger {ledger.ledger_id} is in use: {user.owner}, which is alive, owns {user.partition} "
        "and writes it. Recovering it would only stop that topic for a moment; when the owner is "
        f"gone, the next owner recovers it. {way_out}",
        owner=user.owner,
    )


class RecoveryDoor:
    def __init__(self) -> None:
        self._inside = 0
        self._begun_s: deque[float] = deque()
        self._forced_s = -math.inf

    def describe(self) -> dict[str, int]:
        return {"recoveries": self._inside}

    @contextlib.contextmanager
    def entered(self, now_s: float) -> Iterator[None]:
        if self._inside >= RECOVERIES_AT_ONCE:
            raise TooManyRecoveries(
                f"{self._inside} recoveries are under way for others; at most "
                f"{RECOVERIES_AT_ONCE} at once",
                1,
            )
        while self._begun_s and self._begun_s[0] <= now_s - _MINUTE_S:
            self._begun_s.popleft()
        if len(self._begun_s) >= RECOVERIES_A_MINUTE:
            raise TooManyRecoveries(
                f"at most {RECOVERIES_A_MINUTE} recoveries a minute at one broker",
                math.ceil(self._begun_s[0] + _MINUTE_S - now_s),
            )
        self._begun_s.append(now_s)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def force(self, now_s: float) -> None:
        wait_s = self._forced_s + FORCED_EVERY_S - now_s
        if wait_s > 0:
            raise TooManyRecoveries(
                f"one forced recovery in {FORCED_EVERY_S:g} s at one broker: each stops a topic "
                "for a moment",
                math.ceil(wait_s),
            )
        self._forced_s = now_s
