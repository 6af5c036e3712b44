"""Decide whose turn it is among the consumers of a subscription. Pure.
- `shared`: any consumer that asks, unless a consumer of better priority waits for messages too.
- `key_shared`: the consumers of the best priority that can take messages; they share the slots.
- `failover`: one consumer at a time. The consumers of the best priority are sorted by name, and the
  partition's number picks one. If the active consumer changes, no consumer gets messages until the
  former one has acked or given back all of its messages, or their leases end.

A consumer is *there* while its call waits, while it holds messages, and for `timeout_ms` after its
last call. It is *able* while its call waits and it may take more messages, and for `timeout_ms`
after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.broker.types import SubscriptionType


class Consumer:
    __slots__ = ("able_ms", "full", "leased", "name", "priority", "seen_ms", "waiting")

    def __init__(self, name: str, seen_ms: int) -> None:
        self.name = name
        self.seen_ms = seen_ms
        self.leased = 0
        self.priority = 0
        self.waiting = 0
        self.full = False
        self.able_ms: int | None = None


class ConsumerSelection:
    def __init__(self, type_: SubscriptionType, timeout_ms: int, number: int) -> None:
        self._type = type_
        self._timeout_ms = timeout_ms
        self._number = number
        self.active: Consumer | None = None
        self.next: Consumer | None = None
        self.members: tuple[str, ...] = ()
        self.changes_ms: int | None = None

    def look(self, consumers: Mapping[str, Consumer], now_ms: int) -> None:
        self.changes_ms = None
        if self._type == "key_shared":
            able = self._best([one for one in consumers.values() if self._is_able(one, now_ms)])
            self.members = tuple(sorted(one.name for one in able))
        elif self._type == "failover":
            there = self._best([one for one in consumers.values() if self._is_there(one, now_ms)])
            self._elect(sorted(there, key=lambda one: one.name))

    def waits_for(self, mine: Consumer, consumers: Iterable[Consumer]) -> str | None:
        if self._type == "shared" and (better := _better(mine, consumers)) is not None:
            return (
                f"consumer {better.name!r} of priority {better.priority} waits for messages, and "
                f"{mine.name!r} has priority {mine.priority}"
            )
        if self._type == "key_shared" and mine.name not in self.members:
            if (better := _better(mine, consumers, self.members)) is not None:
                return (
                    f"the keys are shared by consumers of priority {better.priority}, "
                    f"{better.name!r} among them; {mine.name!r} has priority {mine.priority}"
                )
            if mine.full and mine.leased:
                return f"consumer {mine.name!r} holds as many messages as it may"
            return f"consumer {mine.name!r} no longer asks for messages, so it has no keys"
        if self._type == "failover" and self.active is not mine:
            assert self.active is not None  # `mine` counts, so one is active
            return f"consumer {self.active.name!r} is the active one; {mine.name!r} stands by" + (
                ""
                if self.next is not mine
                else f", and takes over: {self.active.name!r} still "
                f"holds {self.active.leased} messages"
            )
        if self._type == "failover" and self.next is not None:
            return (
                f"consumer {self.next.name!r} takes over: {mine.name!r} gets no more, and holds "
                f"{mine.leased} messages"
            )
        return None

    def _elect(self, there: list[Consumer]) -> None:
        chosen = there[self._number % len(there)] if there else None
        if chosen is None or chosen is self.active:
            self.next = None
        elif self.active is None or self.active.leased == 0:
            self.active, self.next = chosen, None
        else:
            self.next = chosen

    def _best(self, those: list[Consumer]) -> list[Consumer]:
        best = min((one.priority for one in those), default=0)
        return [one for one in those if one.priority == best]

    def _is_able(self, one: Consumer, now_ms: int) -> bool:
        if one.waiting and not one.full:
            return True
        return one.able_ms is not None and self._lasts(one.able_ms, now_ms)

    def _is_there(self, one: Consumer, now_ms: int) -> bool:
        if one.waiting or one.leased:
            return True
        return self._lasts(one.seen_ms, now_ms)

    def _lasts(self, since_ms: int, now_ms: int) -> bool:
        until_ms = since_ms + self._timeout_ms
        if now_ms >= until_ms:
            return False
        self.changes_ms = until_ms if self.changes_ms is None else min(self.changes_ms, until_ms)
        return True


def _better(
    mine: Consumer, consumers: Iterable[Consumer], names: tuple[str, ...] | None = None
) -> Consumer | None:
    if not mine.priority:
        return None
    return min(
        (
            one
            for one in consumers
            if one.priority < mine.priority
            and (one.name in names if names is not None else one.waiting and not one.full)
        ),
        key=lambda one: (one.priority, one.name),
        default=None,
    )
