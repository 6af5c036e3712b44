"""The audit log of a broker: each caller's operation, resource and address, and the decision.

`AuditLog` reports decisions as log events, at once, and in the topic octavo/audit; repeated
decisions are counted (`count`). A crash loses about a second's events of the topic. `AuditWriter`
writes the topic through a bounded queue, as an idempotent producer with a new id in each run: a
batch with an unknown outcome is sent again unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from octavo.broker.broker import Broker
from octavo.broker.errors import SequenceGap, TopicNotFound
from octavo.broker.internal_topics import AUDIT_PARTITION, AUDIT_TOPIC
from octavo.broker.types import Owner, TopicSettings
from octavo.protocol.backoff import Backoff
from octavo.protocol.records import Record, build_batch
from octavo.security.audit import REASON_CHARS, AuditBook, Decided, Deed, deed_of
from octavo.security.principal import ANONYMOUS

log = structlog.get_logger()


BATCH_EVENTS_MAX = 500
EVERY_S = 1.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
ATTEMPT_S = 40.0
"""Longer than a publish takes before its outcome counts as unknown."""

PassOn = Callable[[Owner, bytes], Awaitable[None]]
"""Sends a batch to its owner; raises the owner's error."""


class AuditWriter:
    def __init__(
        self,
        broker: Broker,
        pass_on: PassOn,
        *,
        rng: random.Random,
        count_lost: Callable[[], object],
        count_written: Callable[[int], object],
    ) -> None:
        self._broker = broker
        self._pass_on = pass_on
        self._rng = rng
        self._count_lost = count_lost
        self._count_written = count_written
        self._most = broker.config.audit_queue_max
        self._waiting: deque[Record] = deque()
        self._lost = 0
        self._begun = 0
        """How many events are in a batch that may be stored; it is sent again unchanged."""
        self._producer = self._new_producer()
        self._sequence = 0
        self._told: str | None = None

    def describe(self) -> dict[str, int]:
        return {"waiting": len(self._waiting)}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, event: Mapping[str, Any], time_ms: int) -> None:
        if len(self._waiting) >= self._most:
            self._lost += 1
            self._count_lost()
            return
        said = {**event, "lost": self._lost} if self._lost else event
        self._lost = 0
        key = str(event.get("principal", "")).encode()
        self._waiting.append(Record(key, msgspec.json.encode(said), timestamp_ms=time_ms))

    async def write_all(self) -> None:
        """Write all events, one call at a time; after a cancelled call the next continues."""
        while self._waiting:
            self._begun = count = self._begun or min(len(self._waiting), BATCH_EVENTS_MAX)
            await self._write(count)
            for _ in range(count):
                self._waiting.popleft()
            self._begun = 0
            self._count_written(count)

    async def _write(self, count: int) -> None:
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._rng)
        batch = self._batch(count)
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    await self._store(batch)
            except Exception as error:  # no error may lose audit events
                if _name_of(error) == SequenceGap.name:  # the owner has forgotten this producer
                    self._producer, self._sequence = self._new_producer(), 0
                    batch = self._batch(count)
                    continue
                self._tell(error)
            else:
                self._told = None
                self._sequence += count
                return
            await asyncio.sleep(pauses.next_s())

    def _tell(self, error: Exception) -> None:
        if self._told != (name := _name_of(error)):
            self._told = name
            log.warning(
                "audit_not_written",
                topic=str(AUDIT_TOPIC),
                waiting=self.waiting,
                reason=f"{self._told}: {error}"[:300],
            )

    async def _store(self, batch: bytes) -> None:
        broker = self._broker
        try:
            owner = await broker.ownership.owner_of(AUDIT_PARTITION)
        except TopicNotFound:
            await self._make_topic()
            owner = await broker.ownership.owner_of(AUDIT_PARTITION)
        if not owner.local:
            await self._pass_on(owner, batch)
            return
        partition = await broker.ownership.partition(AUDIT_PARTITION)
        await partition.publish(batch, own=True)

    async def _make_topic(self) -> None:
        broker = self._broker
        await broker.topics.create_namespace(AUDIT_TOPIC.namespace)
        settings = TopicSettings(retention_ms=broker.config.audit_retention_ms)
        with contextlib.suppress(TopicNotFound):
            await broker.topics.create(AUDIT_TOPIC, settings, own=True)

    def _batch(self, count: int) -> bytes:
        records = [self._waiting[at] for at in range(count)]
        return build_batch(
            records,
            producer_id=self._producer,
            producer_epoch=0,
            base_sequence=self._sequence & 0x7FFF_FFFF,
        )

    def _new_producer(self) -> int:
        return self._rng.getrandbits(63)


def _name_of(error: Exception) -> str:
    return str(getattr(error, "code", getattr(error, "name", type(error).__name__)))


CLOSE_S = 3.0
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}


class AuditLog:
    def __init__(
        self,
        broker: Broker,
        pass_on: PassOn,
        *,
        clock: Callable[[], int],
        rng: random.Random,
        count_lost: Callable[[], object] = lambda: None,
        count_written: Callable[[int], object] = lambda _count: None,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._level = _LEVELS[broker.config.audit_log_level]
        self._book = AuditBook()
        self._loop = asyncio.get_running_loop()
        self._writer = AuditWriter(
            broker, pass_on, rng=rng, count_lost=count_lost, count_written=count_written
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="audit")

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._tell_due(all_of_it=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.write_all()
        except TimeoutError:
            log.error("audit_lost", topic=str(AUDIT_TOPIC), count=self.waiting)

    def on_decision(self, found: Decided) -> None:
        if not self._book.wants(found.identity, found.operation, found.allowed):
            return
        if found.resource.name.startswith(_OWN) and found.identity.is_node:
            return
        self._note(deed_of(found))

    def on_unauthenticated(self, peer: str, call: str, reason: str) -> None:
        who, why = ANONYMOUS, reason[:REASON_CHARS]
        self._note(Deed(who.name, who.source, "authenticate", "cluster", peer, False, why, call))

    def _note(self, deed: Deed) -> None:
        if self._book.note(deed, self._loop.time()):
            self._tell(deed, 1)

    def _tell_due(self, *, all_of_it: bool = False) -> None:
        for deed, count in self._book.due(self._loop.time(), all_of_it=all_of_it):
            self._tell(deed, count)

    def _tell(self, deed: Deed, count: int) -> None:
        now_ms = self._clock()
        said: dict[str, Any] = {
            name: value for name, value in deed._asdict().items() if value != ""
        }
        said["count"] = count
        log.log(self._level, "audit", **said)
        if self._broker.config.audit_topic:
            time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
            event = {"time": time, **said, "broker": self._broker.broker_id}
            self._writer.add(event, now_ms)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._tell_due()
            await self._writer.write_all()


_OWN = str(AUDIT_TOPIC)
