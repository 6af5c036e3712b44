"""Check that every row was stored once, unchanged and in order. Pure.

A redelivery (same partition and offset) is allowed; a row at two offsets was stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.examples.flights import Flights


@dataclass(frozen=True, slots=True)
class Verdict:
    """Lists have row numbers, as examples."""

    expected: int
    found: int
    keys: int
    redelivered: int
    lost: list[int]
    doubled: list[int]
    altered: list[int]
    misplaced: list[int]
    unordered: list[int]
    gaps: list[str]

    @property
    def good(self) -> bool:
        return not (
            self.lost
            or self.doubled
            or self.altered
            or self.misplaced
            or self.unordered
            or self.gaps
        )


class FlightCheck:
    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._places: dict[int, dict[int, int]] = {}
        self._seen = bytearray(len(flights))
        self._partition_of: dict[str, int] = {}
        self._redelivered = 0
        self._doubled: list[int] = []
        self._altered: list[int] = []
        self._misplaced: list[int] = []

    @property
    def found(self) -> int:
        return sum(map(len, self._places.values())) - len(self._doubled)

    def see(self, partition: int, offset: int, key: bytes | None, value: Mapping[str, Any]) -> None:
        places = self._places.setdefault(partition, {})
        if offset in places:
            self._redelivered += 1
            return
        row = value.get("row")
        if not isinstance(row, int) or not 0 <= row < len(self._flights):
            self._altered.append(-1)
            return
        places[offset] = row
        if self._seen[row]:
            self._doubled.append(row)
        self._seen[row] = 1
        aircraft = self._flights.key(row)
        if value != self._flights.value(row) or key != (aircraft.encode() if aircraft else None):
            self._altered.append(row)
        if aircraft and self._partition_of.setdefault(aircraft, partition) != partition:
            self._misplaced.append(row)

    def verdict(self) -> Verdict:
        lost = [row for row, seen in enumerate(self._seen) if not seen]
        return Verdict(
            expected=len(self._flights),
            found=self.found,
            keys=len(self._partition_of),
            redelivered=self._redelivered,
            lost=lost,
            doubled=self._doubled,
            altered=self._altered,
            misplaced=self._misplaced,
            unordered=self._unordered(),
            gaps=self._gaps(),
        )

    def _unordered(self) -> list[int]:
        """List rows stored after a later row of their key: by offset, as redeliveries do not
        count.
        """
        found: list[int] = []
        last: dict[str, int] = {}
        for places in self._places.values():
            for _, row in sorted(places.items()):
                aircraft = self._flights.key(row)
                if aircraft is None:
                    continue
                if last.get(aircraft, -1) > row:
                    found.append(row)
                else:
                    last[aircraft] = row
        return found

    def _gaps(self) -> list[str]:
        return [
            f"partition {partition}: {len(places)} messages, last offset {max(places)}"
            for partition, places in sorted(self._places.items())
            if places and max(places) != len(places) - 1
        ]
