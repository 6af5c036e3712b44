"""Clients of BookKeeper's v3 protocol wrote 15,000 lines a minute into a bookie's log, and a
writer without a spare bookie `ensemble_change_delayed` 812 times in 100 s.
"""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from octavo import logs
from octavo.log_limit import EVENT_MAX, SAME_MAX, WINDOW_S, LeftOut, LogLimit
from octavo.logs import configure_logging


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
