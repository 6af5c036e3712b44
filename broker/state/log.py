"""The driver of a partition's state ledger: group commit of cursor and producer changes.

Promises: `append` returns when the operation is durable, so a restart loses no answered ack.
Callers apply an operation to the state in memory first: so each later snapshot contains it, and a
failed or long ledger is replaced by a snapshot in a new ledger. After a crash the next owner
recovers and replays the ledger. A take-over or deletion fences this ledger too, so a successful
append proves ownership (`prove`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import AckOutcomeUnknown, NotOwner, Overloaded, PartitionUnavailable
from octavo.broker.log.orphan_ledgers import custom_of
from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper, was_refused
from octavo.broker.policies import is_deferred
from octavo.broker.state.format import Op, State, encode
from octavo.broker.types import PartitionName, TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerClosed, LedgerFenced, OutcomeUnknown
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.topics import PartitionRecord
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_WAITING_MAX = 100_000
"""Operations that wait to be written; more are refused."""


async def create_ledger(
    ledgers: LedgerClient,
    settings: TopicSettings,
    name: PartitionName,
    kind: str,
    record: PartitionRecord,
) -> LedgerWriter:
    """Create a ledger by the topic's settings, labelled with its owner.

    Only a change of the record at the epoch of `record` may name it. State ledgers are never
    encrypted (they hold only offsets and names), and never defer syncs.
    """
    return await ledgers.create(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        custom=custom_of(name, kind, record),
        deferred_sync=kind == "data" and is_deferred(settings.policies),
        encrypted_for=name.namespace if settings.encrypted and kind == "data" else None,
    )


async def delete_quietly(ledgers: LedgerClient, ledger_id: int) -> None:
    """Delete a ledger that nothing refers to; a failure costs space, not safety."""
    try:
        await ledgers.delete(ledger_id)
    except OctavoError as error:
        _log.warning("ledger_not_deleted", ledger_id=ledger_id, reason=str(error))


def let_go(writer: LedgerWriter) -> None:
    """Stop writing this ledger here; if it is open, its recovery closes it.

    Every writer, even if closed, ends with this call or `LedgerClient.discard`: else it listens to
    its bookies for ever.
    """
    writer.abandon(LedgerClosed(f"ledger {writer.ledger_id} is no longer written here"))


async def write_snapshot(writer: LedgerWriter, entries: Iterable[bytes]) -> None:
    # Before the first await, so that the snapshot shows a single moment.
    await asyncio.gather(*[writer.append(payload) for payload in entries])


async def replay(ledgers: LedgerClient, ledger_id: int) -> State:
    state = State()
    reader = await ledgers.open(ledger_id, recover=True)
    try:
        if reader.last_add_confirmed >= 0:
            async for entry in reader.entries(0, reader.last_add_confirmed):
                state.apply(bytes(entry.payload))
    finally:
        await reader.close()
    return state


_Waiting = tuple[list[Op], asyncio.Future[None]]


def _seen(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()


class _OpenedAnew(Exception):
    pass


class StateLog:
    def __init__(
        self,
        ledgers: LedgerClient,
        record: PartitionRecordKeeper,
        name: PartitionName,
        config: BrokerConfig,
        settings: Callable[[], TopicSettings],
        snapshot: Callable[[], Iterable[bytes]],
        on_lost: Callable[[OctavoError], None],
        writer: LedgerWriter | None = None,
    ) -> None:
        self._ledgers = ledgers
        self._record = record
        self._name = name
        self._config = config
        self._settings = settings
        self._snapshot = snapshot
        self._on_lost = on_lost
        self._writer = writer
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        self._behind = False
        """A refused operation's change is in memory: only a snapshot will contain it."""

    def describe(self) -> dict[str, int]:
        return {"waiting": len(self._waiting)}

    def waits_in_vain(self) -> str:
        waits = self._waiting and self._writing is None
        return "changes of state wait, and no task writes them" if waits else ""

    @property
    def exists(self) -> bool:
        return self._record.value.state_ledger is not None

    @property
    def is_written(self) -> bool:
        return self._writer is not None

    async def append(self, op: Op) -> None:
        """Write `op`, which the state in memory already contains.

        Raises `AckOutcomeUnknown`, `Overloaded`, `NotOwner`.
        """
        await self._written([op])

    def note(self, *ops: Op) -> None:
        """Queue `ops` in order, without waiting.

        If the write fails, the next snapshot has the change.
        """
        with contextlib.suppress(OctavoError):
            self._queue(list(ops)).add_done_callback(_seen)

    async def prove(self) -> None:
        """Return when it is certain that this broker owned the partition at the call.

        A fenced owner without a session may not know; only an append tells. Raises
        `PartitionUnavailable`, `Overloaded`, `NotOwner`.
        """
        try:
            async with asyncio.timeout(self._config.publish_timeout_ms / 1000):
                await self._written([])
        except (AckOutcomeUnknown, TimeoutError) as error:
            raise PartitionUnavailable(
                f"{self._name}: it is not known whether this broker still owns the partition: "
                f"{error or 'no ack quorum in time'}"
            ) from error

    async def _written(self, ops: list[Op]) -> None:
        await self._queue(ops)

    def _queue(self, ops: list[Op]) -> asyncio.Future[None]:
        if self._closed:
            raise NotOwner(f"{self._name} is not served here any more")
        if len(self._waiting) >= _WAITING_MAX:
            self._behind = True
            raise Overloaded(f"{self._name}: {_WAITING_MAX} acks are waiting to be written")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ops, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_groups(), name=f"state {self._name}")
        return done

    def look(self) -> None:
        """Begin a new state ledger if a bookie waits for this ledger to close; call regularly.

        A bookie whose disk was replaced is complete only then.
        """
        idle = not self._closed and self._writing is None
        if idle and self._writer is not None and self._is_waited_for(self._writer):
            self.note()

    async def drain(self) -> None:
        self._closed = True
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    async def close(self, *, drain: bool) -> None:
        """Close the log; without `drain`, waiting operations fail with `NotOwner`."""
        self._closed = True
        if (task := self._writing) is not None:
            if not drain:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._writing = None  # a task cancelled before it began has not done this itself
        self._fail(self._waiting, NotOwner(f"{self._name} is not served here any more"))
        self._waiting = []
        if self._writer is not None:
            if drain:
                with contextlib.suppress(OctavoError):
                    await self._writer.close()
            let_go(self._writer)

    async def _write_groups(self) -> None:
        # While a group is written, the next gathers: acks share an entry and a sync.
        group: list[_Waiting] = []
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._write([op for ops, _ in group for op in ops])
                for _, done in group:
                    if not done.done():
                        done.set_result(None)
        except (LedgerFenced, OwnershipLost) as error:
            self._closed = True
            self._fail(group + self._waiting, NotOwner(f"{self._name} has a new owner: {error}"))
            self._on_lost(error)
        except OctavoError as error:
            why = f"{self._name}: the acks may or may not be durable: {error}"
            self._fail(group + self._waiting, AckOutcomeUnknown(why))
            _log.warning("state_write_failed", partition=str(self._name), reason=str(error))
        except Exception as error:  # a bug
            why = f"{self._name}: the acks may or may not be durable: {error!r}"
            self._fail(group + self._waiting, AckOutcomeUnknown(why))
            _log.error(
                "state_write_failed",
                partition=str(self._name),
                reason=repr(error),
                exc_info=error,
            )
        except BaseException:
            self._fail(group + self._waiting, NotOwner(f"{self._name} is being closed here"))
            raise
        finally:
            self._waiting = []
            self._writing = None

    async def _write(self, ops: list[Op]) -> None:
        writer = self._writer
        if writer is not None and not self._behind and not self._is_due(writer):
            try:
                async with asyncio.timeout(self._config.publish_timeout_ms / 1000):
                    await writer.append(encode(ops))
                return
            except (OctavoError, TimeoutError) as error:
                cause = error.cause if isinstance(error, OutcomeUnknown) else error
                if isinstance(cause, LedgerFenced):
                    raise cause from error
                _log.warning("state_ledger_replaced", partition=str(self._name), reason=str(error))
        await self._roll()

    def _is_due(self, writer: LedgerWriter) -> bool:
        return (
            writer.last_add_confirmed >= self._config.state_ledger_entries_max
            or writer.length >= self._config.state_ledger_bytes_max
            or self._is_waited_for(writer)
        )

    def _is_waited_for(self, writer: LedgerWriter) -> bool:
        return self._ledgers.has_unsure_bookie(writer.metadata)

    async def _roll(self) -> None:
        old, old_id = self._writer, self._record.value.state_ledger
        self._writer = None
        try:
            while not await self._renew():
                pass
            if old is not None:
                with contextlib.suppress(OctavoError):
                    await old.close()
        finally:
            if old is not None:
                let_go(old)
        if old_id is not None:
            await delete_quietly(self._ledgers, old_id)

    async def _renew(self) -> bool:
        """Create a state ledger; False if the partition was opened again."""
        before = self._record.value
        new = await create_ledger(self._ledgers, self._settings(), self._name, "state", before)

        def naming(record: PartitionRecord) -> PartitionRecord:
            if record.epoch != before.epoch:
                raise _OpenedAnew
            return replace(record, state_ledger=new.ledger_id)

        may_be_named = False
        try:
            self._behind = False
            await write_snapshot(new, self._snapshot())
            may_be_named = True
            await self._record.change(naming)
        except BaseException as error:
            if may_be_named and not isinstance(error, _OpenedAnew) and not was_refused(error):
                let_go(new)
            else:  # in a task of the client, because this task may be cancelled
                self._ledgers.spawn(self._ledgers.discard(new))
            if isinstance(error, _OpenedAnew):
                return False
            raise
        self._writer = new
        return True

    @staticmethod
    def _fail(group: list[_Waiting], error: OctavoError) -> None:
        for _, done in group:
            if not done.done():
                done.set_exception(error)
