"""A cluster of containers on a private network: ZooKeeper, bookies, brokers, by their names.
They are as in compose.yaml: same image, user, settings, read-only root, no capabilities. A
node's data are in a named volume, so that its container can be replaced with it or without."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.models.containers import Container
from docker.models.volumes import Volume
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from tests.containers.engine import LABEL, OCTAVO, ROOT, Images

WAIT_S = 120.0
STOP_S = 45
SESSION_S = 6.0
ZOOKEEPER_ENVIRONMENT = {
    "ZOO_TICK_TIME": "50",
    "ZOO_INIT_LIMIT": "200",
    "ZOO_SYNC_LIMIT": "80",
    "ZOO_CFG_EXTRA": "maxClientCnxns=0 maxSessionTimeout=40000",
}
LABELS = {LABEL: "1"}
HEALTH = {"bookie": ":9181/healthz", "broker": ":8080/readyz"}


def until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {wait_s} s: {what}"
        time.sleep(0.1)


class Node:
    def __init__(self, name: str, make: Callable[..., DockerContainer]) -> None:
        self.name = name
        self.kind = name.split("-")[0]
        self._make = make
        self._wrapped: DockerContainer | None = None

    def create(self, *arguments: str) -> None:
        self._wrapped = self._make(self.name, *arguments).start()

    @property
    def container(self) -> Container:
        assert self._wrapped is not None
        return self._wrapped.get_wrapped_container()

    @property
    def status(self) -> str:
        self.container.reload()
        return str(self.container.status)

    @property
    def address(self) -> str:
        """On the private network; "" while it is cut off or has ended."""
        self.container.reload()
        networks = self.container.attrs["NetworkSettings"]["Networks"]
        return "".join(str(network["IPAddress"]) for network in networks.values())

    @property
    def is_healthy(self) -> bool:
        return self.get(HEALTH[self.kind]) is not None

    def get(self, place: str, wait_s: float = 5) -> str | None:
        """Return the body of `:port/path`, or None when it does not answer with 200."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            if address := self.address:
                with urllib.request.urlopen(f"http://{address}{place}", timeout=wait_s) as answer:
                    return str(answer.read().decode())
        return None

    def until_healthy(self) -> None:
        def healthy_or_ended() -> bool:
            return self.is_healthy or self.status == "exited"

        until(healthy_or_ended, f"{self.name} is healthy")
        assert self.status == "running", f"{self.name} ended: {self.logs()[-2000:]}"

    def kill(self) -> None:
        self.container.kill("SIGKILL")
        self.container.wait()

    def start(self) -> None:
        self.container.start()

    def stop(self) -> int:
        self.container.stop(timeout=STOP_S)
        return int(self.container.wait()["StatusCode"])

    def remove(self) -> None:
        if self._wrapped is not None:
            with contextlib.suppress(Exception):
                self.container.unpause()
            self._wrapped.stop(force=True)
            self._wrapped = None

    def logs(self) -> str:
        return str(self.container.logs().decode(errors="replace"))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(one) for one in self.logs().splitlines() if one.startswith("{")]
        return [one for one in lines if one.get("event") == name]


