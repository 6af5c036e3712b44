"""Answer everything except adds: reads, fencing reads, and the extension operations.

Each method takes a decoded request and returns the whole answer frame. Errors become codes here and
nowhere else. A fencing read is answered only after the fence is durable. The answer "no such entry"
is given only when the storage vouches for it; every uncertain case is an error.
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
"""Reads with one of these flags do not wait for other reads: recovery sends them."""
_UNKNOWN_STATE = int(Flag.UNKNOWN_STATE)
Read = ReadRequest | BatchReadRequest | v3.Read
"""Requests that wait for their turn and are answered with entries."""

_COMPARED_MAX = 100
"""The most entries that a single FETCH_COPIES request may have compared."""


def v2_code(code: Code, flags: int = 0) -> Code:
    """Return the code for a v2 answer.

    BookKeeper's v2 client does not know UNKNOWN_STATE (107), so it gets IO, which also means that
    the entry may exist. A client that knows UNKNOWN_STATE says so by a flag.
    """
    if code is Code.UNKNOWN_STATE and not flags & _UNKNOWN_STATE:
        return Code.IO
    return code


class Poll(NamedTuple):
    """A long poll: it ends when the LAC of the ledger is above `after`."""

    ledger_id: int
    after: int
    timeout_ms: int
    """The longest wait; 0 asks for an answer at once."""


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
    """Answers over one storage; shared by all connections of a bookie."""

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
        """Start to look for copies that are missing here; None when this bookie keeps no copies."""
        self.compare_copies: Callable[[int, int, int], None] | None = None
        """Start to compare these entries with the other copies; None like `fetch_copies`."""
        self._reads: dict[Code, Counter] = {}
        self._parked: dict[asyncio.Future[int], None] = {}  # a set in order of arrival
        self.polls = 0
        """Long polls under way, of all connections; `InFlight` counts them up and down."""

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"parked": len(self._parked), "long_polls": self.polls}

    def stop(self) -> None:
        """Answer every parked long poll now, with the present LAC."""
        for watch in tuple(self._parked):
            watch.cancel()

    def now(self, request: Read | Request | v3.Call, since: float) -> bytes | None:
        """Return the whole answer if that needs no disk, else None."""
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
        """Answer with consecutive entries from the first one, as far as they exist and fit.

        The bound in bytes counts the whole answer, as in Apache's bookies: its header, and four
        bytes before each entry. At least a single entry is returned, however small the bound. A
        count below 1, or none, means as many as fit (BookKeeper BP-62). The answer may hold fewer
        entries: only the entries in memory if others are on disk, or fewer while clients leave many
        answers untaken.
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
        """Answer that there is no room for the request at present."""
        self._metrics.throttled.labels(cause).inc()
        return self._refused(request, Code.TOO_MANY_REQUESTS)

    def unauthorized(self, request: Read | Request | v3.Call, reason: str) -> bytes:
        """Answer that the caller may not make this request."""
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
        """Answer an operation of Octavo's extension."""
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
        """Return the LAC and the last entry; a caller limited to a range gets only the LAC, at most
        the range's end."""
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
        """Whether a long poll would have to wait."""
        try:
            return self._must_wait(poll_of(request))
        except OctavoError:
            return False

    def _must_wait(self, poll: Poll) -> bool:
        lac = self._storage.control.last_add_confirmed(poll.ledger_id, poll.after)
        return lac <= poll.after and poll.timeout_ms > 0

    async def wait_lac(self, poll: Poll) -> int:
        """Wait until the LAC is above `poll.after` or the time is over; return the LAC."""
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
        """Return the entry after `after`, so that a tailing reader needs only a single round trip.

        Return None when that entry is not here.
        """
        try:
            return await self._storage.reads.read(ledger_id, after + 1)
        except BookieError as error:
            if error.code not in (Code.NO_ENTRY, Code.UNKNOWN_STATE):
                raise
        return None
