"""Which software was tried, and the result: the rows of docs/compatibility.md."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.interop.processes import VERSION
from tests.interop.talk import Checks


class Outcome(StrEnum):
    """`NOT` is known and has a reason; only `FAILED` and `BETTER` are news."""

    WORKS = "works"
    NOT = "does not work"
    FAILED = "FAILED"
    BETTER = "works, but is said not to"


@dataclass(frozen=True, slots=True)
class Row:
    client: str
    mode: str
    operation: str
    outcome: Outcome
    note: str
    seconds: float


class Matrix:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextlib.contextmanager
    def row(
        self, client: str, mode: str, operation: str, *, note: str = "", fails_because: str = ""
    ) -> Iterator[Checks]:
        """Add a row that works when every check in the block holds and nothing is raised. `note`
        is shown in the table. With `fails_because` it is known not to work: if it works, that is
        an error. A failure does not end the run."""
        checks = Checks()
        checks.title(f"{client} · {mode} · {operation}")
        begun = time.monotonic()
        try:
            yield checks
        except Exception as error:
            traceback.print_exc()
            checks.holds(f"{type(error).__name__}: {str(error)[:300]}", False)
        if not checks.passed and not checks.failed:
            checks.holds("something was checked", False)
        outcome = {
            (False, False): Outcome.WORKS,
            (True, False): Outcome.FAILED,
            (True, True): Outcome.NOT,
            (False, True): Outcome.BETTER,
        }[bool(checks.failed), bool(fails_because)]
        seconds = round(time.monotonic() - begun, 1)
        note = fails_because or note
        self.rows.append(Row(client, mode, operation, outcome, note, seconds))
        print(f"  -- {outcome}, {seconds} s", flush=True)

    @property
    def news(self) -> list[Row]:
        return [row for row in self.rows if row.outcome in (Outcome.FAILED, Outcome.BETTER)]

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def take(self, rows: list[dict[str, Any]]) -> None:
        self.rows += (Row(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows)

    def table(self) -> str:
        lines = ["| client | mode | operation | result | |", "|---|---|---|---|---|"]
        before = ("", "")
        for row in self.rows:
            client, mode = row.client, row.mode
            if (client, mode) == before:
                client = mode = ""
            before = row.client, row.mode
            lines.append(f"| {client} | {mode} | {row.operation} | {row.outcome} | {row.note} |")
        return "\n".join(lines)


PAGE = Path(__file__).resolve().parents[2] / "docs/compatibility.md"
BEGIN, END = "<!-- matrix: `make apache PAGE=1` writes it -->", "<!-- end of the matrix -->"


def written(page: str, table: str, day: str, seconds: float) -> str:
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have {BEGIN!r} and {END!r} once each")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    said = f"As run on {day} against BookKeeper {VERSION}, {seconds / 60:.0f} minutes on two cores."
    return f"{before}{BEGIN}\n{said}\n\n{table}\n{END}{after}"
