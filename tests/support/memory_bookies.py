"""Bookies in memory, and a ledger client that speaks to them without sockets.

`MemoryLedgerClient` is the production client with its writers, readers and recoveries; only the
connection to a bookie is replaced. A bookie asks bookie/ledgers/rules.py, as the real bookie does.
Tests set its faults: `refuses`, `hold`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from octavo.bookie.adds import AddBatch
from octavo.bookie.ledgers import rules
from octavo.bookie.ledgers.state import LedgerState
from octavo.ledger.bookies.bookies import Bookie, Bookies, RequestClass
from octavo.ledger.bookies.connection import BatchDone, BookieConnection, ReadDone, RequestDone
from octavo.ledger.bookies.connection import _Waiting as Waiting
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.cookie import Cookie
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger, OctavoError, error_for
from octavo.protocol.entry import INVALID_ENTRY_ID, Buffer
from octavo.protocol.extension import Op
from octavo.protocol.frames import ADD_IDS, ADD_PREFIX_BYTES, LENGTH, Flag

_LAC_AT = slice(ADD_PREFIX_BYTES + 16, ADD_PREFIX_BYTES + 24)
_BATCH_ENTRY_BYTES = 4
_POLL_S = 0.01


class MemoryLedger:
    """The entries that a bookie has of a ledger, and its knowledge of the ledger."""

    def __init__(self, key: bytes) -> None:
        self.state = LedgerState(key)
        self.entries: dict[int, bytes] = {}


class MemoryBookie:
    """A bookie's disk, and its faults."""

    def __init__(self, bookie_id: str) -> None:
        self.info = BookieInfo(bookie_id, "memory", 1, properties={"incarnation": "1"})
        self.ledgers: dict[int, MemoryLedger] = {}
        self.refuses: Code | None = None
        """The answer to all adds, when it is set."""
        self._held: list[Callable[[], None]] | None = None

    def hold(self) -> None:
        """Answer nothing until `go_on`."""
        if self._held is None:
            self._held = []

    def go_on(self) -> None:
        """Do what was held back."""
        held, self._held = self._held or [], None
        for work in held:
            work()

    def soon(self, work: Callable[[], None]) -> None:
        """Do it in the next turn of the loop, unless the bookie is held."""
        if self._held is None:
            asyncio.get_running_loop().call_soon(work)
        else:
            self._held.append(work)

    def add(self, frame: bytes) -> tuple[Code, int, int]:
        """Take one add frame; return the answer, the ledger and the entry."""
        _, header, key, ledger_id, entry_id = ADD_IDS.unpack_from(frame)
        recovery = bool(header & Flag.RECOVERY_ADD)
        found = self.ledgers.get(ledger_id)
        run = AddBatch(ledger_id, entry_id, 1, key, recovery, b"", range(1))
        code = rules.admission(found.state if found else None, run, read_only=False)
        if code is Code.OK and self.refuses is not None:
            code = self.refuses
        if code is Code.OK:
            ledger = found or self.ledgers.setdefault(ledger_id, MemoryLedger(key))
            ledger.entries.setdefault(entry_id, frame[ADD_PREFIX_BYTES:])
            state = ledger.state
            state.last_entry = max(state.last_entry, entry_id)
            state.lac = max(state.lac, int.from_bytes(frame[_LAC_AT], signed=True))
        return code, ledger_id, entry_id

    def read(self, ledger_id: int, entry_id: int, flags: int, key: bytes) -> bytes:
        if flags & Flag.FENCE:
            ledger = self.ledgers.setdefault(ledger_id, MemoryLedger(key))
            if ledger.state.key != key:
                raise error_for(Code.UNAUTHORIZED, "another key")
            rules.fence(ledger.state, sure=True, under_way=False)
        ledger = self._ledger(ledger_id)
        if entry_id == INVALID_ENTRY_ID:
            entry_id = ledger.state.last_entry
        if entry_id not in ledger.entries:
            raise NoSuchEntry(f"ledger {ledger_id} has no entry {entry_id}")
        return ledger.entries[entry_id]

    def batch_read(self, ledger_id: int, first: int, count_max: int, bytes_max: int) -> list[bytes]:
        found = [self.read(ledger_id, first, 0, b"")]
        size = len(found[0])
        for entry_id in range(first + 1, first + count_max):
            entry = self.ledgers[ledger_id].entries.get(entry_id)
            if entry is None or size + len(entry) + _BATCH_ENTRY_BYTES > bytes_max:
                break
            found.append(entry)
            size += len(entry) + _BATCH_ENTRY_BYTES
        return found

    def extension(self, op: Op, body: dict[str, Any]) -> dict[str, Any]:
        match op:
            case Op.NODE_INFO:
                return {"bookie_id": self.info.bookie_id, "incarnation": "1", "read_only": False}
            case Op.READ_LAC:
                return {"lac": self._ledger(body["ledger"]).state.last_add_confirmed}
            case Op.WRITE_LAC:
                state = self._ledger(body["ledger"]).state
                state.explicit_lac = max(state.explicit_lac, body["lac"])
                return {}
            case Op.FORCE | Op.FETCH_COPIES:
                return {}
            case _:
                raise AssertionError(f"a bookie in memory does not know {op.name}")

    def lac_of(self, ledger_id: int) -> int:
        found = self.ledgers.get(ledger_id)
        return INVALID_ENTRY_ID if found is None else found.state.last_add_confirmed

    def _ledger(self, ledger_id: int) -> MemoryLedger:
        try:
            return self.ledgers[ledger_id]
        except KeyError:
            raise NoSuchLedger(f"no ledger {ledger_id}") from None


