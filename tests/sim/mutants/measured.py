"""Read measured.json: the check or test that found each planted bug in its last search.

`page.py` writes the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

MEASURED = Path(__file__).with_name("measured.json")


class Finding(NamedTuple):
    """A bug's last search: the check and the number of seeds, or the test, that found it."""

    by: str
    seeds: int = 0


def measured() -> dict[str, Finding]:
    """Return the last findings, by the bug's name."""
    return {
        name: Finding(fields["by"], fields.get("seeds", 0))
        for name, fields in json.loads(MEASURED.read_text()).items()
    }


def last_seeds() -> dict[str, int]:
    """Return the seed that found each bug: the last of the seeds from 0 on."""
    return {name: found.seeds - 1 for name, found in measured().items() if found.seeds}
