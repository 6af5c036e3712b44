"""The interface of measured systems, and the workloads."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.figures import last_json

ROOT = Path(__file__).resolve().parents[2]
VALUE = b"x" * 100
PARTITIONS = 4
RATES = {"single": 1_000, "single-5000": 5_000}
"""Messages a second of the workloads that have a fixed rate."""
LEDGER_BYTES = {"ledger": 100, "ledger-1k": 1024, "ledger-64k": 65_536}
"""Bytes of an entry in the workloads that add to a ledger."""
WARMED_BY = {"single": "single-5000"}
"""A workload whose warm-up is left out if the other workload is warmed up."""
WARM_ONCE = (*RATES, "ledger-64k")
"""Left out of further warm-ups: they take long, or fill the disk."""
IN_TOPICS = ("produce", "consume", "batches", *RATES)
WORKLOADS = (*IN_TOPICS, *LEDGER_BYTES)
WARM_S = 3.0


class Missing(Exception):
    """This machine lacks something that a system needs. The message names it."""


@dataclass(frozen=True, slots=True)
class System:
    name: str
    module: str
    durability: str
    workloads: tuple[str, ...] = IN_TOPICS
    package: str = "octavo"
    lacks: str = ""
    """Why it lacks workloads of its kind."""


FSYNC = "3 copies, fsync before ack"
SYSTEMS = {
    one.name: one
    for one in (
        System("octavo", "octavo_peer", FSYNC),
        System("kafka-flush", "kafka_peer", FSYNC, package="confluent_kafka"),
        System("kafka", "kafka_peer", "3 copies, no fsync", package="confluent_kafka"),
        System("pulsar", "pulsar_peer", FSYNC, package="pulsar"),
        System(
            "nats", "nats_peer", FSYNC, ("produce", "consume", *RATES), "nats",
            lacks="it sends message by message, and has no tool for bulk",
        ),
        System(
            "rocketmq", "rocketmq_peer", "1 copy, fsync before ack", ("batches", *RATES),
            lacks="its Python client needs a proxy beside the broker",
        ),
        System("octavo-bookies", "octavo_bookies_peer", FSYNC, tuple(LEDGER_BYTES)),
        System("bookkeeper", "bookkeeper_peer", FSYNC, tuple(LEDGER_BYTES)),
    )
}  # fmt: skip
KINDS = (IN_TOPICS, tuple(LEDGER_BYTES))
"""The systems of a group run at the same time."""


@dataclass(frozen=True, slots=True)
class Load:
    messages: int
    seconds: float


class Cluster(ABC):
    name: str
    version: str

    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def create(self, system: str, topic: str, partitions: int) -> None:
        """Make a topic for publishing, and its subscription if `consume` needs one."""

    @abstractmethod
    def drop(self, topic: str) -> None: ...

    @abstractmethod
    def command(self, workload: str, topic: str, load: Load) -> list[str]: ...

    def result(self, workload: str, said: str, load: Load) -> dict[str, Any]:
        """Read a client's output: its figures, and `acked`, the number of all its messages.

        Raises `Failed` if they are missing.
        """
        del workload, load
        return last_json(said)

    def of_messages(self, messages: int) -> int:
        return messages


class Bookies(Cluster):
    def create(self, system: str, topic: str, partitions: int) -> None:
        """Nothing."""

    def drop(self, topic: str) -> None:
        """Nothing."""


def job(client: str, workload: str, **details: Any) -> list[str]:
    words = {"client": client, "workload": workload, **details}
    return [sys.executable, "-m", "bench.peers", "--job", json.dumps(words)]