class MemoryConnection(BookieConnection):
    """A connection that has no socket: requests go to the bookie as calls."""

    def __init__(self, bookie: MemoryBookie, owner: Bookie, pool: Bookies) -> None:
        super().__init__(
            bookie.info.bookie_id,
            owner,
            pool.scratch,
            timeout_s=pool.options.read_timeout_s,
            buffer_bytes_max=pool.options.connection_buffer_bytes_max,
        )
        self._bookie = bookie

    def send_adds(self, frames: Sequence[Buffer], size: int) -> None:
        self._bookie.soon(partial(self._add, b"".join(frames)))

    def _add(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._lost is None:
            end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
            code, ledger_id, entry_id = self._bookie.add(data[at:end])
            at = end
            self._received_at = self._loop.time()
            sink = self._sinks.get(ledger_id)
            if sink is None:
                continue
            if code is Code.OK:
                sink.added(self.bookie_id, entry_id, entry_id)
            else:
                sink.add_refused(self.bookie_id, code, entry_id, entry_id)

    def read(
        self, ledger_id: int, entry_id: int, done: ReadDone, *, flags: int = 0, key: bytes = b""
    ) -> None:
        work = partial(self._bookie.read, ledger_id, entry_id, flags, key)
        self._ask(f"read of ledger {ledger_id} entry {entry_id}", done, work)

    def batch_read(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int, done: BatchDone
    ) -> None:
        work = partial(self._bookie.batch_read, ledger_id, first, count_max, bytes_max)
        self._ask(f"batch read of ledger {ledger_id} from entry {first}", done, work)

    def request(
        self, op: Op, body: dict[str, Any], done: RequestDone, *, timeout_s: float | None = None
    ) -> None:
        if op is Op.WAIT_LAC:
            waiting = Waiting(op.name, done)
            if self._begin(waiting, self._timeout_s if timeout_s is None else timeout_s):
                until_s = self._loop.time() + body["timeout_ms"] / 1000
                self._bookie.soon(partial(self._poll, self._number(waiting), body, until_s))
            return
        self._ask(op.name, done, partial(self._bookie.extension, op, body), timeout_s)

    def _poll(self, number: int, body: dict[str, Any], until_s: float) -> None:
        """Answer a long poll when the LAC is above `after`, or the time is over."""
        if self._bookie.lac_of(body["ledger"]) > body["after"] or self._loop.time() >= until_s:
            self._run(number, partial(self._bookie.extension, Op.READ_LAC, body))
        elif number in self._by_id:
            self._loop.call_later(_POLL_S, self._poll, number, body, until_s)

    def _ask(
        self,
        what: str,
        done: Callable[[OctavoError | None, Any], None],
        work: Callable[[], Any],
        timeout_s: float | None = None,
    ) -> None:
        waiting = Waiting(what, done)
        if self._begin(waiting, self._timeout_s if timeout_s is None else timeout_s):
            self._bookie.soon(partial(self._run, self._number(waiting), work))

    def _run(self, number: int, work: Callable[[], Any]) -> None:
        waiting = self._by_id.pop(number, None)
        if waiting is None:
            return  # the connection is gone
        self._received_at = self._loop.time()
        try:
            found = work()
        except OctavoError as error:
            self._answer(waiting, error, None)
        else:
            self._answer(waiting, None, found)


class _Line(Bookie):
    """A bookie as the client sees it, whose connections have no socket."""

    def __init__(
        self, bookie: MemoryBookie, pool: MemoryBookiePool, request_class: RequestClass
    ) -> None:
        super().__init__(bookie.info.bookie_id, pool, request_class)
        self._bookie = bookie

    async def _open(self) -> BookieConnection:
        return MemoryConnection(self._bookie, self, self._pool)


class MemoryBookiePool(Bookies):
    """The client's bookies, all of them in memory."""

    bookies: dict[str, MemoryBookie]

    def get(self, bookie_id: str, request_class: RequestClass = RequestClass.NORMAL) -> Bookie:
        found = self._bookies.get((bookie_id, request_class))
        if found is None:
            found = _Line(self.bookies[bookie_id], self, request_class)
            self._bookies[bookie_id, request_class] = found
        return found


class MemoryLedgerClient(LedgerClient):
    """The production ledger client on `bookies`."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: dict[str, MemoryBookie],
        *,
        rng: random.Random,
        options: LedgerOptions,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(store, rng=rng, options=options, clock=clock)
        pool = MemoryBookiePool(BookieRegistry(store), options, rng)
        pool.bookies = bookies
        self.bookies = pool


async def register(store: MetadataStore, bookies: dict[str, MemoryBookie]) -> None:
    """Register the bookies for as long as the session of `store` lives."""
    registry = BookieRegistry(store)
    for bookie_id, bookie in bookies.items():
        await registry.write_cookie(Cookie(bookie_id, "/j", ("/l",), incarnation="1"))
        await registry.register(bookie.info)
