"""The referee of compacted reads: compares each page with the views and the log.

Below the horizon a page has every message of exactly one view; above it, every message of the log.
A whole pass shows the newest message of each key, whatever changed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from octavo.metadata.topics import CompactedLedger, CompactionRecord
from octavo.protocol.batch import read_header
from octavo.protocol.records import read_gapped_records
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

if TYPE_CHECKING:
    from tests.sim.compaction_load import OwnCompaction


class Kept(NamedTuple):
    horizon: int
    offsets: tuple[int, ...]


class Seen(NamedTuple):
    """A batch of a page: its ledger, its first offset, the first possible next one, its
    messages."""

    ledger_id: int
    first: int
    following: int
    messages: list[tuple[int, str]]


class CompactedHistory:
    def __init__(
        self,
        log: LogHistory,
        key_of: Callable[[str], bytes | None],
        trace: Trace,
        fail: Callable[[str], None],
    ) -> None:
        self._log = log
        self._key_of = key_of
        self._trace = trace
        self._fail = fail
        self._written: dict[int, tuple[int, ...]] = {}
        self._views: list[Kept] = [Kept(0, ())]
        self._view_of: dict[int, Kept] = {}
        self._gone: set[int] = set()
        """Tombstones that some view has left out."""
        self.own: OwnCompaction | None = None
        self.age_ms: Callable[[int], int] = lambda stamp_ms: 10**18
        """Returns the highest possible age of a stamp, by any believable clock."""

    # -- what jobs do

    def wrote(self, ledger_id: int, offsets: Sequence[int]) -> None:
        self._written[ledger_id] = tuple(offsets)

    def learn(self, ledger: CompactedLedger, entries: Iterable[bytes]) -> None:
        if ledger.ledger_id in self._written:
            return
        offsets = []
        for entry in entries:
            base = ledger.first_offset + read_header(entry).base_offset
            for record in read_gapped_records(entry):
                offsets.append(base + record.offset_delta)
                value = self._log.odd.name_of(record, "a view")
                self._log.stands([value], offsets[-1], f"the view of {self._log.name}")
        bounds = (ledger.first_offset, ledger.last_offset, ledger.count)
        if (offsets[0], offsets[-1], len(offsets)) != bounds:
            self._fail(f"X18 {self._log.name}: {ledger} is said of the messages {offsets}")
        self._trace.probe("compacted.by_broker")
        self.wrote(ledger.ledger_id, offsets)

    def judge(self, record: CompactionRecord) -> None:
        """Check a view that is about to be published, in a topic whose messages go only when a view
        has them.

        It has, for each key, the newest message known below its horizon, or a newer message, and no
        other. Only a tombstone may be missing: if the view before had it, and if it is old enough.
        """
        what = f"X18 {self._log.name}, view up to {record.horizon}"
        kept = {o for one in record.ledgers for o in self._written[one.ledger_id]}
        newest: dict[bytes, int] = {}
        for offset, message in sorted(self._log.at.items()):
            if offset >= record.horizon:
                break
            key = self._key_of(message.value)
            if key is not None:
                newest[key] = offset
            elif offset not in kept:
                self._fail(f"{what}: offset {offset}, without a key, is not in it")
        for offset in sorted(kept):
            known = self._log.at.get(offset)
            key = None if known is None else self._key_of(known.value)
            if key is None:
                continue
            if newest[key] > offset:
                self._fail(f"{what}: offset {offset} is in it, and {newest[key]} is newer")
            del newest[key]
        for offset in newest.values():
            if not self._may_be_gone(offset):
                self._fail(f"{what}: offset {offset}, the newest of its key, is not in it")

    def _may_be_gone(self, offset: int) -> bool:
        if self.own is None or not self.own.is_tombstone(self._log.at[offset].value):
            return False
        before = self._views[-1]
        if offset not in before.offsets and offset not in self._gone:
            return False
        self._gone.add(offset)
        self._trace.probe("compacted.tombstone_gone")
        delay_ms = self.own.settings["compaction_tombstones_ms"]
        stamp_ms = self._log.time_at(offset)
        return stamp_ms is None or self.age_ms(stamp_ms) >= delay_ms

    def published(self, record: CompactionRecord) -> None:
        if self.own is not None:
            self.judge(record)
        offsets = tuple(o for one in record.ledgers for o in self._written[one.ledger_id])
        view = Kept(record.horizon, offsets)
        if view != self._views[-1]:
            self._trace.probe("compacted.published")
        self._views.append(view)
        self._view_of.update((one.ledger_id, view) for one in record.ledgers)

    @property
    def newest(self) -> Kept:
        return self._views[-1]

    # -- what readers see

    def page(self, at: int, start: int, following: int, batches: Sequence[Seen]) -> list[int]:
        """Check a page for offset `at`; return the offsets of its messages."""
        what = f"{self._log.name}, compacted from {at} to {following}"
        behind = [batch for batch in batches if batch.ledger_id not in self._view_of]
        of_view = list(batches[: len(batches) - len(behind)])
        if behind != list(batches[len(of_view) :]):
            self._fail(f"X9 {what}: the log comes before the view")
            return []
        views = {self._view_of[batch.ledger_id] for batch in of_view}
        if len(views) > 1:
            self._fail(f"X9 {what}: messages of {len(views)} views")
            return []
        seen = [offset for batch in of_view for offset, _ in batch.messages if offset >= at]
        if following < max((at, *seen)):
            self._fail(f"X9 {what}: it goes on before what it gave")
        if views:
            (view,) = views
            self._of_view(view, at, following, seen, log_follows=bool(behind), what=what)
            start = view.horizon
        elif start != at and not any(
            view.horizon == start and not _between(view.offsets, at, start) for view in self._views
        ):
            self._fail(f"X9 {what}: nothing was given up to {start}, and no view is like that")
        return seen + self._of_log(start, following, behind, what)

    def _of_view(
        self, view: Kept, at: int, following: int, seen: list[int], *, log_follows: bool, what: str
    ) -> None:
        wanted = _between(view.offsets, at, view.horizon if log_follows else following)
        if seen != wanted:
            self._fail(f"X9 {what}: {seen} of the view up to {view.horizon}, which has {wanted}")
        self._trace.probe("compacted.page_of_view")
        if log_follows:
            self._trace.probe("compacted.page_over_the_horizon")
        elif following > view.horizon:
            self._fail(f"X9 {what}: it goes on behind the horizon {view.horizon}")

    def _of_log(self, start: int, following: int, behind: list[Seen], what: str) -> list[int]:
        at = start
        for batch in behind:
            if not (batch.first <= at < batch.following if at == start else batch.first == at):
                self._fail(f"X9 {what}: {at} was to come, {batch.first} did")
            at = batch.following
        if behind and at != following:
            self._fail(f"X9 {what}: what it gave ends at {at}")
        return list(range(start, at))

    def looked_up(self, time_ms: int, found: int, end: int, horizons: tuple[int, int]) -> None:
        """Check the answer that `time_ms` begins at `found`, when the log ended at `end` or later.

        `horizons`: of the view that the owner knew before, and of the view that it knew then.
        """
        self._trace.probe("compacted.looked_up")
        oldest, newest = horizons
        views = [view for view in self._views if oldest <= view.horizon <= newest]
        why = [self._why_not(view, time_ms, found, end) for view in views]
        if all(why):
            self._fail(
                f"P61 {self._log.name}, compacted: {time_ms} ms is said to begin at offset "
                f"{found} of {end}; {', '.join(why)}"
            )

    def _why_not(self, view: Kept, time_ms: int, found: int, end: int) -> str:
        """Return why the answer is wrong for this view, or "" when it may be right."""
        log, where = self._log, f"with horizon {view.horizon}"
        if found < view.horizon and found not in view.offsets:
            return f"{where} the view has no offset {found}"
        behind = range(max(view.horizon, log.trimmed), found)
        for offset in (*(one for one in view.offsets if one < found), *behind):
            if self._is_as_new(offset, time_ms):
                return f"{where} offset {offset} is as new"
        if found < end and self._is_as_new(found, time_ms) is False:
            return f"{where} offset {found} is older"
        return ""

    def _is_as_new(self, offset: int, time_ms: int) -> bool | None:
        stamp_ms = self._log.time_at(offset)
        return None if stamp_ms is None else stamp_ms >= time_ms

    def passed(self, before: Kept, seen: set[int], end: int) -> None:
        """Check a pass from the beginning to `end`; `before` was the view when it began."""
        self._trace.probe("compacted.pass")
        newest: dict[bytes | None, int] = {}
        keyless = []
        for offset, message in sorted(self._log.at.items()):
            if offset < end:
                key = self._key_of(message.value)
                newest[key] = offset
                if key is None:
                    keyless.append(offset)
        for offset in (*newest.values(), *keyless):
            was_there = offset >= self._log.trimmed or offset in before.offsets
            if was_there and offset not in seen and offset not in self._gone:
                self._fail(
                    f"X9 {self._log.name}: offset {offset}, the newest of its key below {end}, was "
                    "not seen by who read all of it"
                )


def _between(offsets: tuple[int, ...], start: int, end: int) -> list[int]:
    return list(offsets[bisect_left(offsets, start) : bisect_left(offsets, end)])
