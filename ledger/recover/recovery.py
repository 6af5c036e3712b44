"""Runs a recovery: drives `recovery_state.py` over real bookies and the real record.

Fencing reads and recovery adds pass the fence, read-only mode and full queues (P36). Entries are
written back byte for byte, so that all copies stay the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from octavo.ledger.actions import (
    ChooseReplacements,
    Done,
    EndFound,
    EnsembleChanged,
    Failed,
    Fence,
    FenceHolds,
    Read,
    RecoveryAction,
    WriteBack,
    WriteMetadata,
)
from octavo.ledger.bookies.bookies import Bookie, RequestClass
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.context import LedgerContext
from octavo.ledger.errors import BookieUnavailable, RecoveryFailed
from octavo.ledger.records import (
    ChangeLost,
    ChangeWritten,
    change_record,
    check_password,
    read_record,
)
from octavo.ledger.recover.events import (
    BookieReplaced,
    EntryAnswered,
    FenceAnswered,
    FenceHeld,
    LastEntryFound,
    LedgerRecovered,
    MarkedInRecovery,
    MetadataSeen,
    RecoveryEvent,
    WrittenBack,
)
from octavo.ledger.recover.recovery_state import RecoveryState, State
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import (
    Code,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    TooManyRequests,
    Unauthorized,
    UnknownState,
    error_for,
)
from octavo.protocol.entry import INVALID_ENTRY_ID, DigestType, digest_for, master_key, unpack_entry
from octavo.protocol.frames import Flag, add_prefix

log = structlog.get_logger()

_READ_FLAGS = int(Flag.FENCE | Flag.HIGH_PRIORITY | Flag.UNKNOWN_STATE)
_ADD_FLAGS = int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
_RESTARTS_MAX = 8
_BUSY_PAUSE_S = 0.02


class Recovery:
    def __init__(
        self,
        client: LedgerContext,
        ledger_id: int,
        password: bytes | None,
        observe: Callable[[RecoveryEvent], None] | None = None,
    ) -> None:
        self._client = client
        self._options = client.options
        self._loop = asyncio.get_running_loop()
        self._ledger_id = ledger_id
        self._password = password
        self._observe = observe
        self._core = RecoveryState(ledger_id)
        self._result: asyncio.Future[LedgerMetadata] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[BookieConnection, None] = {}
        self._writing_to: dict[Bookie, None] = {}
        self._restarts = 0
        self._add_flags = _ADD_FLAGS
        self._ended = False

    async def run(self) -> LedgerMetadata:
        """Recover and close. Raises `RecoveryFailed`, `Unauthorized`, `LedgerNotFound`."""
        try:
            metadata, version = await read_record(
                self._client.records, self._ledger_id, self._options.metadata_timeout_s
            )
            check_password(metadata, self._password)
            self._begin(metadata, version)
            return await self._result
        finally:
            self._stop()

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        self._key = master_key(metadata.password)
        self._digest = digest_for(metadata.digest_type, metadata.password)
        if metadata.digest_type is DigestType.CRC32C:
            self._add_flags = _ADD_FLAGS | int(Flag.CRC32C | Flag.RANGE_ACK)
        self._tell(MetadataSeen(metadata, version))
        self._perform(self._core.metadata_read(metadata, version))

    def _stop(self) -> None:
        self._ended = True
        for task in tuple(self._tasks):
            task.cancel()
        for bookie in self._writing_to:
            bookie.unlisten(self)
        for connection in self._connections:
            connection.detach(self._ledger_id, self)

    def _tell(self, event: RecoveryEvent) -> None:
        if self._observe is not None:
            self._observe(event)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._client.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(delay_s, lambda: None if self._ended else act(*args))

    def _fail(self, error: BaseException) -> None:
        if not self._result.done():
            self._result.set_exception(error)

    # ------------------------------------------------------------------ actions

    def _perform(self, actions: list[RecoveryAction]) -> None:
        # A late answer after `_stop` must not register a listener: nothing would remove it.
        todo = [] if self._ended else list(reversed(actions))
        while todo:
            action = todo.pop()
            match action:
                case WriteMetadata(metadata, version):
                    self._spawn(self._change(metadata, version))
                case Fence(bookie_id):
                    self._spawn(self._fence(bookie_id))
                case FenceHolds(last_add_confirmed):
                    self._tell(FenceHeld(last_add_confirmed))
                case Read(entry_id, bookies):
                    for bookie_id in bookies:
                        self._read(entry_id, bookie_id)
                case WriteBack(_, bookie_id, first, last):
                    self._write_back(bookie_id, first, last)
                case EndFound(last_entry):
                    self._tell(LastEntryFound(last_entry))
                case ChooseReplacements():
                    spares = self._client.replacements(action, self._core.metadata)
                    todo += reversed(self._core.chosen(spares))
                case EnsembleChanged(first_entry, old, new):
                    self._tell(BookieReplaced(first_entry, old, new))
                case Done(metadata, version, adopted):
                    self._done(metadata, version, adopted)
                case Failed(error):
                    self._fail(error)

    def _done(self, metadata: LedgerMetadata, version: int, adopted: bool) -> None:
        self._tell(LedgerRecovered(metadata, version, adopted))
        log.info(
            "ledger_recovered",
            ledger=self._ledger_id,
            last_entry=metadata.last_entry,
            adopted=adopted,
        )
        if not self._result.done():
            self._result.set_result(metadata)

    async def _change(self, metadata: LedgerMetadata, version: int) -> None:
        outcome = await change_record(
            self._client.records, metadata, version, self._options.metadata_timeout_s
        )
        match outcome:
            case ChangeWritten(new_version):
                if self._core.state is State.MARKING:
                    self._tell(MarkedInRecovery(metadata, new_version))
                self._perform(self._core.written(new_version))
            case ChangeLost(current, found):
                self._restarts += 1
                if self._restarts > _RESTARTS_MAX:
                    raise RecoveryFailed(
                        f"ledger {self._ledger_id}: other processes changed its record "
                        f"{self._restarts} times during the recovery"
                    )
                self._tell(MetadataSeen(current, found))
                self._perform(self._core.conflict(current, found))

    # ------------------------------------------------------------------ fencing reads

    async def _fence(self, bookie_id: str) -> None:
        answered = self._loop.create_future()
        self._ask(bookie_id, INVALID_ENTRY_ID, partial(_settle, answered))
        answer = await answered
        if isinstance(answer, OctavoError):
            if isinstance(answer, NoSuchEntry | NoSuchLedger):
                self._tell(FenceAnswered(bookie_id, answer.name, -1))
                self._perform(self._core.fenced(bookie_id, -1))
            elif self._is_squatted(bookie_id, answer):
                log.warning("ledger_squatted", ledger=self._ledger_id, bookie=bookie_id)
                self._tell(FenceAnswered(bookie_id, answer.name, -1))
                self._perform(self._core.squatted(bookie_id, answer))
            else:
                self._tell(FenceAnswered(bookie_id, str(answer), None))
                unknown = isinstance(answer, UnknownState)
                failed = self._core.fence_unknown if unknown else self._core.fence_failed
                self._perform(failed(bookie_id, answer))
            return
        entry_id, lac = answer
        self._tell(FenceAnswered(bookie_id, f"last entry {entry_id}", lac))
        self._perform(self._core.fenced(bookie_id, lac))

    def _is_squatted(self, bookie_id: str, answer: Any) -> bool:
        """Whether the bookie has the ledger's id under another key; ours comes from the record.

        An Octavo bookie refuses only when its key is durable; Apache's may not.
        """
        ours = self._client.bookies.get(bookie_id, RequestClass.RECOVERY).is_ours
        return ours and isinstance(answer, Unauthorized)

    def _read(self, entry_id: int, bookie_id: str) -> None:
        self._ask(bookie_id, entry_id, partial(self._entry_answered, entry_id, bookie_id))

    def _entry_answered(self, entry_id: int, bookie_id: str, answer: Any) -> None:
        absent = isinstance(answer, NoSuchEntry | NoSuchLedger)
        if absent or self._is_squatted(bookie_id, answer):
            self._tell(EntryAnswered(entry_id, bookie_id, "absent"))
            self._perform(self._core.entry_absent(entry_id, bookie_id))
        elif isinstance(answer, OctavoError):
            self._tell(EntryAnswered(entry_id, bookie_id, str(answer)))
            self._perform(self._core.entry_unknown(entry_id, bookie_id, str(answer)))
        else:
            self._tell(EntryAnswered(entry_id, bookie_id, "found"))
            data, length = answer
            self._perform(self._core.entry_found(entry_id, data, length))

    def _ask(self, bookie_id: str, entry_id: int, done: Callable[[Any], None]) -> None:
        bookie = self._client.bookies.get(bookie_id, RequestClass.RECOVERY)
        until = self._loop.time() + self._options.read_timeout_s

        def send(connection: BookieConnection) -> None:
            connection.read(self._ledger_id, entry_id, answered, flags=_READ_FLAGS, key=self._key)

        def answered(error: OctavoError | None, data: bytes) -> None:
            if isinstance(error, TooManyRequests) and self._loop.time() < until:
                self._later(_BUSY_PAUSE_S, self._with, bookie, send, done)
            elif error is not None:
                done(error)
            else:
                done(self._opened(bookie_id, entry_id, data))

        self._with(bookie, send, done)

    def _opened(self, bookie_id: str, entry_id: int, data: bytes) -> Any:
        try:
            entry = unpack_entry(self._digest, self._ledger_id, entry_id, data)
        except DigestMismatch as error:
            log.warning("replica_damaged", bookie=bookie_id, reason=str(error))
            return error
        if entry_id == INVALID_ENTRY_ID:
            return entry.entry_id, entry.known_lac
        return data, entry.length

    def _with(
        self,
        bookie: Bookie,
        use: Callable[[BookieConnection], None],
        failed: Callable[[Any], None],
    ) -> None:
        if bookie.connection is not None:
            use(bookie.connection)
        else:
            self._spawn(self._connect(bookie, use, failed))

    async def _connect(
        self,
        bookie: Bookie,
        use: Callable[[BookieConnection], None],
        failed: Callable[[Any], None],
    ) -> None:
        try:
            connection = await bookie.connected()
        except BookieUnavailable as error:
            failed(error)
        else:
            use(connection)

    # ------------------------------------------------------------------ writing back

    def _write_back(self, bookie_id: str, first: int, last: int) -> None:
        bookie = self._client.bookies.get(bookie_id, RequestClass.RECOVERY)
        if bookie not in self._writing_to:
            self._writing_to[bookie] = None
            bookie.listen(self)
        self._with(
            bookie,
            partial(self._send, bookie_id, first, last),
            partial(self._write_failed, bookie_id),
        )
        self._later(self._options.add_timeout_s, self._check_acked, bookie_id, last)

    def _send(self, bookie_id: str, first: int, last: int, connection: BookieConnection) -> None:
        parts: list[bytes] = []
        for entry_id in range(first, last + 1):
            found = self._core.entries.get(entry_id)
            if found is not None and self._core.is_held_by(bookie_id, entry_id):
                parts += (add_prefix(self._key, len(found.data), self._add_flags), found.data)
        if not parts:
            return
        if connection not in self._connections:
            self._connections[connection] = None
            connection.attach(self._ledger_id, self)
        connection.send_adds(parts, sum(map(len, parts)))

    def _write_failed(self, bookie_id: str, error: OctavoError) -> None:
        self._client.bookies.suspect(bookie_id)
        self._perform(self._core.failed(bookie_id, error))

    def _check_acked(self, bookie_id: str, last: int) -> None:
        if not self._result.done() and self._core.is_owing(bookie_id, last):
            reason = f"acked no recovery add for {self._options.add_timeout_s:g} s"
            self._write_failed(bookie_id, BookieUnavailable(bookie_id, reason))

    def bookie_up(self, bookie_id: str) -> None:
        """Do nothing: `_with` sends the waiting requests."""

    def bookie_writable(self, bookie_id: str) -> None: ...

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        if not self._result.done():
            self._write_failed(bookie_id, error)

    def added(self, bookie_id: str, first: int, last: int) -> None:
        if self._result.done():
            return
        self._tell(WrittenBack(bookie_id, first, last))
        self._perform(self._core.acked(bookie_id, first, last))

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        """Retry if it was busy; fence again if it is squatted, or fail it."""
        if self._result.done():
            return
        if code == Code.TOO_MANY_REQUESTS:
            self._later(_BUSY_PAUSE_S, self._write_back, bookie_id, first, last)
            return
        error = error_for(code, f"bookie {bookie_id}: recovery add of entries {first} to {last}")
        if self._is_squatted(bookie_id, error):
            self._spawn(self._fence(bookie_id))  # refused too, once the other key is durable
        else:
            self._write_failed(bookie_id, error)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
