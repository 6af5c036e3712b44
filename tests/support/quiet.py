"""Nobody reads what a thousand storages say, and formatting it takes longer than all else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog


def be_quiet() -> None:
    """Drop every log line of this process."""

    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    level = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=level, processors=[drop])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """For a folder whose conftest.py imports this."""
    before = structlog.get_config()
    be_quiet()
    yield
    structlog.configure(**before)
