"""Read a ledger: closed, or open and followed. Never above the last confirmed entry.

Any replica will do for a closed ledger. Batches come from the same (sticky) replica, for its
read-ahead. *Absent* is the answer only when the whole write set denies the entry; otherwise
`ReadFailed` means unknown.

The last confirmed entry (LAC) of an open ledger comes from its bookies, ensemble changes and the
close by a watch on its record. A reader's LAC never goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import structlog

from octavo.ledger.bookies.bookies import settle
from octavo.ledger.context import LedgerContext
from octavo.ledger.encryption import Opening
from octavo.ledger.errors import BookieUnavailable, LedgerError, ReadFailed
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.entry_source import EntrySource
from octavo.ledger.read.entry_verifier import verifier_for
from octavo.ledger.read.speculative_read import AllFailed, Answer, SpeculativeRead
from octavo.ledger.records import read_record
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataError, Watch
from octavo.protocol.codes import (
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    ProtocolError,
    TooManyRequests,
)
from octavo.protocol.entry import INVALID_ENTRY_ID, Entry, digest_for, unpack_lac
from octavo.protocol.extension import Op, bytes_of, int_of
from octavo.security.keys.errors import KeyMissing

log = structlog.get_logger()

_SINGLE_READS_MAX = 128
"""Single reads at once, where batch reads are impossible (E > Qw)."""
_POLL_PAUSE_S = 0.1
_BUSY_PAUSE_S = 0.02
_REWRAP_LOOK_S = 1.0


class LedgerReader(EntrySource):
    """Made by `LedgerClient.open`."""

    def __init__(
        self,
        client: LedgerContext,
        metadata: LedgerMetadata,
        version: int,
        opening: Opening | None = None,
    ) -> None:
        """Read the ledger of `metadata`; without `opening`, return entries as stored."""
        self._opening = opening
        self._rewrap_looked_s = float("-inf")
        self._client = client
        self._options = client.options
        self._loop = asyncio.get_running_loop()
        self._quorum = quorum_of(metadata)
        self._verified = verifier_for(metadata)
        self._metadata = metadata
        self._version = version
        self._lac = INVALID_ENTRY_ID
        self._sticky = client.rng.randrange(metadata.write_quorum)
        self._polled = client.rng.randrange(metadata.ensemble_size)
        self._tail: Entry | None = None
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._following: asyncio.Task[None] | None = None
        self._stale = False
        self.damaged_replicas = 0
        """Copies with a wrong digest."""
        self._watch: Watch | None = None
        if metadata.state is not LedgerState.CLOSED:
            self._watch = client.records.watch(metadata.ledger_id, self.look_again)
        self._take_metadata(metadata, version)

    # ------------------------------------------------------------------ calls of the owner

    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, and so cannot grow."""
        return self._metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> int:
        """Return the LAC as far as this reader knows; −1 if there is none."""
        return self._lac

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return the entries `first` … `last`, verified; `last` may be `first` − 1.

        Raises `BeyondLastConfirmed`, `NoSuchEntry` when the whole write set denies an entry,
        `ReadFailed` when that is unknown, and of an encrypted ledger `KeyMissing`,
        `KeySourceUnavailable`, `EntryTampered`.
        """
        self._check_range(first, last)
        entries: list[Entry] = []
        while first <= last:
            batch = await self._fetch(first, last)
            entries += batch
            first += len(batch)
        return entries

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Return the entries that exist now, confirmed or not.

        Ends before the first entry that the whole write set denies; recovery may drop the others.
        Raises `ReadFailed`.
        """
        if first < 0 or last < first - 1:
            raise LedgerError(f"entries {first} to {last}: no range; needs 0 <= first <= last + 1")
        if self.is_closed:
            last = min(last, self._lac)
        entries: list[Entry] = []
        for entry_id in range(first, last + 1):
            try:
                entries += await self._fetch(entry_id, entry_id)
            except NoSuchEntry:
                break
        return entries

    async def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        """Yield batches of at most `read_batch_bytes_max`, while the next is being fetched."""
        self._check_range(first, last)
        if last < first:
            return
        ahead = self._client.spawn(self._fetch(first, last))
        try:
            while first <= last:
                batch = await ahead
                first += len(batch)
                if first <= last:
                    ahead = self._client.spawn(self._fetch(first, last))
                yield batch
        finally:
            ahead.cancel()

    async def check_key(self) -> None:
        if self._opening is None:
            return
        try:
            await self._opening.check()
        except KeyMissing:
            if not await self._is_rewrapped():
                raise
            await self._opening.check()

    @property
    def copies(self) -> int:
        return self._quorum.write_quorum

    def turn_away(self, entry_id: int, damage: OctavoError) -> None:
        """Reject an entry that is damaged although its checksum is right.

        Switch to another sticky replica, and have its bookies compare their copies.
        """
        bookies = self._metadata.fragment_of(entry_id).bookies
        self._report(bookies[self._sticky % len(bookies)], damage)
        self._client.doubts.tell(self._metadata, entry_id)
        self._sticky += 1
        self._tail = None

    async def close(self) -> None:
        self._stop_watching()
        if self._following is not None:
            self._following.cancel()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # ------------------------------------------------------------------ fetching entries

    async def _fetch(self, first: int, last: int) -> list[Entry]:
        """Return entry `first`, and as many after it as one request returns."""
        stored = await self._fetch_stored(first, last)
        if self._opening is None:
            return stored
        try:
            return await self._opening.opened(stored, front=True)
        except KeyMissing:
            if not await self._is_rewrapped():
                raise
            return await self._opening.opened(stored, front=True)

    async def _is_rewrapped(self) -> bool:
        """Whether the data key was wrapped again. Looks once a second."""
        now_s = self._loop.time()
        if self._opening is None or now_s - self._rewrap_looked_s < _REWRAP_LOOK_S:
            return False
        self._rewrap_looked_s = now_s
        await self._follow()
        before, self._opening = self._opening, self._opening.anew(self._metadata)
        return self._opening.wrapped != before.wrapped

    async def _fetch_stored(self, first: int, last: int) -> list[Entry]:
        if self._tail is not None and self._tail.entry_id == first:
            return [self._tail]
        deadline = self._loop.time() + self._options.read_timeout_s
        while True:
            asked = self._metadata.fragment_of(first)
            try:
                return await self._fetch_once(first, last)
            except AllFailed as failed:
                busy = any(isinstance(e, TooManyRequests) for e in failed.answers.values())
                if not busy or self._loop.time() >= deadline:
                    # Re-replication may have moved the fragment since the record was read.
                    await self._follow()
                    if self._metadata.fragment_of(first) == asked:
                        raise self._verdict(first, failed) from failed
            await asyncio.sleep(_BUSY_PAUSE_S)

    async def _fetch_once(self, first: int, last: int) -> list[Entry]:
        fragment = self._metadata.fragment_of(first)
        if first < last:
            last = min(last, self._last_of(fragment))
        if self._quorum.everywhere and first < last:
            return await self._fetch_batch(fragment, first, last)
        if first == last:
            return [await self._fetch_single(fragment, first)]
        stop = min(last + 1, first + _SINGLE_READS_MAX)
        reads = [self._fetch_single(fragment, entry_id) for entry_id in range(first, stop)]
        found = await asyncio.gather(*reads, return_exceptions=True)
        entries: list[Entry] = []
        for entry in found:
            if isinstance(entry, BaseException):
                if not entries:
                    raise entry
                break
            entries.append(entry)
        return entries

    def _last_of(self, fragment: Fragment) -> int:
        fragments = self._metadata.fragments
        at = fragments.index(fragment)
        return fragments[at + 1].first_entry - 1 if at + 1 < len(fragments) else self._lac

    async def _fetch_batch(self, fragment: Fragment, first: int, last: int) -> list[Entry]:
        count = min(last - first + 1, self._options.read_batch_entries_max)
        bytes_max = self._options.read_batch_bytes_max

        def ask(bookie_id: str, answer: Answer[list[Entry]]) -> None:
            def done(error: OctavoError | None, found: list[bytes]) -> None:
                if error is None:
                    self._answer_batch(bookie_id, first, found[:count], answer)
                else:
                    answer(error, None)

            self._client.with_connection(
                bookie_id,
                lambda connection: connection.batch_read(
                    self.ledger_id, first, count, bytes_max, done
                ),
                lambda error: answer(error, None),
            )

        replicas = self._order(fragment.bookies)
        winner, entries = await SpeculativeRead(replicas, ask, self._patience_s).run()
        self._sticky = fragment.bookies.index(winner)
        return entries

    async def _fetch_single(self, fragment: Fragment, entry_id: int) -> Entry:
        def ask(bookie_id: str, answer: Answer[Entry]) -> None:
            def done(error: OctavoError | None, data: bytes) -> None:
                if error is not None:
                    answer(error, None)
                    return
                try:
                    answer(None, self._verified(entry_id, data))
                except DigestMismatch as damage:
                    self._report(bookie_id, damage)
                    answer(damage, None)

            self._client.with_connection(
                bookie_id,
                lambda connection: connection.read(self.ledger_id, entry_id, done),
                lambda error: answer(error, None),
            )

        holders = tuple(fragment.bookies[p] for p in self._quorum.write_set(entry_id))
        replicas = self._order(fragment.bookies if self._quorum.everywhere else holders)
        return (await SpeculativeRead(replicas, ask, self._patience_s).run())[1]

    @property
    def _patience_s(self) -> float:
        return self._options.speculative_read_ms / 1000

    def _order(self, bookies: tuple[str, ...]) -> list[str]:
        at = self._sticky % len(bookies)
        suspects = self._client.bookies.suspects()
        return sorted((*bookies[at:], *bookies[:at]), key=suspects.__contains__)

    def _answer_batch(
        self, bookie_id: str, first: int, found: list[bytes], answer: Answer[list[Entry]]
    ) -> None:
        """Answer with the good entries before the first bad entry; an error if there are none."""
        entries: list[Entry] = []
        try:
            for entry_id, data in enumerate(found, first):
                entries.append(self._verified(entry_id, data))
        except DigestMismatch as damage:
            self._report(bookie_id, damage)
            if not entries:
                answer(damage, None)
                return
        if entries:
            answer(None, entries)
        else:
            answer(ProtocolError(f"bookie {bookie_id}: an empty batch"), None)

    def _report(self, bookie_id: str, damage: OctavoError) -> None:
        self.damaged_replicas += 1
        log.warning("replica_damaged", bookie=bookie_id, reason=str(damage))

    def _verdict(self, entry_id: int, failed: AllFailed) -> OctavoError:
        denials = [isinstance(e, NoSuchEntry | NoSuchLedger) for e in failed.answers.values()]
        if all(denials):
            return NoSuchEntry(
                f"ledger {self.ledger_id} entry {entry_id}: every replica denies it "
                f"({', '.join(failed.answers)})"
            )
        said = {bookie: str(error) for bookie, error in failed.answers.items()}
        return ReadFailed(self.ledger_id, entry_id, said)

    # ------------------------------------------------------------------ following an open ledger

    def _take_metadata(self, metadata: LedgerMetadata, version: int) -> None:
        self._metadata, self._version = metadata, version
        if metadata.state is LedgerState.CLOSED:
            assert metadata.last_entry >= self._lac, (
                f"ledger {self.ledger_id} was closed at {metadata.last_entry}, "
                f"below {self._lac}, which was confirmed"
            )
            self._raise_lac(metadata.last_entry)
            self._wake()
            self._stop_watching()  # a failed read reads the record again
        else:
            # A fragment always starts right above a confirmed entry.
            self._raise_lac(metadata.fragments[-1].first_entry - 1)

    def _raise_lac(self, lac: int) -> None:
        if lac > self._lac:
            self._lac = lac
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        if not changed.done():
            changed.set_result(None)

    def look_again(self) -> None:
        self._stale = True
        if self._following is None:
            self._following = self._client.spawn(self._follow_on())

    async def _follow_on(self) -> None:
        pauses = self._client.bookies.pauses()
        try:
            while self._stale:
                self._stale = False
                try:
                    await self._follow()
                except MetadataError as error:  # the watch may not fire again: retry here
                    log.warning("record_not_read", ledger=self.ledger_id, reason=str(error))
                    self._stale = True
                    await asyncio.sleep(pauses.next_s())
                except LedgerError as error:
                    log.warning("record_not_read", ledger=self.ledger_id, reason=str(error))
        finally:
            self._following = None

    async def _follow(self) -> None:
        metadata, version = await read_record(
            self._client.records, self.ledger_id, self._options.metadata_timeout_s
        )
        if version > self._version:
            self._take_metadata(metadata, version)
            self._wake()

    async def refresh(self) -> int:
        """Ask the ensemble for the LAC. Raises `ReadFailed`.

        Wait until no other reader can have learnt of a higher LAC before this call.
        """
        if self.is_closed:
            return self._lac
        bookies = self._metadata.fragments[-1].bookies
        asks = {asyncio.ensure_future(self._ask_lac(bookie)): p for p, bookie in enumerate(bookies)}
        answered: set[int] = set()
        failures: dict[str, str] = {}
        pending: set[asyncio.Task[int]] = set(asks)
        try:
            while pending and not self._quorum.covers(answered):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for ask in done:
                    try:
                        self._raise_lac(ask.result())
                        answered.add(asks[ask])
                    except OctavoError as error:
                        failures[bookies[asks[ask]]] = str(error)
        finally:
            for ask in pending:
                ask.cancel()
        if not answered and not self.is_closed:
            raise ReadFailed(self.ledger_id, INVALID_ENTRY_ID, failures)
        return self._lac

    async def _ask_lac(self, bookie_id: str) -> int:
        """Return −1 if the bookie never heard of the ledger."""
        bookie = self._client.bookies.get(bookie_id)
        try:
            if bookie.is_ours:
                body = await self._client.request(
                    bookie_id, Op.READ_LAC, {"ledger": self.ledger_id}
                )
                return int_of(body, "lac")
            if bookie.is_foreign:
                return await self._ask_lac_in_v3(bookie_id)
            return await self._read_lac(bookie_id)
        except (NoSuchEntry, NoSuchLedger):
            return INVALID_ENTRY_ID

    async def _ask_lac_in_v3(self, bookie_id: str) -> int:
        """Return the explicit LAC or the last entry's, whichever is higher."""
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        connection = await self._client.bookies.in_v3(bookie_id)
        connection.read_lac(self.ledger_id, settle(answer))
        found, lac = await answer, INVALID_ENTRY_ID
        if "entry" in found:
            lac = self._verified(INVALID_ENTRY_ID, found["entry"]).known_lac
        if "lac" in found:
            digest = digest_for(self._metadata.digest_type, self._metadata.password)
            lac = max(lac, unpack_lac(digest, self.ledger_id, found["lac"]))
        return lac

    async def _read_lac(self, bookie_id: str) -> int:
        """Read the last entry's header, which every bookie supports."""
        found: asyncio.Future[int] = self._loop.create_future()

        def done(error: OctavoError | None, data: bytes) -> None:
            if found.done():
                return
            try:
                if error is not None:
                    raise error
                found.set_result(self._verified(INVALID_ENTRY_ID, data).known_lac)
            except OctavoError as reason:
                found.set_exception(reason)

        connection = await self._client.bookies.get(bookie_id).connected()
        connection.read(self.ledger_id, INVALID_ENTRY_ID, done)
        return await found

    async def wait_for(self, after: int, timeout_s: float) -> int:
        """Wait until the LAC is above `after`, the ledger is closed, or the time is over."""
        deadline = self._loop.time() + timeout_s
        while self._lac <= after and not self.is_closed:
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                break
            await self._poll(after, min(left_s, self._options.long_poll_ms / 1000))
        return self._lac

    async def _poll(self, after: int, timeout_s: float) -> None:
        """Wait at a bookie for a higher LAC; a change of the record ends the wait too."""
        bookies = self._metadata.fragments[-1].bookies
        bookie_id = bookies[self._polled % len(bookies)]
        poll = asyncio.ensure_future(self._long_poll(bookie_id, after, timeout_s))
        changed = asyncio.shield(self._changed)
        try:
            await asyncio.wait((poll, changed), return_when=asyncio.FIRST_COMPLETED)
            if poll.done():
                poll.result()
            if self._lac <= after:
                self._polled += 1
        except OctavoError:
            self._polled += 1
            await asyncio.wait((changed,), timeout=min(_POLL_PAUSE_S, timeout_s))
        finally:
            poll.cancel()
            changed.cancel()

    async def _long_poll(self, bookie_id: str, after: int, timeout_s: float) -> None:
        if not self._client.bookies.get(bookie_id).is_ours:
            self._raise_lac(await self._ask_lac(bookie_id))
            if self._lac <= after:
                raise BookieUnavailable(bookie_id, "does not support long polls")
            return
        body: dict[str, Any] = {
            "ledger": self.ledger_id,
            "after": after,
            "timeout_ms": int(timeout_s * 1000),
            "entry": True,
        }
        answer = await self._client.request(
            bookie_id, Op.WAIT_LAC, body, timeout_s=timeout_s + self._options.read_timeout_s
        )
        lac = int_of(answer, "lac")
        if lac > after and answer.get("entry"):
            try:
                self._tail = self._verified(after + 1, bytes_of(answer, "entry"))
            except DigestMismatch as damage:
                self._report(bookie_id, damage)
        self._raise_lac(lac)
