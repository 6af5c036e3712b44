"""The metrics of a broker, for Prometheus; one registry per server.

Labelled children are kept: a lookup costs more than counting.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.types import PartitionStats

_ROWS_A_TURN = 400
_PARTITIONS_A_TURN = 16
SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


class Duties(NamedTuple):
    served: int = 0
    to_move: int = 0
    handed_on: int = 0
    chore_failures: Mapping[str, int] = {}
    leftovers_removed: int = 0
    ledger_ids_taken: int = 0
    """New ledgers whose ids another process had taken."""
    messages_expired: int = 0
    """Messages acked by their topic's time to live."""
    messages_evicted: int = 0
    """Messages acked by a backlog quota."""


class Described(Protocol):
    async def stats(self) -> PartitionStats: ...


class Metrics:
    def __init__(
        self,
        partitions: Callable[[], Iterable[Described]],
        duties: Callable[[], Duties],
        deletion_time: Callable[[], DeletionTime | None] = lambda: None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "octavo_http_requests",
            "Requests answered",
            ("call", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "octavo_http_request_seconds",
            "From the request's head to the handler's answer; long-polls include their wait",
            ("call",),
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.held_bytes = Gauge(
            "octavo_http_held_body_bytes", "Request bodies in memory", registry=self.registry
        )
        self.streams = Gauge(
            "octavo_http_streams", "Streams of partitions and subscriptions", registry=self.registry
        )
        self.connections_refused = Counter(
            "octavo_http_connections_refused",
            "Connections beyond `connections_max` that were sent away",
            registry=self.registry,
        )
        text = "Calls that were not let in, and open ones that were ended"
        self._denied = Counter("octavo_http_denied", text, ("reason",), registry=self.registry)
        self.messages_published = Counter(
            "octavo_messages_published", "Messages stored for callers", registry=self.registry
        )
        self.bytes_published = Counter(
            "octavo_bytes_published", "Bytes of record batches stored", registry=self.registry
        )
        self.messages_read = Counter(
            "octavo_messages_read", "Messages served without a subscription", registry=self.registry
        )
        self.messages_delivered = Counter(
            "octavo_messages_delivered", "Messages handed to consumers", registry=self.registry
        )
        self.forwarded = Counter(
            "octavo_http_requests_forwarded",
            "Requests passed on to the partition's owner",
            registry=self.registry,
        )
        self._count_security()
        doubted = Gauge(
            "octavo_clock_doubted",
            "1 while the clocks that deletion by age goes by do not agree",
            registry=self.registry,
        )
        doubted.set_function(lambda: float(bool((now := deletion_time()) and now.doubt)))
        late = Gauge(
            "octavo_deletion_late_seconds",
            "How much later than the clocks say deletion by age takes place",
            registry=self.registry,
        )
        late.set_function(lambda: now.late_ms / 1000 if (now := deletion_time()) else 0.0)
        self._partitions = partitions
        self.registry.register(_DutiesCollector(duties))
        self._counted: dict[tuple[str, int], Counter] = {}
        self._timed: dict[str, Histogram] = {}

    def _count_security(self) -> None:
        self._exceeded: dict[str, Counter] = {}
        self._quota_exceeded = Counter(
            "octavo_quota_exceeded",
            "Calls refused because a quota was used up",
            ("quota",),
            registry=self.registry,
        )
        self.audit_events = Counter(
            "octavo_audit_events", "Audit events stored in their topic", registry=self.registry
        )
        self.audit_lost = Counter(
            "octavo_audit_events_lost",
            "Audit events that found no room; the log has them",
            registry=self.registry,
        )

    async def text(self) -> bytes:
        """Return Prometheus text, made in turns: there may be millions of rows."""
        parts: list[bytes] = []
        for family in self.registry.collect():
            parts.append(_text_of(family))
            await asyncio.sleep(0)
        figures = _PartitionFigures()
        for number, partition in enumerate(self._partitions()):
            if number % _PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)
            for _ in figures.add(await partition.stats()):
                await asyncio.sleep(0)
        figures.write()
        return b"".join((*parts, figures.text()))

    def quota_exceeded(self, quota: str) -> None:
        counter = self._exceeded.get(quota)
        if counter is None:
            counter = self._exceeded[quota] = self._quota_exceeded.labels(quota)
        counter.inc()

    def denied(self, reason: str) -> None:
        self._denied.labels(reason).inc()

    def answered(self, call: str, status: int, seconds: float) -> None:
        counter = self._counted.get((call, status))
        if counter is None:
            counter = self._counted[call, status] = self._requests.labels(call, str(status))
        counter.inc()
        timer = self._timed.get(call)
        if timer is None:
            timer = self._timed[call] = self._seconds.labels(call)
        timer.observe(seconds)


class _PartitionFigures:
    def __init__(self) -> None:
        self._texts: dict[str, list[bytes]] = {}
        self._begin()

    def _begin(self) -> None:
        label = ("topic", "partition")
        of_subscription = (*label, "subscription")
        self._following = GaugeMetricFamily(
            "octavo_partition_next_offset", "End of the log", labels=label
        )
        self._earliest = GaugeMetricFamily(
            "octavo_partition_earliest_offset", "First kept", labels=label
        )
        self._stored = GaugeMetricFamily(
            "octavo_partition_stored_bytes", "Bytes kept", labels=label
        )
        self._pending = GaugeMetricFamily(
            "octavo_partition_pending_bytes", "Unacked adds", labels=label
        )
        self._backlog = GaugeMetricFamily(
            "octavo_subscription_backlog", "Messages not acked", labels=of_subscription
        )
        self._waiting = GaugeMetricFamily(
            "octavo_subscription_dead_letters_waiting",
            "Messages whose copy in the dead-letter or retry topic is not stored yet",
            labels=of_subscription,
        )
        self._sent = CounterMetricFamily(
            "octavo_subscription_dead_letters",
            "Copies stored in the dead-letter or retry topic",
            labels=of_subscription,
        )
        self._problems = GaugeMetricFamily(
            "octavo_subscription_dead_letters_problem",
            "1 while copies are not stored, or not in the topic that was named; else missing",
            labels=of_subscription,
        )
        self._rows = 0

    def add(self, stats: PartitionStats) -> Iterator[None]:
        """Add a partition's figures; other tasks run between the iterator's steps."""
        where = (str(stats.name.topic_name), str(stats.name.partition))
        self._following.add_metric(where, stats.next_offset)
        self._earliest.add_metric(where, stats.earliest_offset)
        self._stored.add_metric(where, stats.stored_bytes)
        self._pending.add_metric(where, stats.pending_bytes)
        self._rows += 4
        for name, subscription in stats.subscriptions.items():
            self._backlog.add_metric((*where, name), subscription.backlog)
            letters, retries = subscription.dead_letters, subscription.retries
            self._waiting.add_metric((*where, name), letters.waiting + retries.waiting)
            self._sent.add_metric((*where, name), letters.sent + retries.sent)
            self._rows += 3
            if letters.problem or retries.problem:
                self._problems.add_metric((*where, name), 1)
            if self._rows >= _ROWS_A_TURN:
                self.write()
                yield
        if self._rows >= _ROWS_A_TURN:
            self.write()
            yield

    def write(self) -> None:
        for family in (self._following, self._earliest, self._stored, self._pending,
                       self._backlog, self._waiting, self._sent, self._problems):  # fmt: skip
            parts = self._texts.setdefault(family.name, [])
            text = _text_of(family)
            if parts:
                text = b"".join(
                    line for line in text.splitlines(keepends=True) if not line.startswith(b"#")
                )
            parts.append(text)
        self._begin()

    def text(self) -> bytes:
        return b"".join(itertools.chain.from_iterable(self._texts.values()))


class _Families(Collector):
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text_of(family: Metric) -> bytes:
    return generate_latest(_Families(family))  # type: ignore[arg-type, unused-ignore]


class _DutiesCollector(Collector):
    def __init__(self, duties: Callable[[], Duties]) -> None:
        self._duties = duties

    def collect(self) -> Iterable[Metric]:
        duties = self._duties()
        failures = CounterMetricFamily(
            "octavo_chore_failures", "Maintenance that failed and is tried again", labels=("chore",)
        )
        for chore, count in sorted(duties.chore_failures.items()):
            failures.add_metric((chore,), count)
        return (
            GaugeMetricFamily("octavo_partitions_served", "Open here", duties.served),
            GaugeMetricFamily(
                "octavo_partitions_to_move", "Others should have them", duties.to_move
            ),
            CounterMetricFamily(
                "octavo_partitions_handed_on", "Given to other brokers", duties.handed_on
            ),
            failures,
            CounterMetricFamily(
                "octavo_leftovers_removed",
                "Ledgers that nobody named any more",
                duties.leftovers_removed,
            ),
            CounterMetricFamily(
                "octavo_ledger_ids_taken",
                "Ids of new ledgers that others had taken",
                duties.ledger_ids_taken,
            ),
            CounterMetricFamily(
                "octavo_messages_expired",
                "Unacked messages that a time to live passed over, by subscription and partition",
                duties.messages_expired,
            ),
            CounterMetricFamily(
                "octavo_messages_evicted",
                "Unacked messages that a backlog quota passed over",
                duties.messages_evicted,
            ),
        )
