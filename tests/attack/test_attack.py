"""The short form of `make attack`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.attempts import ATTEMPTS
from tests.attack.campaign import chosen, run


@pytest.mark.timeout(600)
def test_unruly_clients_do_no_harm(tmp_path: Path) -> None:
    # How fast the canary is beside them, `make attack` judges on a machine that does nothing else.
    outcomes = run(tmp_path / "data", chosen(short=True), lambda _: None, share=0.0)
    harmed = {one.attempt.name: one.problems for one in outcomes if one.problems}
    assert not harmed, harmed


def test_there_are_many() -> None:
    assert len(ATTEMPTS) >= 150
