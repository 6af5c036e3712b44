"""Drops the logs of a thousand storages: formatting them is slow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog


def be_quiet() -> None:
    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    level = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=level, processors=[drop])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Drop logs in a folder whose conftest.py imports this fixture."""
    before = structlog.get_config()
    be_quiet()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def unprinted() -> Iterator[None]:
    """Print no logs in a folder whose conftest.py imports this fixture; `capture_logs` works."""

    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop])
    yield
    structlog.configure(**before)
