"""The timed loops of a Python program with `octavo.Client`."""

from __future__ import annotations

from typing import Any

from bench.b3_client import produce as produce_loop
from bench.peers.figures import Stopwatch
from octavo import Client

IDLE_S = 5


def produce(job: dict[str, Any]) -> dict[str, Any]:
    watch = Stopwatch()
    return watch.figures(produce_loop(job["url"], job["topic"], job["messages"]))


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """The acks are durable when the client is closed."""
    watch, count = Stopwatch(), 0
    with Client(job["url"]) as client:
        for _ in client.subscription(job["topic"], job["group"]).deliveries(idle_s=IDLE_S):
            if not count:
                watch.first()
            count += 1
            if count == job["messages"]:
                break
    return watch.figures(count)
