"""Writers that speak v3 frames, as Apache's client does: deferred adds, and forces.

This small writer shares no code with ours. It makes its ledger with the production client, adds to
each bookie of a write set over its own connections, and sometimes forces. It tells the referee that
an entry is durable when an ack quorum of its write set was forced after acking it. It gives up a
bookie whose connection breaks or that refuses anything, because that bookie may have lost unforced
entries. When too few bookies are left, it gives up the ledger, and a recovery closes it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.ledger.errors import ClientClosed
from octavo.ledger.quorum import quorum_of
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol import v3
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.entry import digest_for, master_key, pack_entry
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3_schema import ResponseMessage
from tests.sim.sim_client import SimClient
from tests.support.v3_frames import add_frame, read_frame, request_frame

if TYPE_CHECKING:
    from tests.sim.ledger_load import LedgerLoad

_DEFERRED_SYNC = 1
_FORCE_P, _READ_P = 0.4, 0.5


class V3Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = bytearray()
        self._waiting: dict[int, asyncio.Future[ResponseMessage | None]] = {}
        self._transport: asyncio.Transport | None = None
        self._txn = 0

    @property
    def is_up(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                break
            answer = ResponseMessage.FromString(bytes(self._data[LENGTH.size : end]))
            del self._data[:end]
            waiting = self._waiting.pop(answer.header.txnId)
            if not waiting.done():
                waiting.set_result(answer)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, frame: partial[bytes], timeout_s: float) -> ResponseMessage | None:
        """Return the answer, or None when there is none in time; then none will come."""
        if self._transport is None:
            return None
        self._txn += 1
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[self._txn] = waiting
        self._transport.write(frame(txn=self._txn))
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting  # type: ignore[no-any-return]
        except TimeoutError:
            self.close()
            return None


class V3Writer:
    def __init__(self, load: LedgerLoad, client: SimClient, metadata: LedgerMetadata) -> None:
        self._load = load
        self._client = client
        self._metadata = metadata
        self._ledger_id = metadata.ledger_id
        self._quorum = quorum_of(metadata)
        self._bookies = metadata.fragments[0].bookies
        self._digest = digest_for(metadata.digest_type, metadata.password)
        self._key = master_key(metadata.password)
        self._timeout_s = load.options.client["add_timeout_s"]
        self._connections: dict[str, V3Connection] = {}
        self._written: dict[str, set[int]] = defaultdict(set)
        self._durable: dict[str, set[int]] = defaultdict(set)
        self._entries: list[bytes] = []
        self._length = 0
        self._lac = -1

    async def write(self, count: int) -> None:
        rng = self._client.rng
        try:
            for bookie in self._bookies:
                await self._connect(bookie)
            while count > 0 and not self._load.over:
                burst = min(count, rng.randint(1, self._load.options.pipeline))
                count -= burst
                if not await self._add(burst):
                    return
                if rng.random() < _FORCE_P:
                    await self._force()
                if rng.random() < _READ_P:
                    entry_id = rng.randrange(len(self._entries))
                    position = rng.choice(self._quorum.write_set(entry_id))
                    await self._read(self._bookies[position], entry_id)
                await asyncio.sleep(rng.expovariate(1 / rng.choice((0.001, 0.02))))
            await self._force()
        finally:
            for connection in self._connections.values():
                connection.close()

    async def _connect(self, bookie: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                host, port = await self._client.ledgers.bookies.address(bookie)
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(V3Connection, host, port)
        except (OSError, TimeoutError, OctavoError):
            return
        self._connections[bookie] = connection

    async def _ask(self, bookie: str, frame: partial[bytes]) -> ResponseMessage | None:
        """Return a healthy bookie's answer; otherwise give the bookie up."""
        connection = self._connections.get(bookie)
        if connection is None or not connection.is_up:
            return None
        answer = await connection.ask(frame, self._timeout_s)
        if answer is None or answer.status != v3.STATUS[Code.OK]:
            connection.close()
            return None
        return answer

    async def _add(self, count: int) -> bool:
        """Add entries; return whether an ack quorum has written them."""
        first, asked = len(self._entries), []
        for entry_id in range(first, first + count):
            payload = b"%d.%d by v3" % (self._ledger_id, entry_id)
            self._length += len(payload)
            ids = self._ledger_id, entry_id
            body = pack_entry(self._digest, *ids, self._lac, self._length, payload)
            self._entries.append(body)
            self._load.audit.sent(*ids, payload)
            how: dict[str, Any] = {"body": body, "key": self._key, "write_flags": _DEFERRED_SYNC}
            for position in self._quorum.write_set(entry_id):
                bookie = self._bookies[position]
                asked.append(self._add_to(bookie, entry_id, partial(add_frame, *ids, **how)))
        await asyncio.gather(*asked)
        for entry_id in range(first, first + count):
            if len(self._holders(self._written, entry_id)) < self._quorum.ack_quorum:
                return False
            self._load.audit.answered_early(self._ledger_id, entry_id)
        return True

    async def _add_to(self, bookie: str, entry_id: int, frame: partial[bytes]) -> None:
        if await self._ask(bookie, frame) is not None:
            self._written[bookie].add(entry_id)

    async def _force(self) -> None:
        await asyncio.gather(*map(self._force_at, self._bookies))
        while len(self._holders(self._durable, self._lac + 1)) >= self._quorum.ack_quorum:
            self._lac += 1
            self._load.audit.acked(self._ledger_id, self._lac)

    async def _force_at(self, bookie: str) -> None:
        acked = set(self._written[bookie])
        frame = partial(_force_frame, self._ledger_id)
        if await self._ask(bookie, frame) is not None:
            self._durable[bookie] |= acked
            self._load.cluster.trace.probe("v3.forced", len(acked))

    async def _read(self, bookie: str, entry_id: int) -> None:
        if entry_id not in self._written[bookie]:
            return
        answer = await self._ask(bookie, partial(read_frame, self._ledger_id, entry_id))
        if answer is not None:
            same = answer.readResponse.body == self._entries[entry_id]
            what = f"S4 {bookie} has another entry {entry_id} of ledger {self._ledger_id}"
            self._load.audit.check(same, what)
            self._load.cluster.trace.probe("v3.read")

    def _holders(self, by: dict[str, set[int]], entry_id: int) -> list[str]:
        wanted = [self._bookies[p] for p in self._quorum.write_set(entry_id)]
        return [bookie for bookie in wanted if entry_id in by[bookie]]


def _force_frame(ledger_id: int, txn: int) -> bytes:
    return request_frame(v3.Op.FORCE, txn, "forceLedgerRequest", ledgerId=ledger_id)


async def write_v3(load: LedgerLoad, client: SimClient) -> None:
    for _ in range(load.options.ledgers):
        made = await load.create(client, deferred=True)
        if made is not None:
            made.abandon(ClientClosed("its ledger is written in v3 frames"))
            client.doing = "writing"
            writer = V3Writer(load, client, made.metadata)
            await writer.write(client.rng.randint(1, load.options.entries_max))
            client.doing = ""
        await asyncio.sleep(client.rng.uniform(0.02, 0.2))
        if load.over:
            return
