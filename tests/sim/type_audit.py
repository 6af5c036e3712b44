"""The referee of subscription types: checks the owner's leases, and that each message is delivered.

It looks at the owner's leases after each receive and each ack, and uses the keys that were sent,
not the broker's. So neither a lost answer nor a dead consumer makes it unsure. S13: the leased
messages of a key are its first unacked ones, at one consumer, from one hand-out. All leased
messages of a failover subscription are at one consumer. A subscription that keeps the partition's
order (failover, exclusive) delivers nothing while an earlier message waits for its delay. A message
with a due time joins its key when it is due, and holds up no other message before. A filtered
message is never delivered. No key waits for another key.
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
        """Whether a message has a due time."""
        self._trace = trace
        self._fail = fail

    def look(self, log: LogHistory, sub: str, subscription: Subscription) -> None:
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
        """Whether the message belongs to the subscription; an unknown message may not."""
        prefix = self.settings[sub].filter_key_prefix
        if not value:
            return prefix is None
        key = self.key_of(value)
        return prefix is None or (key is not None and key.startswith(prefix.encode()))

    def order_of(self, sub: str, value: str) -> bytes | None:
        """Return the order that a message belongs to: its key's, or that of all messages."""
        return self.key_of(value) if self.settings[sub].type == "key_shared" else b""

    def given(self, log: LogHistory, sub: str, offset: int, value: str) -> None:
        if not self.passes(sub, value):
            self._fail(f"S13 {log.name} {sub}: offset {offset}, {value!r}, is not its own")

    def held_up(self, log: LogHistory, sub: str, held: int, left: Mapping[int, str]) -> None:
        mine = self.key_of(log.at[held].value)
        for offset, value in left.items():
            if self.waits(value):
                continue  # it may not be due
            if self.passes(sub, value) and (mine is None or self.key_of(value) != mine):
                self._fail(
                    f"S13 {log.name} {sub}: offset {held} of key {mine!r} is out, and nobody gets "
                    f"offset {offset} of key {self.key_of(value)!r}"
                )
