"""What Spark's short-lived processes import. Each starts anew, one after another, so a heavy import
delays a query's first rows by its time in each of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "aiokafka", "jwt", "octavo.broker.types", "octavo.ledger.client", "pyarrow")


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("octavo.spark.source", ()),
        ("octavo.spark.readers", ()),
        ("octavo.spark.sink", ()),
        ("octavo.spark.sink_driver", ()),
        ("octavo.spark.sink_message", ()),
        ("octavo.spark.commit", ("aiohttp",)),
        ("octavo.spark.stored", ("aiokafka", "octavo.ledger.client")),
    ],
)
def test_a_process_imports_only_what_it_needs(module: str, needed: tuple[str, ...]) -> None:
    look = f"import sys, {module}; print(*[one for one in {HEAVY} if one in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120
    )
    assert tuple(said.stdout.split()) == needed
