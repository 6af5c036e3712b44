"""The referee of leases at a planned hand-over (X24).

It compares the leases of an owner that ends, the leases that became durable, and the next owner's
leases at the first use of the subscription. An owner that could not write promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from octavo.broker.partition.partition import Partition
from octavo.broker.state import leases
from octavo.broker.state.cursor import unpack_ranges
from octavo.broker.state.format import Op
from octavo.broker.state.log import StateLog
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import PartitionName
from tests.sim.trace import Trace

_ALL_FIT = 10_000
"""Above it, the seed's bound is large enough for all leases."""


class Promise(NamedTuple):
    epoch: int
    created_ms: int
    era: int
    out: dict[int, tuple[int, float]]
    """Offset → lease number, and until when, in seconds."""


class LeaseAudit:
    def __init__(
        self, now_s: Callable[[], float], trace: Trace, fail: Callable[[str], None]
    ) -> None:
        self._now_s = now_s
        self._trace = trace
        self._fail = fail
        self._promises: dict[tuple[PartitionName, str], Promise] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        referee, put = self, setattr
        kept_leave, kept_note = Partition._leave_leases, StateLog.note
        kept_init = Subscription.__init__

        def leave(partition: Partition) -> None:
            kept_leave(partition)
            referee.left(partition)

        def note(log: StateLog, *ops: Op) -> None:
            if not ops or ops[0][0] != 22:
                kept_note(log, *ops)
                return
            queued = log._queue

            def watched(some: list[Op]) -> Any:
                done = queued(some)
                told = referee.told(log._name, some)
                done.add_done_callback(
                    lambda one: (
                        referee.durable(told)
                        if not one.cancelled() and one.exception() is None
                        else None
                    )
                )
                return done

            put(log, "_queue", watched)
            try:
                kept_note(log, *ops)
            finally:
                del log.__dict__["_queue"]

        def begun(subscription: Subscription, *args: Any, **more: Any) -> None:
            kept_init(subscription, *args, **more)
            if isinstance(subscription._log, Partition):
                referee.begun(subscription._log, subscription)

        put(Partition, "_leave_leases", leave)
        put(StateLog, "note", note)
        put(Subscription, "__init__", begun)
        try:
            yield
        finally:
            put(Partition, "_leave_leases", kept_leave)
            put(StateLog, "note", kept_note)
            put(Subscription, "__init__", kept_init)

    def left(self, partition: Partition) -> None:
        """Check a planned end: the leases that the owner leaves include every lease of its
        consumers."""
        if not partition._context.leases_are_read() or leases.LEASES_BYTES_MAX < _ALL_FIT:
            return
        told = self.told(partition.name, partition._left)
        for name in partition._subscriptions._cursors:
            subscription = partition._subscriptions._open.get(name)
            if subscription is None:
                continue
            of = told.get((partition.name, name))
            for offset, lease in subscription._dispatcher._lease_of.items():
                if lease.given and (of is None or of.out.get(offset, (0,))[0] != lease.number):
                    self._fail(
                        f"X24 {partition.name} {name}: offset {offset} is out under lease "
                        f"{lease.number}, and its owner ends without telling"
                    )

    def told(self, name: PartitionName, ops: list[Op]) -> dict[tuple[PartitionName, str], Promise]:
        now_s, found = self._now_s(), dict[tuple[PartitionName, str], Promise]()
        for op in ops:
            if op[0] == 22:
                _, sub, created_ms, epoch, era, *_ = op
                found[name, sub] = Promise(epoch, created_ms, era, {})
            elif op[2] == leases.OUT:
                _, sub, _, time_ms, number, _, ranges, *_ = op
                for start, end in unpack_ranges(ranges):
                    found[name, sub].out.update(
                        dict.fromkeys(range(start, end), (number, now_s + time_ms / 1000))
                    )
        return found

    def durable(self, told: dict[tuple[PartitionName, str], Promise]) -> None:
        self._promises |= told

    def begun(self, partition: Partition, subscription: Subscription) -> None:
        name, sub = partition.name, subscription.info.name
        promise = self._promises.pop((name, sub), None)
        if promise is None or promise.created_ms != subscription.info.created_ms:
            return
        if promise.epoch + 1 != partition.epoch or not subscription.info.settings.durable:
            return
        for offset, (number, until_s) in promise.out.items():
            if self._now_s() >= until_s or subscription._cursor.is_acked(offset):
                continue
            self._trace.probe("topic.lease_goes_on")
            if not subscription._dispatcher.holds(offset, number):
                self._fail(
                    f"X24 {name} {sub}: offset {offset} was left leased under {number} in epoch "
                    f"{promise.epoch}, and is nobody's in epoch {partition.epoch}"
                )
            elif subscription._era != promise.era:
                self._fail(f"X24 {name} {sub}: ack ids of {promise.era} are not taken any more")
