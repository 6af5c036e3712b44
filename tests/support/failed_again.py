"""Run the tests that failed last once more, one at a time: `make test-failed`. pytest's
`--last-failed` does not find names with `@group` of a parallel run, and then runs every test."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def selected(names: Iterable[str]) -> list[str]:
    """Return the names as the command line takes them: without a parallel run's `@group`."""
    return [_without_group(name) for name in names]


def _without_group(name: str) -> str:
    test, at, group = name.rpartition("@")
    return test if at and "]" not in group else name


def main() -> int:
    failed = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    if not failed:
        print("No test failed in the last run.")
        return 0
    return pytest.main(selected(failed))


if __name__ == "__main__":
    sys.exit(main())
