"""A Pulsar cluster of a broker as published: fetched, laid out, started, called, stopped."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.standalone.ports import free_port
from tests.interop.apache import Java, fetch
from tests.interop.processes import Process

VERSION = "4.2.4"
SOURCE = Path(__file__).with_name("PulsarTalk.java")
STEPS = 50
START_S = 180
TALK_S = 1800

# Imported as a BOM, Pulsar's parent gives its jars the versions of its build. Log4j comes with
# its distribution only.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.interop</groupId><artifactId>pulsar</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement><dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId>
      <version>{VERSION}</version><type>pom</type><scope>import</scope></dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j2-impl</artifactId></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId></dependency>
  </dependencies>
</project>
"""

# Ledgers are small, so that topics have many; features that the rows do not need are off.
CONF = """clusterName=octavo
metadataStoreUrl={metadata}
configurationMetadataStoreUrl={metadata}
advertisedAddress=127.0.0.1
bindAddress=127.0.0.1
brokerServicePort={port}
webServicePort={web_port}
bookkeeperUseV2WireProtocol={v2}
managedLedgerDefaultEnsembleSize=3
managedLedgerDefaultWriteQuorum=3
managedLedgerDefaultAckQuorum=2
managedLedgerMaxEntriesPerLedger={entries}
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerCacheSizeMB=64
managedLedgerDefaultMarkDeleteRateLimit=10
defaultRetentionTimeInMinutes=0
defaultRetentionSizeInMB=0
defaultNumberOfNamespaceBundles=1
brokerDeleteInactiveTopicsEnabled=false
forceDeleteNamespaceAllowed=true
loadBalancerEnabled=false
transactionCoordinatorEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
functionsWorkerEnabled=false
webSocketServiceEnabled=false
backlogQuotaCheckEnabled=false
"""


def jars() -> Path:
    return fetch(f"Pulsar {VERSION}", POM)


@dataclass(frozen=True, slots=True)
class Wire:
    name: str
    v2: bool


WIRES = (Wire("v2, its default", True), Wire("v3", False))


class PulsarCluster:
    """One broker, which can be restarted, and its client. `bookies` is a metadata service URI
    with the ledgers' root, or empty: Pulsar then lays out and uses its own tree."""

    def __init__(
        self,
        folder: Path,
        metadata: str,
        wire: Wire,
        *,
        bookies: str = "",
        entries_per_ledger: int,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.web_port = free_port(), free_port()
        self._java = Java(jars(), folder, memory_mb=512)
        self._metadata = metadata
        self._bookies = bookies
        self._process: Process | None = None
        conf = CONF.format(
            metadata=metadata,
            port=self.port,
            web_port=self.web_port,
            v2=str(wire.v2).lower(),
            entries=entries_per_ledger,
        )
        if bookies:
            conf += f"bookkeeperMetadataServiceUri={bookies}\n"
        (folder / "broker.conf").write_text(conf)

    @property
    def broker(self) -> Process:
        assert self._process is not None
        return self._process

    def lay_out(self) -> None:
        main = "org.apache.pulsar.PulsarClusterMetadataSetup"
        words = ["--cluster", "octavo", "--metadata-store", self._metadata]
        words += ["--configuration-metadata-store", self._metadata]
        words += ["--web-service-url", f"http://127.0.0.1:{self.web_port}"]
        words += ["--broker-service-url", f"pulsar://127.0.0.1:{self.port}"]
        if self._bookies:
            words += ["--existing-bk-metadata-service-uri", self._bookies]
        done = subprocess.run(
            self._java.command(main, *words), capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0, f"{main}:\n{(done.stdout + done.stderr)[-3000:]}"
        self._java.compile(SOURCE, self.folder / "classes")

    def start(self) -> None:
        main = "org.apache.pulsar.PulsarBrokerStarter"
        command = self._java.command(main, "--broker-conf", str(self.folder / "broker.conf"))
        self._process = Process("broker", command, self.folder)
        self._process.wait_until(self._serves, "serve", START_S)

    def _serves(self) -> bool:
        try:
            return "octavo" in self.ask("GET", "clusters")
        except (OSError, AssertionError):
            return False

    def stop(self) -> None:
        self.broker.stop(START_S)
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop and start: its cache is empty, so its answers come from bookies."""
        self.stop()
        self.start()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error.code} {said[:1000]}") from error
        return json.loads(text) if text else None

    def create(self, topic: str, *subscriptions: str) -> None:
        """Messages that a subscription has not acked are not trimmed."""
        self.ask("PUT", admin_path(topic))
        for name in subscriptions:
            self.ask("PUT", f"{admin_path(topic)}/subscription/{name}")

    def ledgers(self, topic: str) -> list[int]:
        found = self.ask("GET", f"{admin_path(topic)}/internalStats")
        return [one["ledgerId"] for one in found["ledgers"]]

    def talk(
        self, *words: object, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Return the findings of `PulsarTalk`. `on_step` is called at every fiftieth of a load."""
        command = self._java.command(
            "PulsarTalk",
            f"pulsar://127.0.0.1:{self.port}",
            *map(str, words),
            classes=self.folder / "classes",
        )
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            lines: list[str] = []
            step = 0
            late = threading.Timer(TALK_S, process.kill)
            late.start()
            try:
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("PROGRESS ") and on_step is not None:
                        on_step(step)
                        step += 1
            except BaseException:
                process.kill()
                raise
            finally:
                late.cancel()
        results = [line for line in lines if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{''.join(lines)[-4000:]}"
        pairs = (part.split("=", 1) for part in results[0].split()[1:])
        return {name: float(value) for name, value in pairs}


def admin_path(topic: str) -> str:
    return topic.replace("://", "/")


def until(holds: Callable[[], bool], within_s: float, every_s: float = 0.5) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(every_s)
    return holds()
