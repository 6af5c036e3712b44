"""Keep consumer groups in memory, and decide which broker coordinates which group.

The live broker with the highest weight for the group's name (rendezvous hashing). If two brokers
disagree for a while, both keep the group; its generations ensure that no partition is given out
twice unnoticed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from typing import Protocol

from octavo.broker.errors import GROUP_FULL
from octavo.broker.groups.group import Group, GroupNow, Membership, State
from octavo.broker.types import BrokerInfo, GroupName, PartitionName

_SHARE_OF_A_PRINCIPAL = 4
WAITS_PER_SESSION = 2
"""Divides the session timeout to bound a wait, so that waiting members do not expire."""


class Limits(Protocol):
    @property
    def groups_max(self) -> int: ...

    @property
    def group_members_max(self) -> int: ...

    @property
    def group_partitions_max(self) -> int: ...


def coordinator_of(name: GroupName, brokers: Sequence[BrokerInfo]) -> BrokerInfo | None:
    text = "/".join(name)
    return max(
        brokers,
        key=lambda one: hashlib.blake2b(f"{one.broker_id} {text}".encode()).digest(),
        default=None,
    )


class KeptGroup:
    def __init__(self, members_max: int, founder: str) -> None:
        self.group = Group(members_max)
        self.founder = founder
        self._changed = asyncio.Event()
        self._assigning: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, int]:
        return {"assigning": int(self._assigning is not None)}

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def go_on(self) -> None:
        if self.group.is_assigning and self._assigning is None:
            self._assigning = asyncio.ensure_future(self._assign())
            self._assigning.add_done_callback(self._assigned)

    def stop(self) -> None:
        if self._assigning is not None:
            self._assigning.cancel()
        self.wake()

    async def _assign(self) -> None:
        while self.group.assign():  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _assigned(self, task: asyncio.Task[None]) -> None:
        self._assigning = None
        if task.cancelled():
            return
        task.result()
        self.wake()

    async def changes(self, until_ms: int) -> None:
        event_ms = self.group.next_event_ms()
        if event_ms is not None:
            until_ms = min(until_ms, event_ms)
        changed = self._changed
        try:
            async with asyncio.timeout(max(0.001, (until_ms - now_ms() + 1) / 1000)):
                await changed.wait()
        except TimeoutError:
            pass
        if self.group.tick(now_ms()):
            self.wake()


class Groups:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: dict[GroupName, KeptGroup] = {}
        self._is_stopping = False

    def find(self, name: GroupName) -> KeptGroup | None:
        return self._kept.get(name)

    def open(self, name: GroupName, founder: str = "") -> KeptGroup:
        """Return the group, made if new; raise `GROUP_FULL`.

        A principal, the `founder`, may found at most a quarter of all groups.
        """
        found = self._kept.get(name)
        if found is None:
            if self._no_room(founder):
                self._forget_empty()
            if refusal := self._no_room(founder):
                raise GROUP_FULL(refusal)
            found = self._kept[name] = KeptGroup(self.limits.group_members_max, founder)
        return found

    def founded_by(self, principal: str) -> int:
        return sum(one.founder == principal for one in self._kept.values())

    def of_namespace(self, namespace: str) -> int:
        return sum(name.namespace == namespace for name in self._kept)

    def stop(self) -> None:
        self._is_stopping = True
        for kept in tuple(self._kept.values()):
            kept.stop()

    async def heartbeat(
        self,
        name: GroupName,
        member: str,
        principal: str,
        wants: Collection[PartitionName],
        holds: frozenset[PartitionName],
        *,
        generation: int,
        session_ms: int,
        wait_ms: int,
        founder: str = "",
    ) -> Membership:
        """Wait until the member should hold other partitions."""
        kept = self.open(name, founder)
        group = kept.group
        has_changed = group.beat(
            member, principal, wants, holds,
            generation=generation, session_ms=session_ms, now_ms=now_ms(),
        )  # fmt: skip
        if has_changed:  # else each call of a member would wake all others
            kept.wake()
        until_ms = now_ms() + min(wait_ms, session_ms // WAITS_PER_SESSION)
        while True:
            given = group.given(member, now_ms())
            kept.go_on()
            if frozenset(given) != holds or member not in group.members:
                break
            if self._is_stopping or now_ms() >= until_ms:
                break
            await kept.changes(until_ms)
        return Membership(group.generation, given, len(group.members))

    def leave(self, name: GroupName, member: str, principal: str) -> None:
        kept = self._kept.get(name)
        if kept is not None and kept.group.leave(member, principal):
            kept.wake()

    def describe_group(self, name: GroupName) -> GroupNow:
        kept = self._kept.get(name)
        if kept is None:
            return GroupNow(State.EMPTY, 0, [])
        now = now_ms()
        if kept.group.tick(now):
            kept.wake()
        return kept.group.now(now)

    def _no_room(self, founder: str) -> str:
        most = self.limits.groups_max
        if len(self._kept) >= most:
            return (
                f"this broker keeps {len(self._kept)} consumer groups already, the most it may "
                "(groups_max)"
            )
        share = max(1, most // _SHARE_OF_A_PRINCIPAL)
        if founder and len(self._kept) >= share:
            founded = self.founded_by(founder)
            if founded >= share:
                return (
                    f"{founder} has founded {founded} consumer groups here, the most that one "
                    f"principal may: a part of the {most} of all (groups_max)"
                )
        return ""

    def _forget_empty(self) -> None:
        for name, kept in tuple(self._kept.items()):
            kept.group.tick(now_ms())
            if not kept.group.members:
                kept.group.forget()
                kept.wake()
                del self._kept[name]


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
