"""What a bookie counts. Touched once per chunk or per group, never per entry.

One registry per bookie, so that several can live in one process. Queue gauges are read when they
are scraped and cost nothing between.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class BookieMetrics:
    """The metrics of one bookie."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.adds = Counter("bookie_adds", "Entries acked as durable", registry=registry)
        self.add_bytes = Counter("bookie_add_bytes", "Bytes of acked adds", registry=registry)
        self.adds_refused = Counter(
            "bookie_adds_refused", "Adds not stored, by reason", ["code"], registry=registry
        )
        self.damaged = Counter(
            "bookie_adds_damaged", "Adds whose CRC32C did not hold", registry=registry
        )
        self.add_run_entries = Histogram(
            "bookie_add_run_entries",
            "Entries that one answer acknowledged together",
            buckets=_COUNTS,
            registry=registry,
        )
        self.reads = Counter("bookie_reads", "Reads answered, by code", ["code"], registry=registry)
        self.read_bytes = Counter("bookie_read_bytes", "Bytes of entries read", registry=registry)
        self.read_seconds = Histogram(
            "bookie_read_seconds", "Reads, queue included", buckets=_LATENCY_S, registry=registry
        )
        self.fences = Counter(
            "bookie_fences", "Fencing reads, by code", ["code"], registry=registry
        )
        self.connections = Gauge("bookie_connections", "Open connections", registry=registry)
        self.protocol_errors = Counter(
            "bookie_protocol_errors", "Connections ended for bytes they sent", registry=registry
        )
        self.pauses = Counter(
            "bookie_read_pauses",
            "Times a socket was left unread for a while, by reason",
            ["reason"],
            registry=registry,
        )
        self.read_only = Gauge(
            "bookie_read_only", "1 while ordinary adds are refused", registry=registry
        )
        self.free_bytes = Gauge(
            "bookie_disk_free_bytes", "Free bytes by folder", ["directory"], registry=registry
        )

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Expose a number that is computed when it is asked for."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def exposition(self) -> bytes:
        """All of it in the Prometheus text format."""
        return generate_latest(self.registry)
