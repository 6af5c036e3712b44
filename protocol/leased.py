"""The headers of an answer to `receive` in record batches: which messages are leased. Pure.

Batches are sent as stored and may hold other messages, too. `Octavo-Lease: epoch-number`;
`Octavo-Leased: 41:57,60:61*3` has the offsets (`*3`: a third delivery); `Octavo-Entries: 12:0+2`
the batches' entries (two of ledger 12, from entry 0 on). A stream's batches are unknown when its
headers are sent, so `Octavo-Entries: before-each` asks for ledger and entry before each batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from octavo.protocol.append_time import APPEND_TIME_HEADER

PARTITION_HEADER = "Octavo-Partition"
LEASE_HEADER = "Octavo-Lease"
LEASED_HEADER = "Octavo-Leased"
ENTRIES_HEADER = "Octavo-Entries"
ENTRY_RUNS_MAX = 100
"""About 3 KiB: clients refuse a header above 8 KiB."""
BEFORE_EACH = "before-each"
"""Asks for ledger and entry before each batch, as `ENTRY`."""
ENTRY = struct.Struct(">qq")


class Run(NamedTuple):
    """Offsets before `end`, handed out for the `times`-th time."""

    start: int
    end: int
    times: int


class Leased(NamedTuple):
    """`entries`: (ledger, entry) of each batch.

    `append_time` is the header for `append_time.Times`.
    """

    partition: int
    lease: str
    runs: list[Run]
    entries: list[tuple[int, int]]
    append_time: str = ""

    def headers(self) -> dict[str, str]:
        runs = [
            f"{start}:{end}" + (f"*{count}" if count > 1 else "") for start, end, count in self.runs
        ]
        headers = {
            PARTITION_HEADER: str(self.partition),
            LEASE_HEADER: self.lease,
            LEASED_HEADER: ",".join(runs),
            ENTRIES_HEADER: entries_text(self.entries),
        }
        if self.append_time:
            headers[APPEND_TIME_HEADER] = self.append_time
        return headers

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Leased:
        """Raises `ValueError`."""
        try:
            return cls(
                int(headers[PARTITION_HEADER]),
                headers[LEASE_HEADER],
                [_run(text) for text in headers[LEASED_HEADER].split(",")],
                entries_of(headers[ENTRIES_HEADER]),
                headers.get(APPEND_TIME_HEADER, ""),
            )
        except KeyError as error:
            raise ValueError(f"the answer has no header {error.args[0]}") from None


def runs_of(offsets: Sequence[int], counts: Mapping[int, int]) -> list[Run]:
    """Group ascending offsets by their earlier deliveries, which `counts` has."""
    found: list[Run] = []
    start = end = offsets[0]
    count = counts.get(start, 1)
    for offset in offsets:
        times = counts.get(offset, 1) if counts else 1
        if offset != end or times != count:
            found.append(Run(start, end, count))
            start, count = offset, times
        end = offset + 1
    found.append(Run(start, end, count))
    return [run for run in found if run.start < run.end]


def joined(entries: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (ledger, first entry, count)."""
    found: list[tuple[int, int, int]] = []
    for ledger, entry in entries:
        if found and found[-1][0] == ledger and sum(found[-1][1:]) == entry:
            found[-1] = (ledger, found[-1][1], found[-1][2] + 1)
        else:
            found.append((ledger, entry, 1))
    return found


def entries_text(entries: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{ledger}:{first}+{count}" for ledger, first, count in joined(entries))


def entries_of(text: str) -> list[tuple[int, int]]:
    """Raises `ValueError`."""
    return [one for run in text.split(",") for one in _entries(run)] if text else []


def entries_told(entries: Sequence[tuple[int, int]]) -> int:
    """Return how many entries fit into a header: at least one, if any."""
    runs = 0
    last: tuple[int, int] | None = None
    for index, (ledger, entry) in enumerate(entries):
        if last != (ledger, entry - 1):
            runs += 1
            if runs > ENTRY_RUNS_MAX:
                return index
        last = ledger, entry
    return len(entries)


def _run(text: str) -> Run:
    offsets, _, count = text.partition("*")
    start, _, end = offsets.partition(":")
    return Run(int(start), int(end), int(count or 1))


def _entries(text: str) -> list[tuple[int, int]]:
    ledger, _, rest = text.partition(":")
    first, _, count = rest.partition("+")
    return [(int(ledger), int(first) + step) for step in range(int(count))]
