"""Re-replication: keeps a bookie's copies complete. Every bookie runs it for itself.

There is no auditor, work list or lock. Each bookie walks over the ledgers' records and fetches
entries that it lacks although the records name it, and entries of a lost bookie if
`copies.adopters` chooses it: then a compare-and-set puts it into the record. A bookie is lost when
it was not registered for `lost_bookie_s`.

An open ledger with a lost bookie is first closed by recovery, after `open_ledger_s`. If it names
this bookie in limbo, its writer may be alive: a broker rolls its own ledgers over; others are
recovered after ten times `open_ledger_s`. Before a copy of a closed ledger counts, the ledger is
fenced here: the old writer may still live, and the lost disk may have had the fence.

Two bookies that copy at once do double work and no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from octavo.ledger.errors import LedgerNotFound, ReadFailed
from octavo.ledger.quorum import quorum_of
from octavo.ledger.records import ChangeWritten, change_record, read_record
from octavo.ledger.rereplication.copies import (
    Range,
    Stretch,
    adopters,
    missing,
    moved,
    names,
    stretches,
    tail_of,
)
from octavo.ledger.rereplication.copying import Copying
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataError, MetadataUnavailable, SessionExpired
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import master_key

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient

log = structlog.get_logger()
_ROLL_OVER_FACTOR = 10
"""Times `open_ledger_s`: for an owner to roll its ledger over."""


class OwnBookie(Protocol):
    """The bookie whose copies are kept; the calls are local."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def unsure_through(self) -> int:
        """Return the last ledger of which entries may be lost here; −1 if none are."""

    def is_unsure(self, ledger_id: int) -> bool:
        """Whether it may have lost entries of this ledger."""

    async def held(self, ledger_id: int) -> list[Range]:
        """Return the entries that this bookie has, as ranges, ascending and joined."""

    def doubtful(self, ledger_id: int) -> bool:
        """Copies must be read back before they count."""

    async def fence(self, ledger_id: int, key: bytes) -> None:
        """Refuse adds for ever; durable on return."""

    async def vouch(self, ledger_ids: Iterable[int]) -> None:
        """Record that this bookie has all entries of these ledgers that it must hold."""

    async def end_limbo(self) -> None:
        """Record the same for every ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperOptions:
    lost_bookie_s: float = 600.0
    """A bookie that is not registered for this time is lost."""
    open_ledger_s: float = 30.0
    """How long the writer of an open ledger may take to replace a lost bookie by itself."""
    interval_s: float = 86_400.0
    """The pause after a walk that left nothing to do."""
    retry_s: float = 60.0
    """The pause after a walk that left ledgers unfinished."""
    bytes_per_s: float = 32 * 1024 * 1024
    """The rate for all ledgers together."""


@dataclass(slots=True)
class KeeperStatus:
    walks: int = 0
    ledgers_looked_at: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    adopted: int = 0
    """Positions of lost bookies that this bookie took over."""
    unfinished: dict[int, str] = field(default_factory=dict)
    """For each ledger that the last walk could not complete, why."""


class CopyKeeper:
    """`run` it for as long as the bookie is registered."""

    def __init__(
        self,
        client: LedgerClient,
        own: OwnBookie,
        options: KeeperOptions | None = None,
        is_owned: Callable[[LedgerMetadata], Awaitable[bool]] | None = None,
    ) -> None:
        """Keep the copies of `own` complete.

        `is_owned` (None: no brokers) says whether a live broker will roll the ledger over; it may
        raise metadata errors.
        """
        self._is_owned = is_owned
        self._client = client
        self._own = own
        self._me = own.bookie_id
        self._options = options or KeeperOptions()
        self.status = KeeperStatus()
        self._loop = asyncio.get_running_loop()
        self._there: set[str] = set()
        self._absent_since: dict[str, float] = {}
        self._waited_for: dict[int, float] = {}
        self._due = False
        self._woken = asyncio.Event()
        self._reasons: dict[int, str] = {}

    # ------------------------------------------------------------------ the times of walks

    def walk_now(self) -> None:
        """Start a walk soon, whatever the interval."""
        self._due = True
        self._woken.set()

    async def run(self) -> None:
        stop = self._client.bookies.on_change(self._bookies_changed)
        try:
            while True:
                self._due = False
                began = self._loop.time()
                try:
                    await self.walk()
                except MetadataError as error:
                    log.warning("copies_not_looked_at", bookie=self._me, reason=str(error))
                    self._reasons = {-1: str(error)}
                await self._until_due(began)
        finally:
            stop()

    async def _until_due(self, began: float) -> None:
        """Wait until a walk is requested, a bookie became lost, or the pause is over."""
        options = self._options
        pause_s = options.retry_s if self._reasons else options.interval_s
        next_walk = self._loop.time() + pause_s
        while not self._due:
            losses = (since + options.lost_bookie_s for since in self._absent_since.values())
            due = min([next_walk, *(loss for loss in losses if loss > began)])
            if self._loop.time() >= due:
                return
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._woken.wait()

    def _bookies_changed(self) -> None:
        """Plan a walk: a new bookie may help, and a bookie that left is lost later."""
        there = set(self._client.bookies.available)
        back = there & self._absent_since.keys()
        self._note_absent(self._there)
        self._there = there
        if back or self.status.unfinished:
            self._due = True
        self._woken.set()

    def _note_absent(self, known: Iterable[str]) -> None:
        there = self._client.bookies.available
        now = self._loop.time()
        since = self._absent_since
        self._absent_since = {
            bookie: since.get(bookie, now) for bookie in (*since, *known) if bookie not in there
        }

    def _lost(self) -> set[str]:
        now = self._loop.time()
        patience_s = self._options.lost_bookie_s
        return {b for b, since in self._absent_since.items() if now - since >= patience_s}

    # ------------------------------------------------------------------ a walk over all ledgers

    async def walk(self) -> None:
        """Walk over all ledgers. Raises `MetadataUnavailable`, `SessionExpired`."""
        await self._client.bookies.reload()
        self._there = set(self._client.bookies.available)
        self._reasons = {}
        bound = self._own.unsure_through
        open_in_limbo = False
        ids = await self._client.list()
        for gone in self._waited_for.keys() - set(ids):
            del self._waited_for[gone]
        for ledger_id in ids:
            try:
                metadata, _ = await read_record(
                    self._client.records, ledger_id, self._client.options.metadata_timeout_s
                )
                named = names(metadata)
                self._note_absent(named)
                if self._me in named or named & self._lost():
                    self.status.ledgers_looked_at += 1
                    metadata = await self._look_after(metadata)
                if ledger_id <= bound and self._me in names(metadata):
                    open_in_limbo |= metadata.state is not LedgerState.CLOSED
            except LedgerNotFound:
                continue  # deleted since it was listed
            except (MetadataUnavailable, SessionExpired):
                raise
            except OctavoError as error:
                self._leave(ledger_id, str(error))
        unsure = any(self._own.is_unsure(ledger_id) for ledger_id in self._reasons)
        if 0 <= bound == self._own.unsure_through and not unsure and not open_in_limbo:
            await self._end_limbo(bound)
        self.status.walks += 1
        self.status.unfinished = dict(self._reasons)

    async def _end_limbo(self, bound: int) -> None:
        try:
            await self._own.end_limbo()
        except OctavoError as error:
            self._leave(bound, f"the limbo could not be ended: {error}")
        else:
            log.info("limbo_over", bookie=self._me, unsure_through=bound)

    def _leave(self, ledger_id: int, why: str) -> None:
        self._reasons[ledger_id] = why
        if self.status.unfinished.get(ledger_id) != why:
            log.warning("ledger_not_whole", bookie=self._me, ledger=ledger_id, reason=why)

    # ------------------------------------------------------------------ one ledger

    async def _look_after(self, metadata: LedgerMetadata) -> LedgerMetadata:
        metadata = await self._close_if_abandoned(metadata)
        whole = True
        for stretch in stretches(metadata):
            if self._me in stretch.fragment.bookies:
                position = stretch.fragment.bookies.index(self._me)
                whole &= await self._fetch(metadata, stretch, position)
        closed = metadata.state is LedgerState.CLOSED
        ledger_id = metadata.ledger_id
        if self._own.is_unsure(ledger_id) and self._me in names(metadata):
            if closed and whole:
                await self._own.fence(ledger_id, master_key(metadata.password))
                await self._own.vouch([ledger_id])
                log.info("ledger_whole_again", bookie=self._me, ledger=ledger_id)
            elif not closed and ledger_id not in self._reasons:
                self._leave(ledger_id, "it is open: it can be completed only once it is closed")
        return await self._adopt(metadata)

    async def _close_if_abandoned(self, metadata: LedgerMetadata) -> LedgerMetadata:
        ledger_id, tail = metadata.ledger_id, tail_of(metadata)
        lost = self._lost()
        takes = adopters(metadata, tail, 0, lost, self._candidates(ledger_id))
        unsure = self._own.is_unsure(ledger_id)
        mine = bool(tail) and self._me in names(metadata) and unsure
        if not mine and not takes:
            self._waited_for.pop(ledger_id, None)
            return metadata
        if not mine and min(takes.values()) != self._me:
            return metadata  # only the lowest adopter recovers it
        if not takes and self._is_owned is not None and await self._is_owned(metadata):
            self._waited_for[ledger_id] = self._loop.time()
            self._leave(ledger_id, "it is open: the broker that owns it will roll it over")
            return metadata
        since = self._waited_for.setdefault(ledger_id, self._loop.time())
        patience_s = self._options.open_ledger_s
        if not takes:  # no bookie is lost, so the writer may be alive
            patience_s *= _ROLL_OVER_FACTOR
        if self._loop.time() - since < patience_s:
            self._leave(ledger_id, "it is open: its writer may still replace a bookie, or close it")
            return metadata
        log.info("abandoned_ledger_recovered", bookie=self._me, ledger=ledger_id)
        return await self._client.recover(ledger_id, password=metadata.password)

    def _candidates(self, ledger_id: int) -> Mapping[str, BookieInfo]:
        """Return the Octavo bookies that are not in limbo for this ledger."""
        return {
            bookie: info
            for bookie, info in self._client.bookies.available.items()
            if info.incarnation and info.unsure_through < ledger_id
        }

    async def _fetch(self, metadata: LedgerMetadata, stretch: Stretch, position: int) -> bool:
        """Return whether all entries are here."""
        ledger_id = metadata.ledger_id
        copying = Copying(self._client, metadata, self._me)
        first, last = stretch.first, stretch.last
        if last < first:
            return True
        held = await self._own.held(ledger_id)
        if held and self._own.doubtful(ledger_id):
            wanted = [(max(a, first), min(b, last)) for a, b in held if a <= last and b >= first]
            held = [run for part in wanted for run in await copying.sound(part)]
        runs = missing(quorum_of(metadata), position, first, last, held)
        spread = 1 / self._options.bytes_per_s
        try:
            for run in runs:
                await copying.copy(stretch.fragment, run, spread)
        except ReadFailed as error:
            self._leave(ledger_id, str(error))
            return False
        finally:
            self.status.copied_entries += copying.entries
            self.status.copied_bytes += copying.bytes
            if copying.entries:
                log.info(
                    "copies_fetched",
                    bookie=self._me,
                    ledger=ledger_id,
                    first=first,
                    last=last,
                    entries=copying.entries,
                    bytes=copying.bytes,
                )
        return True

    # ------------------------------------------------------------------ lost bookies' entries

    async def _adopt(self, metadata: LedgerMetadata) -> LedgerMetadata:
        lost = self._lost()
        candidates = self._candidates(metadata.ledger_id)
        for stretch in stretches(metadata):
            bookies = stretch.fragment.bookies
            takes = adopters(metadata, bookies, stretch.first, lost, candidates)
            for position, bookie in enumerate(bookies):
                if bookie not in lost:
                    continue
                if position not in takes:
                    why = (
                        f"bookie {bookie} is lost, and no bookie can take entry {stretch.first} on"
                    )
                    self._leave(metadata.ledger_id, why)
                elif takes[position] == self._me and await self._fetch(metadata, stretch, position):
                    metadata = await self._take_over(metadata, stretch, position, bookie)
        return metadata

    async def _take_over(
        self, metadata: LedgerMetadata, stretch: Stretch, position: int, lost: str
    ) -> LedgerMetadata:
        ledger_id = metadata.ledger_id
        if metadata.state is LedgerState.CLOSED:
            await self._own.fence(ledger_id, master_key(metadata.password))
        timeout_s = self._client.options.metadata_timeout_s
        while True:
            current, version = await read_record(self._client.records, ledger_id, timeout_s)
            wanted = moved(current, stretch.fragment, position, self._me)
            if wanted is None or lost in self._client.bookies.available:
                return current
            outcome = await change_record(self._client.records, wanted, version, timeout_s)
            if isinstance(outcome, ChangeWritten):
                self.status.adopted += 1
                log.info(
                    "copies_adopted",
                    bookie=self._me,
                    ledger=ledger_id,
                    first=stretch.first,
                    last=stretch.last,
                    instead_of=lost,
                )
                return wanted
