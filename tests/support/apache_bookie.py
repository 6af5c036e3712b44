"""A fake of Apache's bookie, which speaks v2 or v3 frames. Like the real bookie, it hangs up
when it gets an extension frame, or a version that the connection does not speak."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.frames import (
    ADD_IDS,
    ADD_PREFIX_BYTES,
    BATCH_READ,
    LENGTH,
    READ,
    Op,
    add_answer,
    batch_read_answer,
    read_answer,
)

_V2 = 2


class FakeApacheBookie:
    """Keeps in `hung_up` the frames that it did not understand."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.lacs: dict[int, bytes] = {}
        self.hung_up: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(LENGTH.size)
                frame = head + await reader.readexactly(LENGTH.unpack(head)[0])
                spoken = 2 if frame[4] == _V2 else 3
                version = version or spoken
                answer = self._in_v2(frame) if version == _V2 else self._in_v3(frame)
                if spoken != version or not answer:
                    self.hung_up.append(frame)
                    break
                writer.write(answer)
        writer.close()

    def _in_v2(self, frame: bytes) -> bytes:
        op = frame[5]
        if op == Op.ADD:
            ledger_id, entry_id = ADD_IDS.unpack_from(frame)[3:]
            self.entries.setdefault(ledger_id, {})[entry_id] = frame[ADD_PREFIX_BYTES:]
            return add_answer(Code.OK, ledger_id, entry_id)
        if op == Op.READ:
            _, _, ledger_id, entry_id = READ.unpack_from(frame)
            held = self.entries.get(ledger_id, {})
            entry = held.get(max(held, default=0) if entry_id < 0 else entry_id)
            code = Code.NO_ENTRY if entry is None else Code.OK
            return read_answer(code, ledger_id, entry_id, entry or b"")
        _, _, ledger_id, first, request_id, count, _ = BATCH_READ.unpack_from(frame)
        held = self.entries.get(ledger_id, {})
        found: list[bytes] = []
        while len(found) < count and first + len(found) in held:
            found.append(held[first + len(found)])
        code = Code.OK if found else Code.NO_ENTRY
        return batch_read_answer(code, ledger_id, first, request_id, found)

    def _in_v3(self, frame: bytes) -> bytes:
        request = v3.parse_request(memoryview(frame))
        if not isinstance(request, v3.Call):
            return b""
        if request.op == v3.Op.WRITE_LAC:
            body = request.body.writeLacRequest
            self.lacs[body.ledgerId] = body.body
            fields: dict[str, Any] = {"status": v3.STATUS[Code.OK], "ledgerId": body.ledgerId}
            return v3.answer(request.head, Code.OK, "writeLacResponse", **fields)
        ledger_id = request.body.readLacRequest.ledgerId
        held = self.entries.get(ledger_id, {})
        fields = {"ledgerId": ledger_id}
        if held:
            fields["lastEntryBody"] = held[max(held)]
        if ledger_id in self.lacs:
            fields["lacBody"] = self.lacs[ledger_id]
        code = Code.OK if len(fields) > 1 else Code.NO_ENTRY
        fields["status"] = v3.STATUS[code]
        return v3.answer(request.head, code, "readLacResponse", **fields)


@contextlib.asynccontextmanager
async def apache_bookie(store: MetadataStore, name: str) -> AsyncIterator[FakeApacheBookie]:
    bookie = FakeApacheBookie()
    server = await asyncio.start_server(bookie.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    registry = BookieRegistry(store)
    await registry.register(BookieInfo(name, "127.0.0.1", port))
    try:
        yield bookie
    finally:
        await registry.unregister(name)
        server.close()
