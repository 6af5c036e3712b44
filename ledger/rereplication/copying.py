"""Copy entries of a ledger between bookies, byte for byte.

A copy is checked against its digest, and counts once the target acknowledged it, after its sync. An
entry without a good copy is never made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from octavo.ledger.bookies.bookies import Bookie, RequestClass
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.errors import BookieUnavailable, ReadFailed
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.entry_verifier import verifier_for
from octavo.ledger.read.speculative_read import AllFailed, Answer, SpeculativeRead
from octavo.ledger.rereplication.copies import Range
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import Code, DigestMismatch, OctavoError, ProtocolError, error_for
from octavo.protocol.entry import DigestType, master_key
from octavo.protocol.frames import Flag, add_prefix

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient

log = structlog.get_logger()

_SINGLE_READS_MAX = 128


class Copying:
    def __init__(self, client: LedgerClient, metadata: LedgerMetadata, to: str) -> None:
        self._client = client
        self._options = client.options
        self._metadata = metadata
        self._to = to
        self._verified = verifier_for(metadata)
        self._key = master_key(metadata.password)
        self._quorum = quorum_of(metadata)
        crc32c = metadata.digest_type is DigestType.CRC32C
        self._flags = int(Flag.RECOVERY_ADD | (Flag.CRC32C if crc32c else Flag.NONE))
        self.entries = 0
        self.bytes = 0

    @property
    def _target(self) -> Bookie:
        return self._client.bookies.get(self._to, RequestClass.RECOVERY)

    async def copy(self, fragment: Fragment, run: Range, spread: float) -> None:
        """Spend at least `spread` seconds per byte.

        Raises `ReadFailed` when an entry has no good copy, and error answers of the target.
        """
        first, last = run
        loop = asyncio.get_running_loop()
        while first <= last:
            since = loop.time()
            found = await self._read(fragment, first, last)
            await self._write(first, found)
            first += len(found)
            size = sum(map(len, found))
            self.entries += len(found)
            self.bytes += size
            await asyncio.sleep(max(0.0, since + size * spread - loop.time()))

    # ------------------------------------------------------------------ existing copies

    async def copy_at(self, bookie: str, entry_id: int) -> bytes:
        """Return a copy with a good digest. Raises the bookie's error."""
        try:
            return (await self._read_from([bookie], entry_id, entry_id))[0]
        except AllFailed as failed:
            raise failed.answers[bookie] from failed

    async def sound(self, run: Range) -> list[Range]:
        """Return the parts of the range that the target can serve with good digests."""
        first, last = run
        found: list[Range] = []
        while first <= last:
            try:
                good = len(await self._read_from([self._to], first, last))
            except AllFailed as failed:
                (error,) = failed.answers.values()
                if isinstance(error, BookieUnavailable):
                    raise error from failed
                good = 0
            if good:
                if found and found[-1][1] == first - 1:
                    found[-1] = (found[-1][0], first + good - 1)
                else:
                    found.append((first, first + good - 1))
            first += max(1, good)
        return found

    # ------------------------------------------------------------------ reading

    async def _read(self, fragment: Fragment, first: int, last: int) -> list[bytes]:
        if self._quorum.everywhere:
            return await self._found(self._sources(fragment, first), first, last)
        last = min(last, first + _SINGLE_READS_MAX - 1)
        reads = (
            self._found(self._sources(fragment, entry_id), entry_id, entry_id)
            for entry_id in range(first, last + 1)
        )
        return [entry for found in await asyncio.gather(*reads) for entry in found]

    def _sources(self, fragment: Fragment, entry_id: int) -> list[str]:
        holders = [fragment.bookies[p] for p in self._quorum.write_set(entry_id)]
        there = self._client.bookies.available
        sources = [bookie for bookie in holders if bookie != self._to]
        return sorted(sources, key=lambda bookie: bookie not in there)

    async def _found(self, sources: list[str], first: int, last: int) -> list[bytes]:
        if not sources:
            raise ReadFailed(self._metadata.ledger_id, first, {"no other bookie": "Qw is 1"})
        try:
            return await self._read_from(sources, first, last)
        except AllFailed as failed:
            said = {bookie: str(error) for bookie, error in failed.answers.items()}
            raise ReadFailed(self._metadata.ledger_id, first, said) from failed

    async def _read_from(self, sources: Sequence[str], first: int, last: int) -> list[bytes]:
        ledger_id = self._metadata.ledger_id
        count = min(last - first + 1, self._options.read_batch_entries_max)
        bytes_max = self._options.read_batch_bytes_max

        def ask(bookie_id: str, answer: Answer[list[bytes]]) -> None:
            def done(error: OctavoError | None, found: list[bytes]) -> None:
                if error is not None:
                    answer(error, None)
                else:
                    self._take(bookie_id, first, found[:count], answer)

            def send(connection: BookieConnection) -> None:
                connection.batch_read(ledger_id, first, count, bytes_max, done)

            self._client.with_connection(bookie_id, send, lambda error: answer(error, None))

        patience_s = self._options.speculative_read_ms / 1000
        return (await SpeculativeRead(sources, ask, patience_s).run())[1]

    def _take(
        self, bookie_id: str, first: int, found: list[bytes], answer: Answer[list[bytes]]
    ) -> None:
        good = 0
        try:
            for entry_id, data in enumerate(found, first):
                self._verified(entry_id, data)
                good += 1
        except DigestMismatch as damage:
            log.warning("replica_damaged", bookie=bookie_id, reason=str(damage))
            if not good:
                answer(damage, None)
                return
        if good:
            answer(None, found[:good])
        else:
            answer(ProtocolError(f"bookie {bookie_id}: an empty batch"), None)

    # ------------------------------------------------------------------ writing

    async def _write(self, first: int, entries: list[bytes]) -> None:
        """Write entries to the target; durable on return. Raises its error answers."""
        connection = await self._target.connected()
        ledger_id = self._metadata.ledger_id
        answers = _Answers(self._to, first, len(entries), self._options.add_timeout_s)
        connection.attach(ledger_id, answers)
        try:
            while answers.refused or answers.owing:
                parts: list[bytes] = []
                for entry_id in answers.to_send():
                    data = entries[entry_id - first]
                    parts += (add_prefix(self._key, len(data), self._flags), data)
                connection.send_adds(parts, sum(map(len, parts)))
                await answers.settled()
        finally:
            connection.detach(ledger_id, answers)


