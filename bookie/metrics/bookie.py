"""What a bookie counts. Touched once per chunk or per group, never per entry.

One registry per bookie, so that several can live in one process. Queue gauges are read when they
are scraped and cost nothing between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.metrics.write import COUNTS, LATENCY_S, WriteMetrics
from octavo.bookie.read.stats import ReadStats


class _Counts(Collector):
    """A plain dict of numbers as a counter."""

    def __init__(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
        self._about = (name, text, label)
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What the registry asks for."""
        name, text, label = self._about
        family = CounterMetricFamily(name, text, labels=[label])
        for value, count in self._counts.items():
            family.add_metric([value], count)
        yield family


class _Damages(Collector):
    """How many findings of each kind, counted when it is asked for."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What the registry asks for."""
        family = GaugeMetricFamily(
            "octavo_bookie_damage", "Damaged places on the disks, by kind", labels=["kind"]
        )
        for kind, count in self._counts().items():
            family.add_metric([kind], count)
        yield family


class _Scrubbing(Collector):
    """Bytes read back, whole passes, and seconds since the last of these ended."""

    def __init__(self, progress: Callable[[], tuple[int, int, float]]) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        size, passes, age_s = self._progress()
        yield CounterMetricFamily("octavo_bookie_scrub_bytes", "Bytes read back", value=size)
        yield CounterMetricFamily("octavo_bookie_scrub_passes", "Whole passes", value=passes)
        yield GaugeMetricFamily(
            "octavo_bookie_scrub_age_seconds", "Since a whole pass ended; -1 before", value=age_s
        )


class _Memory(Collector):
    """Bytes in use and the most that ever were, by what for."""

    def __init__(self, used: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        self._used = used

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        now = GaugeMetricFamily(
            "octavo_bookie_memory_bytes", "Occupied by all connections together", labels=["of"]
        )
        peak = GaugeMetricFamily(
            "octavo_bookie_memory_peak_bytes", "The most that ever was occupied", labels=["of"]
        )
        for what, (used, most) in self._used().items():
            now.add_metric([what], used)
            peak.add_metric([what], most)
        yield now
        yield peak


class _Garbage(Collector):
    """The collector's sums, and what it last found."""

    def __init__(self, status: CollectorStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        status = self._status
        total = status.total
        for name, text, value in (
            ("octavo_bookie_gc_rounds", "Rounds of garbage collection", status.count),
            ("octavo_bookie_gc_ledgers_deleted", "Ledgers deleted here", total.ledgers_deleted),
            ("octavo_bookie_gc_logs_removed", "Entry logs removed", total.logs_removed),
            (
                "octavo_bookie_gc_reclaimed_bytes",
                "Bytes of removed entry logs",
                total.reclaimed_bytes,
            ),
            ("octavo_bookie_gc_read_bytes", "Bytes of entry logs read back", total.read_bytes),
            ("octavo_bookie_gc_copied_bytes", "Bytes copied out of entry logs", total.copied_bytes),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield GaugeMetricFamily(
            "octavo_bookie_gc_quarantined", "Ledgers in quarantine", value=status.quarantined
        )
        yield GaugeMetricFamily(
            "octavo_bookie_gc_live_bytes",
            "Bytes in entry logs of live ledgers",
            value=status.live_bytes,
        )
        logs = GaugeMetricFamily(
            "octavo_bookie_gc_logs", "Entry logs, by what becomes of them", labels=["state"]
        )
        sizes = GaugeMetricFamily(
            "octavo_bookie_gc_log_bytes", "Bytes of entry logs, by the same", labels=["state"]
        )
        for state, (count, size) in status.bytes_by_state().items():
            logs.add_metric([state], count)
            sizes.add_metric([state], size)
        yield from (logs, sizes)


class BookieMetrics:
    """The metrics of one bookie."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.adds = Counter("octavo_bookie_adds", "Entries acked as durable", registry=registry)
        self.add_bytes = Counter(
            "octavo_bookie_add_bytes", "Bytes of acked adds", registry=registry
        )
        self.adds_refused = Counter(
            "octavo_bookie_adds_refused", "Adds not stored, by reason", ["code"], registry=registry
        )
        self.damaged = Counter(
            "octavo_bookie_adds_damaged", "Adds whose CRC32C did not hold", registry=registry
        )
        self.add_run_entries = Histogram(
            "octavo_bookie_add_run_entries",
            "Entries that one answer acknowledged together",
            buckets=COUNTS,
            registry=registry,
        )
        self.reads = Counter(
            "octavo_bookie_reads", "Reads answered, by code", ["code"], registry=registry
        )
        self.read_bytes = Counter(
            "octavo_bookie_read_bytes", "Bytes of entries read", registry=registry
        )
        self.read_seconds = Histogram(
            "octavo_bookie_read_seconds", "Queue included", buckets=LATENCY_S, registry=registry
        )
        self.cold_wait_seconds = Histogram(
            "octavo_bookie_cold_wait_seconds",
            "How long reads waited for a thread that reads entry logs",
            buckets=LATENCY_S,
            registry=registry,
        )
        self.fences = Counter(
            "octavo_bookie_fences", "Fencing reads, by code", ["code"], registry=registry
        )
        self.connections = Gauge("octavo_bookie_connections", "Open connections", registry=registry)
        self.protocol_errors = Counter(
            "octavo_bookie_protocol_errors", "Ended for bytes they sent", registry=registry
        )
        self.pauses = Counter(
            "octavo_bookie_read_pauses",
            "Times a socket was left unread for a while, by reason",
            ["reason"],
            registry=registry,
        )
        self.throttled = Counter(
            "octavo_bookie_throttled",
            "Requests answered TOO_MANY_REQUESTS, by cause",
            ["cause"],
            registry=registry,
        )
        self.stalled = Counter(
            "octavo_bookie_connections_stalled",
            "Connections cut off for holding memory in vain, by how",
            ["how"],
            registry=registry,
        )
        self.read_only = Gauge(
            "octavo_bookie_read_only", "1 while ordinary adds are refused", registry=registry
        )
        self.limbo = Gauge(
            "octavo_bookie_limbo", "1 while old ledgers are answered as unknown", registry=registry
        )
        self.free_bytes = Gauge(
            "octavo_bookie_disk_free_bytes",
            "Free bytes by folder",
            ["directory"],
            registry=registry,
        )
        self.writing = WriteMetrics(registry)

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Expose a number that is computed when it is asked for."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def reads_of(self, stats: ReadStats) -> None:
        """Expose where entries were found, and what reading ahead was good for."""
        places, ahead = stats.lookups, stats.ahead_bytes
        self.registry.register(
            _Counts("octavo_bookie_lookups", "Runs of entries found, by place", "place", places)
        )
        self.registry.register(
            _Counts("octavo_bookie_read_ahead_bytes", "Read before it was asked for", "fate", ahead)
        )
        stats.on_cold_wait = self.cold_wait_seconds.observe

    def damages(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Expose the findings of damage by kind."""
        self.registry.register(_Damages(counts))

    def scrubbing(self, progress: Callable[[], tuple[int, int, float]]) -> None:
        """Expose how far the scrubber is."""
        self.registry.register(_Scrubbing(progress))

    def memory(self, used: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Expose what connections occupy."""
        self.registry.register(_Memory(used))

    def garbage(self, status: CollectorStatus) -> None:
        """Expose what the collector did and found."""
        self.registry.register(_Garbage(status))
        self.writing.collected(status)

    def exposition(self) -> bytes:
        """All of it in the Prometheus text format."""
        return generate_latest(self.registry)
