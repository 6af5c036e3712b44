"""The memory of a process in `make attack` equals the system's figure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.process.spec import ProcessSpec
from tests.attack.memory import MIB, Peaks, bound_of

MORE = 64 * MIB


@pytest.fixture
def peaks(tmp_path: Path) -> Peaks:
    (tmp_path / "conf").mkdir()
    sections = {"broker": {"broker_id": "broker-1", "tail_cache_bytes_max": 16 * MIB}, "http": {}}
    spec = ProcessSpec(name="broker-1", metadata_url="", sections=sections)
    spec.write(tmp_path / "conf" / "broker-1.json")
    small = {**sections, "broker": {"broker_id": "broker-1", "tail_cache_bytes_max": 8 * MIB}}
    ProcessSpec(name="less", metadata_url="", sections=small).write(tmp_path / "conf" / "less.json")
    found = Peaks(tmp_path, {"broker-1": os.getpid()})
    less = bound_of(tmp_path / "conf" / "less.json")
    assert found.highest["broker-1"].bound == less + 8 * MIB
    return found


@pytest.fixture
def other() -> Iterator[tuple[int, Callable[[str], None]]]:
    """A process that only follows orders, since this one has run other tests."""
    loop = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    said, answers = child.stdin, child.stdout

    def tell(line: str) -> None:
        said.write(line + "\n")
        said.flush()
        answers.readline()

    with child:
        tell("pass")
        yield child.pid, tell
        said.close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks /proc")
def test_an_attempt_has_the_peak_of_its_own_time(
    tmp_path: Path, peaks: Peaks, other: tuple[int, Callable[[str], None]]
) -> None:
    pid, tell = other
    peaks = Peaks(tmp_path, {"broker-1": pid})
    peaks.begin()
    tell(f"held = b'x' * {MORE}")
    assert peaks.end("the first") == []
    first = peaks.highest["broker-1"].bytes
    tell("del held")
    peaks.begin()
    assert peaks.end("the second") == []
    assert peaks.highest["broker-1"].bytes == first
    assert "in: the first" in peaks.report()[0]
    peaks.highest["broker-1"].bytes = 0
    assert peaks.end("the third") == []
    assert peaks.highest["broker-1"].bytes < first - MORE // 2, "what was before does not count"


def test_more_than_the_bound_is_told(peaks: Peaks) -> None:
    peaks.highest["broker-1"].bound = MIB
    assert "its bound is 1" in peaks.end("any")[0]
