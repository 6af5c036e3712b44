"""What a system under measurement can be asked for, and what is asked of all of them."""

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
WORKLOADS = ("produce", "consume", "batches", "single", "single-5000")
RATES = {"single": 1_000, "single-5000": 5_000}
"""Messages a second of the workloads that have a fixed rate."""
WARM_S = 3.0
"""How long a client at a fixed rate sends before it counts; `bench.b4_single` has the same."""


class Missing(Exception):
    """Something that a system needs is not on this machine. The message names it."""


@dataclass(frozen=True, slots=True)
class System:
    """A row of the table. `module` runs its servers, `package` is what its clients import."""

    name: str
    module: str
    package: str
    durability: str


SYSTEMS = {
    one.name: one
    for one in (
        System("octavo", "octavo_peer", "octavo", "3 copies, fsync before ack"),
        System("kafka-flush", "kafka_peer", "confluent_kafka", "3 copies, fsync before ack"),
        System("kafka", "kafka_peer", "confluent_kafka", "3 copies, no fsync"),
        System("nats", "nats_peer", "nats", "3 copies, fsync before ack"),
    )
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much: messages to send, or seconds to go on."""

    messages: int
    seconds: float


class Cluster(ABC):
    """The servers of one system, or of two that share them."""

    name: str
    version: str

    @abstractmethod
    def pids(self) -> list[int]:
        """The servers' processes."""

    @abstractmethod
    def create(self, system: str, topic: str, partitions: int) -> None:
        """Make a topic that can be published to, with what `consume` needs."""

    @abstractmethod
    def drop(self, topic: str) -> None:
        """Delete it and its data."""

    @abstractmethod
    def command(self, workload: str, topic: str, load: Load) -> list[str] | None:
        """The client process, to be run in `ROOT`; None when the system has no such client."""

    def result(self, workload: str, said: str, load: Load) -> dict[str, Any]:
        """What the client printed: its figures, and `acked`, how many messages it made in all.

        Raises `Failed` when they are not there.
        """
        del workload, load
        return last_json(said)

    def of_messages(self, messages: int) -> int:
        """How many of so many messages this system is given in `produce` and `consume`."""
        return messages


def job(client: str, workload: str, **details: Any) -> list[str]:
    """The command that runs `bench.peers.<client>` for one workload in a process of its own."""
    words = {"client": client, "workload": workload, **details}
    return [sys.executable, "-m", "bench.peers", "--job", json.dumps(words)]