class Cluster:
    def __init__(self, images: Images, *, bookies: int, brokers: int) -> None:
        self._images = images
        self._prefix = f"octavo-{uuid.uuid4().hex[:6]}"
        self._client = DockerClient().client
        self._volumes: dict[str, Volume] = {}
        self.network = Network(docker_network_kw={"labels": LABELS})
        self.bookies = [Node(f"bookie-{n}", self._bookie) for n in range(1, bookies + 1)]
        self.brokers = [Node(f"broker-{n}", self._broker) for n in range(1, brokers + 1)]
        self.zookeeper = Node("zookeeper", self._zookeeper)

    @property
    def nodes(self) -> dict[str, Node]:
        return {one.name: one for one in (*self.bookies, *self.brokers)}

    @property
    def broker_urls(self) -> list[str]:
        return [f"http://{one.name}:8080" for one in self.brokers]

    def start(self) -> None:
        self.network.create()
        self.zookeeper.create()
        until(self._zookeeper_answers, "ZooKeeper serves")
        for group in (self.bookies, self.brokers):
            for node in group:
                node.create()
            for node in group:
                node.until_healthy()

    def remove(self) -> None:
        for node in (*self.brokers, *self.bookies, self.zookeeper):
            node.remove()
        for volume in self._volumes.values():
            volume.remove(force=True)
        self.network.remove()

    def container(self, name: str, image: str) -> DockerContainer:
        return (
            DockerContainer(image)
            .with_name(f"{self._prefix}-{name}")
            .with_network(self.network)
            .with_network_aliases(name)
            .with_tmpfs_mount("/tmp")
            .with_kwargs(
                hostname=name,
                labels=LABELS,
                cap_drop=["ALL"],
                read_only=True,
                healthcheck={"test": ["NONE"]},
            )
        )

    def disconnect(self, node: Node) -> None:
        self._client.networks.get(self.network.id).disconnect(node.container)

    def connect(self, node: Node) -> None:
        network = self._client.networks.get(self.network.id)
        network.connect(node.container, aliases=[node.name])

    def lose_volume(self, node: Node) -> None:
        self._volumes.pop(node.name).remove()

    def run(self, *command: str) -> str:
        broker = next(one for one in self.brokers if one.status == "running" and one.address)
        ran = broker.container.exec_run(["octavo", *command], demux=True)
        said, complained = (part or b"" for part in ran.output)
        assert ran.exit_code == 0, complained.decode()
        return str(said.decode())

    def owner_of(
        self, topic: str, asking_others_than: Node | None = None
    ) -> tuple[Node | None, int]:
        """Return the owner of partition 0, as an answering broker knows it, and how often it has
        moved."""
        for broker in self.brokers:
            if broker is asking_others_than:
                continue
            text = broker.get(f":8080/v1/topics/public/{topic}", wait_s=30)
            if text is not None:
                stats = json.loads(text)["partitions"][0]
                return self.nodes.get(stats.get("owner") or ""), int(stats.get("epoch") or 0)
        return None, 0

    def registered_bookies(self) -> list[Node]:
        found = json.loads(self.run("bookies", "--json"))
        return [self.nodes[one["bookie"]] for one in found if one["state"] == "writable"]

    def writing_bookies(self) -> list[Node]:
        ledgers = json.loads(self.run("ledger", "list", "--json"))
        names = {
            name
            for ledger in ledgers
            if ledger["state"] == "OPEN"
            for name in ledger["fragments"][-1]["bookies"]
        }
        return [one for one in self.bookies if one.name in names]

    def _zookeeper_answers(self) -> bool:
        assert self.zookeeper.status == "running", self.zookeeper.logs()
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.zookeeper.address, 2181), 5) as peer,
        ):
            peer.sendall(b"srvr")
            return b"Mode:" in peer.recv(4096)
        return False

    def _zookeeper(self, name: str) -> DockerContainer:
        made = self.container(name, self._images.zookeeper)
        made.with_kwargs(hostname=name, labels=LABELS)
        for setting, value in ZOOKEEPER_ENVIRONMENT.items():
            made.with_env(setting, value)
        return made

    def _octavo(self, name: str, kind: str, *arguments: str) -> DockerContainer:
        settings = ROOT / "compose" / "octavo.toml"
        return (
            self.container(name, self._images.octavo)
            .with_command([kind, *arguments])
            .with_volume_mapping(settings, "/etc/octavo/octavo.toml", "ro")
            .with_env("OCTAVO_CONFIG", "/etc/octavo/octavo.toml")
            .with_env("OCTAVO_METADATA_URL", "zk://zookeeper:2181/octavo")
            .with_env(f"OCTAVO_{kind}_{kind}_ID".upper(), name)
            .with_env(f"OCTAVO_{kind}_ADVERTISED_HOST".upper(), name)
        )

    def _bookie(self, name: str, *arguments: str) -> DockerContainer:
        if name not in self._volumes:
            full = f"{self._prefix}-{name}"
            self._volumes[name] = self._client.volumes.create(full, labels=LABELS)
        rack = f"/dc1/rack{1 + int(name.split('-')[1]) % 2}"
        return (
            self._octavo(name, "bookie", *arguments)
            .with_volume_mapping(self._volumes[name].name, "/var/lib/octavo", "rw")
            .with_env("OCTAVO_BOOKIE_RACK", rack)
        )

    def _broker(self, name: str) -> DockerContainer:
        return self._octavo(name, "broker")


