"""Whose turn it is among the consumers of a subscription that has several. Pure.

- `shared`: whoever asks, unless one of a better priority waits for messages too.
- `key_shared`: those of the best priority that are able to take something; they share the slots.
- `failover`: one at a time. Of those of the best priority that are there, by name, each partition
  takes another one. Whoever was it before keeps what it has until that is acked, back, or over its
  lease; until then nobody gets more.

Consumers have no session. One is *there* while a call of its waits, while it holds messages, and
for `timeout_ms` after its last call. It is *able* while a call of its waits that has room for
messages, and as long after it: one that takes nothing any more is not waited for, though it may be
at work on what it has. Priorities are as in Pulsar and NATS: 0 is the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.broker.types import SubscriptionType


class Consumer:
    """What is known of a consumer: how many messages it holds, and when it was last heard of."""

    __slots__ = ("able_ms", "full", "leased", "name", "priority", "seen_ms", "waiting")

    def __init__(self, name: str, seen_ms: int) -> None:
        self.name = name
        self.seen_ms = seen_ms
        self.leased = 0
        self.priority = 0
        self.waiting = 0
        """Calls to receive that wait for messages."""
        self.full = False
        """It holds as many as it may."""
        self.able_ms: int | None = None
        """When it could last take something."""


class Turns:
    """Of one subscription in one partition; `number`: of the partition."""

    def __init__(self, type_: SubscriptionType, timeout_ms: int, number: int) -> None:
        self._type = type_
        self._timeout_ms = timeout_ms
        self._number = number
        self.active: Consumer | None = None
        """Of a failover subscription."""
        self.next: Consumer | None = None
        """Who is to take over once the active one holds nothing; None: nobody waits for that."""
        self.members: tuple[str, ...] = ()
        """Of a key-shared one: who shares the slots."""
        self.changes_ms: int | None = None
        """When somebody is not counted any more, unless heard of before."""

    def look(self, consumers: Mapping[str, Consumer], now_ms: int) -> None:
        """Who is there now."""
        self.changes_ms = None
        if self._type == "key_shared":
            able = self._best([one for one in consumers.values() if self._is_able(one, now_ms)])
            self.members = tuple(sorted(one.name for one in able))
        elif self._type == "failover":
            there = self._best([one for one in consumers.values() if self._is_there(one, now_ms)])
            self._elect(sorted(there, key=lambda one: one.name))

    def waits_for(self, mine: Consumer, consumers: Iterable[Consumer]) -> str | None:
        """Why it is not this one's turn, as `look` found it; None: it is."""
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
            return f"consumer {mine.name!r} asks for no messages any more, so it has no keys"
        if self._type == "failover" and self.active is not mine:
            assert self.active is not None  # whoever asks is there
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
    """One of a better priority, that waits for messages or is named."""
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
