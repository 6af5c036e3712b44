"""Three Kafka brokers in KRaft mode, each its own controller, for topics with and without flush."""

from __future__ import annotations

import contextlib
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.peers import fetch
from bench.peers.contract import RATES, Cluster, Load, job
from bench.peers.figures import Failed, steady_rate
from bench.peers.java import Java
from bench.peers.servers import NODES, ThreeServers, run
from octavo.standalone.ports import free_port

GROUP = "peers"
_CALL_S = 30
_FORMAT_S = 60
BATCHES_PER_S = 150_000
"""The Java tool takes a number of records, not a time. First it sends a third as many,
uncounted.
"""

# By default a group's first member would wait 3 s for other members.
BROKER = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data-{node}
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
group.initial.rebalance.delay.ms=0
"""


class Kafka(ThreeServers):
    name = "kafka"
    version = fetch.KAFKA.version

    def __init__(self, lib: Path, folder: Path) -> None:
        super().__init__(folder)
        self._java = Java(lib, folder)

    @property
    def _bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self) -> None:
        controllers = {node: free_port() for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        commands: dict[int, list[str]] = {}
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        for node in NODES:
            conf = self._folder / f"broker-{node}.properties"
            conf.write_text(
                BROKER.format(
                    node=node, voters=voters, port=self._ports[node], folder=self._folder,
                    controller_port=controllers[node],
                )
            )  # fmt: skip
            words = ["format", f"--cluster-id={cluster_id}", "--config", str(conf)]
            run(self._java.command("kafka.tools.StorageTool", *words), _FORMAT_S, self._folder)
            commands[node] = self._java.command("kafka.Kafka", str(conf))
        self._start(commands)

    def create(self, system: str, topic: str, partitions: int) -> None:
        config = {"min.insync.replicas": "2"}
        if system == "kafka-flush":
            config["flush.messages"] = "1"
        new = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config)
        admin = self._admin()  # keep a reference: its calls end when it is collected
        _wait(admin.create_topics([new], operation_timeout=_CALL_S), f"create {topic}")

    def drop(self, topic: str) -> None:
        admin = self._admin()
        _wait(admin.delete_topics([topic], operation_timeout=_CALL_S), f"delete {topic}")

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        if workload == "batches":
            warm, records = _records(load)
            return self._java.command(
                "org.apache.kafka.tools.ProducerPerformance",
                *("--topic", topic, "--bootstrap-server", self._bootstrap),
                *("--record-size", "100", "--throughput", "-1"),
                *("--warmup-records", str(warm)),
                *("--num-records", str(warm + records)),
                *("--command-property", "acks=all", "batch.size=65536", "linger.ms=5"),
            )
        return job(
            "kafka_client", workload, servers=self._bootstrap, topic=topic, group=GROUP,
            messages=load.messages, seconds=load.seconds, rate=RATES.get(workload, 0),
        )  # fmt: skip

    def result(self, workload: str, said: str, load: Load) -> dict[str, Any]:
        if workload != "batches":
            return super().result(workload, said, load)
        return {"per_s": steady_rate(said), "acked": sum(_records(load))}

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})

    def _all_serve(self) -> bool:
        with contextlib.suppress(Exception):
            return len(self._admin().list_topics(timeout=5).brokers) == len(NODES)
        return False


def _records(load: Load) -> tuple[int, int]:
    records = round(load.seconds * BATCHES_PER_S)
    return records // 3, records


def _wait(calls: dict[str, Future[None]], what: str) -> None:
    try:
        for call in calls.values():
            call.result(_CALL_S)
    except (KafkaException, TimeoutError) as error:
        raise Failed(f"Kafka could not {what}: {error}") from error


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Kafka(fetch.jars(fetch.KAFKA), folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
