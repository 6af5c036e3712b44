"""Answer everything except adds: reads, fencing reads, and the extension operations.

Errors become codes here and nowhere else. A fencing read is answered after the fence is durable.
"No such entry" is answered only when the storage vouches for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from octavo.bookie.error_code import code_of
from octavo.protocol import v3
from octavo.protocol.codes import (
    BadRequest,
    BookieError,
    Code,
    OctavoError,
    ProtocolError,
)
from octavo.protocol.entry import INVALID_ENTRY_ID, WHOLE, EntryRange
from octavo.protocol.extension import Op, Request, bytes_of, encode_answer, int_of
from octavo.protocol.frames import (
    BATCH_ANSWER,
    BatchReadRequest,
    Flag,
    ReadRequest,
    batch_read_answer,
    read_answer,
)
from octavo.protocol.limits import LONG_POLL_MS_MAX

if TYPE_CHECKING:
    from prometheus_client import Counter

    from octavo.bookie.config import BookieConfig
    from octavo.bookie.metrics import BookieMetrics
    from octavo.bookie.storage import Storage

log = structlog.get_logger()

_FENCE = int(Flag.FENCE)
AT_ONCE = int(Flag.FENCE | Flag.HIGH_PRIORITY)
"""Recovery's reads do not wait for other reads."""
_UNKNOWN_STATE = int(Flag.UNKNOWN_STATE)
Read = ReadRequest | BatchReadRequest | v3.Read
"""Requests that wait for their turn and are answered with entries."""

_COMPARED_MAX = 100
"""Entries that a single FETCH_COPIES may have compared."""


def v2_code(code: Code, flags: int = 0) -> Code:
    """Return UNKNOWN_STATE (107) only for clients that know it, by a flag.

    Others get IO, which also means that the entry may exist.
    """
    if code is Code.UNKNOWN_STATE and not flags & _UNKNOWN_STATE:
        return Code.IO
    return code


class Poll(NamedTuple):
    ledger_id: int
    after: int
    timeout_ms: int
    """0 asks for an answer at once."""


def poll_of(request: Request | v3.Read) -> Poll:
    """Return what a long poll waits for. Raises `BadRequest` if the body does not say it."""
    if isinstance(request, v3.Read):
        after = -1 if request.previous_lac is None else request.previous_lac
        timeout_ms = LONG_POLL_MS_MAX if request.timeout_ms is None else request.timeout_ms
        return Poll(request.ledger_id, after, min(timeout_ms, LONG_POLL_MS_MAX))
    after = int_of(request.body, "after")
    timeout_ms = int_of(request.body, "timeout_ms", LONG_POLL_MS_MAX)
    return Poll(int_of(request.body, "ledger"), after, min(timeout_ms, LONG_POLL_MS_MAX))


