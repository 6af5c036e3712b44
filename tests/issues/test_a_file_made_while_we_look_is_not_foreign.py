"""Found by CI: four processes made one embedded store at once, and one refused it as not Octavo's.

It had read the file's application id before another process made the file, and its tables after.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata import record_schema

BUSY_TIMEOUT_MS = 5000


@pytest.mark.parametrize("reads_before", [0, 1, 2])
def test_a_file_made_by_another_between_two_looks_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_before: int
) -> None:
    path = str(tmp_path / "octavo.db")
    connect = sqlite3.connect

    class Overtaken(sqlite3.Connection):
        reads = 0

        def execute(self, *args: Any) -> sqlite3.Cursor:
            if self.reads == reads_before:
                with monkeypatch.context() as real:
                    real.setattr(sqlite3, "connect", connect)
                    record_schema.open_database(path, BUSY_TIMEOUT_MS).close()
            self.reads += 1
            return super().execute(*args)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Overtaken, **k))
    db = record_schema.open_database(path, BUSY_TIMEOUT_MS)
    assert db.execute("SELECT count(*) FROM records").fetchone() == (1,)
    db.close()
