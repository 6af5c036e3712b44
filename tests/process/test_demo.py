"""The demonstrations as a person runs them, smaller: they check themselves and report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.standalone.child import is_child
from octavo.standalone.cluster_file import read_cluster
from tests.support.processes.standalone import octavo


def nothing_is_left(folder: Path) -> bool:
    return not any(is_child(member.pid) for member in read_cluster(folder).members)


@pytest.mark.long
def test_flights(tmp_path: Path) -> None:
    found = octavo("demo", "--rows", "5000", "--data", str(tmp_path / "d"), timeout_s=110)
    said = found.stdout
    assert found.returncode == 0, said + found.stderr
    for line in (
        "kill -9 bookie-2",
        "bookie-4 joins",
        "ensemble changed from entry",
        "owner of partition 0",
        "none lost",
        "none stored twice",
        "order kept per aircraft",
        "no aircraft changed its crew",
        "each aircraft's flights came in order",
        "all checks passed",
    ):
        assert line in said, f"{line!r} is missing in:\n{said}"
    assert "FAILED" not in said
    assert "Traceback" not in said + found.stderr
    assert nothing_is_left(tmp_path / "d")


def test_fencing(tmp_path: Path) -> None:
    found = octavo("demo", "fencing", "--data", str(tmp_path / "d"), timeout_s=110)
    said = found.stdout
    assert found.returncode == 0, said + found.stderr
    for step in range(1, 7):
        assert f"step {step}: " in said, f"step {step} is missing in:\n{said}"
    for line in (
        "the record went OPEN -> IN_RECOVERY -> CLOSED",
        "the publish was not acked",
        "the bookies answered its add: FENCED",
        "acked messages, once, in order",
        "all checks passed",
    ):
        assert line in said, f"{line!r} is missing in:\n{said}"
    assert "FAILED" not in said
    assert nothing_is_left(tmp_path / "d")
