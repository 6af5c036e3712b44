"""The metrics of a bookie, updated once per chunk, group commit, sync or flush.

Each bookie has its own registry, so that several can live in one process. A gauge is read when it
is scraped. Every metric has a row in docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.bookie.disk.files import Disk, RealDisk
from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.stats import Group, ReadStats, WriteStats

LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
_GROUP_BYTES = (1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6)
_FLUSH_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_FLUSH_BYTES = (64e3, 256e3, 1e6, 4e6, 16e6, 64e6, 256e6)
_SYNCED = (
    (".journal", "journal"),
    (".spare", "journal"),
    (".log", "entry_log"),
    (".state", "ledger_state"),
    (".mark.new", "mark"),
)


class _Counts(Collector):
    def __init__(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
        self._about = (name, text, label)
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        name, text, label = self._about
        family = CounterMetricFamily(name, text, labels=[label])
        for value, count in self._counts.items():
            family.add_metric([value], count)
        yield family


class _Damages(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "octavo_bookie_damage", "Damaged places on the disks, by kind", labels=["kind"]
        )
        for kind, count in self._counts().items():
            family.add_metric([kind], count)
        yield family


class _Scrubbing(Collector):
    """Bytes read back, whole passes, and seconds since the last."""

    def __init__(self, progress: Callable[[], tuple[int, int, float]]) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        size, passes, age_s = self._progress()
        yield CounterMetricFamily("octavo_bookie_scrub_bytes", "Bytes read back", value=size)
        yield CounterMetricFamily("octavo_bookie_scrub_passes", "Whole passes", value=passes)
        yield GaugeMetricFamily(
            "octavo_bookie_scrub_age_seconds", "Since a whole pass ended; -1 before", value=age_s
        )


class _Memory(Collector):
    def __init__(self, used: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        self._used = used

    def collect(self) -> Iterator[Metric]:
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
    def __init__(self, status: CollectorStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
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
            "octavo_bookie_gc_log_bytes",
            "Bytes of entry logs, by what becomes of them",
            labels=["state"],
        )
        for state, (count, size) in status.bytes_by_state().items():
            logs.add_metric([state], count)
            sizes.add_metric([state], size)
        yield from (logs, sizes)


class _Bytes(Collector):
    def __init__(self) -> None:
        self.in_storage: Callable[[], Mapping[str, int]] = dict
        self.logs: CollectorStatus | None = None

    def collect(self) -> Iterator[Metric]:
        found = dict(self.in_storage())
        if self.logs is not None and self.logs.count:
            total = sum(size for _, size in self.logs.bytes_by_state().values())
            found["entry_logs_live"] = self.logs.live_bytes
            found["entry_logs_dead"] = max(0, total - self.logs.live_bytes)
        family = GaugeMetricFamily("octavo_bookie_bytes", "Where bytes are", labels=["state"])
        for state, size in found.items():
            family.add_metric([state], size)
        yield family


class WriteMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._group_bytes = histogram(
            "octavo_bookie_group_bytes", "Bytes of one group commit", _GROUP_BYTES
        )
        self._group_appends = histogram(
            "octavo_bookie_group_appends",
            "Chunks of adds, fences and the like in one group",
            COUNTS,
        )
        self._group_seconds = histogram(
            "octavo_bookie_group_seconds", "Write and sync of one group commit", LATENCY_S
        )
        self._queue_seconds = histogram(
            "octavo_bookie_queue_seconds",
            "The longest wait for the journal in each group",
            LATENCY_S,
        )
        self._sync_seconds = histogram(
            "octavo_bookie_sync_seconds", "fdatasync alone", LATENCY_S, "of"
        )
        self._flush_seconds = histogram(
            "octavo_bookie_flush_seconds", "One flush, its wait for compaction included", _FLUSH_S
        )
        self._flush_bytes = histogram(
            "octavo_bookie_flush_bytes", "Bytes of the write cache in one flush", _FLUSH_BYTES
        )
        self._bytes = _Bytes()
        registry.register(self._bytes)

    def observe_disk(self, disk: Disk) -> None:
        """Call it before a storage opens its files."""
        if isinstance(disk, RealDisk):
            disk.on_sync = self._sync

    def observe(self, stats: WriteStats) -> None:
        stats.on_group = self._group
        stats.on_flush = self._flush
        self._bytes.in_storage = lambda: stats.bytes_by_state()

    def collected(self, status: CollectorStatus) -> None:
        self._bytes.logs = status

    def _group(self, group: Group) -> None:
        self._group_bytes.observe(group.body_bytes)
        self._group_seconds.observe(group.seconds)
        self._group_appends.observe(group.appends)
        self._queue_seconds.observe(group.waited_s)

    def _flush(self, size: int, seconds: float) -> None:
        self._flush_bytes.observe(size)
        self._flush_seconds.observe(seconds)

    def _sync(self, path: str, seconds: float) -> None:
        of = next((name for suffix, name in _SYNCED if path.endswith(suffix)), "other")
        self._sync_seconds.labels(of).observe(seconds)


class BookieMetrics:
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
            "octavo_bookie_read_seconds", "Waiting included", buckets=LATENCY_S, registry=registry
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
            "octavo_bookie_protocol_errors", "Peers that broke the protocol", registry=registry
        )
        self.unauthorized = Counter(
            "octavo_bookie_unauthorized", "Refusals for lack of rights", registry=registry
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
            "Connections cut off for holding memory without progress, by kind",
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
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def reads_of(self, stats: ReadStats) -> None:
        places, ahead = stats.lookups, stats.ahead_bytes
        self.registry.register(
            _Counts("octavo_bookie_lookups", "Runs of entries found, by place", "place", places)
        )
        self.registry.register(
            _Counts("octavo_bookie_read_ahead_bytes", "Read before it was asked for", "fate", ahead)
        )
        stats.on_cold_wait = self.cold_wait_seconds.observe

    def damages(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self.registry.register(_Damages(counts))

    def scrubbing(self, progress: Callable[[], tuple[int, int, float]]) -> None:
        self.registry.register(_Scrubbing(progress))

    def memory(self, used: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        self.registry.register(_Memory(used))

    def garbage(self, status: CollectorStatus) -> None:
        self.registry.register(_Garbage(status))
        self.writing.collected(status)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
