"""Which ports a standalone cluster listens on, and who sits on one that is taken.

Fixed ones by default (brokers 8080, 8081, …; bookies 3181, 3182, …), so that URLs can be pasted
and bookmarked; `--port-base N` moves all of them; `--port-base 0` takes free ones.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from protocol.codes import OctavoError, Scope

BROKER_PORT = 8080
BOOKIE_PORT = 3181
BOOKIE_PORT_STEP = 50
"""With `--port-base N`: brokers from N, bookies from N + 50."""
FREE = 0


class PortInUse(OctavoError):
    """A fixed port that another process listens on."""

    name = "port-in-use"
    scope = Scope.PROCESS


def port_of(kind: str, number: int, port_base: int | None) -> int:
    """The port of the `number`-th (from 1) bookie or broker; 0 where any free one will do."""
    if port_base == FREE:
        return FREE
    if port_base is None:
        return (BROKER_PORT if kind == "broker" else BOOKIE_PORT) + number - 1
    return port_base + (0 if kind == "broker" else BOOKIE_PORT_STEP) + number - 1


def check_port(host: str, port: int, name: str) -> None:
    """Raises `PortInUse` when `name` could not listen on `port`."""
    if port == FREE:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            holder = _holder_of(port)
            raise PortInUse(
                f"port {port} for {name} is not free: {error.strerror}"
                + (f", held by {holder}" if holder else "")
                + "; stop that process, or use --port-base N (other ports) "
                "or --port-base 0 (any free ports)"
            ) from None


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _holder_of(port: int) -> str:
    """`name (pid N)` of the listener on `port`, where the system tells (Linux); else empty."""
    inode = _listening_inode(port)
    if not inode:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if descriptor.readlink().name == f"socket:[{inode}]":
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listening_inode(port: int) -> str:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A" and int(parts[1].rpartition(":")[2], 16) == port:
                    return parts[9]
    return ""
