"""Logs and terminals: one line for an event, small files, no escapes of users."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pty
import random
import subprocess
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from octavo import logs
from octavo.cli import output
from octavo.cli.consume import _Printer
from octavo.client.types import Message
from octavo.examples.following import LogFollower
from octavo.ledger.recover.events import (
    FenceHeld,
    LedgerRecovered,
    MarkedInRecovery,
    MetadataSeen,
    RecoveryEvent,
)
from octavo.log_files import LogFile
from octavo.log_limit import EVENT_MAX, SAME_MAX, WINDOW_S, LeftOut, LogLimit
from octavo.logs import configure_logging
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.process.recovery_log import FORGOTTEN_S, IN_FULL_MAX, RecoveryLog
from octavo.settings import ProcessConfig, SettingsError, load
from octavo.terminal import visible
from tests.attack.world import exchange
from tests.support.processes.standalone import Standalone


def test_events_of_ours_and_of_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "log"
    configure_logging(service="broker", node="broker-1", level="info", path=path)
    log = structlog.get_logger()
    log.info("partition_taken_over", partition="t/0", error=ValueError("x"))
    log.debug("not_shown")
    try:
        raise KeyError("k")
    except KeyError as error:
        log.error("went_wrong", exc_info=error)
    logging.getLogger("aiohttp.server").error("from %s", "outside")
    logging.getLogger("aiohttp.server").info("not shown")
    first, second, third = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["event"] == "partition_taken_over"
    assert (first["service"], first["node"], first["level"]) == ("broker", "broker-1", "info")
    assert first["error"] == "ValueError: x"
    assert first["ts"].endswith("Z")
    assert "KeyError: 'k'" in second["trace"]
    assert (third["event"], third["source"]) == ("from outside", "aiohttp.server")


def test_console_for_people(tmp_path: Path) -> None:
    path = tmp_path / "log"
    configure_logging(form="console", path=path)
    structlog.get_logger().warning("bookie_lost", bookie="b1")
    assert "bookie_lost" in path.read_text()
    configure_logging(form="auto", path=path)
    structlog.get_logger().warning("bookie_lost", bookie="b2")
    assert json.loads(path.read_text().splitlines()[-1])["bookie"] == "b2"


# Log files stay small, whatever clients send.
# Malformed requests wrote 2.3 MB of log in 5 s, and a log rotated only at the next start.

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


# Clients of the v3 protocol wrote 15,000 lines a minute; a writer without a spare 8 a second.


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refused(port: int, host: str = "10.0.0.7", **more: Any) -> dict[str, Any]:
    return {"event": "connection_refused", "level": "warning", "peer": f"{host}:{port}", **more}


def test_one_host_has_its_first_lines_shown_and_the_rest_counted(clock: Clock) -> None:
    limit = LogLimit(clock)
    shown = 0
    told: list[LeftOut] = []
    for port in range(15_000):
        clock.now_s += 60 / 15_000
        passes, more = limit.passes(refused(port))
        shown += passes
        told += more
    windows = 60 / WINDOW_S
    assert shown <= SAME_MAX * (windows + 1)
    clock.now_s += WINDOW_S
    told += limit.passes({"event": "other", "level": "info"})[1]
    assert {one.event for one in told} == {"connection_refused"}
    assert shown + sum(one.lines for one in told) == 15_000


def test_each_host_and_each_ledger_has_lines_of_its_own(clock: Clock) -> None:
    limit = LogLimit(clock)
    for host in ("10.0.0.7", "10.0.0.8", "[::1]"):
        assert [limit.passes(refused(n, host))[0] for n in range(SAME_MAX + 1)].count(True) == (
            SAME_MAX
        )
    for ledger in range(4):
        delayed = {"event": "ensemble_change_delayed", "level": "warning", "ledger": ledger}
        assert [limit.passes(delayed)[0] for _ in range(50)].count(True) == SAME_MAX


def test_a_thousand_ledgers_do_not_fill_it_either(clock: Clock) -> None:
    limit = LogLimit(clock)
    shown = sum(
        limit.passes({"event": "delayed", "level": "warning", "ledger": ledger})[0]
        for ledger in range(1000)
    )
    assert shown == EVENT_MAX
    assert limit.passes(refused(1))[0], "another event has its own"


def test_what_only_tells_what_happened_is_never_left_out(clock: Clock) -> None:
    limit = LogLimit(clock)
    told = {"event": "partition_taken_over", "level": "info", "partition": "t/0"}
    assert all(limit.passes(told)[0] for _ in range(10_000))
    malformed = {"event": "request_malformed", "level": "info", "remote": "10.0.0.9"}
    assert sum(limit.passes(malformed)[0] for _ in range(100)) == SAME_MAX


@pytest.mark.parametrize("seed", range(5))
def test_every_line_is_shown_or_counted(clock: Clock, seed: int) -> None:
    rng, limit = random.Random(seed), LogLimit(clock)
    lines = shown = counted = 0
    for _ in range(3000):
        clock.now_s += rng.expovariate(1) * rng.choice((0.001, 0.1))
        lines += 1
        line = refused(rng.randrange(9), f"h{rng.randrange(40)}", ledger=rng.randrange(3))
        passes, told = limit.passes(line)
        shown += passes
        counted += sum(one.lines for one in told)
    clock.now_s += WINDOW_S
    counted += sum(one.lines for one in limit.passes({"event": "end", "level": "info"})[1])
    assert shown + counted == lines, f"seed {seed}"


def test_threads_lose_no_count(clock: Clock) -> None:
    limit = LogLimit(clock)
    shown: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda: shown.extend(limit.passes(refused(1))[0] for _ in range(500))
        )
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    clock.now_s += WINDOW_S
    (told,) = limit.passes({"event": "end", "level": "info"})[1]
    assert (sum(shown), told.lines) == (SAME_MAX, 2000 - SAME_MAX)


def test_the_log_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(logs, "monotonic", clock)
    path = tmp_path / "log"
    configure_logging(service="bookie", node="b1", path=path)
    log = structlog.get_logger()
    for port in range(200):
        log.warning("connection_refused", peer=f"10.0.0.7:{port}", reason="v3")
    clock.now_s += WINDOW_S
    log.info("flushed")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["event"] for one in found] == (
        ["connection_refused"] * SAME_MAX + ["log_lines_left_out", "flushed"]
    )
    assert found[SAME_MAX]["of"] == "connection_refused"
    assert found[SAME_MAX]["count"] == 200 - SAME_MAX
    assert found[SAME_MAX]["node"] == "b1"


# Recoveries in a broker's log: a few step by step, of thousands only how each ended.
RECORD = LedgerMetadata(
    ledger_id=1,
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    fragments=(Fragment(0, ("bookie-1",)),),
)
STEPS: tuple[RecoveryEvent, ...] = (
    MetadataSeen(RECORD, 0),
    MarkedInRecovery(RECORD, 1),
    FenceHeld(4),
    LedgerRecovered(RECORD, 2, False),
)


class RecoveryClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(said: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    return Counter(one["ledger"] for one in said if one["log_level"] == "info")


def test_recoveries_one_after_the_other_are_told_step_by_step() -> None:
    log = RecoveryLog(RecoveryClock())
    with capture_logs() as said:
        for ledger in range(100):
            for step in STEPS:
                log(ledger, step)
    assert set(lines_of(said).values()) == {len(STEPS)}


def test_of_thousands_at_once_only_the_end_is_told() -> None:
    """A deletion of 2,000 partitions wrote 44,000 lines."""
    log, ledgers = RecoveryLog(RecoveryClock()), range(4_000)
    with capture_logs() as said:
        for step in STEPS:
            for ledger in ledgers:
                log(ledger, step)
    found = lines_of(said)
    assert len(found) == len(ledgers), "each is told"
    assert Counter(found.values()) == {len(STEPS): IN_FULL_MAX, 1: len(ledgers) - IN_FULL_MAX}


def test_recoveries_that_failed_make_room_again() -> None:
    clock = RecoveryClock()
    log = RecoveryLog(clock)
    for ledger in range(IN_FULL_MAX):
        log(ledger, STEPS[0])
    with capture_logs() as said:
        log(100, STEPS[0])
        assert not lines_of(said)
        clock.now_s = FORGOTTEN_S + 1
        for step in STEPS:
            log(101, step)
    assert lines_of(said) == {101: len(STEPS)}


# Users' text does nothing to the terminal that shows it; a pipe gets it unchanged. Escapes in
EVIL = "\x1b]0;owned\x07\x1b[2Jcaf\u00e9\x9b31m\u202etxt\r\x08"
SEEN = "\\x1b]0;owned\\x07\\x1b[2Jcaf\u00e9\\x9b31m\\u202etxt\\x0d\\x08"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(one) != "Cc" or one in "\n\t" for one in shown)
    assert visible(shown) == shown
    plain = "".join(one for one in text if one.isprintable())
    assert visible(plain) == plain


def test_what_it_looks_like() -> None:
    assert visible(EVIL) == SEEN
    assert visible("two\nlines\tand a tab, é, 中, 😀") == "two\nlines\tand a tab, é, 中, 😀"


class Out:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def getvalue(self) -> str:
        return self.text

    @property
    def buffer(self) -> Any:
        return SimpleNamespace(write=lambda data: self.write(data.decode()))

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_consume(monkeypatch: pytest.MonkeyPatch, raw: bool, as_json: bool) -> None:
    message = Message(0, 7, "1:2:3", EVIL.encode(), EVIL.encode(), ((EVIL, EVIL.encode()),), 5)
    told = {}
    for terminal in (True, False):
        found = Out(terminal)
        monkeypatch.setattr(sys, "stdout", found)
        _Printer(None, raw, as_json).show(message)
        told[terminal] = found.getvalue()
    assert not any(one in told[True] for one in ("\x1b", "\x9b", "\u202e", "\x07", "\x08"))
    if as_json and not raw:
        assert json.loads(told[False])["value_text"] == EVIL
    else:
        assert EVIL in told[False]
        assert SEEN in told[True]


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_fields_and_errors(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    found = io.StringIO()
    console = output.SafeConsole(
        file=found, force_terminal=terminal, width=400, highlight=False, color_system=None
    )
    for name in ("out", "_pipe", "err"):
        monkeypatch.setattr(output, name, console)
    name = "a[bold]b[/]\x1b[2J\u202e"
    output.emit_table(("name",), [(name,)], title=name)
    output.emit_fields({name: name})
    output.say(name)
    output.fail(name, name)
    output.Waiting()
    text = found.getvalue()
    assert ("\x1b[2J" in text) != terminal
    assert ("\\x1b[2J" in text) == terminal
    assert text.count("a[bold]b[/]") == 7, "nor is it markup"


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        found = Out(terminal)
        monkeypatch.setattr(sys, "stdout", found)
        output.emit_json({"name": "\x9b\u202e\x7f"})
        assert ("\u202e" in found.getvalue()) != terminal


def run(code: str) -> bytes:
    """Run the code on a terminal, and return the bytes that the terminal got."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stdout=theirs, stderr=theirs, check=True)
        os.close(theirs)
        theirs = -1
        found = b""
        try:
            while part := os.read(ours, 65536):
                found += part
        except OSError:  # the writer has closed the terminal
            pass
        return found
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def test_on_a_real_terminal() -> None:
    code = (
        "from octavo.cli.output import emit_raw, say\n"
        "from octavo.logs import configure_logging\n"
        "import structlog\n"
        "emit_raw(b'a\\x1b]0;owned\\x07b')\n"
        "say('c\\x1b]0;owned\\x07d')\n"
        "configure_logging(form='auto')\n"
        "structlog.get_logger().warning('seen', name='e\\x1b]0;owned\\x07f')\n"
    )
    found = run(code)
    assert b"\x1b]0;" not in found, found
    assert b"\x07" not in found
    for shown in (b"a\\x1b]0;owned\\x07b", b"c\\x1b]0;owned\\x07d", b"e\\x1b]0;owned\\x07f"):
        assert shown in found, found
