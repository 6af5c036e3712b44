"""Parts that several test folders share."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import structlog

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled, server_command, write_config
from octavo.standalone.ports import free_port

# A test is right or wrong, not late: machines that run tests are busy with others.
hypothesis.settings.register_profile("octavo", deadline=None)
hypothesis.settings.load_profile("octavo")

SHARED_CLUSTERS = frozenset({"containers", "network", "spark"})
"""Folders whose tests share something dear, or the machine's network: one worker runs each."""

ZOOKEEPER_TICK_MS = 500
ZOOKEEPER_READY_S = 30.0


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in this very hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`--dist loadgroup` then hands out single tests, and the folders named above as a whole."""
    for item in items:
        if item.path.parent.name in SHARED_CLUSTERS:
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """What a test had done to the logs of this process, the next one must not find."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@dataclass(frozen=True)
class ZooKeeperServer:
    """A real server, running. Its shortest session timeout is two ticks, 1000 ms."""

    port: int
    process: subprocess.Popen[bytes]

    def new_url(self) -> str:
        """A URL with a chroot that nobody else uses, and that does not exist yet."""
        return f"zk://127.0.0.1:{self.port}/test-{uuid.uuid4().hex}"


ZooKeeperRun = contextlib.AbstractContextManager[ZooKeeperServer]


def serves(port: int) -> bool:
    """Whether a ZooKeeper server opens sessions on `port`; it answers `ruok` before that."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as peer:
        peer.sendall(b"srvr")
        return b"Mode: " in b"".join(iter(lambda: peer.recv(4096), b""))
    return False


@contextlib.contextmanager
def running_zookeeper(folder: Path, port: int) -> Iterator[ZooKeeperServer]:
    """Start a server in `folder` and end it with the block. Raises `ZooKeeperNotInstalled`."""
    config = write_config(str(folder), port=port, tick_ms=ZOOKEEPER_TICK_MS)
    command = server_command(config, durable=False)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + ZOOKEEPER_READY_S
        while not serves(port):
            if process.poll() is not None or time.monotonic() > deadline:
                text = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper did not start: {text}")
            time.sleep(0.05)
        yield ZooKeeperServer(port, process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def zookeeper_of_ones_own(tmp_path: Path) -> Callable[[], ZooKeeperRun]:
    """Runs a server on one port and folder, again and again: for tests that kill it."""
    port = free_port()
    return lambda: running_zookeeper(tmp_path, port)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real ZooKeeper per test run (per worker of a parallel run)."""
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
