"""Processes that a run next to Apache starts, each with its own log, and their end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import structlog

from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataStore
from octavo.protocol.frames import read_request
from octavo.standalone.ports import free_port

START_S = 60


class Process:
    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, within_s: float) -> None:
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"{self.name} does not end {within_s} s after SIGTERM:\n{self._log_tail()}"
            ) from error

    def wait_until_listening(self, port: int) -> None:
        self.wait_until(lambda: _connects(port), f"listen on {port}")

    def wait_until_serving(self, port: int) -> None:
        """Apache's bookie takes connections before it serves them, and hangs up on the early
        connections."""
        self.wait_until(lambda: _answers(port), f"serve on {port}")

    def wait_until(self, holds: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            code = self._process.poll()
            assert code is None, f"{self.name} ended with {code}:\n{self._log_tail()}"
            if holds():
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} does not {what} after {within_s} s:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def _connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _answers(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 2) as probe,
    ):
        probe.settimeout(2)
        probe.sendall(read_request(2**40, 0))
        return bool(probe.recv(4))
    return False


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

# Since 4.18 the shell prints its results through structured logging: the findings are in the
# context map (%X), and appear only at level INFO.
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


NO_FLUSH = "flushInterval=600000\n"
"""In milliseconds. After a kill, a bookie answers differently for flushed data and for its
journal, so it must flush nothing."""


class Missing(Exception):
    """This machine lacks something that interop needs; the message names it."""


def fetch(what: str = f"BookKeeper {VERSION}", pom: str = POM.format(version=VERSION)) -> Path:
    wanted = {"java": "a JDK, 17 or newer", "javac": "a JDK, 17 or newer", "mvn": "Apache Maven"}
    for tool, package in wanted.items():
        if shutil.which(tool) is None:
            raise Missing(f"`{tool}` is not on the path: interop needs {package}")
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
        raise Missing(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")
    (folder / "complete").touch()
    return folder / "lib"


class Java:
    """Runs classes of a folder of jars. `memory_mb` bounds the heap, and the memory outside of
    it."""

    def __init__(self, lib: Path, folder: Path, memory_mb: int = 256) -> None:
        self.lib = lib
        self._memory_mb = memory_mb
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.properties").write_text(LOG4J)

    def command(self, main: str, *words: str, classes: Path | None = None) -> list[str]:
        path = f"{self.lib}/*" + (f":{classes}" if classes else "")
        return [
            "java",
            f"-Xmx{self._memory_mb}m",
            f"-XX:MaxDirectMemorySize={self._memory_mb}m",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties",
            "-cp",
            path,
            main,
            *words,
        ]

    def compile(self, source: Path, classes: Path) -> None:
        words = ["javac", "-cp", f"{self.lib}/*", "-d", str(classes), str(source)]
        subprocess.run(words, check=True)


class Zookeeper:
    def __init__(self, java: Java) -> None:
        self.port = free_port()
        self._java = java
        self._process: Process | None = None

    def start(self) -> None:
        folder = self._java.folder
        conf = folder / "zoo.cfg"
        conf.write_text(
            f"tickTime=2000\ndataDir={folder}/zookeeper\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._process = Process("zookeeper", self._java.command(main, str(conf)), folder)
        self._process.wait_until_listening(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class ApacheBookie:
    def __init__(self, java: Java, folder: Path, zookeeper_port: int, more: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.conf = folder / "bookie.conf"
        self._java = java
        self._process: Process | None = None
        folder.mkdir(parents=True, exist_ok=True)
        conf = BOOKIE.format(port=self.port, zookeeper=zookeeper_port, folder=folder)
        self.conf.write_text(conf + more)

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        main = "org.apache.bookkeeper.server.Main"
        command = self._java.command(main, "--conf", str(self.conf))
        self._process = Process("bookie", command, self.folder)
        self._process.wait_until_serving(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class Shell:
    def __init__(self, java: Java, conf: Path) -> None:
        self._java = java
        self._conf = conf

    def __call__(self, *words: str) -> str:
        main = "org.apache.bookkeeper.bookie.BookieShell"
        done = subprocess.run(
            self._java.command(main, "-conf", str(self._conf), *words),
            capture_output=True,
            text=True,
            timeout=SHELL_S,
        )
        out = done.stdout + done.stderr
        assert done.returncode == 0, f"bookkeeper shell {' '.join(words)} failed:\n{out[-3000:]}"
        return out


class Peer:
    def __init__(self, lib: Path, folder: Path) -> None:
        self.folder = folder
        self.java = Java(lib, folder)
        self.zookeeper = Zookeeper(self.java)
        self.bookie = ApacheBookie(self.java, folder, self.zookeeper.port, NO_FLUSH)
        self.shell = Shell(self.java, self.bookie.conf)

    def start(self) -> None:
        self.zookeeper.start()
        self.shell("initnewcluster")
        self.bookie.start()

    def stop(self) -> None:
        self.bookie.kill()
        self.zookeeper.kill()


@contextlib.contextmanager
def running(lib: Path, folder: Path) -> Iterator[Peer]:
    peer = Peer(lib, folder)
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()


OCTAVO = Path(sys.executable).with_name("octavo")


def quiet(log: Path) -> None:
    """Let our parts in this process log to a file: the screen belongs to the checks."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(log.open("w")))


@contextlib.asynccontextmanager
async def store_at(zookeeper_port: int) -> AsyncIterator[MetadataStore]:
    store = open_store(f"zk://127.0.0.1:{zookeeper_port}/")
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class OurBookie:
    rack = "/dc1/rack1"

    def __init__(self, folder: Path, zookeeper_port: int, *words: str) -> None:
        self.folder = folder
        self._words = words
        self.port = free_port()
        self.journal = folder / "our-journal"
        self.ledgers = folder / "our-ledgers"
        self._zookeeper_port = zookeeper_port
        self._process: Process | None = None

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(OCTAVO), "bookie", "--port", str(self.port), "--rack", self.rack]
        command += ["--metadata", f"zk://127.0.0.1:{self._zookeeper_port}/"]
        command += ["--journal", str(self.journal), "--ledgers", str(self.ledgers)]
        command += self._words
        self._process = Process("octavo-bookie", command, self.folder)
        self._process.wait_until_serving(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
