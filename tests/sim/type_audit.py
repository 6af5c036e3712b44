"""The referee of the types of subscriptions: who holds what at the owner, and what nobody gets.

It looks at the leases of the owner itself, after each receive and each ack, and goes by the keys
that were sent, not by what the broker has made of them. So neither a lost answer nor a dead
consumer makes it unsure. S13: of a key the messages that are out are the first unacked ones, at one
consumer, handed out together; of a failover subscription all that is out is at one consumer; of one
that keeps the partition's order (failover, exclusive) nothing is handed out while an earlier one
waits for its delay; a message that says when it is due joins its key then, and until then no other
message of the key waits for it; what a filter refuses is given to nobody; and no key waits for
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import SubscriptionSettings
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

KeyOf = Callable[[str], bytes | None]
IN_ORDER = ("exclusive", "failover")


class TypeAudit:
    """Of all partitions of one seed."""

    def __init__(
        self,
        subscriptions: Mapping[str, SubscriptionSettings],
        key_of: KeyOf,
        trace: Trace,
        fail: Callable[[str], None],
    ) -> None:
        self.settings = subscriptions
        self.key_of = key_of
        self.waits: Callable[[str], bool] = lambda _: False
        """Whether a message says when it is due."""
        self._trace = trace
        self._fail = fail

    def look(self, log: LogHistory, sub: str, subscription: Subscription) -> None:
        """At the owner, between two steps of it."""
        settings = self.settings[sub]
        if settings.type in IN_ORDER:
            self._watch(log, sub, subscription._dispatcher)
        leases = subscription._dispatcher._lease_of
        holders = {lease.consumer.name: None for lease in leases.values()}
        if settings.type == "failover" and len(holders) > 1:
            self._fail(f"S13 {log.name} {sub}: {list(holders)} hold messages at the same time")
        if settings.type == "key_shared":
            self._look_at_keys(log, sub, subscription)

    def _watch(self, log: LogHistory, sub: str, dispatcher: Dispatcher) -> None:
        """At each hand-out from now on: afterwards others may have been given back."""
        if "dispatch" in vars(dispatcher):
            return
        dispatch = dispatcher.dispatch

        def checked(*args: Any) -> DispatchedBatch | None:
            found = dispatch(*args)
            if found is not None and dispatcher._delayed:
                first = min(offset for _, offset in dispatcher._delayed)
                self._trace.probe("topic.order_waits")
                if first < found.offsets[-1]:
                    self._fail(
                        f"S13 {log.name} {sub}: offset {found.offsets[-1]} is handed out, and "
                        f"{first} before it waits for its delay"
                    )
            return found

        vars(dispatcher)["dispatch"] = checked

    def _look_at_keys(self, log: LogHistory, sub: str, subscription: Subscription) -> None:
        leases, is_acked = subscription._dispatcher._lease_of, subscription._cursor.is_acked
        spent = subscription._dispatcher._spent
        given_up = {**spent._waiting, **spent._under_way}
        of_key: dict[bytes, tuple[str, int]] = {}
        behind: dict[bytes, int] = {}
        for offset, message in sorted(log.at.items()):
            key = self.key_of(message.value)
            if key is None or is_acked(offset) or offset in given_up:
                continue
            lease = leases.get(offset)
            if lease is None:
                if not self.waits(message.value):
                    behind.setdefault(key, offset)
                continue
            if self.waits(message.value):
                self._trace.probe("topic.delayed_key_out")
            who = (lease.consumer.name, lease.number)
            if key in behind:
                self._fail(
                    f"S13 {log.name} {sub}: offset {offset} of key {key!r} is out at {who[0]}, and "
                    f"{behind[key]} before it is neither out nor acked"
                )
            if of_key.setdefault(key, who) != who:
                self._fail(
                    f"S13 {log.name} {sub}: offset {offset} of key {key!r} is out at {who}, others "
                    f"of the key at {of_key[key]}"
                )
        if len(of_key) > 1:
            self._trace.probe("topic.keys_out")

    def passes(self, sub: str, value: str) -> bool:
        """Whether the message is the subscription's; one that nobody has seen may not be."""
        prefix = self.settings[sub].filter_key_prefix
        if not value:
            return prefix is None
        key = self.key_of(value)
        return prefix is None or (key is not None and key.startswith(prefix.encode()))

    def order_of(self, sub: str, value: str) -> bytes | None:
        """In which order a message comes first: its key's, or that of all of them."""
        return self.key_of(value) if self.settings[sub].type == "key_shared" else b""

    def given(self, log: LogHistory, sub: str, offset: int, value: str) -> None:
        """Somebody was given this."""
        if not self.passes(sub, value):
            self._fail(f"S13 {log.name} {sub}: offset {offset}, {value!r}, is not its own")

    def held_up(self, log: LogHistory, sub: str, held: int, left: Mapping[int, str]) -> None:
        """A consumer holds the message at offset `held`, another one asked: these were left."""
        mine = self.key_of(log.at[held].value)
        for offset, value in left.items():
            if self.waits(value):
                continue  # it may not be due
            if self.passes(sub, value) and (mine is None or self.key_of(value) != mine):
                self._fail(
                    f"S13 {log.name} {sub}: offset {held} of key {mine!r} is out, and nobody gets "
                    f"offset {offset} of key {self.key_of(value)!r}"
                )
