"""One connection to a bookie, over the project's own codec, that notes the answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from types import TracebackType

from octavo.protocol.answers import (
    Added,
    AddRefused,
    AnyAnswer,
    BatchReadAnswer,
    ReadAnswer,
    parse_answers,
)
from octavo.protocol.auth import AuthMessage
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.entry import Digest, unpack_entry
from octavo.protocol.frames import LENGTH, FrameReceiver
from octavo.protocol.limits import FRAME_BYTES_MAX

ANSWER_S = 20
Heard = AnyAnswer | bytes


class Talk(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, bytearray(65_536))
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self._answers: list[Heard] = []
        self._heard = hashlib.sha256()
        self.bytes_heard = 0
        self.closed = False

    @classmethod
    async def with_bookie(cls, port: int) -> Talk:
        loop = asyncio.get_running_loop()
        _, talk = await loop.create_connection(cls, "127.0.0.1", port)
        return talk

    async def __aenter__(self) -> Talk:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._transport is not None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        data = self._receiver.received(nbytes)
        found, end = heard_in(data)
        self._heard.update(data[:end])
        self.bytes_heard += end
        self._receiver.keep(data, end)
        self._answers += found
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._changed.set()

    async def ask(self, *frames: bytes, count: int | None = None) -> list[Heard]:
        """Send `frames` in one write; return the `count` answers, or fewer if it hangs up. A run
        of `n` acked adds counts as `n` answers."""
        assert self._transport is not None
        wanted = len(frames) if count is None else count
        if not self.closed:
            self._transport.write(b"".join(frames))
        async with asyncio.timeout(ANSWER_S):
            while number_of(self._answers) < wanted and not self.closed:
                self._changed.clear()
                await self._changed.wait()
        found, self._answers = joined(self._answers), []
        return found

    def heard(self) -> str:
        text = f"{self.bytes_heard} bytes, sha256 {self._heard.hexdigest()[:16]}"
        self._heard = hashlib.sha256()
        self.bytes_heard = 0
        return text


def heard_in(data: memoryview) -> tuple[list[Heard], int]:
    """Return the answers in `data` and where they end. Answers that our codec refuses come as
    bytes."""
    try:
        found, end = parse_answers(data, FRAME_BYTES_MAX)
        return list(found), end
    except ProtocolError:
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        try:
            first: list[Heard] = [*parse_answers(data[:end], FRAME_BYTES_MAX)[0]]
        except ProtocolError:
            first = [bytes(data[:end])]
        rest, after = heard_in(data[end:])
        return first + rest, end + after


def number_of(answers: Iterable[Heard]) -> int:
    return sum(
        answer.last - answer.first + 1 if isinstance(answer, Added) else 1 for answer in answers
    )


def joined(answers: Iterable[Heard]) -> list[Heard]:
    """Join consecutive runs in the answers, so that chunking does not matter."""
    out: list[Heard] = []
    for answer in answers:
        last = out[-1] if out else None
        if (
            isinstance(answer, Added)
            and isinstance(last, Added)
            and answer.ledger_id == last.ledger_id
            and answer.first == last.last + 1
        ):
            out[-1] = last._replace(last=answer.last)
        else:
            out.append(answer)
    return out


def told(answer: Heard, digest: Digest | None = None) -> str:
    match answer:
        case bytes():
            return f"bytes {answer.hex(' ', -4)}"
        case Added(ledger, first, last):
            return f"added {first}…{last} of ledger {ledger}"
        case AddRefused(code, ledger, entry):
            return f"add of entry {entry} of ledger {ledger}: {name_of(code)}"
        case ReadAnswer(code, ledger, entry, data):
            front = f"read entry {entry} of ledger {ledger}: {name_of(code)}"
            return f"{front}, {entry_told(data, ledger, digest)}" if code == Code.OK else front
        case BatchReadAnswer(code, ledger, start, request, entries):
            inside = "; ".join(entry_told(data, ledger, digest) for data in entries)
            front = f"batch {request} from entry {start} of ledger {ledger}: {name_of(code)}"
            return f"{front}, {len(entries)} entries [{inside}]"
        case AuthMessage(plugin, payload):
            return f"auth {plugin} {payload.hex() or '-'}"
    return f"extension {answer}"


def name_of(code: int) -> str:
    return f"{code} {Code(code).name}" if code in set(Code) else f"{code} ?"


def entry_told(data: bytes, ledger_id: int, digest: Digest | None) -> str:
    text = f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}"
    if digest is None:
        return text
    entry = unpack_entry(digest, ledger_id, -1, data)
    return (
        f"{text}, entry {entry.entry_id} LAC {entry.last_add_confirmed} length {entry.length} "
        f"payload {len(entry.payload)} bytes"
    )


class Checks:
    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def title(self, text: str) -> None:
        print(f"\n== {text}", flush=True)

    def holds(self, what: str, truth: bool, found: object = "") -> None:
        if truth:
            self.passed += 1
            print(f"  ok    {what}", flush=True)
        else:
            self.failed.append(what)
            print(f"  FAIL  {what}\n        found: {found}", flush=True)

    def equal(self, what: str, found: object, wanted: object) -> None:
        self.holds(what, found == wanted, f"{found!r}, wanted {wanted!r}")

    def contains(self, what: str, text: str, *parts: str) -> None:
        missing = [part for part in parts if part not in text]
        self.holds(what, not missing, f"{missing} not in:\n{text[-2000:]}")
