"""Compare doubtful copies, and replace a copy that was forged with a right checksum.

A reader's doubt is only a hint. Each bookie compares its copy with the whole write set's, and
changes only its own:

- A majority holds the same entry and ours differs: replace ours.
- No majority, or only ours fits between its neighbours' offsets: log it, for an operator.
- Too few bookies answered: try again later.

Copies are the same if length and payload are equal; the LAC may differ. Only entries that no writer
can change any more are compared (`copies.stretches`). Our old copy stays until the new one is
durable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.entry_verifier import verifier_for
from octavo.ledger.rereplication.copies import Range, names, stretches
from octavo.ledger.rereplication.copying import Copying
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataError
from octavo.protocol.batch import InvalidBatch, read_header
from octavo.protocol.codes import (
    BookieIOError,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    UnknownState,
)
from octavo.protocol.entry import master_key

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient

log = structlog.get_logger()

DOUBTED_MAX = 1_000
_PAUSE_S = 0.5
"""Bounds the work that endless doubts can cause."""
_NO_COPY = (BookieIOError, DigestMismatch, NoSuchEntry, NoSuchLedger, UnknownState)
"""These prove that there is no good copy; otherwise a busy bookie may have it."""


class OwnCopies(Protocol):
    """The bookie whose copies are compared; the calls are local."""

    @property
    def bookie_id(self) -> str: ...

    async def replace(self, key: bytes, entry: bytes) -> None:
        """Write over the local copy with this id; durable on return."""


@dataclass(slots=True)
class ComparingStatus:
    compared_entries: int = 0
    replaced: int = 0
    """Copies of this bookie that the majority proved wrong."""
    disagreeing: dict[tuple[int, int], str] = field(default_factory=dict)
    """(Ledger, entry), with the bookies that hold each version."""


class _Content(NamedTuple):
    length: int
    payload: bytes


class _Vote(NamedTuple):
    entry_id: int
    ours: _Content | None
    """None: no good copy here, or it cannot be read now."""
    agreed: _Content | None
    """Held by a majority of the write set."""
    data: bytes
    unsure: bool
    """The missing answers could change the result."""
    said: str

    @property
    def is_one(self) -> bool:
        return self.ours is not None and self.ours == self.agreed


class CopyComparer:
    """Idle until a reader reports a doubt."""

    def __init__(
        self, client: LedgerClient, own: OwnCopies, *, retry_s: float, bytes_per_s: float
    ) -> None:
        self._client = client
        self._own = own
        self._me = own.bookie_id
        self._retry_s = retry_s
        self._bytes_per_s = bytes_per_s
        self._doubted: dict[tuple[int, Range], None] = {}
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.status = ComparingStatus()

    def doubt(self, ledger_id: int, first: int, last: int) -> None:
        """Note entries to compare; above `DOUBTED_MAX` doubts the oldest are dropped."""
        self._doubted[ledger_id, (first, last)] = None
        if len(self._doubted) > DOUBTED_MAX:
            del self._doubted[next(iter(self._doubted))]
        self._fresh.set()
        if self._task is None:
            self._task = self._client.spawn(self._work_off())

    async def _work_off(self) -> None:
        try:
            while self._doubted:
                self._fresh.clear()
                await self.compare()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._retry_s if self._doubted else 0):
                        await self._fresh.wait()
        finally:
            self._task = None

    async def compare(self) -> None:
        """Compare all doubted entries; undecided entries stay in doubt."""
        for doubted in tuple(self._doubted):
            ledger_id, span = doubted
            left: Range | None = span
            try:
                left = await self._ledger(await self._client.metadata(ledger_id), *span)
            except LedgerNotFound:
                left = None
                for known in [known for known in self.status.disagreeing if known[0] == ledger_id]:
                    del self.status.disagreeing[known]
            except (OctavoError, MetadataError) as error:
                log.info(
                    "copies_not_compared", bookie=self._me, ledger=ledger_id, reason=str(error)
                )
            if left != span:
                self._doubted.pop(doubted, None)
            if left is not None:
                self._doubted[ledger_id, left] = None
            await asyncio.sleep(_PAUSE_S)

    async def _ledger(self, metadata: LedgerMetadata, first: int, last: int) -> Range | None:
        """Return the range that could not be decided."""
        if self._me not in names(metadata):
            return None
        quorum, settled = quorum_of(metadata), -1
        undecided: list[int] = []
        for stretch in stretches(metadata):
            settled = max(settled, stretch.last)
            if self._me not in stretch.fragment.bookies:
                continue
            position = stretch.fragment.bookies.index(self._me)
            compared = range(max(first, stretch.first), min(last, stretch.last) + 1)
            undecided += [
                one
                for one in compared
                if quorum.holds(position, one) and not await self._entry(metadata, one, settled)
            ]
        if metadata.state is not LedgerState.CLOSED and last > settled:
            undecided += [max(first, settled + 1), last]
        return (undecided[0], undecided[-1]) if undecided else None

    # ------------------------------------------------------------------ one entry

    async def _entry(self, metadata: LedgerMetadata, entry_id: int, settled: int) -> bool:
        """Return whether the entry was decided."""
        vote = await self._vote(metadata, entry_id)
        self.status.compared_entries += 1
        if vote.unsure and not vote.is_one:
            return False
        known, at = self.status.disagreeing, (metadata.ledger_id, entry_id)
        if vote.is_one or await self._is_right(metadata, vote, settled):
            known.pop(at, None)
            return vote.is_one or await self._replace(metadata, vote)
        if at not in known and len(known) < DOUBTED_MAX:
            log.error(
                "copies_disagree",
                bookie=self._me,
                ledger=metadata.ledger_id,
                entry=entry_id,
                reason=vote.said,
            )
            known[at] = vote.said
        return False

    async def _vote(self, metadata: LedgerMetadata, entry_id: int) -> _Vote:
        bookies = metadata.fragment_of(entry_id).bookies
        holders = [bookies[position] for position in quorum_of(metadata).write_set(entry_id)]
        copying, verified = Copying(self._client, metadata, self._me), verifier_for(metadata)
        found = await asyncio.gather(
            *(copying.copy_at(bookie, entry_id) for bookie in holders), return_exceptions=True
        )
        held: dict[_Content, list[str]] = {}
        copies: dict[_Content, bytes] = {}
        silent: list[str] = []
        none: list[str] = []
        for bookie, answer in zip(holders, found, strict=True):
            if isinstance(answer, bytes):
                entry = verified(entry_id, answer)
                content = _Content(entry.length, bytes(entry.payload))
                held.setdefault(content, []).append(bookie)
                copies[content] = answer
            elif isinstance(answer, _NO_COPY):
                none.append(bookie)
            elif isinstance(answer, OctavoError):
                silent.append(bookie)
            else:
                raise answer
        most = len(holders) // 2 + 1
        agreed = next((content for content, who in held.items() if len(who) >= most), None)
        ours = next((content for content, who in held.items() if self._me in who), None)
        could_win = max(map(len, held.values()), default=0) + len(silent) >= most
        await asyncio.sleep(sum(map(len, copies.values())) / self._bytes_per_s)
        return _Vote(
            entry_id,
            ours,
            agreed,
            copies[agreed] if agreed is not None else b"",
            self._me in silent or (agreed is None and could_win),
            _said(list(held.values()), none, silent),
        )

    async def _is_right(self, metadata: LedgerMetadata, vote: _Vote, settled: int) -> bool:
        """Whether the majority's copy may replace ours: not if only ours fits its neighbours."""
        if vote.agreed is None:
            return False
        if vote.ours is None:
            return True
        entry_id = vote.entry_id
        before = (await self._vote(metadata, entry_id - 1)).agreed if entry_id else None
        after = (await self._vote(metadata, entry_id + 1)).agreed if entry_id < settled else None
        theirs = _follows(entry_id, before, vote.agreed, after)
        return theirs or not _follows(entry_id, before, vote.ours, after)

    async def _replace(self, metadata: LedgerMetadata, vote: _Vote) -> bool:
        """Return whether it was read back."""
        await self._own.replace(master_key(metadata.password), vote.data)
        if not (await self._vote(metadata, vote.entry_id)).is_one:
            return False
        self.status.replaced += 1
        log.warning(
            "copy_replaced",
            bookie=self._me,
            ledger=metadata.ledger_id,
            entry=vote.entry_id,
            reason=vote.said,
        )
        return True


def _said(held: Sequence[Sequence[str]], none: Sequence[str], silent: Sequence[str]) -> str:
    said = [f"{', '.join(who)} hold{'s' * (len(who) == 1)} one" for who in held]
    said += [f"{', '.join(none)}: no good copy"] if none else []
    said += [f"{', '.join(silent)}: no answer"] if silent else []
    return "; ".join(said)


def _follows(
    entry_id: int, before: _Content | None, content: _Content, after: _Content | None
) -> bool:
    """Whether this batch fits between its neighbours. An unknown neighbour is no objection."""
    span = _span(content)
    if span is None:
        return False
    start, end = span
    ended = 0 if entry_id == 0 else (_span(before) or (0, start))[1]
    begins = (_span(after) or (end, 0))[0]
    return ended == start < end == begins


def _span(content: _Content | None) -> Range | None:
    """Return the batch's offsets, the end excluded; None if it is no batch."""
    if content is None:
        return None
    try:
        header = read_header(content.payload)
    except InvalidBatch:
        return None
    return header.base_offset, header.base_offset + header.record_count
