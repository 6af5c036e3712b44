"""Parts that several test folders share."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled
from octavo.standalone.ports import free_port
from tests.support.kit.examples import examples
from tests.support.zookeeper_server import ZooKeeperRun, ZooKeeperServer, running_zookeeper

# Never fail a test for being late: machines that run tests are busy with other work.
hypothesis.settings.register_profile("octavo", deadline=None, max_examples=examples())
hypothesis.settings.load_profile("octavo")

FOLDERS_IN_MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 8 << 30
"""A run's folders take less than 2 GiB at a time, and bookies want free space."""


def _put_folders_into_memory() -> None:
    """Let `tmp_path` be in memory where there is room: on a disk, each start and stop of a cluster
    waits a second for syncs. Long runs write more than memory may hold, and stay on the disk."""
    if os.environ.get("THOROUGH") or "PYTEST_DEBUG_TEMPROOT" in os.environ:
        return
    with contextlib.suppress(OSError):
        room = os.statvfs(FOLDERS_IN_MEMORY)
        may_run_programs = not room.f_flag & os.ST_NOEXEC
        free = min(room.f_bavail * room.f_frsize, *_memory_left())
        if may_run_programs and free >= FREE_BYTES_MIN:
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(FOLDERS_IN_MEMORY)


def _memory_left() -> Iterator[int]:
    """Yield what is free of the machine's memory, and of the memory that its container may have.

    The free space of `/dev/shm` is that of its own limit, however little memory there is.
    """
    found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    yield 1024 * int(found[1]) if found else 0
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit, or none of this version
        limit = int((group / "memory.max").read_text())
        yield limit - int((group / "memory.current").read_text())


_put_folders_into_memory()

SHARED_CLUSTERS = frozenset({"containers", "network", "spark"})
"""Folders whose tests share an expensive cluster or the machine's network. One worker runs each."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in this very hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `--dist loadgroup` spread single tests, but keep each folder named above on one
    worker."""
    for item in items:
        if item.path.parent.name in SHARED_CLUSTERS:
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.property)
    if order := os.environ.get("FILES_IN_ORDER_OF"):
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.path.name}".encode()).digest())


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections, which would look at them each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would start after CI's time limit, `SKIP_AFTER`."""
    if time.time() > float(os.environ.get("SKIP_AFTER", "inf")):
        pytest.skip("CI's time is over; `make test-all` runs it")


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Reset logging after each test, so that the next test does not inherit its settings."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def zookeeper_of_ones_own(tmp_path: Path) -> Callable[[], ZooKeeperRun]:
    """Return a function that runs a server on the same port and folder each time, for tests that
    kill it."""
    port = free_port()
    return lambda: running_zookeeper(tmp_path, port)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Run one real ZooKeeper per test run (per worker of a parallel run)."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(
                running_zookeeper(tmp_path_factory.mktemp("zookeeper"), free_port())
            )
        except ZooKeeperNotInstalled as error:
            if os.environ.get("REQUIRE_ZOOKEEPER"):
                raise  # CI installs it: there these tests are never skipped
            pytest.skip(str(error))
        yield server
