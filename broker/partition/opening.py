"""Take over a partition: recover the state that its last owner left.

    1. read the partition's record
    2. recover its newest ledger (fences the old owner) and its state ledger, if they are open
    3. rebuild: how many messages, which producers, which cursors
    4. compare-and-set the record: newest ledger closed, epoch + 1

Fencing comes before reading: nothing can be added to what step 3 sees. After step 4 the old owner
cannot name another ledger. If step 4 fails because another broker changed the record, all steps are
repeated.

New ledgers are made when first needed, because few partitions are in use; but if a ledger was being
written, they are made during the recovery, and step 4 names them. A crash leaves at most ledgers
that no record names (log/orphan_ledgers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import PartitionUnavailable, TopicNotFound
from octavo.broker.log.ledger_list import Contents, LedgerList, is_written
from octavo.broker.log.reader import LogReader
from octavo.broker.log.record import (
    OwnershipLost,
    PartitionRecordKeeper,
    was_refused,
    with_ledgers,
)
from octavo.broker.partition.handover_messages import HandoverNotice, HandoverState
from octavo.broker.policies import has_append_times
from octavo.broker.state.format import State, snapshot
from octavo.broker.state.log import (
    create_ledger,
    delete_quietly,
    let_go,
    replay,
    write_snapshot,
)
from octavo.broker.state.producers import ProducerTable
from octavo.broker.state.stream import StreamState, append_of
from octavo.broker.types import PartitionName, TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.encryption import plain_length
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.protocol.batch import NO_PRODUCER
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
R = TypeVar("R")
_ATTEMPTS_MAX = 5
_CLOSED_LOOKS = 100
_CLOSED_PAUSE_S = 0.005
"""Pause (one write) before looking whether the last owner closed its ledger."""
_LONGER_MAX = 8
"""The multiple of `open_timeout_ms` that an opening may take after timeouts."""


class Opened(NamedTuple):
    writer: LedgerWriter | None
    state: State
    producers: ProducerTable
    state_writer: LedgerWriter | None
    recovered: LedgerMetadata | None

    def let_go(self) -> None:
        for writer in (self.writer, self.state_writer):
            if writer is not None:
                let_go(writer)


class Prepared(NamedTuple):
    epoch: int
    """The epoch of the record at which alone these ledgers can be used."""
    data: asyncio.Future[LedgerWriter]
    state: asyncio.Future[LedgerWriter] | None


class PartitionOpener:
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
        self._prepared: Prepared | None = None

    async def prepare(self, foretold: HandoverNotice) -> None:
        record = PartitionRecord(incarnation=foretold.incarnation, epoch=foretold.epoch)
        state = self._create("state", record) if foretold.has_state else None
        self._prepared = Prepared(foretold.epoch, self._create("data", record), state)
        try:
            await asyncio.gather(*(one for one in self._prepared[1:] if one is not None))
        except BaseException:
            self.unprepare()
            raise

    def unprepare(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._spawn(self._discard(prepared.data, prepared.state))

    async def take_over(self) -> Opened:
        """Do all four steps."""
        return await self._in_time(self._take_over())

    async def take_as_left(self, end: HandoverState) -> Opened | None:
        """Do steps 1 and 4 only, if `end` fits; else return None and change nothing.

        May run in parallel with the claim: of several brokers that open or take over, one wins.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        return await self._in_time(self._take_as_left(prepared, end))

    async def _take_over(self) -> Opened:
        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._open(None, None)
            except OwnershipLost:
                _log.info("take_over_raced", partition=str(self._name))
        raise OwnershipLost(f"{self._name}: its record changed {_ATTEMPTS_MAX} times meanwhile")

    async def reopen(
        self,
        producers: ProducerTable,
        confirmed_offset: int,
        stream: StreamState | None = None,
    ) -> Opened:
        """Do the four steps again as the owner, whose cursors in memory are the newest.

        `producers` and `stream`: before `confirmed_offset`. Raises `OwnershipLost` if another
        broker has taken over.
        """
        return await self._in_time(self._open(producers, confirmed_offset, stream))

    async def _in_time(self, opening: Coroutine[Any, Any, R]) -> R:
        """Stop an opening that takes too long, and double the time of the next attempt.

        Each starts from the beginning: with a fixed limit a slow partition would never open.
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

    async def _take_as_left(self, prepared: Prepared, end: HandoverState) -> Opened | None:
        try:
            record, closed, writer, state_writer = await asyncio.gather(
                self._record.read(),
                self._closed(end.ledger_id),
                prepared.data,
                self._with_state(prepared.state, end),
            )
            state = State.told_by(end.state)
            state.keep_leases_of(record.epoch)
            fits = prepared.epoch == end.epoch and end.fits(record) and end.is_told_by(closed)
            if not fits or (state_writer is None) != (end.state_ledger is None):
                raise PartitionUnavailable("its record or its newest ledger says something else")
        except BaseException as error:
            self._spawn(self._discard(prepared.data, prepared.state))
            if not isinstance(error, OctavoError) or isinstance(error, TopicNotFound):
                raise
            _log.info("not_as_left", partition=str(self._name), reason=str(error))
            return None
        try:
            await self._name_them(closed, end.contents, writer, state_writer, own=False)
        except OwnershipLost:
            return None
        self._drop_ledgers(record, end.state_ledger)
        table = ProducerTable(self._config.producers_max)
        for producer in state.producers.values():
            table.restore(producer)
        return Opened(writer, state, table, state_writer, closed)

    async def _closed(self, ledger_id: int) -> LedgerMetadata:
        for _ in range(_CLOSED_LOOKS):
            if (found := await self._ledgers.metadata(ledger_id)).state is LedgerState.CLOSED:
                break
            await asyncio.sleep(_CLOSED_PAUSE_S)
        return found

    async def _with_state(
        self, made: asyncio.Future[LedgerWriter] | None, end: HandoverState
    ) -> LedgerWriter | None:
        if made is None:
            return None
        writer = await made
        await write_snapshot(writer, end.state)
        return writer

    async def _open(
        self,
        producers: ProducerTable | None,
        known_upto: int | None,
        stream: StreamState | None = None,
    ) -> Opened:
        own = producers is not None
        epoch = self._record.value.epoch
        record = await self._record.read()
        if own and record.epoch != epoch:
            raise OwnershipLost(f"{self._name}: another broker has taken over meanwhile")
        state_ledger = None if own else record.state_ledger
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.epoch != record.epoch:
            self._spawn(self._discard(prepared.data, prepared.state))
            prepared = None
        new, new_state = prepared[1:] if prepared is not None else (None, None)
        was_written = is_written(record.ledgers)
        if own or (was_written and new is None):
            new = self._create("data", record)
        if state_ledger is None and new_state is not None:
            self._spawn(self._discard(new_state))
            new_state = None
        if was_written and state_ledger is not None and new_state is None:
            new_state = self._create("state", record)
        try:
            recovered, state = await asyncio.gather(self._close_last(), self._replay(state_ledger))
            state.keep_leases_of(record.epoch)
            contents = await self._measure(recovered)
            ledger_list = self._closing(self._record.ledgers, recovered, contents)
            upto = known_upto
            if upto is None:
                upto = max(state.producers_upto, record.producers_upto)
            table, scanned = await self._producers(producers, state, ledger_list, upto)
            if stream is not None and known_upto is not None:
                state.stream = stream
                stream.upto = known_upto
            if state.stream is not None:
                scanned |= await self._appends(state.stream, ledger_list)
            if has_none := not len(table) and state.stream is None:
                scanned = False  # the record will say that there is nothing to scan
            if state_ledger is not None and new_state is None and scanned:
                new_state = self._create("state", record)  # spares the next owner this scan
            state_writer = None if new_state is None else await new_state
            if state_writer is not None:
                await self._write_state(state_writer, state, table, ledger_list.end_offset)
            writer = None if new is None else await new
        except BaseException:
            self._spawn(self._discard(new, new_state))
            raise
        await self._name_them(recovered, contents, writer, state_writer, own=own, has_none=has_none)
        self._drop_ledgers(record, None if state_writer is None else state_ledger)
        return Opened(writer, state, table, state_writer, recovered)

    def _drop_ledgers(self, before: PartitionRecord, state_ledger: int | None) -> None:
        ledger_list = LedgerList(before.ledgers, before.trimmed_offset)
        for ledger_id in ledger_list.dropped_in(self._record.ledgers):
            self._spawn(delete_quietly(self._ledgers, ledger_id))
        if state_ledger is not None:
            self._spawn(delete_quietly(self._ledgers, state_ledger))

    async def _close_last(self) -> LedgerMetadata | None:
        """Do step 2: recover the newest ledger."""
        last = self._record.ledgers.last
        if last is None or last.count is not None:
            return None
        return await self._ledgers.recover(last.ledger_id)

    async def _replay(self, state_ledger: int | None) -> State:
        return State() if state_ledger is None else await replay(self._ledgers, state_ledger)

    async def _measure(self, recovered: LedgerMetadata | None) -> Contents | None:
        if recovered is None:
            return None
        if recovered.last_entry < 0:
            return Contents()
        closed = replace(self._record.ledgers.segments[-1], count=0)
        first = await self._reader.header(closed, 0)
        last = await self._reader.header(closed, recovered.last_entry)
        return Contents(
            last.base_offset + last.record_count,
            plain_length(recovered),
            min(first.first_timestamp, last.first_timestamp),
            max(first.max_timestamp, last.max_timestamp),
            # Append times never go back. For others, `LedgerTimes` reads all batches later; now
            # that takes too long.
            0 if recovered.last_entry == 0 or closed.appended is not None else -1,
        )

    def _closing(
        self, ledger_list: LedgerList, closed: LedgerMetadata | None, contents: Contents | None
    ) -> LedgerList:
        if closed is None or contents is None:
            return ledger_list
        return ledger_list.closing_last(closed.ledger_id, contents, self._clock())

    async def _producers(
        self, known: ProducerTable | None, state: State, ledger_list: LedgerList, upto: int
    ) -> tuple[ProducerTable, bool]:
        """Return the producers, and whether any batch was scanned."""
        scanned = False
        table = ProducerTable(self._config.producers_max)
        for producer in known.snapshot() if known is not None else state.producers.values():
            table.restore(producer)
        for segment in ledger_list.segments:
            # Bulk loads have no sequences and may be long; a fork inherits none.
            sequenced = not (segment.bulk_loaded or segment.shared)
            if sequenced and segment.base_offset + (segment.count or 0) > upto:
                await self._scan(table, segment, max(upto, segment.base_offset))
                scanned = True
        return table, scanned

    async def _scan(self, table: ProducerTable, segment: PartitionLedger, start: int) -> None:
        first_entry = await self._reader.entry_of(segment, start)
        for _, header in await self._reader.headers_from(segment, first_entry):
            offset = segment.base_offset + header.base_offset
            is_numbered = header.producer_id != NO_PRODUCER and header.base_sequence >= 0
            if is_numbered and offset >= start:
                table.accept(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    offset,
                )

    async def _appends(self, stream: StreamState, ledger_list: LedgerList) -> bool:
        scanned = False
        for segment in ledger_list.segments:
            # Bulk loads are no appends; a fork does not inherit producers.
            appended = not (segment.bulk_loaded or segment.shared)
            start = max(stream.upto, segment.base_offset)
            if appended and segment.base_offset + (segment.count or 0) > start:
                first_entry = await self._reader.entry_of(segment, start)
                for end, headers in await self._reader.heads_from(segment, first_entry):
                    append = append_of(headers)
                    if append is not None:
                        stream.replay(append, segment.base_offset + end)
                scanned = True
        stream.upto = max(stream.upto, ledger_list.end_offset)
        return scanned

    async def _write_state(
        self, writer: LedgerWriter, state: State, table: ProducerTable, end: int
    ) -> None:
        cursors = [(name, held.created_ms, held.cursor) for name, held in state.cursors.items()]
        told = [(name, held.deliveries) for name, held in state.cursors.items()]
        seeks = {name: held.seeks for name, held in state.cursors.items()}
        used_ms = {name: held.used_ms for name, held in state.cursors.items() if held.used_ms}
        entries = snapshot(
            cursors, table.snapshot(), end, state.ages.marks, told, seeks, state.access,
            state.stream, used_ms,
        )  # fmt: skip
        await write_snapshot(writer, entries)

    def _create(self, kind: str, record: PartitionRecord) -> asyncio.Future[LedgerWriter]:
        """Create a ledger.

        The ledger client holds the task, and cleans up if this broker stops before it is awaited.
        """
        return self._ledgers.spawn(
            create_ledger(self._ledgers, self._settings(), self._name, kind, record)
        )

    async def _name_them(
        self,
        closed: LedgerMetadata | None,
        contents: Contents | None,
        writer: LedgerWriter | None,
        state_writer: LedgerWriter | None,
        *,
        own: bool,
        has_none: bool = False,
    ) -> None:
        """Do step 4; if it fails, discard the new ledgers, unless the record may name them."""
        try:
            await self._publish_record(
                closed, contents, writer, state_writer, own=own, has_none=has_none
            )
        except BaseException as error:
            refused = was_refused(error)
            for made in (writer, state_writer):
                if made is not None and refused:
                    self._spawn(self._ledgers.discard(made))
                elif made is not None:
                    let_go(made)
            raise

    async def _publish_record(
        self,
        closed: LedgerMetadata | None,
        contents: Contents | None,
        writer: LedgerWriter | None,
        state_writer: LedgerWriter | None,
        *,
        own: bool,
        has_none: bool,
    ) -> None:
        before = self._record.value

        def make(record: PartitionRecord) -> PartitionRecord:
            assert record is before or own, "nobody else uses the record before it is open"
            state_ledger = record.state_ledger if state_writer is None else state_writer.ledger_id
            changed = replace(record, epoch=record.epoch + 1, state_ledger=state_ledger)
            # Not `before`: this broker may have trimmed the record since.
            ledger_list = LedgerList(record.ledgers, record.trimmed_offset)
            ledger_list = self._closing(ledger_list, closed, contents)
            if has_none:
                changed = replace(changed, producers_upto=ledger_list.end_offset)
            if writer is None:
                return with_ledgers(changed, ledger_list)
            appended_ms = None
            if has_append_times(self._settings().policies):
                appended_ms = max(self._clock(), ledger_list.newest_append_ms)
            return with_ledgers(changed, ledger_list.appending(writer.ledger_id, appended_ms))

        await self._record.change(make)

    async def _discard(self, *made: asyncio.Future[LedgerWriter] | None) -> None:
        begun = [one for one in made if one is not None]
        for writer in await asyncio.gather(*begun, return_exceptions=True):
            if not isinstance(writer, BaseException):
                await self._ledgers.discard(writer)
