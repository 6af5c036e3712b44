"""What `make attack` says of a process's memory is what the system says."""

from __future__ import annotations

import os
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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks /proc")
def test_an_attempt_has_the_peak_of_its_own_time(peaks: Peaks) -> None:
    peaks.highest["broker-1"].bound = 1 << 50  # it is this process, which has run other tests
    peaks.begin()
    held = b"x" * MORE
    assert peaks.end("the first") == []
    first = peaks.highest["broker-1"].bytes
    del held
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
