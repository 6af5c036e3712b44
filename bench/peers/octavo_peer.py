"""Octavo as `octavo standalone` starts it: three bookies, two brokers, three copies, synced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench.b3_publish
import bench.b4_single
import octavo
from bench.peers.contract import PARTITIONS, RATES, Cluster, Load, job
from bench.peers.figures import Failed, last_json
from bench.standalone import owner_of, standalone
from octavo import Client
from octavo.protocol.codes import OctavoError
from octavo.standalone.cluster_file import ClusterFile

GROUP = "peers"
_CONNECTIONS = 256


class Octavo(Cluster):
    name = "octavo"
    version = octavo.__version__

    def __init__(self, cluster: ClusterFile) -> None:
        self._cluster = cluster
        self._url = cluster.urls[0]
        with Client(self._url) as client:
            client.create_topic(bench.b4_single.TOPIC)
            client.publish(bench.b4_single.TOPIC, "first")

    def pids(self) -> list[int]:
        return [one.pid for one in self._cluster.members]

    def create(self, system: str, topic: str, partitions: int) -> None:
        del system
        with _failing(f"create {topic}"), Client(self._url) as client:
            client.create_topic(topic, partitions=partitions)
            client.subscribe(topic, GROUP, type="shared")

    def drop(self, topic: str) -> None:
        with _failing(f"delete {topic}"), Client(self._url) as client:
            client.delete_topic(topic)

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        if workload == "batches":
            return [
                *(sys.executable, "-m", "bench.b3_publish", "--url", self._url),
                *("--modes", "batch", "--rounds", "1", "--partitions", str(PARTITIONS)),
                *("--seconds", str(load.seconds)),
            ]
        if workload in RATES:
            single = bench.b4_single.TOPIC
            with _failing("name an owner"):
                owner = owner_of(self._url, single)
            words = {
                "url": owner, "rate": RATES[workload], "seconds": load.seconds,
                "connections": _CONNECTIONS, "topic": single,
            }  # fmt: skip
            return bench.b4_single.command(words)
        return job(
            "octavo_client", workload, url=self._url, topic=topic, messages=load.messages,
            group=GROUP,
        )  # fmt: skip

    def result(self, workload: str, said: str, load: Load) -> dict[str, Any]:
        found = last_json(said)
        if workload == "batches":
            per_s = found["batch"]["rounds"][0]["messages_per_s"]
            return {
                "per_s": per_s,
                "acked": round(per_s * (load.seconds + bench.b3_publish.WARM_UP_S)),
            }
        if workload in RATES:
            found["acked"] = round(RATES[workload] * (load.seconds + bench.b4_single.WARM_S))
        return found


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        with _failing("start"):
            cluster = Octavo(stack.enter_context(standalone(folder)))
        yield cluster


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except (OctavoError, OSError) as error:
        raise Failed(f"Octavo could not {what}: {error}") from error
