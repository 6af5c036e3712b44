"""Fetch jars and NATS's server to `.cache/peers`, once. The repository contains none of them."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.peers.contract import ROOT, Missing
from bench.peers.figures import Failed
from bench.peers.servers import finish

NATS_VERSION = "2.15.2"
CACHE = ROOT / ".cache/peers"
FETCH_S = 900
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Jars:
    system: str
    version: str
    artifacts: tuple[str, ...]
    managed: str = ""
    """The POM with the versions of dependencies, if Maven would choose wrong versions."""

    def pom(self) -> str:
        of = [_dependency(one, "") for one in self.artifacts]
        page = _dependency(self.managed, "<type>pom</type><scope>import</scope>")
        managed = (
            f"<dependencyManagement><dependencies>{page}</dependencies></dependencyManagement>"
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>octavo.peers</groupId><artifactId>peer</artifactId><version>1</version>"
            f"<packaging>pom</packaging>{managed if self.managed else ''}"
            f"<dependencies>{''.join(of)}</dependencies></project>"
        )


def _dependency(artifact: str, more: str) -> str:
    group, _, rest = artifact.partition(":")
    name, _, version = rest.partition(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version>{more}</dependency>"
    )


# kafka-tools has ProducerPerformance. With the logging bindings servers log why they do not start.
KAFKA = Jars(
    "Kafka", "4.3.1",
    (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.kafka:kafka-tools:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
)  # fmt: skip
PULSAR = Jars(
    "Pulsar", "4.2.4",
    (
        "org.apache.pulsar:pulsar-broker:4.2.4",
        "org.apache.logging.log4j:log4j-slf4j2-impl:2.25.4",
    ),
    managed="org.apache.pulsar:pulsar:4.2.4",
)  # fmt: skip
ROCKETMQ = Jars(
    "RocketMQ", "5.5.0",
    (
        "org.apache.rocketmq:rocketmq-namesrv:5.5.0",
        "org.apache.rocketmq:rocketmq-broker:5.5.0",
        "org.apache.rocketmq:rocketmq-tools:5.5.0",
    ),
)  # fmt: skip
# ZooKeeper's server needs the last two, but bookkeeper-server declares them as optional.
BOOKKEEPER = Jars(
    "BookKeeper", "4.18.0",
    (
        "org.apache.bookkeeper:bookkeeper-server:4.18.0",
        "io.dropwizard.metrics:metrics-core:4.2.30",
        "org.xerial.snappy:snappy-java:1.1.10.7",
    ),
)  # fmt: skip


def need(tool: str, whose: str, package: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise Missing(f"`{tool}` is not on the path: {whose} needs {package}")
    return found


def jars(wanted: Jars) -> Path:
    system, pom = wanted.system, wanted.pom()
    need("java", system, "Java 17 or newer")
    folder = CACHE / f"{system.lower()}-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if (folder / "complete").exists():
        return folder / "lib"
    maven = need("mvn", f"to fetch {system} one", "Apache Maven")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(pom)
    _fetch(
        f"{system} {wanted.version} by Maven",
        [
            *(maven, "-q", "-B", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", "-DoutputDirectory=lib"),
        ],
        folder,
    )
    (folder / "complete").touch()
    return folder / "lib"


def nats_server() -> Path:
    """Return the server that Go has built, or without Go the server on the path. Raises
    `Missing`.
    """
    folder = CACHE / f"nats-{NATS_VERSION}"
    binary = folder / "nats-server"
    if binary.exists():
        return binary
    installed = shutil.which("nats-server")
    go = shutil.which("go")
    if go is None:
        if installed:
            return Path(installed)
        raise Missing(
            "neither `go` nor `nats-server` is on the path: install one of them "
            "(Go 1.26, or at least 1.21, which fetches 1.26)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    module = f"github.com/nats-io/nats-server/v2@v{NATS_VERSION}"
    try:
        _fetch(
            f"nats-server {NATS_VERSION} by Go",
            ["env", f"GOBIN={folder}", go, "install", module],
            folder,
        )
    except Missing:
        if installed:
            return Path(installed)
        raise
    return binary


def _fetch(what: str, command: list[str], folder: Path) -> None:
    print(f"fetching {what} …", flush=True)
    try:
        code, said, complaints = finish(command, FETCH_S, folder)
    except Failed as error:
        raise Missing(f"{what} could not be fetched: {error}") from None
    if code:
        plain = _COLOUR.sub("", said + complaints)
        words = [line for line in plain.splitlines() if line.strip()]
        why = words[0][:300] if words else f"exit code {code}"
        raise Missing(f"{what} could not be fetched (is there a network?): {why}")
