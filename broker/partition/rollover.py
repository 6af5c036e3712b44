"""Replace a partition's ledger by the next, without stopping publishers.

    1. make a new ledger                    publishes go to the old ledger meanwhile
    2. switch                               publishes go to the new ledger; their answers wait
    3. wait until the old ledger's entries  so there can be no gap before the new ledger
       are confirmed
    4. close the old ledger
    5. the partition's record names both    from here a successor would find the new ledger
    6. send the answers of the new ledger

An insertion is a roll-over with closed ledgers between the old and the new ledger (bulk loads,
large messages), which step 5 names too.

A crash after step 2 leaves a ledger that no record names (log/orphan_ledgers.py); none of its
entries was answered. If steps 3 to 5 fail or are cancelled, the publisher has failed, and the new
ledger is discarded unless the record may name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from octavo.broker.errors import NotOwner, PartitionUnavailable
from octavo.broker.log.cache import PartitionTail
from octavo.broker.log.ledger_list import RolloverPolicy
from octavo.broker.log.record import (
    OwnershipLost,
    PartitionRecordKeeper,
    was_refused,
    with_ledgers,
)
from octavo.broker.partition.publisher import OpenSegment, Publisher
from octavo.broker.policies import has_append_times
from octavo.broker.state.log import create_ledger, delete_quietly
from octavo.broker.types import PartitionName, TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerFenced
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bulk_loads import PrivateLedger
from octavo.metadata.topics import PartitionRecord
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_RETRY_S = 5.0


class Insertion(NamedTuple):
    ledgers: tuple[PrivateLedger, ...]
    marks: Callable[[Mapping[str, int]], Mapping[str, int]] = dict
    upload: str | None = None
    check: Callable[[], None] = lambda: None
    """Raises to refuse the insertion, in the turn of the loop that assigns the offsets."""


_NOTHING = Insertion(())


class Rollover:
    def __init__(
        self,
        name: PartitionName,
        publisher: Publisher,
        record: PartitionRecordKeeper,
        ledgers: LedgerClient,
        settings: Callable[[], TopicSettings],
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        renew_tail: Callable[[], PartitionTail],
    ) -> None:
        self._name = name
        self._publisher = publisher
        self._record = record
        self._ledgers = ledgers
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._renew_tail = renew_tail
        self._task: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self._closed = False
        publisher.begin = self.begin

    def look(self) -> None:
        if self._task is not None or self._closed or self._publisher.failed is not None:
            return
        settings = self._settings()
        policy = RolloverPolicy(
            settings.rollover_bytes, settings.rollover_entries, settings.rollover_age_ms
        )
        now_s = asyncio.get_running_loop().time()
        segment = self._publisher.segment
        if segment.writer is None:
            return
        due = (
            segment.roll_due(policy, self._clock())
            or segment.is_made_otherwise(settings)
            # Closing this ledger makes a bookie with a replaced disk trusted again.
            or self._ledgers.has_unsure_bookie(segment.writer.metadata)
        )
        if due and now_s >= self._not_before_s:
            self._task = asyncio.create_task(self._run(), name=f"roll over {self._name}")

    async def close(self) -> None:
        """Wait for a roll-over: if it were cancelled, its outcome would be unknown."""
        self._closed = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None  # a task cancelled before its start does not clear this itself

    async def begin(self) -> None:
        async def plan() -> Insertion | None:
            return _NOTHING if self._publisher.segment.writer is None else None

        await self.insert(plan)

    async def insert(self, plan: Callable[[], Awaitable[Insertion | None]]) -> None:
        """Roll over with prepared ledgers in between, in a single compare-and-set.

        `plan` is called at this insertion's turn; None: nothing is left to do.
        """
        while self._task is not None:
            await asyncio.wait((self._task,))
        if self._closed:
            raise NotOwner(f"{self._name} is being handed over; ask again")
        if self._publisher.failed is not None:
            raise PartitionUnavailable(f"{self._name}: {self._publisher.failed}")
        work = asyncio.create_task(self._insert(plan), name=f"insert into {self._name}")
        work.add_done_callback(_look_at_error)
        self._task = work
        # A cancelled caller does not end the insertion.
        await asyncio.wait((work,))
        if work.cancelled():
            raise PartitionUnavailable(
                f"{self._name}: the insertion of ledgers was interrupted; ask again"
            )
        await work

    async def _insert(self, plan: Callable[[], Awaitable[Insertion | None]]) -> None:
        try:
            insertion = await plan()
            if insertion is None:
                return
            new = await self._create()
            try:
                insertion.check()
            except BaseException:
                self._spawn(self._ledgers.discard(new))
                raise
            if self._publisher.failed is None:
                await self._replace(new, insertion)
            else:
                self._spawn(self._ledgers.discard(new))
        finally:
            self._task = None
        if (failed := self._publisher.failed) is not None:
            why = f"{self._name}: not inserted, or the outcome is unknown: {failed}"
            lost = isinstance(failed, NotOwner | LedgerFenced | OwnershipLost)
            raise NotOwner(why) if lost else PartitionUnavailable(why)
        self.look()

    async def _run(self) -> None:
        try:
            new = await self._create()
        except Exception as error:
            self._not_before_s = asyncio.get_running_loop().time() + _RETRY_S
            _log.warning(
                "rollover_delayed",
                partition=str(self._name),
                reason=str(error),
                exc_info=None if isinstance(error, OctavoError) else error,
            )
            self._task = None
            return
        try:
            if self._publisher.failed is None:
                await self._replace(new, _NOTHING)
            else:
                self._spawn(self._ledgers.discard(new))
        finally:
            self._task = None
        if self._publisher.failed is None:
            self.look()

    async def _create(self) -> LedgerWriter:
        return await create_ledger(
            self._ledgers, self._settings(), self._name, "data", self._record.value
        )

    async def _replace(self, new: LedgerWriter, insertion: Insertion) -> None:
        """Do steps 2 to 6; an error ends the publisher, which reports it."""
        publisher, old = self._publisher, self._publisher.segment
        old_end = publisher.next_offset
        base = old_end + sum(one.count for one in insertion.ledgers)
        segment = OpenSegment(
            new, base, self._clock(), released=False, appended_ms=self._appended_ms()
        )
        publisher.switch_to(segment)
        may_be_named = False
        try:
            await publisher.confirmed_up_to(old_end)
            if old.writer is not None:
                await old.writer.close()
            may_be_named = True
            await self._record.change(lambda record: self._joined(record, old, segment, insertion))
        except BaseException as error:
            if not may_be_named or was_refused(error):
                self._spawn(self._ledgers.discard(new))
            if not isinstance(error, Exception):
                raise  # cancelled, and the caller makes the publisher let go
            if isinstance(error, OctavoError):
                publisher.fail(error)
            else:  # after a bug, too, publishers must get an answer
                _log.exception("rollover_failed", partition=str(self._name))
                why = f"{self._name}: its roll-over failed: {error!r}"
                publisher.fail(PartitionUnavailable(why))
            publisher.let_go()
            return
        if publisher.failed is not None:
            publisher.let_go()
            return
        if old.ledger_id is not None and not old.contents.messages:
            self._spawn(delete_quietly(self._ledgers, old.ledger_id))
        publisher.release(segment, self._renew_tail() if insertion.ledgers else None)

    def _appended_ms(self) -> int | None:
        if not has_append_times(self._settings().policies):
            return None
        return max(
            self._clock(), self._record.ledgers.newest_append_ms, self._publisher.appended_ms
        )

    def _joined(
        self, record: PartitionRecord, old: OpenSegment, new: OpenSegment, insertion: Insertion
    ) -> PartitionRecord:
        now_ms, appended_ms = self._clock(), new.appended_ms
        assert new.ledger_id is not None
        ledger_list = self._record.ledgers
        if old.ledger_id is not None:
            ledger_list = ledger_list.closing_last(old.ledger_id, old.contents, now_ms)
        if insertion.ledgers:
            ledger_list = ledger_list.inserting(
                insertion.ledgers, now_ms, insertion.upload, appended_ms
            )
        joined = with_ledgers(record, ledger_list.appending(new.ledger_id, appended_ms))
        return replace(joined, bulk_loads={**insertion.marks(record.bulk_loads)})


def _look_at_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
