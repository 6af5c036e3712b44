"""Expect an error that is declared by its code, not by a class."""

from __future__ import annotations

import pytest

from octavo.broker.errors import BrokerError, ErrorCode


def raises_code(code: ErrorCode, match: str | None = None) -> pytest.RaisesExc[BrokerError]:
    return pytest.raises(code.of, match=match, check=lambda error: error.name == code.name)
