"""Three NATS servers with JetStream, which sync every message."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from nats.errors import Error

from bench.peers import fetch, nats_client
from bench.peers.contract import RATES, Cluster, Load, job
from bench.peers.figures import Failed
from bench.peers.servers import NODES, ThreeServers
from octavo.standalone.ports import free_port

_SHARE = 6
_CALL_S = 30

CONF = """server_name: n{node}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}/data-{node}", sync_interval: always }}
cluster {{ name: peers, listen: 127.0.0.1:{route_port}, routes: [{routes}] }}
"""


class Nats(ThreeServers):
    name = "nats"

    def __init__(self, binary: Path, folder: Path) -> None:
        super().__init__(folder)
        self._binary = binary
        said = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, check=True
        )
        self.version = said.stdout.strip().rpartition("v")[2]

    @property
    def _urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._ports.values()]

    def start(self) -> None:
        commands: dict[int, list[str]] = {}
        route_ports = {node: free_port() for node in NODES}
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in route_ports.values())
        for node in NODES:
            conf = self._folder / f"nats-{node}.conf"
            conf.write_text(
                CONF.format(
                    node=node, port=self._ports[node], folder=self._folder, routes=routes,
                    route_port=route_ports[node],
                )
            )  # fmt: skip
            commands[node] = [str(self._binary), "-c", str(conf)]
        self._start(commands)

    def create(self, system: str, topic: str, partitions: int) -> None:
        del system, partitions
        _wait(nats_client.create(self._urls, topic))

    def drop(self, topic: str) -> None:
        _wait(nats_client.drop(self._urls, topic))

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        if workload == "consume":
            _wait(nats_client.add_consumer(self._urls, topic))
        leader = _wait(nats_client.leader(self._urls, topic))
        url = f"nats://127.0.0.1:{self._ports[int(leader.removeprefix('n'))]}"
        return job(
            "nats_client", workload, url=url, topic=topic, messages=load.messages,
            seconds=load.seconds, rate=RATES.get(workload, 0),
        )  # fmt: skip

    def of_messages(self, messages: int) -> int:
        """NATS takes longer for each message."""
        return max(1, messages // _SHARE)

    def _all_serve(self) -> bool:
        with contextlib.suppress(Exception):
            _wait(nats_client.create(self._urls, "first"))
            _wait(nats_client.drop(self._urls, "first"))
            return True
        return False


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(asyncio.wait_for(call, _CALL_S))
    except (Error, OSError, TimeoutError) as error:
        raise Failed(f"NATS refused a call: {error!r}") from error


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Nats(fetch.nats_server(), folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
