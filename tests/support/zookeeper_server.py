"""One real ZooKeeper server, started and ended by tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.metadata.zookeeper_server import server_command, write_config

TICK_MS = 500
READY_S = 30.0


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
    config = write_config(str(folder), port=port, tick_ms=TICK_MS)
    command = server_command(config, durable=False)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_S
        while not serves(port):
            if process.poll() is not None or time.monotonic() > deadline:
                text = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper did not start: {text}")
            time.sleep(0.05)
        yield ZooKeeperServer(port, process)
    finally:
        process.kill()
        process.wait()
