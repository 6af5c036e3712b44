"""Three Apache bookies and a ZooKeeper, with Apache's client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from bench.peers import fetch
from bench.peers.contract import LEDGER_BYTES, Bookies, Cluster, Load
from bench.peers.java import Java
from bench.peers.octavo_bookies_peer import LEDGER_WARM_S
from bench.peers.servers import NODES, Server, ThreeServers, run
from octavo.standalone.ports import free_port

WINDOW = 5_000
WINDOW_BYTES = 16 << 20
_SHELL_S = 90
_CALL_S = 5

# The third bookie may fall behind. With the default, it would refuse adds once 10,000 wait; the
# client would find no replacement, close the ledger and fail.
CONF = """bookiePort={port}
metadataServiceUri=zk+hierarchical://127.0.0.1:{zookeeper}/ledgers
journalDirectories={folder}/journal-{node}
ledgerDirectories={folder}/ledgers-{node}
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
allowLoopback=true
advertisedAddress=127.0.0.1
journalSyncData=true
journalMaxSizeMB=512
journalMaxBackups=0
maxPendingAddRequestsPerThread=1000000
gcWaitTime=5000
logSizeLimit=536870912
autoRecoveryDaemonEnabled=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
useV2WireProtocol=true
"""
ZOO = """tickTime=2000
dataDir={folder}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
"""


class BookKeeper(Bookies, ThreeServers):
    name = "bookkeeper"
    version = fetch.BOOKKEEPER.version

    def __init__(self, lib: Path, folder: Path) -> None:
        super().__init__(folder)
        self._java = Java(lib, folder)
        self._shell = Java(lib, folder, level="info")  # below `info` it hides why it failed
        self._zookeeper_port = free_port()
        self._zookeeper: Server | None = None

    def start(self) -> None:
        self._java.compile("LedgerLoad")
        zoo = self._folder / "zoo.cfg"
        zoo.write_text(ZOO.format(folder=self._folder, port=self._zookeeper_port))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = self._java.command(main, zoo)
        self._zookeeper = Server("zookeeper", command, self._folder)
        self._zookeeper.wait_until_listening(self._zookeeper_port)
        commands: dict[int, list[str]] = {}
        for node in NODES:
            conf = self._folder / f"bookie-{node}.conf"
            conf.write_text(
                CONF.format(
                    node=node, port=self._ports[node], zookeeper=self._zookeeper_port,
                    folder=self._folder,
                )
            )  # fmt: skip
            words = ("--conf", conf)
            commands[node] = self._java.command("org.apache.bookkeeper.server.Main", *words)
        shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", conf, "initnewcluster")
        run(self._shell.command(*shell), _SHELL_S, self._folder)
        self._start(commands)

    def stop(self) -> None:
        super().stop()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def pids(self) -> list[int]:
        return [*super().pids(), *([self._zookeeper.pid] if self._zookeeper else [])]

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        del topic
        uri = f"zk+hierarchical://127.0.0.1:{self._zookeeper_port}/ledgers"
        size = LEDGER_BYTES[workload]
        window = min(WINDOW, WINDOW_BYTES // size)
        return self._java.command("LedgerLoad", uri, size, window, LEDGER_WARM_S, load.seconds)

    def _all_serve(self) -> bool:
        client = KazooClient(f"127.0.0.1:{self._zookeeper_port}")
        try:
            client.start(_CALL_S)
            found = client.get_children("/ledgers/available")
            return sum(one.startswith("127.0.0.1:") for one in found) == len(NODES)
        except KazooTimeoutError:
            return False
        finally:
            client.stop()
            client.close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = BookKeeper(fetch.jars(fetch.BOOKKEEPER), folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
