"""Nobody reads what a thousand storages say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.crash_states.explore import be_quiet


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    be_quiet()
    yield
    structlog.configure(**before)
