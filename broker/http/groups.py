"""The consumer groups that this broker keeps, in memory; and which broker keeps which.

The live brokers agree on that without asking each other: the one of the highest weight for the
group's name (rendezvous hashing). When two disagree for a while, both keep it, and the group's
generations see to it that no partition is given out twice unseen (subscriptions/group.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from octavo.broker.errors import GroupFull
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.gate import Wakes
from octavo.broker.subscriptions.group import Group
from octavo.broker.types import BrokerInfo

_SHARE_OF_A_PRINCIPAL = 4
GroupName = tuple[str, str]
"""Namespace, and the name of its subscriptions."""


def keeper_of(name: GroupName, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """Who of the live brokers keeps the group. Pure."""
    text = "/".join(name)
    return max(
        brokers,
        key=lambda one: hashlib.blake2b(f"{one.broker_id} {text}".encode()).digest(),
    )


class KeptGroup:
    """A group, and those who wait for it to change."""

    def __init__(self, members_max: int, founder: str) -> None:
        """`founder`: the principal whose member was the first; empty where no one is known."""
        self.group = Group(members_max)
        self.wakes = Wakes()
        self.founder = founder


class Groups:
    """All that this broker keeps."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._kept: dict[GroupName, KeptGroup] = {}

    def find(self, name: GroupName) -> KeptGroup | None:
        """None when it has no members here."""
        return self._kept.get(name)

    def open(self, name: GroupName, founder: str = "") -> KeptGroup:
        """The group, without members if it is new. Raises `GroupFull` for one group too many.

        `founder`: the principal that would be its first member, empty if it is not known. A
        principal may have founded a quarter of all groups, so that none takes all places.
        """
        found = self._kept.get(name)
        if found is None:
            if self._no_room(founder):
                self._forget_empty()
            if refusal := self._no_room(founder):
                raise GroupFull(refusal)
            found = self._kept[name] = KeptGroup(self._config.group_members_max, founder)
        return found

    def founded_by(self, principal: str) -> int:
        """How many groups a principal's member was the first of."""
        return sum(one.founder == principal for one in self._kept.values())

    def of_namespace(self, namespace: str) -> int:
        """How many groups of a namespace there are here."""
        return sum(name[0] == namespace for name in self._kept)

    def _no_room(self, founder: str) -> str:
        """Why there may be no further group; empty when there may."""
        most = self._config.groups_max
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
            kept.group.expire(now_ms())
            if not kept.group.members:
                del self._kept[name]


def now_ms() -> int:
    """Of the clock that groups go by."""
    return int(asyncio.get_running_loop().time() * 1000)
