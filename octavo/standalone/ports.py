"""Choose the ports of a standalone cluster, and name the process that holds a taken port.

They are fixed by default, so that URLs stay the same. `--port-base N` moves them; 0 takes free
ports.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from octavo.protocol.codes import OctavoError, Scope

FIRST_PORTS = {"broker": 8080, "bookie": 3181, "admin": 9181}
STEPS = {"broker": 0, "bookie": 50, "admin": 100}
"""With `--port-base N`: brokers from N, bookies from N + 50, their admin ports from N + 100."""
FREE = 0
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux's range of ports for outgoing connections; some sandboxes begin at 16000."""
_USUAL_OUTGOING = (32_768, 65_535)
"""Used without that file; systems other than Linux use 49152 and above."""
_FIRST_FREE = 10_000
"""Ports below are left to people's own servers (8080, 9092 and others)."""
_ENOUGH = 1_000
_TRIES = 200


class PortInUse(OctavoError):
    name = "port-in-use"
    scope = Scope.PROCESS


def port_of(kind: str, number: int, port_base: int | None) -> int:
    if port_base == FREE:
        return FREE
    first = FIRST_PORTS[kind] if port_base is None else port_base + STEPS[kind]
    return first + number - 1


def check_ports(host: str, wanted: Mapping[str, int]) -> None:
    refused = [
        f"port {port} for {name} is not free: {reason}"
        for name, port in wanted.items()
        if port != FREE and (reason := _why_not_free(host, port))
    ]
    if refused:
        what = "that process" if len(refused) == 1 else "those processes"
        raise PortInUse(
            "; ".join(refused)
            + f"; stop {what}, or use --port-base N (other ports) or --port-base 0 (any free ports)"
        )


def _why_not_free(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            holder = _holder_of(port)
            return f"{error.strerror}, held by {holder}" if holder else str(error.strerror)
    return ""


def free_port(host: str = "127.0.0.1") -> int:
    """Find a free port outside the system's range for outgoing connections.

    A port from that range could be given to a connection before the caller listens on it.
    """
    for port in random.SystemRandom().sample(never_outgoing(_outgoing()), _TRIES):
        with (
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe,
            contextlib.suppress(OSError),
        ):
            probe.bind((host, port))
            return port
    raise PortInUse(f"all of {_TRIES} ports tried on {host} are in use")


def never_outgoing(outgoing: tuple[int, int]) -> range:
    """Return the ports below or above `outgoing`, the first and last port that the system chooses.

    All ports if that leaves too few: then a free port may be taken before it is used.
    """
    first, last = outgoing
    below, above = range(_FIRST_FREE, first), range(last + 1, 65_536)
    widest = max(below, above, key=len)
    return widest if len(widest) >= _ENOUGH else range(_FIRST_FREE, 65_536)


def _outgoing() -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError):
        first, last = _OUTGOING.read_text().split()
        return int(first), int(last)
    return _USUAL_OUTGOING


def _holder_of(port: int) -> str:
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
