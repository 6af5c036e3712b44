"""Malformed requests wrote 2.3 MB of log in 5 s, and under `octavo standalone` a log was put aside
when its process started again, and never before.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog

from octavo.demo.following import LogFollower
from octavo.log_files import LogFile
from octavo.logs import configure_logging
from octavo.settings import ProcessConfig, SettingsError, load
from tests.attack.world import exchange
from tests.support.processes.standalone import Standalone

BYTES_MAX = 4_000
FLOOD_S = 5.0
FLOOD_BYTES_MAX = 20_000


def all_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name + "*"))


@pytest.mark.parametrize("files_max", [1, 2, 4])
def test_bounded_in_bytes_and_in_files(tmp_path: Path, files_max: int) -> None:
    path = tmp_path / "log"
    log = LogFile(path, bytes_max=BYTES_MAX, files_max=files_max)

    def write(writer: int) -> None:
        for number in range(400):
            log.write(f"{writer} {number} {'x' * (number % 50)}\n")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert len(all_of(path)) == files_max
    assert all(one.stat().st_size <= BYTES_MAX for one in all_of(path))
    kept = [line for one in reversed(all_of(path)) for line in one.read_text().splitlines()]
    for writer in range(3):
        numbers = [int(line.split()[1]) for line in kept if line.startswith(f"{writer} ")]
        assert numbers == list(range(numbers[0], 400)) if numbers else True, "the last, in order"
    assert kept[-1].split()[1] == "399"


def test_a_longer_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(path, bytes_max=100, files_max=2)
    for letter in "abc":
        log.write(letter * 500 + "\n")
    assert [one.read_text() for one in all_of(path)] == ["c" * 500 + "\n", "b" * 500 + "\n"]


def test_what_an_earlier_process_left_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("y" * BYTES_MAX)
    configure_logging(path=path, bytes_max=BYTES_MAX, files_max=2)
    structlog.get_logger().info("begun")
    assert "begun" in path.read_text()
    assert path.stat().st_size < 200
    assert (tmp_path / "log.1").read_text() == "y" * BYTES_MAX


def test_last_words_stand_in_the_newest_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    program = (
        "import sys\nfrom pathlib import Path\nfrom octavo.log_files import LogFile\n"
        f"log = LogFile(Path({str(path)!r}), bytes_max=100, files_max=2)\n"
        "for n in range(20): log.write(f'line {n:20}\\n')\n"
        "raise ValueError('last words')\n"
    )
    with path.open("ab") as stream:
        subprocess.run(
            [sys.executable, "-c", program], stdout=stream, stderr=stream, check=False, timeout=60
        )
    assert "last words" in path.read_text()
    assert len(all_of(path)) == 2


def test_a_process_without_standard_output_begins_a_new_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.setattr(sys, "__stderr__", None)
    log = LogFile(tmp_path / "log", bytes_max=100, files_max=2)
    for letter in "ab":
        log.write(letter * 80)
    assert [one.read_text() for one in all_of(tmp_path / "log")] == ["b" * 80, "a" * 80]


async def test_who_follows_a_log_misses_nothing_when_it_is_put_aside(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    path = tmp_path / "b.jsonl"
    log = LogFile(path, bytes_max=1_000, files_max=2)
    for number in range(300):
        log.write(f'{{"event": "e", "ts": "{number:05}", "number": {number}}}\n')
        if number % 7 == 0:
            follower.look()
    follower.look()
    assert [event.fields["number"] for event in follower.events] == list(range(300))


@pytest.mark.parametrize("setting", ["log_bytes_max", "log_files_max"])
def test_senseless_bounds_are_refused(setting: str) -> None:
    with pytest.raises(SettingsError, match=setting):
        load(ProcessConfig, "", flags={setting: 0})


@pytest.mark.long
def test_a_standalone_under_malformed_requests(tmp_path: Path) -> None:
    settings = tmp_path / "octavo.toml"
    settings.write_text("log_bytes_max = 65536\nlog_files_max = 2\n")
    logs = tmp_path / "data" / "logs"
    logs.mkdir(parents=True)
    for name in ("broker-1.jsonl", "broker-1.jsonl.1"):
        (logs / name).write_text("{}\n" * 21_840)
    cluster = Standalone(tmp_path / "data", "--no-restart", "--config", str(settings))

    async def flood() -> int:
        host, _, port = cluster.cluster.of_kind("broker")[0].address[7:].rpartition(":")
        until = asyncio.get_running_loop().time() + FLOOD_S
        asked = 0
        while asyncio.get_running_loop().time() < until:
            malformed = [exchange((host, int(port)), b"\x16\x03\x01\r\n\r\n", 5) for _ in range(20)]
            asked += sum(b" 400 " in answer for answer in await asyncio.gather(*malformed))
        return asked

    try:
        cluster.start()
        assert asyncio.run(flood()) > 100
        found = {one.name: one.stat().st_size for one in logs.iterdir()}
        assert {name for name in found if name.startswith("broker-1")} == {
            "broker-1.jsonl", "broker-1.jsonl.1",
        }  # fmt: skip
        assert found["broker-1.jsonl"] < FLOOD_BYTES_MAX, "it was 2.3 MB"
        assert all(size <= 65_536 for size in found.values()), found
        text = (logs / "broker-1.jsonl").read_text()
        assert 1 <= text.count('"request_malformed"') <= 20, "five for each host in 10 s"
    finally:
        cluster.clean_up()
