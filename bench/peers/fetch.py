"""Kafka's jars and NATS's server, fetched into `.cache/peers` as they are published.

Nothing of them is kept in this repository. What was fetched once is not asked for again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from bench.peers.contract import ROOT, Missing
from bench.peers.figures import Failed
from bench.peers.servers import finish

KAFKA_VERSION = "4.3.1"
NATS_VERSION = "2.15.2"
CACHE = ROOT / ".cache/peers"
FETCH_S = 900
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# kafka-tools has ProducerPerformance. The binding lets the brokers say why they do not start.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.peers</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId><version>{KAFKA_VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
  </dependencies>
</project>
"""


def need(tool: str, whose: str, package: str) -> str:
    """The path of `tool`. Raises `Missing`, which says what to install."""
    found = shutil.which(tool)
    if found is None:
        raise Missing(f"`{tool}` is not on the path: {whose} needs {package}")
    return found


def kafka_jars() -> Path:
    """The folder with Kafka's jars, fetched by Maven if need be. Raises `Missing`."""
    need("java", "Kafka", "Java 17 or newer")
    folder = CACHE / f"kafka-{hashlib.sha256(POM.encode()).hexdigest()[:12]}"
    if (folder / "complete").exists():
        return folder / "lib"
    maven = need("mvn", "to fetch Kafka one", "Apache Maven")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM)
    _fetch(
        f"Kafka {KAFKA_VERSION} by Maven",
        [
            *(maven, "-q", "-B", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", "-DoutputDirectory=lib"),
        ],
        folder,
    )
    (folder / "complete").touch()
    return folder / "lib"


def nats_server() -> Path:
    """NATS's server, built by Go if need be, else the one on the path. Raises `Missing`."""
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
            "neither `go` nor `nats-server` is on the path: NATS needs one of the two "
            "(Go 1.26, or one since 1.21, which fetches it)"
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
