"""Answer v3 requests except adds and plain reads, which are handled like v2 requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.bookie.error_code import code_of
from octavo.bookie.ledgers.rules import is_lac_alone
from octavo.bookie.wire.requests import poll_of
from octavo.protocol import v3
from octavo.protocol.availability import availability
from octavo.protocol.codes import (
    BadRequest,
    BookieIOError,
    Code,
    NoSuchEntry,
    NoSuchLedger,
    ReadOnly,
)
from octavo.protocol.entry import INVALID_ENTRY_ID
from octavo.protocol.limits import FRAME_OVERHEAD_BYTES

if TYPE_CHECKING:
    from octavo.bookie.storage import Storage
    from octavo.bookie.wire.requests import Requests

_TOTAL, _FREE = 1, 2
"""GET_BOOKIE_INFO's bits for the total and the free bytes."""

_Fields = dict[str, Any]


class V3Calls:
    def __init__(
        self,
        storage: Storage,
        requests: Requests,
        node_info: Callable[[], dict[str, Any]],
        read_only: Callable[[], bool],
        frame_bytes_max: int,
    ) -> None:
        self._storage = storage
        self._requests = requests
        self._node_info = node_info
        self._read_only = read_only
        self._body_bytes_max = frame_bytes_max - FRAME_OVERHEAD_BYTES

    async def call(self, call: v3.Call) -> bytes:
        """Answer a call; an unknown operation gets BAD_REQUEST, as from Apache's bookies."""
        if call.op == v3.Op.AUTH and call.version == v3.VERSION:
            return v3.auth_answer(call.head)
        served = _SERVED.get(call.op)
        if call.version != v3.VERSION:
            return v3.answer(call.head, Code.BAD_VERSION)
        if served is None or not call.body.HasField(f"{served.name}Request"):
            return v3.answer(call.head, Code.BAD_REQUEST)
        body = getattr(call.body, f"{served.name}Request")
        ids = {"ledgerId": body.ledgerId} if served.of_a_ledger else {}
        code, fields = Code.OK, {}
        try:
            if ids.get("ledgerId", 0) < 0:
                raise BadRequest(f"ledger {body.ledgerId}: ledger ids are not negative")
            fields = await served.do(self, body)
        except Exception as error:
            code = code_of(error, served.name, ids.get("ledgerId"), None)
        status = v3.STATUS[code]
        return v3.answer(call.head, code, f"{served.name}Response", status=status, **ids, **fields)

    async def tail(self, read: v3.Read) -> bytes:
        """Answer a read that waits until the LAC is above the caller's.

        With the next entry, if the caller asks for it and it is here.
        """
        poll = poll_of(read)
        if read.piggyback and read.entry_id != INVALID_ENTRY_ID:
            return v3.read_answer(read.head, Code.BAD_REQUEST, read.ledger_id, read.entry_id)
        try:
            lac = await self._requests.wait_lac(poll)
            if not read.piggyback:
                plain = read._replace(previous_lac=None)
                return await self._requests.read(plain, asyncio.get_running_loop().time())
            entry = None
            if lac > poll.after:
                entry = await self._requests.entry_after(read.ledger_id, poll.after)
        except Exception as error:
            code = code_of(error, "read", read.ledger_id, read.entry_id)
            return v3.read_answer(read.head, code, read.ledger_id, read.entry_id)
        entry_id = read.entry_id if entry is None else poll.after + 1
        return v3.read_answer(read.head, Code.OK, read.ledger_id, entry_id, entry, lac)

    async def _write_lac(self, body: Any) -> _Fields:
        if self._read_only():
            raise ReadOnly("this bookie is read-only, and takes no explicit LAC")
        control = self._storage.control
        if not is_lac_alone(body.ledgerId, body.lac, body.body):
            raise BadRequest(f"ledger {body.ledgerId}: the body does not match LAC {body.lac}")
        await control.set_explicit_lac(body.ledgerId, body.masterKey, body.lac)
        control.keep_signed_lac(body.ledgerId, body.lac, body.body)
        return {}

    async def _read_lac(self, body: Any) -> _Fields:
        fields: _Fields = {}
        try:
            fields["lastEntryBody"] = await self._storage.reads.read(
                body.ledgerId, INVALID_ENTRY_ID
            )
        except NoSuchLedger as error:  # Apache's bookies answer so
            raise NoSuchEntry(str(error)) from error
        except NoSuchEntry:
            pass
        told = self._storage.control.signed_lac(body.ledgerId, fields.get("lastEntryBody"))
        if told is not None:
            fields["lacBody"] = told
        if not fields:
            raise NoSuchEntry(f"ledger {body.ledgerId} has neither an entry nor a LAC here")
        return fields

    async def _force(self, body: Any) -> _Fields:
        await self._storage.force(body.ledgerId)
        return {}

    async def _bookie_info(self, body: Any) -> _Fields:
        info, fields = self._node_info(), {}
        if body.requested & _TOTAL:
            fields["totalDiskCapacity"] = info["total_bytes"]
        if body.requested & _FREE:
            fields["freeDiskSpace"] = info["free_bytes"]
        return fields

    async def _list_entries(self, body: Any) -> _Fields:
        found = availability(await self._storage.reads.entries(body.ledgerId))
        if len(found) > self._body_bytes_max:
            raise BookieIOError(f"the entry list of ledger {body.ledgerId} is too long for a frame")
        return {"availabilityOfEntriesOfLedger": found}


class _Served(NamedTuple):
    name: str
    """The prefix of the request's and the answer's field names."""
    do: Callable[[V3Calls, Any], Awaitable[_Fields]]
    of_a_ledger: bool = True


_SERVED: dict[int, _Served] = {
    v3.Op.WRITE_LAC: _Served("writeLac", V3Calls._write_lac),
    v3.Op.READ_LAC: _Served("readLac", V3Calls._read_lac),
    v3.Op.FORCE: _Served("forceLedger", V3Calls._force),
    v3.Op.BOOKIE_INFO: _Served("getBookieInfo", V3Calls._bookie_info, of_a_ledger=False),
    v3.Op.LIST_ENTRIES: _Served("getListOfEntriesOfLedger", V3Calls._list_entries),
}
