"""The real world is out of reach while a seed runs, and within reach afterwards."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.sim.guard import RealWorldTouched, forbid_real_world

TOUCHES: dict[str, Callable[[], Any]] = {
    "time": lambda: time.time(),
    "monotonic": lambda: time.monotonic(),
    "perf_counter": lambda: time.perf_counter(),
    "time_ns": lambda: time.time_ns(),
    "sleep": lambda: time.sleep(0),
    "random": lambda: random.random(),
    "choice": lambda: random.choice([1]),
    "shuffle": lambda: random.shuffle([1, 2]),
    "unseeded": lambda: random.Random(),
    "system": lambda: random.SystemRandom().random(),
    "system choice": lambda: random.SystemRandom().choice([1, 2, 3]),
    "urandom": lambda: os.urandom(1),
    "uuid4": lambda: uuid.uuid4(),
    "secrets": lambda: secrets.token_hex(2),
    "thread": lambda: threading.Thread(target=print).start(),
    "pool": lambda: ThreadPoolExecutor(1).submit(int),
    "socket": lambda: socket.socket(),
    "connect": lambda: socket.create_connection(("127.0.0.1", 1)),
    "open": lambda: open("/dev/null"),  # noqa: SIM115
    "os.open": lambda: os.open("/dev/null", os.O_RDONLY),
    "path": lambda: Path("/dev/null").read_bytes(),
    "loop": lambda: asyncio.new_event_loop(),
    "process": lambda: subprocess.run(["true"], check=False),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_raises_and_names_the_place(name: str) -> None:
    with pytest.raises(RealWorldTouched, match=r"test_guard|\.py:\d+"), forbid_real_world():
        TOUCHES[name]()


def test_a_swallowed_touch_is_told_in_the_end() -> None:
    def swallow() -> None:
        try:
            time.time()
        except BaseException:
            pass

    with pytest.raises(RealWorldTouched, match=r"time\.time called by .*swallow"):  # noqa: SIM117
        with forbid_real_world():
            swallow()


def test_everything_works_again_afterwards_also_when_nested() -> None:
    with forbid_real_world(), forbid_real_world():
        random.Random(1).random()
    assert time.time() > 0
    assert 0 <= random.random() < 1
    assert open("/dev/null").close() is None
    assert random.Random().random() != random.Random().random()
    with socket.socket():
        pass


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), forbid_real_world():
        raise ValueError("mine")
    time.time()


def test_imports_metrics_and_other_threads_are_let_alone(tmp_path: Path) -> None:
    (tmp_path / "freshly_imported.py").write_text("answer = 42\n")
    sys.path.insert(0, str(tmp_path))
    go, seen = threading.Event(), []

    def other() -> None:
        go.wait(10)
        seen.append(time.monotonic())

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with forbid_real_world():
            assert importlib.import_module("freshly_imported").answer == 42
            counter = Counter("guarded", "A metric", ["kind"], registry=CollectorRegistry())
            counter.labels("one").inc()
            go.set()
            thread.join(10)
    finally:
        sys.path.remove(str(tmp_path))
    assert len(seen) == 1


def test_entering_is_cheap() -> None:
    best = 1.0
    for _ in range(50):
        started = time.perf_counter()
        with forbid_real_world():
            pass
        best = min(best, time.perf_counter() - started)
    assert best < 0.000_3
