"""Start a local ZooKeeper server, for development and tests.

The code comes from the PySpark package (ZooKeeper 3.9) or Debian's `zookeeper`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from octavo.metadata.store import MetadataError

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")
HEAP_MB_MAX = 256
TICK_MS = 50
"""ZooKeeper ends sessions up to a tick after their timeout."""
SESSION_MS_MAX = 40_000


class ZooKeeperNotInstalled(MetadataError):
    name = "zookeeper-not-installed"


def find_java() -> str:
    """Raises `ZooKeeperNotInstalled`."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ZooKeeperNotInstalled(
            "ZooKeeper needs Java and there is none: set JAVA_HOME, or install a Java runtime "
            "(Debian, Ubuntu: apt-get install default-jre-headless)"
        )
    return java


def find_class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        jars = Path(folder, "jars")
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return f"{jars}/*"
    if _DEBIAN_JAR.exists():
        return str(_DEBIAN_JAR)  # its manifest names the other jars
    raise ZooKeeperNotInstalled(
        "no ZooKeeper on this machine: pip install 'octavo[spark]' (its jars hold one), "
        "or, on Debian and Ubuntu, apt-get install zookeeper"
    )


class ServerTls(NamedTuple):
    store: Path
    """PEM: key and certificate (`pem_store`)."""
    ca: Path
    """PEM: the CA of client certificates."""
    asks_clients: bool = False


def pem_store(path: Path, certificate: Path, key: Path) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.read_bytes() + certificate.read_bytes())
    return path


def write_config(
    folder: str, *, port: int, tick_ms: int = TICK_MS, tls: ServerTls | None = None
) -> str:
    """Write a configuration; `folder` also gets the data. With `tls` there is only a TLS port."""
    data = Path(folder, "data")
    data.mkdir(parents=True, exist_ok=True)
    config = Path(folder, "zoo.cfg")
    config.write_text(
        f"tickTime={tick_ms}\n"
        f"maxSessionTimeout={SESSION_MS_MAX}\n"
        f"dataDir={data}\n"
        f"{_plain_port(port) if tls is None else _tls_port(port, tls)}"
        "maxClientCnxns=0\n"
        "admin.enableServer=false\n"
        "4lw.commands.whitelist=ruok,srvr,stat\n"
        "autopurge.snapRetainCount=3\n"
        "autopurge.purgeInterval=1\n"
    )
    return str(config)


def _plain_port(port: int) -> str:
    return f"clientPortAddress=127.0.0.1\nclientPort={port}\n"


def _tls_port(port: int, tls: ServerTls) -> str:
    return (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"secureClientPortAddress=127.0.0.1\nsecureClientPort={port}\n"
        f"ssl.keyStore.location={tls.store}\nssl.keyStore.type=PEM\n"
        f"ssl.trustStore.location={tls.ca}\nssl.trustStore.type=PEM\n"
        f"ssl.clientAuth={'need' if tls.asks_clients else 'none'}\n"
    )


def server_command(config: str, *, durable: bool = True) -> list[str]:
    """Return the command; `durable=False`: no fsync, for tests. Raises `ZooKeeperNotInstalled`."""
    return [
        find_java(),
        f"-Xmx{HEAP_MB_MAX}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dzookeeper.jmx.log4j.disable=true",
        *([] if durable else ["-Dzookeeper.forceSync=no"]),
        "-cp",
        find_class_path(),
        _MAIN,
        config,
    ]