class Requests:
    def __init__(
        self,
        storage: Storage,
        config: BookieConfig,
        metrics: BookieMetrics,
        node_info: Callable[[], dict[str, Any]],
    ) -> None:
        self._storage = storage
        self._config = config
        self._metrics = metrics
        self._node_info = node_info
        self.fetch_copies: Callable[[], None] | None = None
        """Look for missing copies; None when this bookie keeps no copies."""
        self.compare_copies: Callable[[int, int, int], None] | None = None
        self._reads: dict[Code, Counter] = {}
        self._parked: dict[asyncio.Future[int], None] = {}  # a set in order of arrival
        self.polls = 0
        """`InFlight` counts the long polls of all connections up and down."""

    def describe(self) -> dict[str, int]:
        return {"parked": len(self._parked), "long_polls": self.polls}

    def stop(self) -> None:
        """Answer every parked long poll with the present LAC."""
        for watch in tuple(self._parked):
            watch.cancel()

    def now(self, request: Read | Request | v3.Call, since: float) -> bytes | None:
        """Return the answer if that needs no disk, else None."""
        if isinstance(request, Request | v3.Call) or request.flags & _FENCE:
            return None
        if isinstance(request, v3.Read) and request.waits:
            return None
        entries: list[bytes] | None = []
        code = Code.OK
        if isinstance(request, BatchReadRequest):
            first = request.start_entry
            count_max, bytes_max = self._batch_bounds(request)
        else:
            first, count_max, bytes_max = request.entry_id, 1, 0
        try:
            entries = self._storage.reads.read_now(request.ledger_id, first, count_max, bytes_max)
        except Exception as error:
            code = self._code_of(error, request, first)
        if entries is None:
            return None
        return self._answer(request, code, entries, since)

    async def read(self, request: ReadRequest | v3.Read, since: float | None = None) -> bytes:
        """Answer a read that arrived at `since`; with the fence flag, fence first."""
        if since is None:
            since = asyncio.get_running_loop().time()
        entries: list[bytes] = []
        code = Code.OK
        try:
            await self._fence_if_asked(request)
            urgent = bool(request.flags & AT_ONCE)
            reads = self._storage.reads
            entries = [await reads.read(request.ledger_id, request.entry_id, urgent=urgent)]
        except Exception as error:
            code = self._code_of(error, request, request.entry_id)
        return self._answer(request, code, entries, since)

    async def batch_read(self, request: BatchReadRequest, since: float | None = None) -> bytes:
        """Answer with consecutive entries, as far as they exist and fit.

        As in Apache's bookies, the bound counts header and four bytes before each entry, at least
        one entry is returned, and a count below 1, or none, means as many as fit (BookKeeper
        BP-62). Entries on disk may be left out.
        """
        if since is None:
            since = asyncio.get_running_loop().time()
        entries: list[bytes] = []
        code = Code.OK
        try:
            await self._fence_if_asked(request)
            entries = await self._storage.reads.read_many(
                request.ledger_id,
                request.start_entry,
                *self._batch_bounds(request),
                urgent=bool(request.flags & AT_ONCE),
            )
        except Exception as error:
            code = self._code_of(error, request, request.start_entry)
        return self._answer(request, code, entries, since)

    def refusal(self, request: Read | Request | v3.Call, cause: str) -> bytes:
        self._metrics.throttled.labels(cause).inc()
        return self._refused(request, Code.TOO_MANY_REQUESTS)

    def unauthorized(self, request: Read | Request | v3.Call, reason: str) -> bytes:
        return self._refused(request, Code.UNAUTHORIZED, reason)

    def _refused(self, request: Read | Request | v3.Call, code: Code, reason: str = "") -> bytes:
        if isinstance(request, Request):
            body = {"reason": reason} if reason else {}
            return encode_answer(request.op, request.request_id, code, body)
        if isinstance(request, v3.Call):
            return v3.answer(request.head, code)
        return self._answer(request, code, [], asyncio.get_running_loop().time())

    def _batch_bounds(self, request: BatchReadRequest) -> tuple[int, int]:
        bytes_max = min(request.bytes_max, self._config.batch_read_bytes_max)
        bytes_max = max(bytes_max - BATCH_ANSWER.size, 0)
        return request.count_max if request.count_max > 0 else max(bytes_max, 1), bytes_max

    @staticmethod
    def _code_of(error: Exception, request: Read, entry_id: int) -> Code:
        what = "batch_read" if isinstance(request, BatchReadRequest) else "read"
        code = code_of(error, what, request.ledger_id, entry_id)
        return code if isinstance(request, v3.Read) else v2_code(code, request.flags)

    def _answer(self, request: Read, code: Code, entries: list[bytes], since: float) -> bytes:
        self._count_read(code, sum(map(len, entries)), since)
        if isinstance(request, v3.Read):
            found, lac = None, None
            if entries:
                found = entries[0]
                lac = None if request.flags & _FENCE else self._lac_known(request.ledger_id)
            return v3.read_answer(
                request.head, code, request.ledger_id, request.entry_id, found, lac
            )
        if isinstance(request, ReadRequest):
            entry = entries[0] if entries else b""
            return read_answer(code, request.ledger_id, request.entry_id, entry)
        return batch_read_answer(
            code, request.ledger_id, request.start_entry, request.request_id, entries
        )

    def _lac_known(self, ledger_id: int) -> int | None:
        """Return the LAC to send with a read's answer; None when it is uncertain."""
        try:
            return self._storage.control.last_add_confirmed(ledger_id)
        except BookieError:
            return None

    async def _fence_if_asked(self, request: Read) -> None:
        if not request.flags & _FENCE:
            return
        try:
            if request.ledger_id < 0:
                raise BadRequest(f"ledger {request.ledger_id}: ledger ids are not negative")
            await self._storage.control.fence(request.ledger_id, request.key)
        except OctavoError as error:
            self._metrics.fences.labels(error.name).inc()
            raise
        self._metrics.fences.labels("ok").inc()

    def _count_read(self, code: Code, size: int, started: float) -> None:
        counter = self._reads.get(code)
        if counter is None:
            counter = self._reads[code] = self._metrics.reads.labels(code.name)
        counter.inc()
        self._metrics.read_bytes.inc(size)
        self._metrics.read_seconds.observe(asyncio.get_running_loop().time() - started)

    async def extension(self, request: Request) -> bytes:
        try:
            body = await self._extension(request)
            return encode_answer(request.op, request.request_id, Code.OK, body)
        except Exception as error:
            code = code_of(error, request.op.name, request.body.get("ledger"), None)
            reason = {"reason": str(error)} if isinstance(error, OctavoError) else {}
            return encode_answer(request.op, request.request_id, code, reason)

    async def _extension(self, request: Request) -> dict[str, Any]:
        body = request.body
        if request.op is Op.NODE_INFO:
            return self._node_info()
        if request.op is Op.FETCH_COPIES:
            if self.fetch_copies is None or self.compare_copies is None:
                raise BadRequest("this bookie keeps no copies: its setting keep_copies is false")
            if "ledger" not in body:
                self.fetch_copies()
                return {}
        ledger_id = int_of(body, "ledger")
        if ledger_id < 0:
            raise BadRequest(f"ledger {ledger_id}: ledger ids are not negative")
        match request.op:
            case Op.FETCH_COPIES:
                first = max(0, int_of(body, "first"))
                last = min(int_of(body, "last"), first + _COMPARED_MAX - 1)
                assert self.compare_copies is not None
                self.compare_copies(ledger_id, first, last)
                return {}
            case Op.READ_LAC:
                return await self._lac(ledger_id, request.within)
            case Op.WRITE_LAC:
                key, lac = bytes_of(body, "key"), int_of(body, "lac")
                await self._storage.control.set_explicit_lac(ledger_id, key, lac)
                return {}
            case Op.WAIT_LAC:
                return await self._wait_lac(request)
            case Op.FORCE:
                await self._storage.force(ledger_id)
                return {}
            case Op.LIST_ENTRIES:
                return {"runs": [list(run) for run in await self._storage.reads.entries(ledger_id)]}
            case _:
                raise ProtocolError(f"{request.op.name} is not a request")

    async def _lac(self, ledger_id: int, within: EntryRange) -> dict[str, Any]:
        """Answer with the LAC; a caller limited to a range learns at most the range's end."""
        lac = self._storage.control.last_add_confirmed(ledger_id)
        answer: dict[str, Any] = {"lac": min(lac, within.last)}
        if within == WHOLE:
            try:
                answer["entry"] = await self._storage.reads.read(ledger_id, INVALID_ENTRY_ID)
            except BookieError as error:
                if error.code is not Code.NO_ENTRY:
                    raise
        return answer

    async def _wait_lac(self, request: Request) -> dict[str, Any]:
        poll = poll_of(request)
        lac = await self.wait_lac(poll)
        answer: dict[str, Any] = {"lac": min(lac, request.within.last)}
        if lac > poll.after and request.body.get("entry"):
            entry = await self.entry_after(poll.ledger_id, poll.after)
            if entry is not None:
                answer["entry"] = entry
        return answer

    @property
    def takes_polls(self) -> bool:
        return self.polls < self._config.long_polls_max

    def would_wait(self, request: Request | v3.Read) -> bool:
        try:
            return self._must_wait(poll_of(request))
        except OctavoError:
            return False

    def _must_wait(self, poll: Poll) -> bool:
        lac = self._storage.control.last_add_confirmed(poll.ledger_id, poll.after)
        return lac <= poll.after and poll.timeout_ms > 0

    async def wait_lac(self, poll: Poll) -> int:
        """Wait until the LAC is above `poll.after` or the time is over."""
        control = self._storage.control
        if self._must_wait(poll):
            watch = control.watch_lac(poll.ledger_id, poll.after)
            self._parked[watch] = None
            try:
                await asyncio.wait((watch,), timeout=poll.timeout_ms / 1000)
            finally:
                self._parked.pop(watch, None)
                watch.cancel()
        return control.last_add_confirmed(poll.ledger_id, poll.after)

    async def entry_after(self, ledger_id: int, after: int) -> bytes | None:
        """Return the next entry if it is here: a tailing reader needs a single round trip."""
        try:
            return await self._storage.reads.read(ledger_id, after + 1)
        except BookieError as error:
            if error.code not in (Code.NO_ENTRY, Code.UNKNOWN_STATE):
                raise
        return None
