"""A real ZooKeeper ensemble whose servers are killed, stopped and started singly."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.metadata.zookeeper_server import server_command
from octavo.standalone.ports import free_port

READY_S = 60.0
TICK_MS = 50
"""A session ends up to a tick and a half after its timeout."""
INIT_MS = 5_000
SYNC_MS = 1_000
SESSION_MS_MAX = 60_000
_ELECTION_CONNECT_MS = 500


@dataclass(frozen=True)
class Place:
    """The address of a server of an ensemble, and a prefix for its command."""

    name: str
    host: str = "127.0.0.1"
    client_port: int = 2181
    peer_port: int = 2888
    election_port: int = 3888
    prefix: tuple[str, ...] = ()


def local_places(count: int) -> list[Place]:
    return [
        Place(f"zk-{n}", "127.0.0.1", free_port(), free_port(), free_port()) for n in range(count)
    ]


class Ensemble:
    """`places` as one ZooKeeper. `dial` returns an unconnected socket that reaches that server."""

    def __init__(
        self,
        folder: Path,
        places: Sequence[Place],
        *,
        tick_ms: int = TICK_MS,
        extra: Sequence[str] = (),
        java: Sequence[str] = (),
        dial: Callable[[str], socket.socket] = lambda _: socket.socket(),
    ) -> None:
        self.places = {place.name: place for place in places}
        self._folder = folder
        self._tick_ms = tick_ms
        self._extra = extra
        self._java = java
        self._dial = dial
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> str:
        return ",".join(f"{one.host}:{one.client_port}" for one in self.places.values())

    def start(self, name: str) -> None:
        folder = self._folder / name
        config = self._write_config(folder, name)
        command = server_command(str(config), durable=False)
        java = (f"-Dzookeeper.cnxTimeout={_ELECTION_CONNECT_MS}", *self._java)
        with open(folder / "log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.places[name].prefix, command[0], *java, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _write_config(self, folder: Path, name: str) -> Path:
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{[*self.places].index(name) + 1}\n")
        here = self.places[name]
        servers = [
            f"server.{n}={one.host}:{one.peer_port}:{one.election_port}"
            for n, one in enumerate(self.places.values(), 1)
        ]
        config = folder / "zoo.cfg"
        lines = [
            f"tickTime={self._tick_ms}",
            f"initLimit={max(2, INIT_MS // self._tick_ms)}",
            f"syncLimit={max(2, SYNC_MS // self._tick_ms)}",
            f"maxSessionTimeout={SESSION_MS_MAX}",
            f"dataDir={data}",
            f"clientPortAddress={here.host}",
            f"clientPort={here.client_port}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr",
            *(servers if len(self.places) > 1 else []),
            *self._extra,
        ]
        config.write_text("\n".join([*lines, ""]))
        return config

    def start_all(self) -> None:
        for name in self.places:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start(name)
        self.until(lambda: all(self.mode(name) for name in self.places), "every server serves")

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(30)

    def mode(self, name: str) -> str:
        place = self.places[name]
        answer = b""
        with contextlib.suppress(OSError), self._dial(name) as peer:
            peer.settimeout(1.0)
            peer.connect((place.host, place.client_port))
            peer.sendall(b"srvr")
            while more := peer.recv(4096):
                answer += more
        _, found, rest = answer.partition(b"Mode: ")
        return rest.split()[0].decode() if found else ""

    def leader(self) -> str:
        found: list[str] = []

        def looked() -> bool:
            found[:] = [name for name in self.places if self.mode(name) == "leader"]
            return len(found) == 1

        self.until(looked, "one leader")
        return found[0]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        while not condition():
            for name, process in self.processes.items():
                if process.poll() not in (None, -signal.SIGKILL):
                    log = (self._folder / name / "log").read_text(errors="replace")
                    raise RuntimeError(f"{name} ended: {log[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {READY_S} s: {what}")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(30)


@contextlib.contextmanager
def running(ensemble: Ensemble) -> Iterator[Ensemble]:
    try:
        ensemble.start_all()
        yield ensemble
    finally:
        ensemble.stop()
