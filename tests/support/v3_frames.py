"""v3 requests written from the schema alone, and a connection that speaks them."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.bookie.node import BookieNode
from octavo.protocol import v3
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3_schema import RequestMessage, ResponseMessage
from tests.support.raw_bookie import DEADLINE_S, KEY, entry_of

FENCE, PIGGYBACK = 1, 2
RECOVERY = 1


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def request_frame(
    op: int, txn: int = 1, field: str = "", priority: int = 0, version: int = 3, **body: Any
) -> bytes:
    message = RequestMessage()
    header = message.header
    header.version, header.operation, header.txnId = version, op, txn
    if priority:
        header.priority = priority
    if field:
        part = getattr(message, field)
        part.SetInParent()
        for name, value in body.items():
            if value is not None:
                setattr(part, name, value)
    return framed(message.SerializePartialToString())


def add_frame(
    ledger: int,
    entry: int,
    *,
    txn: int = 1,
    body: bytes | None = None,
    key: bytes = KEY,
    priority: int = 0,
    recovery: bool = False,
    flag: int | None = None,
    write_flags: int | None = None,
) -> bytes:
    """Build an add of the entry that `raw_bookie` would send, or of `body`."""
    if flag is not None and flag >= 2**31:
        flag -= 2**32
    return request_frame(
        v3.Op.ADD,
        txn,
        "addRequest",
        priority,
        ledgerId=ledger,
        entryId=entry,
        masterKey=key,
        body=entry_of(ledger, entry) if body is None else body,
        flag=RECOVERY if recovery else flag,
        writeFlags=write_flags,
    )


def reordered(frame: bytes) -> bytes:
    """Build the same add with its flag first, as Apache's client does."""
    message = RequestMessage.FromString(frame[LENGTH.size :])
    add = message.addRequest
    if not add.HasField("flag"):
        return frame
    flag = v3.varint(100 << 3) + v3.varint(add.flag)
    add.ClearField("flag")
    body = flag + add.SerializeToString()
    message.ClearField("addRequest")
    return framed(
        message.SerializeToString() + v3.varint(101 << 3 | 2) + v3.varint(len(body)) + body
    )


def read_frame(ledger: int, entry: int, *, txn: int = 1, priority: int = 0, **body: Any) -> bytes:
    """Build a read; `flag`, `masterKey`, `previousLAC`, `timeOut` as in the schema."""
    fields = {"ledgerId": ledger, "entryId": entry, **body}
    return request_frame(v3.Op.READ, txn, "readRequest", priority, **fields)


class V3Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._txn = 0

    @classmethod
    async def connect(cls, node: BookieNode) -> V3Client:
        return cls(*await asyncio.open_connection("127.0.0.1", node.port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            length = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))[0]
            message = ResponseMessage.FromString(await self.reader.readexactly(length))
        assert message.IsInitialized()
        return message

    async def ask(self, op: int, field: str = "", **body: Any) -> Any:
        self._txn += 1
        self.send(request_frame(op, self._txn, field, **body))
        answer = await self.answer()
        assert (answer.header.version, answer.header.operation) == (body.get("version", 3), op)
        assert answer.header.txnId == self._txn
        return answer

    async def add(self, ledger: int, entry: int, **how: Any) -> int:
        self.send(add_frame(ledger, entry, txn=77, **how))
        answer = await self.answer()
        assert answer.header.txnId == 77
        assert answer.addResponse.status == answer.status
        assert (answer.addResponse.ledgerId, answer.addResponse.entryId) == (ledger, entry)
        return int(answer.status)

    async def read(self, ledger: int, entry: int, **how: Any) -> Any:
        self.send(read_frame(ledger, entry, txn=78, **how))
        answer = await self.answer()
        assert answer.header.txnId == 78
        assert answer.readResponse.status == answer.status
        return answer.readResponse

    async def is_closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.writer.close()
