"""What found each planted bug when it was last searched: measured.json, which `page.py` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

MEASURED = Path(__file__).with_name("measured.json")


class Finding(NamedTuple):
    """What found a bug when it was last searched: so many seeds and a check, or a test."""

    by: str
    seeds: int = 0


def measured() -> dict[str, Finding]:
    """By the bug's name, as last written."""
    return {
        name: Finding(fields["by"], fields.get("seeds", 0))
        for name, fields in json.loads(MEASURED.read_text()).items()
    }


def last_seeds() -> dict[str, int]:
    """The seed that found each, of those that seeds found: the last of so many from 0 on."""
    return {name: found.seeds - 1 for name, found in measured().items() if found.seeds}
