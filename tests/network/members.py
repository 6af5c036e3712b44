"""The members of a cluster, each on its own host: `octavo standalone`'s supervisor, spread."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from octavo.process.spec import ProcessSpec
from octavo.standalone.supervisor import Plan
from tests.network.hosts import Hosts
from tests.support.processes.chaos import BOOKIES
from tests.support.processes.kills import LaunchedChild, LaunchedSupervisor
from tests.support.zookeeper_ensemble import Ensemble, Place

BROKERS = 3
SERVERS = 3
BOOKIE_PORT = 3181
BROKER_PORT = 8080
ADMIN_PORT = 9181
BOOKIE_NAMES = tuple(f"bookie-{n}" for n in range(1, BOOKIES + 1))
BROKER_NAMES = tuple(f"broker-{n}" for n in range(1, BROKERS + 1))
ZOOKEEPER_NAMES = tuple(f"zk-{n}" for n in range(1, SERVERS + 1))


def make_hosts() -> Hosts:
    hosts = Hosts((*BROKER_NAMES, *BOOKIE_NAMES, *ZOOKEEPER_NAMES))
    hosts.make()
    return hosts


def make_ensemble(hosts: Hosts, folder: Path) -> Ensemble:
    places = [
        Place(name, host=hosts.addresses[name], prefix=tuple(hosts.command(name)))
        for name in ZOOKEEPER_NAMES
    ]
    return Ensemble(folder, places, dial=hosts.socket_of)


class HostedChild(LaunchedChild):
    def __init__(self, kind: str, spec: ProcessSpec, folder: Path, hosts: Hosts) -> None:
        address = hosts.addresses[spec.name]
        own = {**spec.sections[kind], "host": address, "advertised_host": address}
        self._prefix = hosts.command(spec.name)
        super().__init__(
            kind, dataclasses.replace(spec, sections={**spec.sections, kind: own}), folder
        )

    @property
    def command(self) -> list[str]:
        return [*self._prefix, *super().command]


class HostedSupervisor(LaunchedSupervisor):
    def __init__(self, plan: Plan, hosts: Hosts) -> None:
        self._hosts = hosts
        super().__init__(dataclasses.replace(plan, brokers=BROKERS))

    def _launched(self, kind: str, spec: ProcessSpec, folder: Path) -> LaunchedChild:
        child = self.launched[spec.name] = HostedChild(kind, spec, folder, self._hosts)
        return child

    def _port(self, kind: str, number: int, name: str, former: int) -> int:
        return {"bookie": BOOKIE_PORT, "broker": BROKER_PORT, "admin": ADMIN_PORT}[kind]
