"""Pulsar in one process: broker, three bookies, metadata in RocksDB; three copies, synced."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers import fetch
from bench.peers.contract import PARTITIONS, RATES, VALUE, WARM_S, Cluster, Load, job
from bench.peers.figures import Failed
from bench.peers.java import Java
from bench.peers.servers import Server, free_ports_in_a_row
from octavo.standalone.ports import free_port

GROUP = "peers"
_BOOKIES = 3
_CALL_S = 30

# From its own start script.
_OPENED = (
    "java.base/java.lang", "java.base/java.nio", "java.base/sun.net",
    "java.base/jdk.internal.misc", "java.base/jdk.internal.platform",
    "java.management/sun.management", "jdk.management/com.sun.management.internal",
)  # fmt: skip

# Without the last `allow…`, the second bookie finds the first bookie's cookie; and bookies in one
# process do not sync by default.
CONF = """clusterName=standalone
brokerServicePort={port}
webServicePort={web_port}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
managedLedgerDefaultEnsembleSize=3
managedLedgerDefaultWriteQuorum=3
managedLedgerDefaultAckQuorum=2
managedLedgerDigestType=CRC32C
allowAutoTopicCreation=false
brokerDeleteInactiveTopicsEnabled=false
forceDeleteNamespaceAllowed=true
maxPendingPublishRequestsPerConnection=1000
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
transactionCoordinatorEnabled=false
loadBalancerEnabled=false
journalSyncData=true
journalWriteData=true
journalMaxBackups=0
journalMaxSizeMB=512
journalPreAllocSizeMB=16
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=64
allowEphemeralPorts=false
allowLoopback=true
listeningInterface=lo
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
gcWaitTime=30000
httpServerEnabled=false
"""


class Pulsar(Cluster):
    name = "pulsar"
    version = fetch.PULSAR.version

    def __init__(self, lib: Path, folder: Path) -> None:
        self._folder = folder
        opened = (f"--add-opens={one}=ALL-UNNAMED" for one in _OPENED)
        self._java = Java(lib, folder, *opened, "-Dio.netty.tryReflectionSetAccessible=true")
        self._port, self._web_port = free_port(), free_port()
        self._server: Server | None = None

    def start(self) -> None:
        self._java.compile("PulsarBatches")
        conf = self._folder / "standalone.conf"
        conf.write_text(CONF.format(port=self._port, web_port=self._web_port))
        first = free_ports_in_a_row(_BOOKIES)
        words = [
            *("--config", conf, "--num-bookies", _BOOKIES, "--bookkeeper-port", first),
            *("--no-functions-worker", "--no-stream-storage", "--wipe-data"),
            *("--metadata-dir", self._folder / "metadata"),
            *("--bookkeeper-dir", self._folder / "bookkeeper"),
        ]
        command = self._java.command("org.apache.pulsar.PulsarStandaloneStarter", *words)
        self._server = Server("pulsar", command, self._folder)
        self._server.wait_until_listening(self._web_port)
        self._server.wait_until(self._serves, "topic")

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()

    def pids(self) -> list[int]:
        return [] if self._server is None else [self._server.pid]

    def create(self, system: str, topic: str, partitions: int) -> None:
        del system
        self._ask("PUT", f"{topic}/partitions", partitions)
        self._ask("PUT", f"{topic}/subscription/{GROUP}")

    def drop(self, topic: str) -> None:
        self._ask("DELETE", f"{topic}/partitions?force=true")

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        url, whole = f"pulsar://127.0.0.1:{self._port}", f"persistent://public/default/{topic}"
        if workload == "batches":
            words = (url, whole, len(VALUE), WARM_S, load.seconds)
            return self._java.command("PulsarBatches", *words)
        return job(
            "pulsar_client", workload, url=url, topic=whole, group=GROUP,
            messages=load.messages, seconds=load.seconds, rate=RATES.get(workload, 0),
        )  # fmt: skip

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        url = f"http://127.0.0.1:{self._web_port}/admin/v2/persistent/public/default/{path}"
        said = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, said, headers, method=method)
        try:
            urllib.request.urlopen(request, timeout=_CALL_S).close()
        except OSError as error:
            raise Failed(f"Pulsar could not {method} {path}: {error}") from error

    def _serves(self) -> bool:
        with contextlib.suppress(Failed):
            self.create("", "first", PARTITIONS)
            self.drop("first")
            return True
        return False


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Pulsar(fetch.jars(fetch.PULSAR), folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
