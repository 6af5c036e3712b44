"""The read cache: log runs read from entry logs, bounded by bytes, oldest use dropped first. Pure.

What is kept is the run as it was read; where its entries begin is found out once per run, so that
a sequential reader pays one disk read and one pass for hundreds of entries.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict

from protocol.codes import BookieIOError
from protocol.frames import ADD_IDS, ADD_PREFIX_BYTES

_RUN_OVERHEAD_BYTES = 400


class CachedRun:
    """Entries of one ledger, ascending from `first` to `last`, as add frames."""

    __slots__ = ("bytes", "first", "frames", "last", "ledger_id", "offsets")

    def __init__(self, ledger_id: int, first: int, last: int, frames: bytes) -> None:
        """Entries `first … last` of `frames`, which may hold more. Raises `BookieIOError`."""
        self.ledger_id = ledger_id
        self.first = first
        self.last = last
        self.frames = frames
        offsets: list[int] = []
        offset, end, expected = 0, len(frames), -1
        while offset < end:
            length, _, _, its_ledger, entry_id = ADD_IDS.unpack_from(frames, offset)
            if its_ledger != ledger_id or (expected >= 0 and entry_id != expected):
                raise BookieIOError(
                    f"ledger {ledger_id} entry {expected}: the entry log holds ledger "
                    f"{its_ledger} entry {entry_id} in its place"
                )
            if first <= entry_id <= last:
                offsets.append(offset)
            expected = entry_id + 1
            offset += 4 + length
            if entry_id == last:
                break
        if len(offsets) != last - first + 1:
            raise BookieIOError(
                f"ledger {ledger_id}: the entry log holds {len(offsets)} of the entries "
                f"{first} to {last}"
            )
        offsets.append(offset)
        self.offsets = offsets
        self.bytes = len(frames) + 36 * len(offsets) + _RUN_OVERHEAD_BYTES

    def entry(self, entry_id: int) -> bytes:
        """The bytes of one entry."""
        index = entry_id - self.first
        return self.frames[self.offsets[index] + ADD_PREFIX_BYTES : self.offsets[index + 1]]


class ReadCache:
    """Used on the loop only."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._runs: OrderedDict[tuple[int, int], CachedRun] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self.bytes = 0

    def find(self, ledger_id: int, entry_id: int) -> CachedRun | None:
        """The run that holds an entry; counts as a use."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        at = bisect_right(firsts, entry_id) - 1
        if at < 0:
            return None
        key = (ledger_id, firsts[at])
        run = self._runs[key]
        if run.last < entry_id:
            return None
        self._runs.move_to_end(key)
        return run

    def put(self, run: CachedRun) -> None:
        """Keep `run`, dropping what it overlaps and what was not used for longest."""
        self.drop(run.ledger_id, run.first, run.last)
        if run.bytes > self._bytes_max // 2:
            return
        self._runs[run.ledger_id, run.first] = run
        insort(self._firsts.setdefault(run.ledger_id, []), run.first)
        self.bytes += run.bytes
        while self.bytes > self._bytes_max:
            self._remove(*next(iter(self._runs)))

    def drop(self, ledger_id: int, first: int = 0, last: int = 2**63) -> None:
        """Forget the runs that hold any of the entries `first … last`."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return
        at = max(0, bisect_right(firsts, first) - 1)
        for found in [found for found in firsts[at:] if found <= last]:
            if self._runs[ledger_id, found].last >= first:
                self._remove(ledger_id, found)

    def _remove(self, ledger_id: int, first: int) -> None:
        self.bytes -= self._runs.pop((ledger_id, first)).bytes
        firsts = self._firsts[ledger_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[ledger_id]
