"""Writes the table of docs/compatibility.md between its two markers."""

from __future__ import annotations

from pathlib import Path

from tests.interop.apache import VERSION

PAGE = Path(__file__).resolve().parents[2] / "docs/compatibility.md"
BEGIN, END = "<!-- matrix: `make apache PAGE=1` writes it -->", "<!-- end of the matrix -->"


def written(page: str, table: str, day: str, seconds: float) -> str:
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have {BEGIN!r} and {END!r} once each")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    said = f"As run on {day} against BookKeeper {VERSION}, {seconds / 60:.0f} minutes on two cores."
    return f"{before}{BEGIN}\n{said}\n\n{table}\n{END}{after}"
