"""Say which right each operation of a bookie needs, in all families of frames. Pure.

An operation that is missing from these tables needs all rights (tests/unit/bookie/test_rights.py
checks that none is missing).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, TypeVar, cast

from octavo.protocol import extension, frames, v3
from octavo.protocol.entry import WHOLE, EntryRange
from octavo.protocol.frames import BatchReadRequest, Flag, ReadRequest


class Need(enum.Enum):
    NOTHING = "nothing"
    """Strangers may do this: authentication needs it."""
    KNOWN = "known"
    """Any proved identity: the answer describes the bookie, not its entries."""
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


V2_NEEDS: Mapping[frames.Op, Need] = {
    frames.Op.ADD: Need.WRITE,
    frames.Op.READ: Need.READ,
    frames.Op.AUTH: Need.NOTHING,
    frames.Op.BATCH_READ: Need.READ,
}
V3_NEEDS: Mapping[v3.Op, Need] = {
    v3.Op.READ: Need.READ,
    v3.Op.ADD: Need.WRITE,
    v3.Op.AUTH: Need.NOTHING,
    v3.Op.WRITE_LAC: Need.WRITE,
    v3.Op.READ_LAC: Need.READ,
    v3.Op.BOOKIE_INFO: Need.KNOWN,
    v3.Op.START_TLS: Need.NOTHING,
    v3.Op.FORCE: Need.WRITE,
    v3.Op.LIST_ENTRIES: Need.READ,
}
EXTENSION_NEEDS: Mapping[extension.Op, Need] = {
    extension.Op.READ_LAC: Need.READ,
    extension.Op.WRITE_LAC: Need.WRITE,
    extension.Op.WAIT_LAC: Need.READ,
    extension.Op.FORCE: Need.WRITE,
    extension.Op.LIST_ENTRIES: Need.READ,
    extension.Op.NODE_INFO: Need.KNOWN,
    extension.Op.FETCH_COPIES: Need.ADMIN,
    extension.Op.ADDED: Need.NOTHING,  # only an answer: as a request it breaks the protocol
}
_LEDGER_IN = {
    v3.Op.WRITE_LAC: "writeLacRequest",
    v3.Op.READ_LAC: "readLacRequest",
    v3.Op.FORCE: "forceLedgerRequest",
    v3.Op.LIST_ENTRIES: "getListOfEntriesOfLedgerRequest",
}
_AS_A_WRITER = int(Flag.FENCE | Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
"""Such a read stops a writer, or overtakes other reads for a recovery."""

Request = ReadRequest | BatchReadRequest | extension.Request | v3.Read | v3.Call
Asked = TypeVar("Asked", bound=Request)


class Rights(NamedTuple):
    needs: frozenset[Need]
    ledgers: Mapping[int, EntryRange] | None = None
    """Ledgers that it may read, with the range of entries; None: all."""

    @property
    def may_write(self) -> bool:
        return Need.WRITE in self.needs and self.ledgers is None

    def allow(self, request: Request) -> bool:
        return self.narrowed(request) is not None

    def narrowed(self, request: Asked) -> Asked | None:
        """Limit the request to what the caller may read; None: refuse it."""
        need, ledger_id = asked(request)
        if need not in self.needs:
            return None
        if self.ledgers is None or need in _OF_NO_LEDGER:
            return request
        entries = None if ledger_id is None else self.ledgers.get(ledger_id)
        if entries is None or entries == WHOLE:
            return None if entries is None else request
        return cast("Asked | None", _within(request, entries))

    def covers(self, other: Rights | None) -> bool:
        if other is None or not other.needs <= self.needs:
            return False
        if self.ledgers is None or other.needs <= frozenset(_OF_NO_LEDGER):
            return True
        return other.ledgers is not None and all(
            ledger_id in self.ledgers and self.ledgers[ledger_id].covers(entries)
            for ledger_id, entries in other.ledgers.items()
        )


_COUNT_MAX = 2**31 - 1
_OF_NO_LEDGER = (Need.NOTHING, Need.KNOWN)
STRANGER = Rights(frozenset({Need.NOTHING}))


def reader_of(ledgers: Mapping[int, EntryRange]) -> Rights:
    return Rights(frozenset({Need.NOTHING, Need.KNOWN, Need.READ}), ledgers)


def rights_of(*needs: Need) -> Rights | None:
    """Return rights to do `needs` with all ledgers; None when these are all rights."""
    if set(needs) >= {Need.READ, Need.WRITE, Need.ADMIN}:
        return None
    return Rights(frozenset({Need.NOTHING, Need.KNOWN}).union(needs)) if needs else STRANGER


def _within(request: Request, entries: EntryRange) -> Request | None:
    """Narrow a request; None when it asks only for other entries, or cannot be split."""
    if isinstance(request, BatchReadRequest):
        if not entries.has(request.start_entry):
            return None
        most = min(entries.last - request.start_entry + 1, _COUNT_MAX)
        count = min(request.count_max, most) if request.count_max > 0 else most
        return request._replace(count_max=count)
    if isinstance(request, ReadRequest):
        return request if entries.has(request.entry_id) else None
    if isinstance(request, v3.Read):
        entry_id = request.entry_id
        if request.waits and request.piggyback:
            assert request.previous_lac is not None
            entry_id = request.previous_lac + 1
        return request if entries.has(entry_id) else None
    if isinstance(request, extension.Request):
        after = request.body.get("after")
        if request.op is extension.Op.READ_LAC or (
            request.op is extension.Op.WAIT_LAC and type(after) is int and entries.has(after + 1)
        ):
            return request._replace(within=entries)
    return None


def asked(request: Request) -> tuple[Need, int | None]:
    """Return the right that it needs, and the ledger that it names."""
    if isinstance(request, extension.Request):
        ledger_id = request.body.get("ledger")
        return EXTENSION_NEEDS[request.op], ledger_id if type(ledger_id) is int else None
    if isinstance(request, v3.Call):
        try:
            op = v3.Op(request.op)
        except ValueError:
            return Need.ADMIN, None
        field = _LEDGER_IN.get(op)
        ledger_id = getattr(request.body, field).ledgerId if field else None
        return V3_NEEDS[op], ledger_id
    need = Need.WRITE if request.flags & _AS_A_WRITER else Need.READ
    return need, request.ledger_id