@contextlib.contextmanager
def running_cluster(images: Images, logs: Path, *, bookies: int, brokers: int) -> Iterator[Cluster]:
    cluster = Cluster(images, bookies=bookies, brokers=brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        for name, node in cluster.nodes.items():
            with contextlib.suppress(Exception):
                (logs / f"{name}.jsonl").write_text(node.logs())
        cluster.remove()


FINISH_S = 300


@dataclass(frozen=True)
class Verdict:
    """`wrong`: every broken promise, in words. Waits in seconds, from call to ack."""

    wrong: list[str]
    sent: int
    stored: int
    retries: int
    retried: list[str]
    wait_p50: float
    wait_p99: float
    wait_max: float
    silence_max: float

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.stored} stored, {self.retries} calls repeated by the client; "
            f"waited p50 {self.wait_p50:.3f} s, p99 {self.wait_p99:.3f} s, "
            f"at most {self.wait_max:.3f} s; a partition acked nothing for {self.silence_max:.3f} s"
        )


class Users:
    def __init__(self, topic: str, notes: Path, container: DockerContainer) -> None:
        self.topic = topic
        self._notes = notes
        self._container = container

    def more(self, count: int) -> None:
        before = self._progress()

        def enough() -> bool:
            now = self._progress()
            return all(now[one] >= before[one] + count for one in ("acked", "consumed"))

        until(enough, f"{count} more messages published and consumed")

    def finish(self) -> Verdict:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill("SIGTERM")
        status = wrapped.wait(timeout=FINISH_S)["StatusCode"]
        assert status == 0, wrapped.logs().decode()[-4000:]
        return Verdict(**self._read("verdict.json"))

    def judge(self) -> None:
        verdict = self.finish()
        print(verdict)
        assert not verdict.wrong, "\n".join(verdict.wrong[:20])

    def _progress(self) -> dict[str, Any]:
        until(self._has_begun, "the users have begun")
        return self._read("progress.json")

    def _has_begun(self) -> bool:
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        assert wrapped.status == "running", wrapped.logs().decode()[-4000:]
        return (self._notes / "progress.json").exists()

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._notes / name).read_text())
        return found


@contextlib.contextmanager
def users_of(cluster: Cluster, topic: str, folder: Path, **options: int) -> Iterator[Users]:
    notes = folder / "notes"
    notes.mkdir()
    notes.chmod(0o777)  # They are not root.
    how = {"topic": topic, "brokers": ",".join(cluster.broker_urls), "notes": "/notes", **options}
    arguments = [part for name, text in how.items() for part in (f"--{name}", str(text))]
    container = (
        cluster.container(f"users-{topic}", OCTAVO)
        .with_volume_mapping(ROOT / "tests", "/checks/tests", "ro")
        .with_volume_mapping(notes, "/notes", "rw")
        .with_env("PYTHONPATH", "/checks")
        .with_env("PYTHONDONTWRITEBYTECODE", "1")
    )
    container.with_kwargs(**container._kwargs, entrypoint=["python3"])
    container.with_command(["-m", "tests.containers.load", *arguments])
    try:
        container.start()
        yield Users(topic, notes, container)
    finally:
        container.stop()
