"""RocketMQ: a name server, and a broker that syncs before it answers; a single copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.peers import fetch
from bench.peers.contract import RATES, VALUE, WARM_S, Cluster, Load
from bench.peers.figures import Failed
from bench.peers.java import Java
from bench.peers.servers import Server, run
from octavo.standalone.ports import free_port

BATCH = 500
"""Messages in a call of `batches`: some 64 KB."""
THREADS = 8
_CALL_S = 60
_CLUSTER = "peers"

# By default it refuses messages once the disk is three quarters full, or after a wait of 200 ms,
# which happens on few cores.
CONF = """brokerClusterName={cluster}
brokerName=peers-1
brokerId=0
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
namesrvAddr=127.0.0.1:{name_port}
brokerIP1=127.0.0.1
listenPort={port}
bindAddress=127.0.0.1
haListenPort={ha_port}
storePathRootDir={folder}/store
autoCreateTopicEnable=false
autoCreateSubscriptionGroup=true
timerWheelEnable=false
diskMaxUsedSpaceRatio=98
waitTimeMillsInSendQueue=10000
osPageCacheBusyTimeOutMills=10000
"""


class RocketMQ(Cluster):
    name = "rocketmq"
    version = fetch.ROCKETMQ.version

    def __init__(self, lib: Path, folder: Path) -> None:
        self._folder = folder
        home = (f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}")  # where it puts its logs
        # By default a late answer closes the connection, which other calls share.
        patient = "-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false"
        self._java = Java(lib, folder, *home, patient)
        self._name_port, self._port = free_port(), free_port()
        self._servers: list[Server] = []

    def start(self) -> None:
        self._java.compile("RocketLoad")
        names = self._folder / "names.conf"
        names.write_text(f"listenPort={self._name_port}\nbindAddress=127.0.0.1\n")
        conf = self._folder / "broker.conf"
        conf.write_text(
            CONF.format(
                cluster=_CLUSTER, name_port=self._name_port, port=self._port,
                ha_port=free_port(), folder=self._folder,
            )
        )  # fmt: skip
        self._start("names", "namesrv.NamesrvStartup", names).wait_until_listening(self._name_port)
        broker = self._start("broker", "broker.BrokerStartup", conf)
        broker.wait_until_listening(self._port)
        broker.wait_until(self._serves, "registration at the name server")

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.kill()

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    def create(self, system: str, topic: str, partitions: int) -> None:
        del system
        queues = ("-r", str(partitions), "-w", str(partitions))
        said = self._admin("updateTopic", "-c", _CLUSTER, "-t", topic, *queues)
        if "success" not in said:
            raise Failed(f"RocketMQ could not create {topic}: {said[-300:]}")

    def drop(self, topic: str) -> None:
        """The messages stay in the shared log."""
        self._admin("deleteTopic", "-c", _CLUSTER, "-t", topic)

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        words = (f"127.0.0.1:{self._name_port}", topic, len(VALUE), WARM_S, load.seconds)
        if workload == "batches":
            return self._java.command("RocketLoad", "batches", *words, BATCH, THREADS)
        return self._java.command("RocketLoad", "single", *words, RATES[workload])

    def _start(self, name: str, main: str, conf: Path) -> Server:
        command = self._java.command(f"org.apache.rocketmq.{main}", "-c", conf)
        self._servers.append(Server(f"rocketmq-{name}", command, self._folder))
        return self._servers[-1]

    def _admin(self, what: str, *words: str) -> str:
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        names = ("-n", f"127.0.0.1:{self._name_port}")
        return run(self._java.command(main, what, *names, *words), _CALL_S, self._folder)

    def _serves(self) -> bool:
        with contextlib.suppress(Failed):
            self.create("", "first", 1)
            return True
        return False


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = RocketMQ(fetch.jars(fetch.ROCKETMQ), folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
