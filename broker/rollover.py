"""From one ledger of a partition to the next, without stopping those who publish.

    1. make a new ledger                    publishes go to the old one meanwhile
    2. switch                               publishes go to the new one; their answers wait
    3. all of the old one is confirmed      so there can be no gap before the new one
    4. close the old one
    5. the partition's record names both    from here a successor would find the new one
    6. answers of the new one may go out

A crash after 2 leaves a ledger that no record names: nothing in it was answered. If 1 fails the
old ledger simply grows longer. If 3, 4 or 5 fail, the pipeline fails, and the new ledger is deleted
unless a record may name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from broker.chain import RolloverPolicy
from broker.errors import PartitionUnavailable
from broker.partition_record import OwnershipLost, PartitionRecordKeeper, with_chain
from broker.publisher import Publisher, Segment
from broker.state_log import create_ledger, delete_quietly
from broker.types import PartitionName, TopicSettings
from ledger.ledgers import LedgerClient
from protocol.codes import OctavoError

_log = structlog.get_logger()
_RETRY_S = 5.0


class Rollover:
    """Watches one publisher's ledger and replaces it when it is due. One at a time."""

    def __init__(
        self,
        name: PartitionName,
        publisher: Publisher,
        record: PartitionRecordKeeper,
        ledgers: LedgerClient,
        settings: Callable[[], TopicSettings],
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._name = name
        self._publisher = publisher
        self._record = record
        self._ledgers = ledgers
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._not_before_s = 0.0

    def look(self) -> None:
        """Begin if it is time; called after each publish and now and then."""
        if self._task is not None or self._publisher.failed is not None:
            return
        settings = self._settings()
        policy = RolloverPolicy(
            settings.rollover_bytes, settings.rollover_entries, settings.rollover_age_ms
        )
        now_s = asyncio.get_running_loop().time()
        if self._publisher.segment.roll_due(policy, self._clock()) and now_s >= self._not_before_s:
            self._task = asyncio.create_task(self._run(), name=f"roll over {self._name}")

    async def close(self) -> None:
        """Wait for a roll-over under way; cancelling one would leave its outcome unknown."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def cancel(self) -> None:
        """Stop at once: the publisher has failed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            new = await create_ledger(self._ledgers, self._settings(), self._name, "data")
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
        publisher, old = self._publisher, self._publisher.segment
        segment = Segment(new, publisher.next_offset, self._clock(), released=False)
        publisher.switch_to(segment)
        may_be_named = False
        try:
            await publisher.confirmed_up_to(segment.base_offset)
            await old.writer.close()
            may_be_named = True
            await self._record.change(
                lambda record: with_chain(
                    record,
                    self._record.chain.closing_last(old.contents, self._clock()).appending(
                        new.ledger_id
                    ),
                )
            )
        except OctavoError as error:
            if not may_be_named or (isinstance(error, OwnershipLost) and error.refused):
                self._spawn(delete_quietly(self._ledgers, new.ledger_id))
            publisher.fail(error)
            return
        except Exception as error:  # a bug must not keep the answers back for ever
            _log.exception("rollover_failed", partition=str(self._name))
            publisher.fail(PartitionUnavailable(f"{self._name}: its roll-over failed: {error!r}"))
            return
        finally:
            self._task = None
        publisher.release(segment)
        self.look()
