from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.metadata.zookeeper_server import ServerTls, server_command, write_config

TICK_MS = 500
READY_S = 120.0


@dataclass(frozen=True)
class ZooKeeperServer:
    """A running server. Its shortest session timeout is two ticks, 1000 ms."""

    port: int
    process: subprocess.Popen[bytes]
    scheme: str = "zk"

    def new_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/test-{uuid.uuid4().hex}"


ZooKeeperRun = contextlib.AbstractContextManager[ZooKeeperServer]


def serves(port: int, context: ssl.SSLContext | None = None) -> bool:
    """Whether a ZooKeeper server opens sessions on `port`; it answers `ruok` earlier."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as plain:
        peer = plain
        if context is not None:
            peer = context.wrap_socket(plain, server_hostname="127.0.0.1")
        peer.sendall(b"srvr")
        return b"Mode: " in b"".join(iter(lambda: peer.recv(4096), b""))
    return False


@contextlib.contextmanager
def running_zookeeper(
    folder: Path, port: int, tls: ServerTls | None = None, context: ssl.SSLContext | None = None
) -> Iterator[ZooKeeperServer]:
    """Run a server in `folder` for the length of a block. With `tls`, its port speaks TLS, and
    `context` is used to ask whether it serves."""
    config = write_config(str(folder), port=port, tick_ms=TICK_MS, tls=tls)
    command = server_command(config, durable=False)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_S
        while not serves(port, context):
            if process.poll() is not None or time.monotonic() > deadline:
                text = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper did not start: {text}")
            time.sleep(0.05)
        yield ZooKeeperServer(port, process, "zk" if tls is None else "zks")
    finally:
        process.kill()
        process.wait()
