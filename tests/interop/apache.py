"""Apache BookKeeper as it is published: fetched from Maven Central, started, asked, stopped.

Nothing of it is kept in this repository. The jars go to `.cache/interop`, the processes run in a
folder that the caller gives, on free ports of the loopback interface.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from octavo.standalone.ports import free_port
from tests.interop.processes import Process

VERSION = "4.18.0"
CACHE = Path(__file__).resolve().parents[2] / ".cache/interop"
SHELL_S = 90

# bookkeeper-server names metrics-core and snappy-java only as optional to ZooKeeper, whose server
# does not start without them.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.interop</groupId><artifactId>peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.bookkeeper</groupId>
      <artifactId>bookkeeper-server</artifactId><version>{version}</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId>
      <artifactId>metrics-core</artifactId><version>4.2.30</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId>
      <artifactId>snappy-java</artifactId><version>1.1.10.7</version></dependency>
  </dependencies>
</project>
"""

# Since 4.18 the shell prints its results through structured logging: what was found stands in the
# context map (%X), and nothing is seen above level INFO.
LOG4J = """status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1} - %m %X%n%throwable
"""

BOOKIE = """bookiePort={port}
metadataServiceUri=zk+hierarchical://127.0.0.1:{zookeeper}/ledgers
journalDirectories={folder}/journal
ledgerDirectories={folder}/ledgers
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
dbStorage_writeCacheMaxSizeMb=32
dbStorage_readAheadCacheMaxSizeMb=32
allowLoopback=true
advertisedAddress=127.0.0.1
journalSyncData=true
journalMaxSizeMB=64
autoRecoveryDaemonEnabled=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
useV2WireProtocol=true
zkTimeout=4000
"""


class Missing(Exception):
    """Something that interop needs is not on this machine. The message names it."""


def fetch() -> Path:
    """The folder with BookKeeper's jars, fetched if need be. Raises `Missing`."""
    wanted = {"java": "a JDK, 17 or newer", "javac": "a JDK, 17 or newer", "mvn": "Apache Maven"}
    for tool, package in wanted.items():
        if shutil.which(tool) is None:
            raise Missing(f"`{tool}` is not on the path: interop needs {package}")
    pom = POM.format(version=VERSION)
    folder = CACHE / hashlib.sha256(pom.encode()).hexdigest()[:12]
    if (folder / "complete").exists():
        return folder / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(pom)
    done = subprocess.run(
        [
            *("mvn", "-q", "-B", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", "-DoutputDirectory=lib"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise Missing(f"Maven could not fetch BookKeeper {VERSION}:\n{done.stdout[-2000:]}")
    (folder / "complete").touch()
    return folder / "lib"


class Peer:
    """ZooKeeper and one real bookie in `folder`, and BookKeeper's shell for both."""

    def __init__(self, lib: Path, folder: Path) -> None:
        self.lib = lib
        self.folder = folder
        self.zookeeper_port = free_port()
        self.bookie_port = free_port()
        self._processes: list[Process] = []
        self._bookie: Process | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.properties").write_text(LOG4J)
        self.conf = folder / "bookie.conf"
        self.conf.write_text(
            BOOKIE.format(port=self.bookie_port, zookeeper=self.zookeeper_port, folder=folder)
        )

    @property
    def bookie_id(self) -> str:
        """What the real bookie is called in metadata."""
        return f"127.0.0.1:{self.bookie_port}"

    def start_zookeeper(self) -> None:
        """Start ZooKeeper and lay out BookKeeper's tree in it, by Apache's own hand."""
        conf = self.folder / "zoo.cfg"
        conf.write_text(
            f"tickTime=2000\ndataDir={self.folder}/zookeeper\nclientPort={self.zookeeper_port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._start("zookeeper", main, str(conf)).wait_until_listening(self.zookeeper_port)
        self.shell("initnewcluster")

    def start_bookie(self) -> None:
        """Start the real bookie and wait until it serves."""
        main = "org.apache.bookkeeper.server.Main"
        self._bookie = self._start("bookie", main, "--conf", str(self.conf))
        self._bookie.wait_until_serving(self.bookie_port)

    def kill_bookie(self) -> None:
        """kill −9."""
        assert self._bookie is not None
        self._bookie.kill()

    def shell(self, *words: str) -> str:
        """What `bookkeeper shell …` prints. Raises `AssertionError` when it fails."""
        done = subprocess.run(
            self.java("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(self.conf), *words),
            capture_output=True,
            text=True,
            timeout=SHELL_S,
        )
        out = done.stdout + done.stderr
        assert done.returncode == 0, f"bookkeeper shell {' '.join(words)} failed:\n{out[-3000:]}"
        return out

    def java(self, main: str, *words: str, classes: Path | None = None) -> list[str]:
        """The command that runs the class `main` with BookKeeper's jars."""
        path = f"{self.lib}/*" + (f":{classes}" if classes else "")
        return [
            "java",
            "-Xmx256m",
            "-XX:MaxDirectMemorySize=256m",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties",
            "-cp",
            path,
            main,
            *words,
        ]

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()

    def _start(self, name: str, main: str, *words: str) -> Process:
        process = Process(name, self.java(main, *words), self.folder)
        self._processes.append(process)
        return process


@contextlib.contextmanager
def running(lib: Path, folder: Path) -> Iterator[Peer]:
    """ZooKeeper and a real bookie, while the block runs."""
    peer = Peer(lib, folder)
    try:
        peer.start_zookeeper()
        peer.start_bookie()
        yield peer
    finally:
        peer.stop()
