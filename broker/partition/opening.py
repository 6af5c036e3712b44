"""Taking over a partition: recover what its last owner left, and begin a new ledger.

    1. read the partition's record
    2. recover its newest ledger (fences the old owner) and its state ledger, make a new ledger
    3. rebuild: how many messages, which producers, which cursors
    4. compare-and-set the record: newest ledger closed, new one appended, epoch + 1

Fencing comes before reading: after step 2 nothing can be added to what step 3 sees. If somebody
else changed the record meanwhile, step 4 fails and all begins anew (LedgerChaining: of two who
take over at once, one wins). A crash anywhere leaves at most ledgers that no record names, and
these are found (log/leftover.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import PartitionUnavailable
from octavo.broker.log.ledger_list import Contents, LedgerList
from octavo.broker.log.reader import LogReader
from octavo.broker.log.record import (
    OwnershipLost,
    PartitionRecordKeeper,
    was_refused,
    with_ledgers,
)
from octavo.broker.state.dedup import ProducerTable
from octavo.broker.state.format import State, snapshot
from octavo.broker.state.log import (
    create_ledger,
    delete_quietly,
    let_go,
    replay,
    write_snapshot,
)
from octavo.broker.types import PartitionName, TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.topics import PartitionLedger, PartitionRecord

_log = structlog.get_logger()
_ATTEMPTS_MAX = 5
_LONGER_MAX = 8
"""So many times `open_timeout_ms` has an opening at most, after earlier ones took too long."""


class Opened(NamedTuple):
    """What a partition needs to serve. `recovered`: the ledger that was taken from its owner."""

    writer: LedgerWriter
    state: State
    producers: ProducerTable
    state_writer: LedgerWriter | None
    recovered: LedgerMetadata | None


class PartitionOpener:
    """Opens one partition, at take-over and again after its ledger has failed."""

    def __init__(
        self,
        name: PartitionName,
        config: BrokerConfig,
        ledgers: LedgerClient,
        record: PartitionRecordKeeper,
        reader: LogReader,
        settings: Callable[[], TopicSettings],
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._name = name
        self._config = config
        self._ledgers = ledgers
        self._record = record
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._allowed_ms = config.open_timeout_ms

    async def take_over(self) -> Opened:
        """All four steps. Raises what the ledger client and the metadata store raise.

        And `PartitionUnavailable` when it takes too long.
        """
        return await self._in_time(self._take_over())

    async def _take_over(self) -> Opened:
        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._open(None, None)
            except OwnershipLost:
                _log.info("take_over_raced", partition=str(self._name))
        raise OwnershipLost(f"{self._name}: its record changed {_ATTEMPTS_MAX} times meanwhile")

    async def reopen(self, producers: ProducerTable, confirmed_offset: int) -> Opened:
        """The same for the owner itself, whose cursors in memory are the newest there are.

        `producers` are those before `confirmed_offset`. Raises `OwnershipLost` if somebody else
        has taken over in the meantime.
        """
        return await self._in_time(self._open(producers, confirmed_offset))

    async def _in_time(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        """Give it up when it takes too long; the next attempt may take twice as long.

        It begins anew then: with the same time, what is slow and not stuck would never be done.
        """
        allowed_ms = self._allowed_ms
        try:
            async with asyncio.timeout(allowed_ms / 1000) as limit:
                opened = await opening
        except TimeoutError as error:
            if limit.expired():
                self._allowed_ms = min(2 * allowed_ms, _LONGER_MAX * self._config.open_timeout_ms)
            raise PartitionUnavailable(
                f"{self._name} could not be opened within {allowed_ms} ms"
            ) from error
        self._allowed_ms = self._config.open_timeout_ms
        return opened

    async def _open(self, producers: ProducerTable | None, known_upto: int | None) -> Opened:
        own = producers is not None
        epoch = self._record.value.epoch
        record = await self._record.read()
        if own and record.epoch != epoch:
            raise OwnershipLost(f"{self._name}: another broker has taken over meanwhile")
        state_ledger = None if own else record.state_ledger
        new = self._create("data", record)
        new_state = None if state_ledger is None else self._create("state", record)
        try:
            recovered, state = await asyncio.gather(self._close_last(), self._replay(state_ledger))
            contents = await self._measure(recovered)
            ledger_list = self._closing(self._record.ledgers, contents)
            upto = known_upto if known_upto is not None else state.producers_upto
            table = await self._producers(producers, state, ledger_list, upto)
            state_writer = None if new_state is None else await new_state
            if state_writer is not None:
                await self._write_state(state_writer, state, table, ledger_list.end_offset)
            writer = await new
        except BaseException:
            self._spawn(self._discard(new, new_state))
            raise
        try:
            await self._publish_record(contents, writer, state_writer, own=own)
        except BaseException as error:
            if was_refused(error):
                self._spawn(self._discard(new, new_state))
            else:  # the record may name them
                for made in (writer, state_writer):
                    if made is not None:
                        let_go(made)
            raise
        for ledger_id in LedgerList(record.ledgers, record.trimmed_offset).dropped_in(
            self._record.ledgers
        ):
            self._spawn(delete_quietly(self._ledgers, ledger_id))
        if state_ledger is not None:
            self._spawn(delete_quietly(self._ledgers, state_ledger))
        return Opened(writer, state, table, state_writer, recovered)

    async def _close_last(self) -> LedgerMetadata | None:
        """Step 2: after this nobody adds to the newest ledger any more."""
        last = self._record.ledgers.last
        if last is None or last.count is not None:
            return None
        return await self._ledgers.recover(last.ledger_id)

    async def _replay(self, state_ledger: int | None) -> State:
        return State() if state_ledger is None else await replay(self._ledgers, state_ledger)

    async def _measure(self, recovered: LedgerMetadata | None) -> Contents | None:
        """What the newest ledger was found to hold; None when it was closed before."""
        if recovered is None:
            return None
        if recovered.last_entry < 0:
            return Contents()
        closed = replace(self._record.ledgers.segments[-1], count=0)
        first = await self._reader.header(closed, 0)
        last = await self._reader.header(closed, recovered.last_entry)
        return Contents(
            last.base_offset + last.record_count,
            recovered.length,
            min(first.first_timestamp, last.first_timestamp),
            max(first.max_timestamp, last.max_timestamp),
            # Of the batches between nothing is known, and reading them all would take too long
            # now: whoever needs to know reads them (`LedgerTimes`).
            0 if recovered.last_entry == 0 else -1,
        )

    def _closing(self, ledger_list: LedgerList, contents: Contents | None) -> LedgerList:
        """`ledger_list` with its newest ledger closed."""
        return (
            ledger_list if contents is None else ledger_list.closing_last(contents, self._clock())
        )

    async def _producers(
        self, known: ProducerTable | None, state: State, ledger_list: LedgerList, upto: int
    ) -> ProducerTable:
        """Producers as of `upto`, and what the batches since then say."""
        table = ProducerTable(self._config.producers_max)
        for producer in known.snapshot() if known is not None else state.producers.values():
            table.restore(producer)
        for segment in ledger_list.segments:
            # What was bulk-loaded has no sequences, and may be long.
            if not segment.bulk_loaded and segment.base_offset + (segment.count or 0) > upto:
                await self._scan(table, segment, max(upto, segment.base_offset))
        return table

    async def _scan(self, table: ProducerTable, segment: PartitionLedger, start: int) -> None:
        first_entry = await self._reader.entry_of(segment, start)
        for _, header in await self._reader.headers_from(segment, first_entry):
            offset = segment.base_offset + header.base_offset
            if header.producer_id >= 0 and header.base_sequence >= 0 and offset >= start:
                table.accept(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    offset,
                )

    async def _write_state(
        self, writer: LedgerWriter, state: State, table: ProducerTable, end: int
    ) -> None:
        cursors = [(name, held.created_ms, held.cursor) for name, held in state.cursors.items()]
        await write_snapshot(writer, snapshot(cursors, table.snapshot(), end))

    def _create(self, kind: str, record: PartitionRecord) -> asyncio.Future[LedgerWriter]:
        """Begin to make a ledger, while others are still being recovered.

        A task of the client's: what becomes of it is looked at even when this broker stops before
        anybody could wait for it.
        """
        return self._ledgers.spawn(
            create_ledger(self._ledgers, self._settings(), self._name, kind, record)
        )

    async def _publish_record(
        self,
        contents: Contents | None,
        writer: LedgerWriter,
        state_writer: LedgerWriter | None,
        *,
        own: bool,
    ) -> None:
        before = self._record.value

        def make(record: PartitionRecord) -> PartitionRecord:
            assert record is before or own, "nobody else uses the record before it is open"
            state_ledger = record.state_ledger if state_writer is None else state_writer.ledger_id
            changed = replace(record, epoch=record.epoch + 1, state_ledger=state_ledger)
            # As it is now: the owner may have trimmed it while its ledger was reopened.
            ledger_list = self._closing(LedgerList(record.ledgers, record.trimmed_offset), contents)
            return with_ledgers(changed, ledger_list.appending(writer.ledger_id))

        await self._record.change(make)

    async def _discard(self, *made: asyncio.Future[LedgerWriter] | None) -> None:
        """The opening failed before any record named what it made."""
        begun = [one for one in made if one is not None]
        for writer in await asyncio.gather(*begun, return_exceptions=True):
            if not isinstance(writer, BaseException):
                await self._ledgers.discard(writer)
