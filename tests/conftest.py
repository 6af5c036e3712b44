"""Parts that several test folders share."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import resource
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled
from octavo.standalone.ports import free_port
from tests.support import tiers
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

    The free space of `/dev/shm` follows its own limit, however little memory there is.
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
    worker. Mark the second tier, and property tests."""
    lines = tiers.read(tiers.LIST.read_text())
    short = [item.nodeid for item in items if not item.get_closest_marker("long")]
    second = tiers.second_tier(short, lines)
    for item in items:
        if item.nodeid in second:
            item.add_marker(pytest.mark.medium)
        if item.path.parent.name in SHARED_CLUSTERS:
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.property)
    if order := os.environ.get("FILES_IN_ORDER_OF"):
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.path.name}".encode()).digest())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: nearly all of what is made stays, and Python would
    go through all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections, which would look at them each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would start after CI's time limit, `SKIP_AFTER`."""
    if time.time() > float(os.environ.get("SKIP_AFTER", "inf")):
        pytest.skip("CI's time is over; `make test-all` runs it")


class _Taken:
    """Measures each test's processor time, and lists tests that are too dear for `make test`."""

    def __init__(self) -> None:
        self._began = 0.0
        self._dear: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._began = _processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and not item.get_closest_marker("long"):
            took = _processor_seconds() - self._began
            report.user_properties += [("nodeid", item.nodeid), (tiers.PROPERTY, f"{took:.3f}")]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = dict(report.user_properties).get(tiers.PROPERTY)
        if isinstance(took, str) and float(took) > 2 * tiers.CASE_SECONDS_MAX:
            self._dear[report.nodeid] = float(took)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Say it and fail nothing: the time is also a little longer on a busy machine."""
        dear = {name: took for name, took in self._dear.items() if not tiers.stays(name)}
        if not dear or "not medium" not in config.option.markexpr:
            return
        terminalreporter.section("too dear for `make test`, for tests/medium.txt")
        for name, took in sorted(dear.items(), key=lambda of: -of[1]):
            terminalreporter.write_line(f"{took:6.1f} s  {name}")


def _processor_seconds() -> float:
    """Return what this process took, and the children that it waited for."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Taken())


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