class _Answers:
    def __init__(self, bookie_id: str, first: int, count: int, timeout_s: float) -> None:
        self._bookie_id = bookie_id
        self.owing = set(range(first, first + count))
        self.refused: set[int] = set()
        self._timeout_s = timeout_s
        self._pauses = Backoff(0.02, 0.5, None)
        self._changed = asyncio.Event()
        self._error: OctavoError | None = None

    def to_send(self) -> list[int]:
        """Return the entries to send, refused entries again."""
        self.owing |= self.refused
        self.refused = set()
        return sorted(self.owing)

    async def settled(self) -> None:
        """Pause afterwards if the bookie was too busy."""
        while self.owing:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._changed.wait()
            except TimeoutError as error:
                reason = f"copies unanswered for {self._timeout_s:g} s"
                raise BookieUnavailable(self._bookie_id, reason) from error
        if self._error is not None:
            raise self._error
        if self.refused:
            await asyncio.sleep(self._pauses.next_s())

    def added(self, bookie_id: str, first: int, last: int) -> None:  # noqa: ARG002
        self._answered(first, last)

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        if code == Code.TOO_MANY_REQUESTS:
            self.refused.update(self.owing.intersection(range(first, last + 1)))
        else:
            what = f"bookie {bookie_id}: copies of entries {first} to {last}"
            self._error = error_for(code, what)
        self._answered(first, last)

    def _answered(self, first: int, last: int) -> None:
        self.owing.difference_update(range(first, last + 1))
        self._changed.set()
