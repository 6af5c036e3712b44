"""`octavo zookeeper`: a ZooKeeper server, for development."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from typing import IO

from octavo.cli.output import out, say
from octavo.metadata.zookeeper_server import (
    ServerTls,
    pem_store,
    server_command,
    write_config,
)
from octavo.protocol.codes import OctavoError, Scope
from octavo.standalone.ports import check_ports, free_port

HOST = "127.0.0.1"
READY_TIMEOUT_S = 30.0
_CERTIFICATE_DAYS = 365


class ZooKeeperFailed(OctavoError):
    """The message names its log."""

    name = "zookeeper-failed"
    scope = Scope.PROCESS


async def run_zookeeper(data: Path, port: int, *, tls: bool = False) -> None:
    """Serve from the absolute folder `data` until Ctrl-C or SIGTERM.

    With `tls`, makes a certificate there if needed. Raises `PortInUse`, `ZooKeeperNotInstalled`,
    `ZooKeeperFailed`, `TlsError`.
    """
    check_ports(HOST, {"zookeeper": port})
    port = port or free_port(HOST)
    shown = _certificate(data / "tls") if tls else None
    command = server_command(write_config(str(data), port=port, tls=shown))
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    log_path = data / "zookeeper.log"
    with _opened(log_path) as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, start_new_session=True
        )
    try:
        await _until_ready(process, port, log_path)
        scheme = "zk" if shown is None else "zks"
        out.print(f"[bold green]ready[/] {scheme}://{HOST}:{port}/octavo  (log: {log_path})")
        if shown is not None:
            out.print(f"its CA: OCTAVO_TLS_CA={shown.ca}", markup=False)
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(asked.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise ZooKeeperFailed(f"ZooKeeper ended by itself; see {log_path}")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    say("stopped")


def _certificate(folder: Path) -> ServerTls:
    from octavo.tls.authority import Authority, own_names

    authority, _ = Authority.opened(folder)
    certificate, key = folder / "zookeeper.pem", folder / "zookeeper.key"
    if not certificate.exists() and not key.exists():
        authority.issue("zookeeper", own_names(), days=_CERTIFICATE_DAYS)
    store = pem_store(folder / "zookeeper-store.pem", certificate, key)
    return ServerTls(store, authority.file)


def _opened(path: Path) -> IO[bytes]:
    return open(path, "ab")


async def _until_ready(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.returncode is not None:
            break
        try:
            socket.create_connection((HOST, port), 0.2).close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    raise ZooKeeperFailed(f"ZooKeeper did not come up on port {port}; see {log}")
