"""What a bookie's writing tells: group commits, syncs, flushes, and where its bytes are.

A part of bookie.py, touched once per group, sync or flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.bookie.disk.files import Disk, RealDisk
from octavo.bookie.figures import Figures, Group
from octavo.bookie.gc.status import CollectorStatus

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


class _Bytes(Collector):
    """Where a bookie's bytes are, looked at when it is asked for."""

    def __init__(self) -> None:
        self.in_storage: Callable[[], Mapping[str, int]] = dict
        self.logs: CollectorStatus | None = None

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
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
    """The metrics of one bookie's way to the disk."""

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

    def observe(self, figures: Figures, disk: Disk) -> None:
        """Listen to a storage and its disk; before it opens its files."""
        figures.on_group = self._group
        figures.on_flush = self._flush
        self._bytes.in_storage = lambda: figures.bytes_by_state()
        if isinstance(disk, RealDisk):
            disk.on_sync = self._sync

    def collected(self, status: CollectorStatus) -> None:
        """Say which bytes of the entry logs are live."""
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
        """One `fdatasync` has ended; called on the thread that made it."""
        of = next((name for suffix, name in _SYNCED if path.endswith(suffix)), "other")
        self._sync_seconds.labels(of).observe(seconds)
